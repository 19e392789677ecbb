package kubeapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"stationmaster.dev/stationmaster/internal/errdef"
)

const (
	// schemaDigest is the annotation that says which definition of ours is stored, so that a
	// restart writes only what has changed.
	schemaDigest    = "stationmaster.dev/schema-digest"
	establishWithin = 2 * time.Minute
	pollEvery       = 10 * time.Millisecond
	settleAfter     = 5 * time.Second // more than the library's 2 s
)

// populate makes the namespaces that always exist and establishes the definitions. It returns
// when all of them are served.
func (a *api) populate(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition, step func(string)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, establishWithin,
		fmt.Errorf("%w: the API was not serving its kinds within %v", errdef.ErrTimeout, establishWithin))
	defer cancel()
	core, err := coreclient.NewForConfig(a.loopback)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	ext, err := extensionsclient.NewForConfig(a.loopback)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := until(ctx, func() (bool, error) {
		_, err := core.Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, ignoreStarting(err)
	}); err != nil {
		return fmt.Errorf("wait for the API to answer: %w", err)
	}
	step("answering")
	g, each := errgroup.WithContext(ctx)
	for _, name := range immortal {
		g.Go(func() error {
			_, err := core.Namespaces().Create(each, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("make namespace %s: %w", name, err)
			}
			return nil
		})
	}
	for _, crd := range crds {
		g.Go(func() error {
			if err := a.establish(each, ext, crd); err != nil {
				return fmt.Errorf("establish %s: %w", crd.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	err = a.discovered(ctx, crds)
	step("kinds served")
	return err
}

// discovered waits until discovery lists every definition's kinds, which it does some time after
// they are served. A client that asks once, at its start, would go without those that are missing.
func (a *api) discovered(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := discovery.NewDiscoveryClientForConfig(a.loopback)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := until(ctx, func() (bool, error) {
		_, listed, _, err := client.GroupsAndMaybeResourcesWithContext(ctx)
		return err == nil && lists(listed, crds), ignoreStarting(err)
	}); err != nil {
		return fmt.Errorf("wait for discovery: %w", err)
	}
	return nil
}

// lists reports whether the lists of discovery have every served version of the definitions.
func lists(listed map[schema.GroupVersion]*metav1.APIResourceList, crds []*apiextensionsv1.CustomResourceDefinition) bool {
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			list := listed[schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}]
			if v.Served && (list == nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
				return r.Name == crd.Spec.Names.Plural
			})) {
				return false
			}
		}
	}
	return true
}

// establish stores the definition unless it is there already, and waits until it is served.
func (a *api) establish(ctx context.Context, client extensionsclient.ApiextensionsV1Interface, want *apiextensionsv1.CustomResourceDefinition) error {
	want = want.DeepCopy()
	spec, err := json.Marshal(want.Spec)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(spec)
	digest := hex.EncodeToString(sum[:])
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, schemaDigest, digest)
	want.Status = apiextensionsv1.CustomResourceDefinitionStatus{}

	definitions := client.CustomResourceDefinitions()
	got, err := definitions.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		got, err = definitions.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && got.Annotations[schemaDigest] != digest:
		want.ResourceVersion = got.ResourceVersion
		got, err = definitions.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	if err := until(ctx, func() (bool, error) {
		if established(got) {
			return true, nil
		}
		if reason, refused := refusedNames(got); refused {
			return false, fmt.Errorf("%w: %s", errdef.ErrConflict, reason)
		}
		var err error
		got, err = definitions.Get(ctx, want.Name, metav1.GetOptions{})
		return false, err
	}); err != nil {
		return err
	}
	if err := a.settle(ctx, client, got); err != nil {
		return err
	}
	for _, v := range want.Spec.Versions {
		if !v.Served {
			continue
		}
		path := "/apis/" + want.Spec.Group + "/" + v.Name + "/" + want.Spec.Names.Plural
		if err := until(ctx, func() (bool, error) { return served(ctx, client.RESTClient(), path) }); err != nil {
			return fmt.Errorf("wait for %s: %w", path, err)
		}
	}
	return nil
}

// settle dates the definition's establishment back. The library holds creates up for 2 s after
// it, so that other API servers can learn of the kind; there are none here, and the first model
// should not wait.
func (a *api) settle(ctx context.Context, client extensionsclient.ApiextensionsV1Interface, crd *apiextensionsv1.CustomResourceDefinition) error {
	fresh := func(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
		for i, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Established && time.Since(c.LastTransitionTime.Time) < settleAfter {
				return &crd.Status.Conditions[i]
			}
		}
		return nil
	}
	lister := a.inner.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister()
	return until(ctx, func() (bool, error) {
		known, err := lister.Get(crd.Name)
		if err != nil {
			return false, nil //nolint:nilerr // not there yet
		}
		if known.UID == crd.UID && established(known) && fresh(known) == nil {
			return true, nil
		}
		if crd, err = client.CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		c := fresh(crd)
		if c == nil {
			return false, nil
		}
		c.LastTransitionTime = metav1.NewTime(c.LastTransitionTime.Add(-settleAfter))
		_, err = client.CustomResourceDefinitions().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return false, err
	})
}

// awaitStarted waits until the server's start-up hooks are done or the server has stopped, half a
// minute at most.
func (a *api) awaitStarted(ctx context.Context, server chan error) {
	ctx, cancel := context.WithTimeout(ctx, establishWithin)
	defer cancel()
	client, err := extensionsclient.NewForConfig(a.loopback)
	if err != nil {
		return
	}
	_ = until(ctx, func() (bool, error) {
		return len(server) > 0 || client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	})
}

// served reports whether the path answers.
func served(ctx context.Context, c rest.Interface, path string) (bool, error) {
	err := c.Get().AbsPath(path).Param("limit", "1").Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, ignoreStarting(err)
}

// ignoreStarting drops errors that a server gives while it starts.
func ignoreStarting(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code != http.StatusServiceUnavailable &&
		status.Status().Code != http.StatusTooManyRequests && status.Status().Code != http.StatusNotFound {
		return err
	}
	return nil
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

func refusedNames(crd *apiextensionsv1.CustomResourceDefinition) (string, bool) {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse {
			return c.Message, true
		}
	}
	return "", false
}

// until calls done every few milliseconds until it says so, fails, or ctx ends.
func until(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			if err != nil && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// newestFirst orders API versions as Kubernetes does: stable before beta before alpha, higher
// before lower.
func newestFirst(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) }
