package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of one cluster.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	// PEM is the authority's certificate.
	PEM []byte
	// serial is the number of the last certificate.
	serial int64
}

// identity is a certificate and its key, each as PEM.
type identity struct {
	Certificate, Key []byte
}

// A cluster lives for the length of a test.
const validity = 24 * time.Hour

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	a := &authority{key: key, serial: 1, certificate: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(validity),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority: %w", err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, nil
}

// client returns the identity of a user and its groups, as Kubernetes reads them.
func (a *authority) client(user string, groups ...string) (identity, error) {
	return a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server returns the identity of a server under these names and addresses.
func (a *authority) server(names []string, addresses ...string) (identity, error) {
	c := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		c.IPAddresses = append(c.IPAddresses, net.ParseIP(address))
	}
	return a.sign(c)
}

func (a *authority) sign(c *x509.Certificate) (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, fmt.Errorf("make the key of %s: %w", c.Subject.CommonName, err)
	}
	a.serial++
	c.SerialNumber = big.NewInt(a.serial)
	c.NotBefore, c.NotAfter = a.certificate.NotBefore, a.certificate.NotAfter
	c.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, c, a.certificate, key.Public(), a.key)
	if err != nil {
		return identity{}, fmt.Errorf("sign %s: %w", c.Subject.CommonName, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return identity{}, fmt.Errorf("encode the key of %s: %w", c.Subject.CommonName, err)
	}
	return identity{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// write writes the identity to name.crt and name.key in dir.
func (i identity) write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), i.Certificate, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), i.Key, 0o600)
}
