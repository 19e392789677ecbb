// Package enginetls says how engines are reached over TLS: what the annotations of a pod ask for, in
// a form that the routing table carries and that clients configure themselves by. It does no I/O.
package enginetls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"unique"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The annotations. They are the pod's: of the runtime's spec.annotations, the InferenceService or the
// component, and change with the engine's own options, so that each revision has those it was
// written with.
const (
	// Annotation says that the engine speaks TLS on its ports for HTTP and gRPC: Verify, SkipVerify,
	// or Off. Without it that is Verify where one of the others is there, else Off.
	Annotation = "stationmaster.dev/engine-tls"
	// RootsAnnotation holds the certificates, as PEM, that the engine's is signed by. Without it they
	// are those that the gateway's machine or image trusts.
	RootsAnnotation = "stationmaster.dev/engine-ca"
	// ConfigMapAnnotation names a config map of the service's namespace that holds them instead, under
	// ca.crt, or under another key behind a slash. It is looked up where revisions are made, so that
	// pods have RootsAnnotation.
	ConfigMapAnnotation = "stationmaster.dev/engine-ca-configmap"
	// NameAnnotation is the name that the engine's certificate must be for. Without it that is the
	// one of the component in the cluster, as in iris-predictor.default.svc.
	NameAnnotation = "stationmaster.dev/engine-server-name"

	Verify     = "verify"
	SkipVerify = "skip-verify"
	Off        = "off"
)

// TLS says how an engine proves itself.
type TLS struct {
	// ServerName is the name that its certificate must be for.
	ServerName string
	// Roots are the certificates, as PEM, one of which it must be signed by; empty means those that
	// the machine trusts.
	Roots string
	// SkipVerify takes any certificate: who only listens learns nothing, but the engine proves nothing.
	SkipVerify bool
}

// Security is a TLS that is cheap to compare, so that it can be part of a key. The zero Security is
// a connection without TLS.
type Security struct{ of unique.Handle[TLS] }

// Of returns the Security of a TLS; those of equal ones are equal.
func Of(t TLS) Security { return Security{unique.Make(t)} }

// Parse reads a pod's annotations; name is the server's name where they have none. The error is
// errdef.ErrInvalid and says which annotation is wrong.
func Parse(annotations map[string]string, name string) (Security, error) {
	mode, roots := strings.TrimSpace(annotations[Annotation]), strings.TrimSpace(annotations[RootsAnnotation])
	own := strings.TrimSpace(annotations[NameAnnotation])
	if err := certificates(roots); err != nil {
		return Security{}, invalid("%s: %v", RootsAnnotation, err)
	}
	switch {
	case mode == Off, mode == "" && roots == "" && own == "":
		return Security{}, nil
	case mode == SkipVerify:
		roots = "" // a runtime's, which a service overrides
	case mode != Verify && mode != "":
		return Security{}, invalid("%s must be %q, %q or %q", Annotation, Verify, SkipVerify, Off)
	}
	if own != "" {
		name = own
	}
	return Of(TLS{ServerName: name, Roots: roots, SkipVerify: mode == SkipVerify}), nil
}

// Check reports what is wrong with annotations that were written in one place, as Parse does, and
// where one of them makes another void.
func Check(annotations map[string]string) error {
	if _, err := Parse(annotations, ""); err != nil {
		return err
	}
	mode := strings.TrimSpace(annotations[Annotation])
	_, roots := annotations[RootsAnnotation]
	if where, ok := annotations[ConfigMapAnnotation]; ok {
		if roots {
			return invalid("%s and %s both say which certificates: keep one", RootsAnnotation, ConfigMapAnnotation)
		}
		if name, key := ConfigMap(where); name == "" || key == "" {
			return invalid("%s must name a config map of the namespace, or <name>/<key>, not %q", ConfigMapAnnotation, where)
		}
		if mode == SkipVerify || mode == Off {
			return invalid("%s is of no use where %s is %q", ConfigMapAnnotation, Annotation, mode)
		}
	}
	_, name := annotations[NameAnnotation]
	if roots && (mode == SkipVerify || mode == Off) || name && mode == Off {
		return invalid("%s and %s are of no use where %s is %q", RootsAnnotation, NameAnnotation, Annotation, mode)
	}
	return nil
}

// ConfigMap parts a ConfigMapAnnotation's value. One of the two is empty where it names none.
func ConfigMap(value string) (name, key string) {
	name, key, has := strings.Cut(strings.TrimSpace(value), "/")
	if !has {
		key = "ca.crt"
	}
	if strings.Contains(key, "/") {
		key = ""
	}
	return name, key
}

func invalid(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, fmt.Sprintf(format, args...))
}

// certificates reports what keeps a text from being certificates as PEM, one or more.
func certificates(text string) error {
	for rest := []byte(text); len(rest) > 0; {
		block, next := pem.Decode(rest)
		if block == nil {
			return fmt.Errorf("it must be certificates as PEM, not %.20q", rest)
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it must be certificates alone, not a %s", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("a certificate can't be read: %w", err)
		}
		rest = []byte(strings.TrimSpace(string(next)))
	}
	return nil
}

// Equal reports whether both reach engines alike.
func (s Security) Equal(other Security) bool { return s == other }

// On reports whether the engine is reached over TLS.
func (s Security) On() bool { return s != Security{} }

// Scheme is that of the engine's URLs.
func (s Security) Scheme() string {
	if s.On() {
		return "https"
	}
	return "http"
}

// Config returns a new configuration of a client, nil without TLS. Roots in which there is no
// certificate trust nobody.
func (s Security) Config() *tls.Config {
	if !s.On() {
		return nil
	}
	t := s.of.Value()
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.SkipVerify} //nolint:gosec // where a manifest says so
	if t.Roots != "" {
		cfg.RootCAs = x509.NewCertPool()
		cfg.RootCAs.AppendCertsFromPEM([]byte(t.Roots))
	}
	return cfg
}
