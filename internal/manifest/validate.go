package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// serviceName is what KServe allows as a service's or variant's name.
var serviceName = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

const nameRule = "must start with a lower-case letter and hold only lower-case letters, digits and '-', with no '-' at the end"

// Validate returns what keeps a service from being accepted, as KServe's admission does, with
// what to do about it; empty means accepted. is and old may be as written or defaulted; old is
// what is stored, nil for a new service. Shapes that the CRD's schema refuses are refused here
// only where a slim schema or Go's types can't.
func Validate(is, old *v1beta1.InferenceService) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if !serviceName.MatchString(is.Name) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), is.Name, nameRule))
	}
	if old == nil {
		errs = append(errs, validateLength(is.Name)...)
	}
	errs = append(errs, validateAnnotations(is)...)
	errs = append(errs, validateEveryPodAnnotations(is)...)
	errs = append(errs, validateGuard(is)...)
	if old != nil {
		errs = append(errs, validateChange(is, old)...)
	}

	p := &is.Spec.Predictor
	errs = append(errs, validateImplementation(p, spec.Child("predictor"))...)
	errs = append(errs, validatePredictor(p, spec.Child("predictor"))...)
	errs = append(errs, validateExtension(&p.ComponentExtensionSpec, is, spec.Child("predictor"))...)
	errs = append(errs, validateWorkers(is, spec.Child("predictor"))...)
	errs = append(errs, validateCanaries(is, spec.Child("canary"))...)
	if t := is.Spec.Transformer; t != nil {
		at := spec.Child("transformer")
		if len(t.Containers) == 0 {
			errs = append(errs, field.Required(at.Child("containers"), "a transformer is a container: add one, or remove the transformer"))
		}
		errs = append(errs, validatePod(&t.PodSpec, at)...)
		errs = append(errs, validateExtension(&t.ComponentExtensionSpec, is, at)...)
	}
	if e := is.Spec.Explainer; e != nil {
		errs = append(errs, validateExplainer(e, is, spec.Child("explainer"))...)
	}
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

// validateLength returns what is wrong with the length of a name that objects and labels get: one
// that is too long for a label is refused by every API server.
func validateLength(name string) field.ErrorList {
	if len(name) <= maxLabel {
		return nil
	}
	return field.ErrorList{field.TooLongMaxLength(field.NewPath("metadata", "name"), name, maxLabel)}
}

var (
	modes              = []string{ModeStandard, ModeKnative, ModeModelMesh, oldModeStandard, oldModeKnative}
	autoscalerClasses  = []string{"hpa", "keda", "external", "none"}
	deploymentModePath = field.NewPath("metadata", "annotations").Key(DeploymentModeAnnotation)
	autoscalerPath     = field.NewPath("metadata", "annotations").Key(AutoscalerClassAnnotation)
)

func validateAnnotations(is *v1beta1.InferenceService) field.ErrorList {
	var errs field.ErrorList
	if mode := is.Annotations[DeploymentModeAnnotation]; mode != "" && !slices.Contains(modes, mode) {
		errs = append(errs, field.NotSupported(deploymentModePath, mode, modes))
	}
	if class := is.Annotations[AutoscalerClassAnnotation]; class != "" && !slices.Contains(autoscalerClasses, class) {
		errs = append(errs, field.NotSupported(autoscalerPath, class, autoscalerClasses))
	}
	if secret := is.Annotations[storageSecretAnnotation]; secret != "" && len(validation.IsDNS1123Subdomain(secret)) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(storageSecretAnnotation), secret,
			"isn't the name of a Secret: name one of the service's own namespace, without the namespace"))
	}
	return errs
}

