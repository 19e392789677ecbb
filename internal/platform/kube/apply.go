package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// annotationApplied holds the hash of what was applied last, so that fields which are no
// longer wanted are noticed.
const annotationApplied = "stationmaster.dev/applied"

// objectKey names an object of a kind.
type objectKey struct{ kind, namespace, name string }

func keyOf(o client.Object) objectKey {
	return objectKey{fmt.Sprintf("%T", o), o.GetNamespace(), o.GetName()}
}

// writes are those that the cache may not show yet: the hash that was applied, the version
// that came of it, and when. An entry ends when the cache has caught up.
type writes map[objectKey]write

type write struct {
	// object is what was applied.
	object  client.Object
	hash    string
	version uint64
	at      time.Time
}

// lag is the most that a cache is believed to lag behind a write.
const lag = 30 * time.Second

// of returns the objects of a service that the cache may not show yet.
func (w writes) of(key spec.ServiceKey) []client.Object {
	var out []client.Object
	for _, last := range w {
		if serviceOf(last.object) == key {
			out = append(out, last.object)
		}
	}
	return out
}

// due says whether an object has to be applied: live is what the cache has of it, nil for
// nothing, and hash identifies what is wanted.
func (w writes) due(key objectKey, live client.Object, want map[string]any, hash string, now time.Time) bool {
	if last, ok := w[key]; ok {
		if (live == nil || version(live) < last.version) && now.Sub(last.at) < lag {
			return last.hash != hash
		}
		delete(w, key)
	}
	if live == nil || live.GetAnnotations()[annotationApplied] != hash || added(live) {
		return true
	}
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return true
	}
	// Objects of the cache don't tell their kind.
	have["apiVersion"], have["kind"] = want["apiVersion"], want["kind"]
	return !covers(have, want)
}

func version(o client.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// covers says whether an object has all that is wanted: each field with its value, and for
// each element of a list of objects one that covers it. What is there beside is somebody
// else's, such as a default or a sidecar that a webhook added.
func covers(have, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return have == nil && len(want) == 0
		}
		for k, v := range want {
			if !covers(h[k], v) {
				return false
			}
		}
		return true
	case []any:
		h, ok := have.([]any)
		if !ok {
			return have == nil && len(want) == 0
		}
		if len(want) > 0 {
			if _, objects := want[0].(map[string]any); !objects {
				return reflect.DeepEqual(h, want)
			}
		}
		for _, v := range want {
			if !slices.ContainsFunc(h, func(x any) bool { return covers(x, v) }) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(have, want)
}

// wanted returns an object as it is applied, without what only the API server sets, and its
// hash, which is also in it.
func wanted(o client.Object) (map[string]any, string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, "", fmt.Errorf("encode %T %s: %w", o, o.GetName(), err)
	}
	delete(content, "status")
	withoutNulls(content)
	text, err := json.Marshal(content)
	if err != nil {
		return nil, "", fmt.Errorf("encode %T %s: %w", o, o.GetName(), err)
	}
	sum := sha256.Sum256(text)
	hash := hex.EncodeToString(sum[:16])
	if err := unstructured.SetNestedField(content, hash, "metadata", "annotations", annotationApplied); err != nil {
		return nil, "", fmt.Errorf("annotate %T %s: %w", o, o.GetName(), err)
	}
	return content, hash, nil
}

// withoutNulls removes nulls, by which Go's types say that a field isn't set.
func withoutNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x == nil {
				delete(v, k)
				continue
			}
			withoutNulls(x)
		}
	case []any:
		for _, x := range v {
			withoutNulls(x)
		}
	}
}

// converge applies an object unless the cluster has it so. One that is on its way out is left:
// its end wakes the service, and then it is made anew.
func (p *Platform) converge(ctx context.Context, o client.Object) error {
	want, hash, err := wanted(o)
	if err != nil {
		return err
	}
	live, err := p.live(ctx, o)
	if err != nil {
		return err
	}
	if live != nil && live.GetDeletionTimestamp() != nil {
		return nil
	}
	key := keyOf(o)
	p.mu.Lock()
	if isForeign(o) {
		delete(p.written, key) // what the API itself says doesn't lag
	}
	due := p.written.due(key, live, want, hash, time.Now())
	p.mu.Unlock()
	if !due {
		return nil
	}
	u := &unstructured.Unstructured{Object: want}
	if err := p.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s/%s: %w", u.GetKind(), o.GetNamespace(), o.GetName(), kindOf(err))
	}
	made := version(u)
	if live != nil && added(live) {
		taken, err := p.takeBack(ctx, want)
		if err != nil {
			return err
		}
		made = max(made, taken)
	}
	p.mu.Lock()
	p.written[key] = write{object: o, hash: hash, version: made, at: time.Now()}
	p.mu.Unlock()
	return nil
}

