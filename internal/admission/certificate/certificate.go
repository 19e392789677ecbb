// Package certificate makes and renews the certificates that a webhook proves itself with: an
// authority of its own, known to those who call, and a leaf that it signs.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// How long what is made lasts, and how long before its end it is made anew. An authority that is
// near its end signs nothing that outlives it.
const (
	authorityLife   = 5 * 365 * 24 * time.Hour
	authorityBefore = 180 * 24 * time.Hour
	leafLife        = 90 * 24 * time.Hour
	leafBefore      = 30 * 24 * time.Hour
	// spread is how long a new authority is only trusted before it signs: callers have to hear
	// of it first.
	spread = 24 * time.Hour
	// skew is how far behind the clock of a caller may be.
	skew = 10 * time.Minute
)

// Set is everything that is kept, each part as PEM; the zero value is a set before its first
// Renew.
type Set struct {
	// Authorities are the certificates that callers trust, the newest first.
	Authorities []byte
	// AuthorityKey is the newest authority's.
	AuthorityKey []byte
	// Leaf is what the server shows, and LeafKey its key.
	Leaf, LeafKey []byte
}

// Renew returns the set as it has to be now: parts that are missing, can't be read, name other
// hosts or near their end are made anew, and changed says whether any was. A new authority joins
// those before it, and signs the leaf a day later, unless there is no leaf to go on with.
func Renew(have Set, hosts []string, now time.Time) (renewed Set, changed bool, err error) {
	next := have
	authorities := live(have.Authorities, now)
	key, keyErr := readKey(have.AuthorityKey)
	if keyErr != nil || len(authorities) == 0 || !key.PublicKey.Equal(authorities[0].PublicKey) || now.Add(authorityBefore).After(authorities[0].NotAfter) {
		made, signer, err := issue(&x509.Certificate{
			Subject: pkix.Name{CommonName: "stationmaster webhook authority"}, NotAfter: now.Add(authorityLife),
			IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		}, nil, nil, now)
		if err != nil {
			return Set{}, false, err
		}
		authorities, key, changed = append([]*x509.Certificate{made}, authorities...), signer, true
		if next.AuthorityKey, err = writeKey(key); err != nil {
			return Set{}, false, err
		}
	}
	next.Authorities = writeCertificates(authorities)
	if !serves(have, authorities, hosts, now) {
		made, signer, err := issue(&x509.Certificate{
			Subject: pkix.Name{CommonName: hosts[0]}, DNSNames: hosts, NotAfter: now.Add(leafLife),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, authorities[0], key, now)
		if err != nil {
			return Set{}, false, err
		}
		next.Leaf = writeCertificates([]*x509.Certificate{made})
		if next.LeafKey, err = writeKey(signer); err != nil {
			return Set{}, false, err
		}
		changed = true
	}
	return next, changed, nil
}

// serves reports whether a set's leaf can go on.
func serves(s Set, authorities []*x509.Certificate, hosts []string, now time.Time) bool {
	pair, err := tls.X509KeyPair(s.Leaf, s.LeafKey)
	if err != nil {
		return false
	}
	leaf := pair.Leaf
	if now.Before(leaf.NotBefore) || now.Add(leafBefore).After(leaf.NotAfter) ||
		slices.ContainsFunc(hosts, func(h string) bool { return leaf.VerifyHostname(h) != nil }) {
		return false
	}
	newest := authorities[0]
	if leaf.CheckSignatureFrom(newest) == nil {
		return true
	}
	return now.Before(newest.NotBefore.Add(skew+spread)) &&
		slices.ContainsFunc(authorities[1:], func(a *x509.Certificate) bool { return leaf.CheckSignatureFrom(a) == nil })
}

// issue makes a key and a certificate for it, signed by the parent or, without one, by itself.
func issue(template, parent *x509.Certificate, by *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("make a serial number: %w", err)
	}
	template.NotBefore = now.Add(-skew)
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}

// live reads certificates, and leaves out what isn't one and what has ended.
func live(text []byte, now time.Time) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && now.Before(c.NotAfter) {
			out = append(out, c)
		}
	}
}

func writeCertificates(list []*x509.Certificate) (text []byte) {
	for _, c := range list {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

func readKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key in PEM")
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

func writeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
