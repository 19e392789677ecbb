package admission_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"stationmaster.dev/stationmaster/internal/admission"
	"stationmaster.dev/stationmaster/internal/admission/certificate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const host = "operator.system.svc"

// installed is an API with what the manifest brings: an empty Secret, and a configuration that
// trusts nobody.
func installed(t *testing.T) client.Client {
	t.Helper()
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{corev1.AddToScheme, admissionregistrationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "webhook"}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "stationmaster"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "manifests.stationmaster.dev",
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				}},
			}},
		},
	).Build()
}

func webhook(api client.Client) *admission.Webhook {
	return admission.NewWebhook(admission.Config{
		API: api, Namespace: "system", Service: "operator", Secret: "webhook", Configuration: "stationmaster",
		Reviewer: reviewer(nil), Logger: slog.New(slog.DiscardHandler),
	})
}

func bundle(t *testing.T, api client.Client) []byte {
	t.Helper()
	var c admissionregistrationv1.ValidatingWebhookConfiguration
	if err := api.Get(t.Context(), client.ObjectKey{Name: "stationmaster"}, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Webhooks) != 1 || len(c.Webhooks[0].Rules) != 1 {
		t.Fatalf("the configuration lost what else it said: %+v", c.Webhooks)
	}
	return c.Webhooks[0].ClientConfig.CABundle
}

func TestAnAPIServerThatReadTheConfigurationCanAsk(t *testing.T) {
	api := installed(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w, done := webhook(api), make(chan error, 1)
	go func() { done <- w.Run(ctx, ln) }()
	<-w.Tried()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle(t, api))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: host}}
	resp, err := (&http.Client{Transport: transport}).Post("https://"+ln.Addr().String()+admission.Path, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("no AdmissionReview")) {
		t.Errorf("%s %v: %s", resp.Status, err, body)
	}
	resp.Body.Close()
	transport.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// silent is a listener to which nobody connects.
type silent struct{ closed chan struct{} }

func (s silent) Accept() (net.Conn, error) { <-s.closed; return nil, net.ErrClosed }
func (s silent) Close() error              { close(s.closed); return nil }
func (silent) Addr() net.Addr              { return &net.TCPAddr{} }

// run drives a webhook in the bubble of the test, and returns what ends it.
func run(t *testing.T, w *admission.Webhook) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, silent{closed: make(chan struct{})}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func secret(t *testing.T, api client.Client) *corev1.Secret {
	t.Helper()
	var s corev1.Secret
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: "webhook"}, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func TestReplicasShareACertificateAndRenewIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := installed(t)
		run(t, webhook(api))
		run(t, webhook(api))
		synctest.Wait()
		first := secret(t, api)
		if len(first.Data[corev1.TLSCertKey]) == 0 || !bytes.Equal(bundle(t, api), first.Data["ca.crt"]) {
			t.Fatalf("the Secret holds %v", first.Data)
		}
		time.Sleep(time.Hour)
		if again := secret(t, api); again.ResourceVersion != first.ResourceVersion {
			t.Error("the Secret was written again without need")
		}
	})
}

// A certificate of 90 days is renewed 30 days before its end.
func TestACertificateIsRenewedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := installed(t)
		old, _, err := certificate.Renew(certificate.Set{}, []string{host, host + ".cluster.local"}, time.Now().Add(-60*24*time.Hour+5*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		s := secret(t, api)
		s.Data = map[string][]byte{"ca.crt": old.Authorities, "ca.key": old.AuthorityKey, corev1.TLSCertKey: old.Leaf, corev1.TLSPrivateKeyKey: old.LeafKey}
		if err := api.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		run(t, webhook(api))
		synctest.Wait()
		if !bytes.Equal(secret(t, api).Data[corev1.TLSCertKey], old.Leaf) {
			t.Error("it was renewed before its time")
		}
		time.Sleep(10 * time.Minute)
		now := secret(t, api)
		if bytes.Equal(now.Data[corev1.TLSCertKey], old.Leaf) {
			t.Error("it wasn't renewed in time")
		}
		if !bytes.Equal(now.Data["ca.crt"], old.Authorities) || !bytes.Equal(bundle(t, api), old.Authorities) {
			t.Error("the authority changed with it")
		}
	})
}

func TestWhatOthersTookAwayIsPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := installed(t)
		run(t, webhook(api))
		synctest.Wait()
		good := bundle(t, api)
		var c admissionregistrationv1.ValidatingWebhookConfiguration
		if err := api.Get(t.Context(), client.ObjectKey{Name: "stationmaster"}, &c); err != nil {
			t.Fatal(err)
		}
		c.Webhooks[0].ClientConfig.CABundle = nil
		if err := api.Update(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if !bytes.Equal(bundle(t, api), good) {
			t.Error("the configuration doesn't trust the webhook again")
		}
		// An emptied Secret is how a person asks for new keys.
		s := secret(t, api)
		s.Data = nil
		if err := api.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if now := bundle(t, api); bytes.Equal(now, good) || !bytes.Equal(now, secret(t, api).Data["ca.crt"]) {
			t.Error("an emptied Secret isn't filled anew")
		}
	})
}

// An operator without its Secret works on, and has a webhook once the Secret is there.
func TestAMissingSecretIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := installed(t)
		s := secret(t, api)
		if err := api.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w := webhook(api)
		run(t, w)
		<-w.Tried()
		s.ResourceVersion = ""
		if err := api.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if len(bundle(t, api)) == 0 {
			t.Error("the webhook isn't in order")
		}
	})
}
