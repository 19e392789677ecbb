package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
)

type (
	unstructuredObject = unstructured.Unstructured
	revisionObject     = smv1alpha1.Revision
)

// shippedDigest marks a shipped runtime with the digest of what was shipped, so that an edit
// by its owner stays until the next version of this binary ships something else.
const shippedDigest = "stationmaster.dev/shipped"

// ensureRuntime makes a runtime what this binary ships, unless somebody else made it, such as
// KServe's installation: its services rely on it as it is. Several operators may do so at one time:
// where another was quicker, it looks again.
func ensureRuntime(ctx context.Context, c client.Client, r *v1alpha1.ClusterServingRuntime) error {
	for {
		err := ensureRuntimeOnce(ctx, c, r.DeepCopy())
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
}

func ensureRuntimeOnce(ctx context.Context, c client.Client, r *v1alpha1.ClusterServingRuntime) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	digest := hex.EncodeToString(sum[:8])
	if r.Annotations == nil {
		r.Annotations = map[string]string{}
	}
	r.Annotations[shippedDigest] = digest
	var old v1alpha1.ClusterServingRuntime
	err = c.Get(ctx, client.ObjectKey{Name: r.Name}, &old)
	switch {
	case apierrors.IsNotFound(err):
		return c.Create(ctx, r)
	case err != nil:
		return err
	case old.Annotations[shippedDigest] == digest, old.Annotations[shippedDigest] == "":
		return nil
	}
	r.ResourceVersion = old.ResourceVersion
	return c.Update(ctx, r)
}

// modelAt returns where an engine of this machine finds what the URI of a trained model names,
// which the engine fetches itself: a path relative to where the control plane runs, or a claim's
// path, is an absolute one to it.
func modelAt(base, claims, namespace, uri string) string {
	if rest, ok := strings.CutPrefix(uri, "pvc://"); ok {
		claim, sub, _ := strings.Cut(rest, "/")
		return filepath.Join(claims, namespace, path.Clean("/"+claim), path.Clean("/"+sub))
	}
	at, isURL := strings.CutPrefix(uri, "file://")
	if !isURL && strings.Contains(uri, "://") || filepath.IsAbs(at) || strings.HasPrefix(at, "localhost/") {
		return uri
	}
	return filepath.Join(base, at)
}

// models lets the platform fetch from the store by namespace.
type models struct{ store *modelstore.Store }

func (m models) Fetch(ctx context.Context, namespace, uri, digest string) (path, got string, release func(), err error) {
	return m.store.Fetch(ctx, namespace, uri, digest)
}

// lazyClient is a client of the embedded API for parts that are made before the API answers.
// It is safe for concurrent use.
type lazyClient struct {
	config func() *rest.Config
	once   sync.Once
	client client.Client
	err    error
}

// get returns the client, nil while the API is starting.
func (l *lazyClient) get() (client.Client, error) {
	config := l.config()
	if config == nil {
		return nil, nil //nolint:nilnil // "not yet" is no error and has no client
	}
	l.once.Do(func() {
		sch, err := control.Scheme()
		if err != nil {
			l.err = err
			return
		}
		if l.client, l.err = client.New(config, client.Options{Scheme: sch}); l.err != nil {
			l.err = fmt.Errorf("make API client: %w", l.err)
		}
	})
	return l.client, l.err
}

// objects lets the platform look up what environment and volumes refer to.
type objects struct{ api *lazyClient }

func (o *objects) get(ctx context.Context, namespace, name string, into client.Object) error {
	c, err := o.api.get()
	if err != nil {
		return err
	}
	if c == nil {
		return errdef.New(errdef.ErrUnavailable, "the API is still starting")
	}
	err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", errdef.ErrNotFound, err)
	}
	return err
}

// Secret returns a secret's data. The error is errdef.ErrNotFound for one that doesn't exist.
func (o *objects) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var s corev1.Secret
	if err := o.get(ctx, namespace, name, &s); err != nil {
		return nil, fmt.Errorf("read secret %s/%s: %w", namespace, name, err)
	}
	return s.Data, nil
}

// ConfigMap returns a config map's data. The error is errdef.ErrNotFound for one that doesn't
// exist.
func (o *objects) ConfigMap(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var m corev1.ConfigMap
	if err := o.get(ctx, namespace, name, &m); err != nil {
		return nil, fmt.Errorf("read config map %s/%s: %w", namespace, name, err)
	}
	out := make(map[string][]byte, len(m.Data)+len(m.BinaryData))
	for k, v := range m.Data {
		out[k] = []byte(v)
	}
	for k, v := range m.BinaryData {
		out[k] = v
	}
	return out, nil
}
