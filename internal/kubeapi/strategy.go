package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
)

// strategy checks and completes the built-in kinds, by the rules of Kubernetes' API reference.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

func newStrategy(s *runtime.Scheme, namespaced bool) strategy {
	return strategy{ObjectTyper: s, NameGenerator: names.SimpleNameGenerator, namespaced: namespaced}
}

func (s strategy) NamespaceScoped() bool { return s.namespaced }

// PrepareForCreate sets what a new object begins with.
func (strategy) PrepareForCreate(_ context.Context, o runtime.Object) {
	switch o := o.(type) {
	case *corev1.Namespace:
		o.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(o.Spec.Finalizers, corev1.FinalizerKubernetes) {
			o.Spec.Finalizers = append(o.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
	case *corev1.PersistentVolumeClaim:
		// A claim is a directory of the data directory, so there is nothing to wait for.
		o.Status = corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, AccessModes: o.Spec.AccessModes, Capacity: o.Spec.Resources.Requests,
		}
	}
}

// PrepareForUpdate keeps what an update of the object itself can't change.
func (strategy) PrepareForUpdate(_ context.Context, o, old runtime.Object) {
	switch o := o.(type) {
	case *corev1.Namespace:
		was := old.(*corev1.Namespace)
		o.Spec.Finalizers, o.Status = was.Spec.Finalizers, was.Status
	case *corev1.PersistentVolumeClaim:
		o.Status = old.(*corev1.PersistentVolumeClaim).Status
	case *corev1.Secret:
		if o.Type == "" {
			o.Type = old.(*corev1.Secret).Type
		}
	}
}

// Validate checks a new object.
func (s strategy) Validate(_ context.Context, o runtime.Object) field.ErrorList {
	nameRule := apivalidation.NameIsDNSSubdomain
	if _, ok := o.(*corev1.Namespace); ok {
		nameRule = apivalidation.NameIsDNSLabel
	}
	errs := apivalidation.ValidateObjectMetaAccessor(o.(metav1.Object), s.namespaced, nameRule, field.NewPath("metadata"))
	return append(errs, validateContent(o)...)
}

// ValidateUpdate checks an object against the one that it replaces.
func (s strategy) ValidateUpdate(_ context.Context, o, old runtime.Object) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(o.(metav1.Object), old.(metav1.Object), field.NewPath("metadata"))
	errs = append(errs, validateContent(o)...)
	switch o := o.(type) {
	case *corev1.Secret:
		was := old.(*corev1.Secret)
		errs = append(errs, apivalidation.ValidateImmutableField(o.Type, was.Type, field.NewPath("type"))...)
		if isTrue(was.Immutable) {
			errs = append(errs, frozen(o.Immutable, equality.Semantic.DeepEqual(o.Data, was.Data), "data")...)
		}
	case *corev1.ConfigMap:
		was := old.(*corev1.ConfigMap)
		if isTrue(was.Immutable) {
			errs = append(errs, frozen(o.Immutable, equality.Semantic.DeepEqual(o.Data, was.Data), "data")...)
			errs = append(errs, frozen(o.Immutable, equality.Semantic.DeepEqual(o.BinaryData, was.BinaryData), "binaryData")...)
		}
	case *corev1.PersistentVolumeClaim:
		was := old.(*corev1.PersistentVolumeClaim)
		kept := o.Spec.DeepCopy()
		kept.Resources = was.Spec.Resources
		if !equality.Semantic.DeepEqual(*kept, was.Spec) {
			errs = append(errs, field.Forbidden(field.NewPath("spec"), "spec is immutable after creation except resources.requests"))
		}
	}
	return errs
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

func isTrue(b *bool) bool { return b != nil && *b }

// frozen reports a change to what was marked immutable.
func frozen(now *bool, same bool, part string) field.ErrorList {
	if !isTrue(now) {
		return field.ErrorList{field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set")}
	}
	if !same {
		return field.ErrorList{field.Forbidden(field.NewPath(part), "field is immutable when `immutable` is set")}
	}
	return nil
}

func validateContent(o runtime.Object) field.ErrorList {
	switch o := o.(type) {
	case *corev1.Secret:
		return validateSecret(o)
	case *corev1.ConfigMap:
		return validateConfigMap(o)
	case *corev1.Event:
		return validateEvent(o)
	case *corev1.PersistentVolumeClaim:
		return validateClaim(o)
	case *coordinationv1.Lease:
		return validateLease(o)
	}
	return nil
}

func validateKeys[V ~string | ~[]byte](data map[string]V, path *field.Path) (size int, errs field.ErrorList) {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(path.Key(key), key, msg))
		}
		size += len(data[key])
	}
	return size, errs
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	data := field.NewPath("data")
	size, errs := validateKeys(s.Data, data)
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	needed := func(keys ...string) {
		for _, key := range keys {
			if _, ok := s.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), fmt.Sprintf("a secret of type %s has it", s.Type)))
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg:
		key := corev1.DockerConfigJsonKey
		if s.Type == corev1.SecretTypeDockercfg {
			key = corev1.DockerConfigKey
		}
		needed(key)
		if b, ok := s.Data[key]; ok && !json.Valid(b) {
			errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", "not valid JSON"))
		}
	case corev1.SecretTypeTLS:
		needed(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	case corev1.SecretTypeSSHAuth:
		needed(corev1.SSHAuthPrivateKey)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, pass := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !pass {
			needed(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	}
	return errs
}

func validateConfigMap(c *corev1.ConfigMap) field.ErrorList {
	size, errs := validateKeys(c.Data, field.NewPath("data"))
	more, errs2 := validateKeys(c.BinaryData, field.NewPath("binaryData"))
	errs = append(errs, errs2...)
	for _, key := range slices.Sorted(maps.Keys(c.BinaryData)) {
		if _, ok := c.Data[key]; ok {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
		}
	}
	if size+more > corev1.MaxSecretSize { // config maps share the limit of secrets
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

func validateEvent(e *corev1.Event) field.ErrorList {
	path := field.NewPath("involvedObject", "namespace")
	switch e.InvolvedObject.Namespace {
	case e.Namespace:
	case "":
		if e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			return field.ErrorList{field.Invalid(path, "", "an event about an object without a namespace lies in default or kube-system")}
		}
	default:
		return field.ErrorList{field.Invalid(path, e.InvolvedObject.Namespace, "does not match event.namespace")}
	}
	return nil
}

func validateClaim(c *corev1.PersistentVolumeClaim) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if len(c.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(spec.Child("accessModes"), "at least 1 access mode is required"))
	}
	modes := []corev1.PersistentVolumeAccessMode{
		corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod,
	}
	for i, m := range c.Spec.AccessModes {
		if !slices.Contains(modes, m) {
			errs = append(errs, field.NotSupported(spec.Child("accessModes").Index(i), m, modes))
		}
	}
	q, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	request := spec.Child("resources", "requests").Key(string(corev1.ResourceStorage))
	switch {
	case !ok:
		errs = append(errs, field.Required(request, ""))
	case q.Sign() <= 0:
		errs = append(errs, field.Invalid(request, q.String(), "must be greater than zero"))
	}
	return errs
}

func validateLease(l *coordinationv1.Lease) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(spec.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(spec.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	return errs
}

func defaultNamespace(n *corev1.Namespace) {
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

// defaultSecret moves stringData, which is for writing only, into data.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

func defaultClaim(c *corev1.PersistentVolumeClaim) {
	if c.Spec.VolumeMode == nil {
		mode := corev1.PersistentVolumeFilesystem
		c.Spec.VolumeMode = &mode
	}
}

func apivalidateUpdate(o, old runtime.Object) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessorUpdate(o.(metav1.Object), old.(metav1.Object), field.NewPath("metadata"))
}
