package enginetls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestAnnotationsSayHowAnEngineIsReached(t *testing.T) {
	ca, own := certificate(t), "iris-predictor.default.svc"
	trimmed := ca[:len(ca)-1]
	key := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("x")}))
	for name, tc := range map[string]struct {
		mode, roots, name string // empty: isn't there
		want              TLS    // zero for no TLS
		bad, void         bool   // bad is never taken, void only where it comes from two places
	}{
		"nothing asks for TLS":                       {},
		"off":                                        {mode: "off"},
		"verified by what the machine trusts":        {mode: "verify", want: TLS{ServerName: own}},
		"verified by an authority":                   {mode: "verify", roots: ca, want: TLS{ServerName: own, Roots: trimmed}},
		"an authority alone asks for TLS":            {roots: ca, want: TLS{ServerName: own, Roots: trimmed}},
		"a name alone asks for TLS":                  {name: "wine", want: TLS{ServerName: "wine"}},
		"two authorities":                            {roots: ca + "\n" + ca, want: TLS{ServerName: own, Roots: ca + "\n" + trimmed}},
		"not verified":                               {mode: " skip-verify ", name: "wine", want: TLS{ServerName: "wine", SkipVerify: true}},
		"a service skips what its runtime verifies":  {mode: "skip-verify", roots: ca, want: TLS{ServerName: own, SkipVerify: true}, void: true},
		"a service turns off what its runtime wants": {mode: "off", roots: ca, name: "wine", void: true},
		"a word that isn't known":                    {mode: "on", bad: true},
		"an authority that isn't PEM":                {mode: "verify", roots: "my-ca", bad: true},
		"PEM with something behind it":               {roots: ca + "x", bad: true},
		"a private key":                              {roots: ca + key, bad: true},
		"a certificate that isn't one":               {roots: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{}
			for key, value := range map[string]string{Annotation: tc.mode, RootsAnnotation: tc.roots, NameAnnotation: tc.name} {
				if value != "" {
					annotations[key] = value
				}
			}
			got, err := Parse(annotations, own)
			if (err != nil) != tc.bad || err != nil && !errors.Is(err, errdef.ErrInvalid) {
				t.Fatalf("Parse: %v", err)
			}
			if err := Check(annotations); (err != nil) != (tc.bad || tc.void) {
				t.Errorf("Check: %v", err)
			}
			want := Security{}
			if tc.want != want.tls() {
				want = Of(tc.want)
			}
			if got != want {
				t.Errorf("got %+v", got.tls())
			}
			cfg := got.Config()
			switch {
			case (cfg != nil) != got.On() || (got.Scheme() == "https") != got.On():
				t.Errorf("config %v, scheme %s", cfg, got.Scheme())
			case cfg != nil && (cfg.ServerName != tc.want.ServerName || cfg.InsecureSkipVerify != tc.want.SkipVerify || (cfg.RootCAs != nil) != (tc.want.Roots != "")):
				t.Errorf("config %+v", cfg)
			}
		})
	}
}

// tls is what a Security stands for.
func (s Security) tls() TLS {
	if !s.On() {
		return TLS{}
	}
	return s.of.Value()
}

func FuzzParse(f *testing.F) {
	f.Add("verify", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", "")
	f.Fuzz(func(t *testing.T, mode, roots, name string) {
		s, err := Parse(map[string]string{Annotation: mode, RootsAnnotation: roots, NameAnnotation: name}, "own")
		if err != nil && s.On() {
			t.Error("an error comes with a Security")
		}
		s.Config()
	})
}
