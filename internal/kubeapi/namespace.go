package kubeapi

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// immortal namespaces are made at start and can't be deleted.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem}

// namespaces serves namespaces. Deleting one marks it as terminating; the sweeper then removes
// what it holds and takes its finalizer away, which removes it.
//
//	Active ──delete──► Terminating ──content gone, finalizer taken──► (gone)
type namespaces struct {
	*objects
	status, finalize *genericregistry.Store
	// doomed has an element after a deletion began and before the sweeper saw it. Latest wins; it
	// is never closed.
	doomed chan struct{}
}

func newNamespaces(o *objects) *namespaces {
	base := o.CreateStrategy.(strategy)
	// The store's own check would remove a namespace as soon as its metadata has no finalizers;
	// the spec has one too.
	gone := func(ctx context.Context, key string, obj, existing runtime.Object) bool {
		return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0 &&
			genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
	}
	o.ShouldDeleteDuringUpdate = gone
	status, finalize := *o.Store, *o.Store
	status.CreateStrategy, finalize.CreateStrategy = nil, nil
	status.UpdateStrategy = namespaceStatus{base}
	finalize.UpdateStrategy = namespaceFinalize{base}
	return &namespaces{objects: o, status: &status, finalize: &finalize, doomed: make(chan struct{}, 1)}
}

// Delete marks the namespace as terminating, or removes it where nothing holds it any more.
func (n *namespaces) Delete(ctx context.Context, name string, check rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if slices.Contains(immortal, name) {
		return nil, false, apierrors.NewForbidden(corev1.Resource("namespaces"), name, fmt.Errorf("this namespace may not be deleted"))
	}
	obj, err := n.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if ns.DeletionTimestamp != nil && len(ns.Spec.Finalizers) == 0 && len(ns.Finalizers) == 0 {
		return n.Store.Delete(ctx, name, check, opts)
	}
	key, err := n.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	var pre storage.Preconditions
	if opts != nil && opts.Preconditions != nil {
		pre.UID, pre.ResourceVersion = opts.Preconditions.UID, opts.Preconditions.ResourceVersion
	}
	dry := opts != nil && dryrun.IsDryRun(opts.DryRun)
	out := &corev1.Namespace{}
	err = n.Storage.GuaranteedUpdate(ctx, key, out, false, &pre,
		storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			if err := check(ctx, existing.DeepCopyObject()); err != nil {
				return nil, err
			}
			ns := existing.(*corev1.Namespace)
			if ns.DeletionTimestamp == nil {
				now := metav1.Now()
				ns.DeletionTimestamp = &now
			}
			ns.Status.Phase = corev1.NamespaceTerminating
			return ns, nil
		}), dry, nil)
	if err != nil {
		if storage.IsNotFound(err) {
			return nil, false, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
		}
		if storage.IsConflict(err) || storage.IsInvalidObj(err) {
			return nil, false, apierrors.NewConflict(corev1.Resource("namespaces"), name, err)
		}
		return nil, false, err
	}
	if !dry {
		select {
		case n.doomed <- struct{}{}:
		default:
		}
	}
	return out, false, nil
}

// DeleteCollection hides the store's: one slip would empty the machine, and Kubernetes doesn't
// serve it for namespaces either.
func (*namespaces) DeleteCollection() {}

// open reports whether new objects may be made in the namespace: nil, or the error that
// Kubernetes gives.
func (n *namespaces) open(ctx context.Context, name string) (*corev1.Namespace, error) {
	obj, err := n.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Namespace), nil
}

// namespacePart serves a subresource of namespaces.
type namespacePart struct{ store *genericregistry.Store }

func (p *namespacePart) New() runtime.Object { return p.store.New() }

// Destroy does nothing: the namespaces' own storage closes the store.
func (*namespacePart) Destroy() {}

// Get returns the namespace.
func (p *namespacePart) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	return p.store.Get(ctx, name, opts)
}

// Update changes the part and nothing else.
func (p *namespacePart) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return p.store.Update(ctx, name, obj, create, update, false, opts)
}

// ConvertToTable makes the table that kubectl prints.
func (p *namespacePart) ConvertToTable(ctx context.Context, o, opts runtime.Object) (*metav1.Table, error) {
	return p.store.ConvertToTable(ctx, o, opts)
}

type namespaceStatus struct{ strategy }

func (namespaceStatus) PrepareForUpdate(_ context.Context, o, old runtime.Object) {
	ns, was := o.(*corev1.Namespace), old.(*corev1.Namespace)
	ns.Spec, ns.Labels = was.Spec, was.Labels
}

func (namespaceStatus) ValidateUpdate(_ context.Context, o, old runtime.Object) field.ErrorList {
	return apivalidateUpdate(o, old)
}

type namespaceFinalize struct{ strategy }

func (namespaceFinalize) PrepareForUpdate(_ context.Context, o, old runtime.Object) {
	ns, was := o.(*corev1.Namespace), old.(*corev1.Namespace)
	ns.Status, ns.Labels = was.Status, was.Labels
}

func (namespaceFinalize) ValidateUpdate(_ context.Context, o, old runtime.Object) field.ErrorList {
	return apivalidateUpdate(o, old)
}
