package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// authority signs certificates.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	// PEM is its own certificate.
	PEM string
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	a := authority{certificate: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.key, a.PEM = a.sign(t, a.certificate)
	return a
}

// sign makes a key and a certificate for it; an authority without a key signs its own.
func (a authority) sign(t *testing.T, template *x509.Certificate) (key *ecdsa.PrivateKey, certificate string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	by := a.key
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// secret makes a Secret of the type kubernetes.io/tls with a certificate for a name.
func (a authority) secret(t *testing.T, namespace, secret, name string) {
	t.Helper()
	key, certificate := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret}, Type: corev1.SecretTypeTLS,
		StringData: map[string]string{
			corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		},
	}); err != nil {
		t.Fatal(err)
	}
}

func configMap(namespace, name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
}

// testEngineTLS has engines serve TLS with certificates of Secrets, and the gateway believe those
// that prove themselves.
func (s *installation) testEngineTLS(t *testing.T) {
	ns := namespace(t, restricted)
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	authorities := configMap(ns, "authorities", map[string]string{"ours.crt": ours.PEM})
	moving := configMap(ns, "moving", map[string]string{"ca.crt": theirs.PEM})
	for _, m := range []*corev1.ConfigMap{authorities, moving} {
		if err := api.Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		// name is the certificate's; empty is the component's in the cluster.
		name        string
		annotations map[string]any
		// refused is what the answer says where the engine isn't believed.
		refused string
	}{
		"trusted":  {annotations: map[string]any{"stationmaster.dev/engine-ca": ours.PEM}},
		"rotated":  {annotations: map[string]any{"stationmaster.dev/engine-ca": theirs.PEM + ours.PEM}},
		"named":    {name: "llm.example.com", annotations: map[string]any{"stationmaster.dev/engine-ca": ours.PEM, "stationmaster.dev/engine-server-name": "llm.example.com"}},
		"mapped":   {annotations: map[string]any{"stationmaster.dev/engine-ca-configmap": "authorities/ours.crt"}},
		"skipped":  {name: "llm.example.com", annotations: map[string]any{"stationmaster.dev/engine-tls": "skip-verify"}},
		"stranger": {annotations: map[string]any{"stationmaster.dev/engine-ca": theirs.PEM}, refused: "certificate signed by unknown authority"},
		"moved":    {annotations: map[string]any{"stationmaster.dev/engine-ca-configmap": "moving"}, refused: "certificate signed by unknown authority"},
		"another":  {name: "llm.example.com", annotations: map[string]any{"stationmaster.dev/engine-ca": ours.PEM}, refused: "certificate is valid for llm.example.com, not another-predictor." + ns + ".svc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := tc.name
			if of == "" {
				of = name + "-predictor." + ns + ".svc"
			}
			ours.secret(t, ns, name, of)
			service := llm(ns, name, 1, "--ssl-certfile=/tls/tls.crt", "--ssl-keyfile=/tls/tls.key", "--max-loras=1")
			predictor, container := predictorOf(service), containerOf(service)
			annotations := predictor["annotations"].(map[string]any)
			for k, v := range tc.annotations {
				annotations[k] = v
			}
			container["readinessProbe"].(map[string]any)["httpGet"].(map[string]any)["scheme"] = "HTTPS"
			container["volumeMounts"] = []any{map[string]any{"name": "tls", "mountPath": "/tls"}}
			predictor["volumes"] = []any{map[string]any{"name": "tls", "secret": map[string]any{"secretName": name}}}
			if tc.refused == "" {
				s.serves(t, service)
				s.reachedOverTLS(t, ns, name)
				return
			}
			apply(t, service)
			t.Cleanup(func() { remove(t, service) })
			eventually(t, "the service is ready", func() error { return isReady(t, service) })
			eventually(t, "the answer tells why the engine isn't believed", func() error {
				_, err := s.below(service).ask(t.Context(), 1, "hello")
				if err == nil {
					t.Fatal("an engine that doesn't prove itself answered")
				}
				if !strings.HasPrefix(err.Error(), "503") || !strings.Contains(err.Error(), tc.refused) {
					return err
				}
				return nil
			})
			// Another authority or name makes another revision, which is believed.
			if name == "moved" {
				moving.Data["ca.crt"] = ours.PEM
				if err := api.Update(t.Context(), moving); err != nil {
					t.Fatal(err)
				}
			} else {
				annotations["stationmaster.dev/engine-ca"], annotations["stationmaster.dev/engine-server-name"] = ours.PEM, of
				apply(t, service)
			}
			eventually(t, "the right authority and name are believed", func() error {
				_, err := s.below(service).ask(t.Context(), 1, "hello")
				return err
			})
		})
	}
}

// reachedOverTLS looks at the two others who reach an engine: who has adapters loaded, and who asks
// for its metrics.
func (s *installation) reachedOverTLS(t *testing.T, ns, name string) {
	t.Helper()
	tongue := adapter(ns, name+"-tongue", name, "hf://lessons/"+name)
	apply(t, tongue)
	eventually(t, "the adapter is loaded over TLS", func() error { return isReady(t, tongue) })
	eventually(t, "a gateway reads the engine's metrics over TLS", func() error {
		for _, g := range running(t, gateway) {
			page, err := get(t.Context(), "http://"+g.Status.PodIP+":9090/metrics")
			if err != nil {
				return err
			}
			if sum(page, "stationmaster_engine_up", `namespace="`+ns+`"`, `service="`+name+`"`) != 1 {
				return fmt.Errorf("%s doesn't", g.Name)
			}
		}
		return nil
	})
}
