package kubeapi

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"stationmaster.dev/stationmaster/internal/errdef"
)

const (
	caLifetime     = 10 * 365 * 24 * time.Hour
	servingLife    = 398 * 24 * time.Hour // what browsers and Apple's TLS accept at most
	renewBefore    = 60 * 24 * time.Hour
	clockSkew      = 10 * time.Minute
	adminUser      = "stationmaster-admin"
	contextName    = "stationmaster"
	secretMode     = 0o600
	privateDirMode = 0o700
)

// credentials are what the API proves itself with and knows its administrator by.
type credentials struct {
	caPEM      []byte
	certPEM    []byte
	keyPEM     []byte
	adminToken string
}

// loadCredentials reads the credentials in dir, or makes those that are missing or near their
// end. The authority and the token are made once; the serving certificate is renewed as needed
// and whenever hosts has a name that it lacks.
func loadCredentials(dir string, hosts []string, now time.Time) (*credentials, error) {
	if err := os.MkdirAll(dir, privateDirMode); err != nil {
		return nil, fmt.Errorf("make the directory of the API's keys: %w", err)
	}
	caCert, caKey, err := loadPair(filepath.Join(dir, "ca"))
	if err != nil {
		return nil, err
	}
	if caCert == nil || now.Add(renewBefore).After(caCert.NotAfter) {
		caCert, caKey, err = issue(filepath.Join(dir, "ca"), &x509.Certificate{
			Subject:               pkix.Name{CommonName: "stationmaster local authority"},
			NotAfter:              now.Add(caLifetime),
			IsCA:                  true,
			BasicConstraintsValid: true,
			MaxPathLenZero:        true,
			KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}, nil, nil, now)
		if err != nil {
			return nil, err
		}
	}
	cert, _, err := loadPair(filepath.Join(dir, "server"))
	if err != nil {
		return nil, err
	}
	if cert == nil || now.Add(renewBefore).After(cert.NotAfter) || cert.CheckSignatureFrom(caCert) != nil || !covers(cert, hosts) {
		leaf := &x509.Certificate{
			Subject:     pkix.Name{CommonName: "stationmaster"},
			NotAfter:    now.Add(servingLife),
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		for _, host := range hosts {
			if ip := net.ParseIP(host); ip != nil {
				leaf.IPAddresses = append(leaf.IPAddresses, ip)
			} else {
				leaf.DNSNames = append(leaf.DNSNames, host)
			}
		}
		if _, _, err := issue(filepath.Join(dir, "server"), leaf, caCert, caKey, now); err != nil {
			return nil, err
		}
	}

	c := &credentials{}
	for file, into := range map[string]*[]byte{"ca.crt": &c.caPEM, "server.crt": &c.certPEM, "server.key": &c.keyPEM} {
		if *into, err = os.ReadFile(filepath.Join(dir, file)); err != nil {
			return nil, fmt.Errorf("read the API's keys: %w", err)
		}
	}
	c.adminToken, err = loadToken(filepath.Join(dir, "admin.token"))
	return c, err
}

// loadToken reads the token in path, or writes a new one of 256 random bits there.
func loadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(b))) >= 40 {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the admin token: %w", err)
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make the admin token: %w", err)
	}
	token := base64.RawURLEncoding.EncodeToString(raw)
	return token, writeFile(path, []byte(token+"\n"))
}

func covers(cert *x509.Certificate, hosts []string) bool {
	return !slices.ContainsFunc(hosts, func(h string) bool { return cert.VerifyHostname(h) != nil })
}

// loadPair reads base.crt and base.key; nil without error where either is absent.
func loadPair(base string) (*x509.Certificate, crypto.Signer, error) {
	certPEM, certErr := os.ReadFile(base + ".crt")
	keyPEM, keyErr := os.ReadFile(base + ".key")
	if errors.Is(certErr, fs.ErrNotExist) || errors.Is(keyErr, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, nil, fmt.Errorf("read the API's keys: %w", err)
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, fmt.Errorf("%w: %s.crt or its key isn't PEM; remove both to have new ones made", errdef.ErrInvalid, base)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s.crt: %w; remove it to have a new one made", errdef.ErrInvalid, base, err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s.key: %w; remove it to have a new one made", errdef.ErrInvalid, base, err)
	}
	return cert, key, nil
}

// issue makes a key and a certificate for it, signed by the parent or, without one, by itself,
// and writes both beside base.
func issue(base string, tmpl, parent *x509.Certificate, parentKey crypto.Signer, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key for %s: %w", base, err)
	}
	if tmpl.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("make a serial number for %s: %w", base, err)
	}
	tmpl.NotBefore = now.Add(-clockSkew)
	if parent == nil {
		parent, parentKey = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", base, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("write the key of %s: %w", base, err)
	}
	err = errors.Join(
		writeFile(base+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})),
		writeFile(base+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
	)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// writeKubeconfig writes a kubeconfig for the administrator of the API at addr, unless the file
// says the same already.
func writeKubeconfig(path, addr string, c *credentials) error {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[contextName] = &clientcmdapi.Cluster{Server: "https://" + addr, CertificateAuthorityData: c.caPEM}
	cfg.AuthInfos[adminUser] = &clientcmdapi.AuthInfo{Token: c.adminToken}
	cfg.Contexts[contextName] = &clientcmdapi.Context{Cluster: contextName, AuthInfo: adminUser, Namespace: "default"}
	cfg.CurrentContext = contextName
	b, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig: %w", err)
	}
	if old, err := os.ReadFile(path); err == nil && string(old) == string(b) {
		return os.Chmod(path, secretMode)
	}
	return writeFile(path, b)
}

// writeFile puts b into path at once and wholly: readers see the old content or the new, with
// mode 0600 from the start, and the new one survives a power cut.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}