// validateChange returns what can't change in a service that exists.
func validateChange(is, old *v1beta1.InferenceService) field.ErrorList {
	var errs field.ErrorList
	// The annotation decides here even where the status came along with the update.
	if have, want := old.Status.DeploymentMode, is.Annotations[DeploymentModeAnnotation]; have != "" && want != "" && presentMode(have) != presentMode(want) {
		errs = append(errs, field.Forbidden(deploymentModePath, fmt.Sprintf(
			"update rejected: deploymentMode cannot be changed from '%s' to '%s'; delete the service and create it anew", presentMode(have), presentMode(want))))
	}
	was, now := &old.Spec.Predictor, &is.Spec.Predictor
	promoted := slices.ContainsFunc(old.Spec.Canary, func(c v1beta1.CanarySpec) bool { return c.Predictor.Name == now.Name })
	if was.Name != now.Name && !promoted && apiequality.Semantic.DeepEqual(sources(was), sources(now)) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "predictor", "name"), fmt.Sprintf(
			"changing the name from %q to %q makes another variant, which needs another model: change storageUri as well, or keep the name", was.Name, now.Name)))
	}
	return errs
}

// sources returns where a predictor's model is, in whichever field it is said.
func sources(p *v1beta1.PredictorSpec) []string {
	var out []string
	if m := modelOf(p); m != nil && m.StorageURI != nil {
		out = append(out, *m.StorageURI)
	}
	for _, u := range p.StorageURIs {
		out = append(out, u.URI)
	}
	return out
}

// modelOf returns the model part of a predictor, be it model or a framework field, or nil.
func modelOf(p *v1beta1.PredictorSpec) *v1beta1.PredictorExtensionSpec {
	if p.Model != nil {
		return &p.Model.PredictorExtensionSpec
	}
	for _, f := range frameworks(p) {
		if *f.spec != nil {
			return &(*f.spec).PredictorExtensionSpec
		}
	}
	return nil
}

// implementations returns the names of the fields that implement a predictor.
func implementations(p *v1beta1.PredictorSpec) []string {
	var out []string
	if p.Model != nil {
		out = append(out, "model")
	}
	for _, f := range frameworks(p) {
		if *f.spec != nil {
			out = append(out, f.name)
		}
	}
	custom := slices.ContainsFunc(p.Containers, func(c corev1.Container) bool { return c.Name == ServerContainer })
	if custom || len(out) == 0 && len(p.Containers) > 0 {
		out = append(out, "containers")
	}
	return out
}

func validateImplementation(p *v1beta1.PredictorSpec, at *field.Path) field.ErrorList {
	switch have := implementations(p); {
	case len(have) == 0:
		return field.ErrorList{field.Required(at, "name what to serve: model, one of the framework fields, or containers")}
	case len(have) > 1:
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf(
			"exactly one of model, a framework field and a container named %s may be set, not %s; keep one", ServerContainer, strings.Join(have, " and ")))}
	}
	return nil
}

// validatePredictor checks what holds for the stable predictor and for canaries alike.
func validatePredictor(p *v1beta1.PredictorSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Name != "" && !serviceName.MatchString(p.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), p.Name, nameRule))
	}
	if m := p.Model; m != nil {
		errs = append(errs, validateModel(&m.PredictorExtensionSpec, p, at.Child("model"))...)
		if m.ModelFormat.Name == "" && (m.Runtime == nil || *m.Runtime == "") && !isCanary(at) {
			errs = append(errs, field.Required(at.Child("model", "modelFormat", "name"), "name the format of the model, or a runtime in model.runtime"))
		}
	}
	for _, f := range frameworks(p) {
		if *f.spec != nil {
			errs = append(errs, validateModel(&(*f.spec).PredictorExtensionSpec, p, at.Child(f.name))...)
		}
	}
	errs = append(errs, validatePod(&p.PodSpec, at)...)
	for i, c := range p.Containers {
		if c.Name != TransformerContainer {
			continue
		}
		if j := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "STORAGE_URI" }); j >= 0 {
			errs = append(errs, field.Forbidden(at.Child("containers").Index(i).Child("env").Index(j),
				"a transformer in the predictor's replicas can't have a model of its own; remove STORAGE_URI, or use spec.transformer"))
		}
	}
	return errs
}