// live returns what the cache has of an object, or nil; one of a kind that isn't ours is read from
// the API.
func (p *Platform) live(ctx context.Context, o client.Object) (client.Object, error) {
	have, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		panic(fmt.Sprintf("BUG: a copy of %T isn't one", o))
	}
	var err error
	if isForeign(o) {
		err = p.client.Get(ctx, client.ObjectKeyFromObject(o), have)
	} else {
		err = p.cache.Get(ctx, client.ObjectKeyFromObject(o), have, client.UnsafeDisableDeepCopy)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %T %s: %w", o, o.GetName(), err)
	}
	return have, nil
}

// lastOf returns an object as it was applied a moment ago where live, what the cache has of it, doesn't
// show that yet; else live.
func (p *Platform) lastOf(o, live client.Object) client.Object {
	if isForeign(o) {
		return live // read from the API
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.written[keyOf(o)]
	if ok && (live == nil || version(live) < last.version) && time.Since(last.at) < lag {
		return last.object
	}
	return live
}

// forget drops what was written of an object that is gone.
func (p *Platform) forget(o client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := keyOf(o)
	if last, ok := p.written[key]; ok && last.version <= version(o) {
		delete(p.written, key)
	}
}

// prune deletes the service's objects that aren't wanted, but keeps those of revisions that
// are and couldn't be made now.
func (p *Platform) prune(ctx context.Context, key spec.ServiceKey, objects []client.Object, members []member, refused []spec.Replica) error {
	keep := map[objectKey]bool{}
	for _, m := range members {
		if m.elsewhere != nil && m.elsewhere.scaler != nil {
			keep[keyOf(m.elsewhere.scaler)] = true
		}
	}
	for _, o := range objects {
		keep[keyOf(o)] = true
	}
	blocked := map[string]bool{}
	for _, r := range refused {
		blocked[r.Revision.Name] = true
	}
	var found []client.Object
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &policyv1.PodDisruptionBudgetList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &networkingv1.NetworkPolicyList{},
		&autoscalingv2.HorizontalPodAutoscalerList{},
	} {
		if err := p.list(ctx, key, list); err != nil {
			return err
		}
		found = append(found, items(list)...)
	}
	p.mu.Lock()
	found = append(found, p.written.of(key)...)
	p.mu.Unlock()
	for _, o := range found {
		k := keyOf(o)
		if keep[k] || blocked[o.GetLabels()[labelRevision]] || o.GetDeletionTimestamp() != nil || kedas(o) {
			continue
		}
		if d, ok := o.(*appsv1.Deployment); ok {
			if err := p.endScaledObject(ctx, d); err != nil {
				return err
			}
			p.mu.Lock()
			delete(p.problems, spec.RevisionKey{Namespace: d.Namespace, Name: d.Name})
			p.mu.Unlock()
		}
		if err := p.endGroups(ctx, o); err != nil {
			return err
		}
		if err := p.remove(ctx, o); err != nil {
			return err
		}
		keep[k] = true
		p.mu.Lock()
		delete(p.written, k)
		p.mu.Unlock()
	}
	return nil
}

// remove deletes one object. What it made, such as a Deployment's pods, ends after it: to have it
// wait for them would cost the cluster a dozen calls, and Observe tells of pods until they are gone.
func (p *Platform) remove(ctx context.Context, o client.Object) error {
	opts := []client.DeleteOption{client.PropagationPolicy(metav1.DeletePropagationBackground)}
	if uid := o.GetUID(); uid != "" {
		opts = append(opts, client.Preconditions{UID: &uid})
	}
	err := p.client.Delete(ctx, o, opts...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %T %s/%s: %w", o, o.GetNamespace(), o.GetName(), kindOf(err))
	}
	return nil
}

// refusedError is the cluster's no to an object, as opposed to its not being reached.
type refusedError struct {
	kind, cause error
	// terminal means that it will say so again until the object is another one.
	terminal bool
}

func (e *refusedError) Error() string   { return e.cause.Error() }
func (e *refusedError) Unwrap() []error { return []error{e.kind, e.cause} }

// kindOf gives an API error its kind.
func kindOf(err error) error {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &refusedError{errdef.ErrInvalid, err, true}
	case apierrors.IsForbidden(err):
		return &refusedError{errdef.ErrDenied, err, false}
	}
	return fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
}
