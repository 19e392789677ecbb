package kubeapi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Phase says what an admission call may do.
type Phase string

const (
	// Mutating calls may return a changed object: defaulting.
	Mutating Phase = "Mutating"
	// Validating calls see the object as it would be stored; what they return is ignored.
	Validating Phase = "Validating"
)

// AdmissionRequest is a custom object that is about to be created or replaced, by whichever verb:
// create, update, patch or server-side apply. Objects under deletion and subresources (status,
// scale) aren't asked about, so that finalizers can always be taken away.
type AdmissionRequest struct {
	Phase     Phase
	Create    bool // false for a change of an existing object
	Kind      schema.GroupVersionKind
	Resource  schema.GroupVersionResource
	Namespace string
	// Name is empty while a name is yet to be generated.
	Name string
	// Object is the receiver's own copy.
	Object *unstructured.Unstructured
	// Old is the stored object, nil on create. Read only.
	Old *unstructured.Unstructured
	// DryRun requests are never stored; admission must leave no trace of them.
	DryRun bool
	// FieldValidation is what the client asked for: Ignore, Warn or Strict. kubectl asks for
	// Strict; a client that says nothing gets Warn.
	FieldValidation string
	User            string
}

// Admission checks and completes custom objects in the API's request path. It must be safe for
// concurrent use and quick.
//
// Admit returns the changed object, or nil where nothing is changed, and warnings that the client
// prints. An error refuses the request: a *field.Error or a field.ErrorList as 422 with a cause
// for each field, a Kubernetes status error as it is, and any other by its errdef kind.
type Admission interface {
	Admit(ctx context.Context, req AdmissionRequest) (mutated *unstructured.Unstructured, warnings []string, err error)
}

// FieldErrors makes an error for Admit out of field errors; nil for none.
func FieldErrors(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return fieldErrors(errs)
}

type fieldErrors field.ErrorList

func (e fieldErrors) Error() string { return field.ErrorList(e).ToAggregate().Error() }
func (fieldErrors) Unwrap() error   { return errdef.ErrInvalid }

// gate lets new objects only into namespaces that exist and last.
type gate struct{ namespaces *namespaces }

func (gate) Handles(op admission.Operation) bool { return op == admission.Create }

// Admit refuses an object whose namespace is missing or terminating.
func (g gate) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetSubresource() != "" || a.GetResource().GroupResource() == corev1.Resource("namespaces") {
		return nil
	}
	ns, err := g.namespaces.open(ctx, a.GetNamespace())
	if err != nil {
		if apierrors.IsNotFound(err) { // the store names the resource that was asked for
			return apierrors.NewNotFound(corev1.Resource("namespaces"), a.GetNamespace())
		}
		return err
	}
	if ns.DeletionTimestamp == nil {
		return nil
	}
	refusal := admission.NewForbidden(a, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.GetNamespace()))
	var status *apierrors.StatusError
	if errors.As(refusal, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()),
			Field:   "metadata.namespace",
		})
	}
	return refusal
}

// custom asks the Admission about custom objects.
type custom struct{ admission Admission }

func (custom) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

// Admit lets the Admission change the object.
func (c custom) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	obj, mutated, err := c.ask(ctx, a, Mutating)
	if err == nil && mutated != nil {
		obj.Object = mutated.Object
	}
	return err
}

// Validate lets the Admission refuse the object.
func (c custom) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	_, _, err := c.ask(ctx, a, Validating)
	return err
}

func (c custom) ask(ctx context.Context, a admission.Attributes, phase Phase) (obj, mutated *unstructured.Unstructured, err error) {
	obj, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || a.GetSubresource() != "" || a.GetResource().Group == apiextensions.GroupName || obj.GetDeletionTimestamp() != nil {
		return obj, nil, nil
	}
	req := AdmissionRequest{
		Phase:           phase,
		Create:          a.GetOperation() == admission.Create,
		Kind:            a.GetKind(),
		Resource:        a.GetResource(),
		Namespace:       a.GetNamespace(),
		Name:            a.GetName(),
		Object:          obj.DeepCopy(),
		DryRun:          a.IsDryRun(),
		FieldValidation: fieldValidation(a),
	}
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && !req.Create {
		req.Old = old
	}
	if u := a.GetUserInfo(); u != nil {
		req.User = u.GetName()
	}
	mutated, warnings, err := c.admission.Admit(ctx, req)
	for _, w := range warnings {
		warning.AddWarning(ctx, "", w)
	}
	if err != nil {
		return obj, nil, statusError(a, err)
	}
	return obj, mutated, nil
}

func fieldValidation(a admission.Attributes) (v string) {
	switch o := a.GetOperationOptions().(type) {
	case *metav1.CreateOptions:
		v = o.FieldValidation
	case *metav1.UpdateOptions:
		v = o.FieldValidation
	case *metav1.PatchOptions:
		v = o.FieldValidation
	}
	if v == "" {
		v = metav1.FieldValidationWarn
	}
	return v
}

// statusError makes what the client gets out of an Admission's error.
func statusError(a admission.Attributes, err error) error {
	var status apierrors.APIStatus
	var list fieldErrors
	var one *field.Error
	kind, name, resource := a.GetKind().GroupKind(), a.GetName(), a.GetResource().GroupResource()
	switch {
	case errors.As(err, &status):
		return err
	case errors.As(err, &list):
		return apierrors.NewInvalid(kind, name, field.ErrorList(list))
	case errors.As(err, &one):
		return apierrors.NewInvalid(kind, name, field.ErrorList{one})
	case errors.Is(err, errdef.ErrInvalid), errors.Is(err, errdef.ErrUnsupported):
		return invalid(kind, name, err)
	case errors.Is(err, errdef.ErrDenied), errors.Is(err, errdef.ErrUnverified):
		return apierrors.NewForbidden(resource, name, err)
	case errors.Is(err, errdef.ErrConflict):
		return apierrors.NewConflict(resource, name, err)
	case errors.Is(err, errdef.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, errdef.ErrNotFound):
		return invalid(kind, name, err)
	case errors.Is(err, errdef.ErrUnavailable), errors.Is(err, errdef.ErrOverloaded), errors.Is(err, errdef.ErrTimeout):
		return apierrors.NewServiceUnavailable(err.Error())
	default:
		return apierrors.NewInternalError(err)
	}
}

// invalid is a 422 whose one cause is the whole object.
func invalid(kind schema.GroupKind, name string, err error) error {
	e := apierrors.NewInvalid(kind, name, nil)
	e.ErrStatus.Message = fmt.Sprintf("%s %q is invalid: %s", kind, name, err)
	e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Message: err.Error()}}
	return e
}
