package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/admission/certificate"
)

// Config is what a Webhook is made from.
type Config struct {
	// API reads and writes the Secret and the webhook configuration, both of which have to be
	// there: `stationmaster install` brings them.
	API client.Client
	// Namespace is where Service and Secret are.
	Namespace string
	// Service is the Service by which the API server reaches us.
	Service string
	// Secret keeps the certificate and the authority that signed it, for all replicas.
	Secret string
	// Configuration is the ValidatingWebhookConfiguration that has to know the authority.
	Configuration string
	Reviewer      *Reviewer
	Logger        *slog.Logger
}

// Webhook serves reviews over TLS, with a certificate that it makes and renews itself. Every
// replica of the operator runs one; whichever looks first at a certificate near its end renews
// it for all.
type Webhook struct {
	cfg     Config
	current atomic.Pointer[tls.Certificate]
	tried   chan struct{}
}

// NewWebhook makes a webhook. It starts nothing.
func NewWebhook(cfg Config) *Webhook {
	return &Webhook{cfg: cfg, tried: make(chan struct{})}
}

// The keys of the Secret: those of a Secret for TLS, and the authority's own key.
const (
	keyAuthorities  = "ca.crt"
	keyAuthorityKey = "ca.key"
)

const (
	// look is how often a replica looks whether another renewed the certificate, and whether the
	// configuration still knows its authority.
	look = time.Minute
	// retry is how long it waits after that failed.
	retry = 2 * time.Second
	// drain is how long reviews under way may take when it is told to end.
	drain = 5 * time.Second
)

// Tried is closed when the certificate was looked for once, found or not: an operator that can't
// keep one works without a webhook.
func (w *Webhook) Tried() <-chan struct{} { return w.tried }

// Run serves on ln, which it closes, until ctx ends. It blocks, and has joined all it started
// when it returns. What keeps it from having a certificate is logged and tried again.
func (w *Webhook) Run(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle(Path, w.cfg.Reviewer)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(w.cfg.Logger.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return w.certificate() },
		},
	}
	served := make(chan error, 1) // holds the one answer of Serve
	go func() { served <- server.ServeTLS(ln, "", "") }()
	err := w.keep(ctx, served)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if shut := server.Shutdown(ctx); shut != nil {
		err = errors.Join(err, shut, server.Close())
	}
	if err == nil {
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			return fmt.Errorf("serve the webhook: %w", end)
		}
	}
	return err
}

func (w *Webhook) certificate() (*tls.Certificate, error) {
	if c := w.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("the webhook has no certificate yet")
}

// keep looks after the certificate until ctx ends, which is no error, or serving does.
func (w *Webhook) keep(ctx context.Context, served <-chan error) error {
	told := ""
	for first := true; ; first = false {
		wait := look
		err := w.refresh(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // being told to end is no error
		case err != nil:
			wait = retry
			if err.Error() != told {
				told = err.Error()
				w.cfg.Logger.WarnContext(ctx, "the admission webhook isn't in order, so manifests may be let in unchecked; trying again", "err", err)
			}
		case told != "":
			told = ""
			w.cfg.Logger.InfoContext(ctx, "the admission webhook is in order")
		}
		if first {
			close(w.tried)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return fmt.Errorf("serve the webhook: %w", err)
		case <-time.After(wait):
		}
	}
}

// refresh takes up the certificate of the Secret, renewed where that is due, and has the API
// server trust it.
func (w *Webhook) refresh(ctx context.Context, now time.Time) error {
	set, err := w.renew(ctx, now)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(set.Leaf, set.LeafKey)
	if err != nil {
		return fmt.Errorf("BUG: a renewed certificate can't be used: %w", err)
	}
	w.current.Store(&pair)
	return w.announce(ctx, set.Authorities)
}

// renew returns what is in the Secret, after it was brought up to date. Where another replica
// was quicker, what that one wrote counts.
func (w *Webhook) renew(ctx context.Context, now time.Time) (certificate.Set, error) {
	host := w.cfg.Service + "." + w.cfg.Namespace + ".svc"
	for {
		var secret corev1.Secret
		if err := w.cfg.API.Get(ctx, client.ObjectKey{Namespace: w.cfg.Namespace, Name: w.cfg.Secret}, &secret); err != nil {
			return certificate.Set{}, fmt.Errorf("read the Secret %s, which 'stationmaster install' makes: %w", w.cfg.Secret, err)
		}
		set, changed, err := certificate.Renew(certificate.Set{
			Authorities: secret.Data[keyAuthorities], AuthorityKey: secret.Data[keyAuthorityKey],
			Leaf: secret.Data[corev1.TLSCertKey], LeafKey: secret.Data[corev1.TLSPrivateKeyKey],
		}, []string{host, host + ".cluster.local"}, now)
		if err != nil || !changed {
			return set, err
		}
		secret.Data = map[string][]byte{
			keyAuthorities: set.Authorities, keyAuthorityKey: set.AuthorityKey,
			corev1.TLSCertKey: set.Leaf, corev1.TLSPrivateKeyKey: set.LeafKey,
		}
		err = w.cfg.API.Update(ctx, &secret)
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return certificate.Set{}, fmt.Errorf("write the Secret %s: %w", w.cfg.Secret, err)
		}
		w.cfg.Logger.InfoContext(ctx, "the admission webhook has a new certificate")
		return set, nil
	}
}

// announce writes the authorities into the webhook configuration where it has others.
func (w *Webhook) announce(ctx context.Context, authorities []byte) error {
	var have admissionregistrationv1.ValidatingWebhookConfiguration
	if err := w.cfg.API.Get(ctx, client.ObjectKey{Name: w.cfg.Configuration}, &have); err != nil {
		return fmt.Errorf("read the webhook configuration %s, which 'stationmaster install' makes: %w", w.cfg.Configuration, err)
	}
	type entry struct {
		Name         string `json:"name"`
		ClientConfig struct {
			CABundle []byte `json:"caBundle"`
		} `json:"clientConfig"`
	}
	var stale []entry
	for i := range have.Webhooks {
		if hook := &have.Webhooks[i]; !bytes.Equal(hook.ClientConfig.CABundle, authorities) {
			e := entry{Name: hook.Name}
			e.ClientConfig.CABundle = authorities
			stale = append(stale, e)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	// Webhooks are merged by name, so this leaves all else as it is.
	patch, err := json.Marshal(map[string]any{"webhooks": stale})
	if err != nil {
		return err
	}
	if err := w.cfg.API.Patch(ctx, &have, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return fmt.Errorf("have the API server trust the webhook: %w", err)
	}
	return nil
}