func isCanary(at *field.Path) bool { return strings.HasPrefix(at.String(), "spec.canary[") }

var protocols = []v1beta1.Protocol{v1beta1.ProtocolV1, v1beta1.ProtocolV2, v1beta1.ProtocolGRPCV1, v1beta1.ProtocolGRPCV2}

func validateModel(m *v1beta1.PredictorExtensionSpec, p *v1beta1.PredictorSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Container.Name != "" {
		errs = append(errs, field.Forbidden(at.Child("name"), "the container's name is the runtime's; remove it"))
	}
	if v := m.ProtocolVersion; v != nil && !slices.Contains(protocols, *v) {
		errs = append(errs, field.NotSupported(at.Child("protocolVersion"), *v, protocols))
	}
	if m.StorageURI != nil && len(p.StorageURIs) > 0 {
		errs = append(errs, field.Forbidden(at.Child("storageUri"), "can't be combined with storageUris; keep one of the two"))
	}
	if m.Storage != nil {
		if m.StorageURI != nil {
			errs = append(errs, field.Forbidden(at.Child("storage"), "can't be combined with storageUri; keep one of the two"))
		}
		if len(p.StorageURIs) > 0 {
			errs = append(errs, field.Forbidden(at.Child("storage"), "can't be combined with storageUris; keep one of the two"))
		}
	}
	return append(errs, validateEnv(m.Env, at)...)
}

func validatePod(p *v1beta1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, list := range map[string][]corev1.Container{"containers": p.Containers, "initContainers": p.InitContainers} {
		for i := range list {
			errs = append(errs, validateEnv(list[i].Env, at.Child(name).Index(i))...)
			if j := slices.IndexFunc(list[:i], func(c corev1.Container) bool { return c.Name == list[i].Name }); j >= 0 {
				errs = append(errs, field.Duplicate(at.Child(name).Index(i).Child("name"), list[i].Name))
			}
		}
	}
	return errs
}

// blockedEnv are variables that would let a manifest change an engine's code (KServe:
// pkg/validation/env_policy.go).
var blockedEnv = []string{"PYTHONPATH"}

func validateEnv(env []corev1.EnvVar, container *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range env {
		if slices.Contains(blockedEnv, e.Name) {
			errs = append(errs, field.Forbidden(container.Child("env").Index(i).Child("name"),
				e.Name+" may not be set, since it changes what code an engine runs; build it into the image or command instead"))
		}
	}
	return errs
}

func validateExplainer(e *v1beta1.ExplainerSpec, is *v1beta1.InferenceService, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case e.ART == nil && len(e.Containers) == 0:
		errs = append(errs, field.Required(at, "name what explains: art or containers, or remove the explainer"))
	case e.ART != nil && slices.ContainsFunc(e.Containers, func(c corev1.Container) bool { return c.Name == ServerContainer }):
		errs = append(errs, field.Forbidden(at, "exactly one of art and a container named "+ServerContainer+" may be set; keep one"))
	}
	if e.ART != nil {
		errs = append(errs, validateEnv(e.ART.Env, at.Child("art"))...)
		if e.ART.StorageURI != "" && len(e.StorageURIs) > 0 {
			errs = append(errs, field.Forbidden(at.Child("art", "storageUri"), "can't be combined with storageUris; keep one of the two"))
		}
	}
	errs = append(errs, validatePod(&e.PodSpec, at)...)
	return append(errs, validateExtension(&e.ComponentExtensionSpec, is, at)...)
}

// ValidateRevision returns what keeps a revision from replacing the stored one: its spec can't
// change. The CRD's own rule says the same, but can't see into the pod template where the
// schema leaves it open.
func ValidateRevision(r, old *smv1alpha1.Revision) field.ErrorList {
	if old != nil && !apiequality.Semantic.DeepEqual(r.Spec, old.Spec) {
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), "spec is immutable: a changed service gets a new Revision")}
	}
	return nil
}
