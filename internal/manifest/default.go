package manifest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// Annotations of KServe that say how a service is deployed.
const (
	// DeploymentModeAnnotation holds a deployment mode.
	DeploymentModeAnnotation = "serving.kserve.io/deploymentMode"
	// AutoscalerClassAnnotation holds what scales a service: hpa, keda, external or none.
	AutoscalerClassAnnotation = "serving.kserve.io/autoscalerClass"
	// ModelFormatAnnotation holds the name of the model's format; runtimes' placeholders
	// read it.
	ModelFormatAnnotation = "modelFormat"
)

// The deployment modes under their present names, and the names they had before.
const (
	ModeStandard  = "Standard"
	ModeKnative   = "Knative"
	ModeModelMesh = "ModelMesh"

	oldModeStandard = "RawDeployment"
	oldModeKnative  = "Serverless"
)

// Defaults are the values that Default fills in. The zero value is that of one machine: mode
// Standard, no limits that the manifest doesn't ask for, no service account token.
type Defaults struct {
	// DeploymentMode for services that name none; empty means Standard.
	DeploymentMode string
	// Resources of a custom container that sets none; nil means it stays without.
	Resources *corev1.ResourceRequirements
	// AutomountServiceAccountToken for components that don't say.
	AutomountServiceAccountToken bool
}

// Default fills in what a manifest leaves out, as KServe does at admission: a framework field
// becomes model, deployment modes get their present names, protocolVersion of engines that
// speak only v2 is set, and so on. Doing it twice changes nothing more.
//
// Call it on a copy in memory. The stored manifest stays as written, so that GitOps tools see
// no drift.
func Default(is *v1beta1.InferenceService, d Defaults) {
	if is.Annotations == nil {
		is.Annotations = map[string]string{}
	}
	if mode := DeploymentMode(is, d.DeploymentMode); is.Annotations[DeploymentModeAnnotation] != mode {
		is.Annotations[DeploymentModeAnnotation] = mode
	}
	defaultPredictor(&is.Spec.Predictor, d)
	if m := is.Spec.Predictor.Model; m != nil && m.ModelFormat.Name != "" {
		is.Annotations[ModelFormatAnnotation] = m.ModelFormat.Name
	}
	for i := range is.Spec.Canary {
		c := &is.Spec.Canary[i].Predictor
		modelFromFramework(c)
		defaultProtocol(c.Model)
	}
	if t := is.Spec.Transformer; t != nil {
		defaultCustom(&t.PodSpec, d)
		defaultToken(&t.PodSpec, d)
	}
	if e := is.Spec.Explainer; e != nil {
		if e.ART == nil {
			defaultCustom(&e.PodSpec, d)
		}
		defaultToken(&e.PodSpec, d)
	}
}

// DeploymentMode returns the mode of a service under its present name: that of its status,
// which can't change, or else of its annotation, or else otherwise (empty means Standard).
func DeploymentMode(is *v1beta1.InferenceService, otherwise string) string {
	for _, mode := range []string{is.Status.DeploymentMode, is.Annotations[DeploymentModeAnnotation], otherwise} {
		if mode != "" {
			return presentMode(mode)
		}
	}
	return ModeStandard
}

func presentMode(mode string) string {
	switch mode {
	case oldModeStandard:
		return ModeStandard
	case oldModeKnative:
		return ModeKnative
	}
	return mode
}

func defaultPredictor(p *v1beta1.PredictorSpec, d Defaults) {
	modelFromFramework(p)
	defaultProtocol(p.Model)
	if p.Model == nil {
		defaultCustom(&p.PodSpec, d)
	}
	defaultToken(&p.PodSpec, d)
}

// framework is a framework field of a predictor.
type framework struct {
	name string
	spec **v1beta1.FrameworkSpec
	// v2 says that the engines of this format speak only v2, as KServe sees it.
	v2 bool
}

func frameworks(p *v1beta1.PredictorSpec) []framework {
	return []framework{
		{name: "sklearn", spec: &p.SKLearn},
		{name: "xgboost", spec: &p.XGBoost},
		{name: "tensorflow", spec: &p.Tensorflow},
		{name: "pytorch", spec: &p.PyTorch},
		{name: "triton", spec: &p.Triton, v2: true},
		{name: "onnx", spec: &p.ONNX, v2: true},
		{name: "huggingface", spec: &p.HuggingFace, v2: true},
		{name: "pmml", spec: &p.PMML},
		{name: "lightgbm", spec: &p.LightGBM},
		{name: "paddle", spec: &p.Paddle},
	}
}

// modelFromFramework turns a framework field into model. With model set as well nothing is
// done: Validate refuses that.
func modelFromFramework(p *v1beta1.PredictorSpec) {
	if p.Model != nil {
		return
	}
	for _, f := range frameworks(p) {
		if *f.spec == nil {
			continue
		}
		p.Model = &v1beta1.ModelSpec{
			ModelFormat:            v1beta1.ModelFormat{Name: f.name},
			PredictorExtensionSpec: (*f.spec).PredictorExtensionSpec,
		}
		*f.spec = nil
		if f.v2 && p.Model.ProtocolVersion == nil {
			v2 := v1beta1.ProtocolV2
			p.Model.ProtocolVersion = &v2
		}
		return
	}
}

// v2Formats are the formats whose engines speak only v2; protocolVersion is set for them.
var v2Formats = []string{"triton", "vLLM"}

func defaultProtocol(m *v1beta1.ModelSpec) {
	if m != nil && m.ProtocolVersion == nil && slices.Contains(v2Formats, m.ModelFormat.Name) {
		v2 := v1beta1.ProtocolV2
		m.ProtocolVersion = &v2
	}
}

// defaultCustom names the container of a custom component and gives it resources.
func defaultCustom(p *v1beta1.PodSpec, d Defaults) {
	if len(p.Containers) == 0 {
		return
	}
	c := &p.Containers[0]
	if i := slices.IndexFunc(p.Containers, func(c corev1.Container) bool { return c.Name == ServerContainer }); i >= 0 {
		c = &p.Containers[i]
	} else if len(p.Containers) == 1 || c.Name == "" {
		c.Name = ServerContainer
	}
	if d.Resources == nil {
		return
	}
	c.Resources.Limits = withDefaults(c.Resources.Limits, d.Resources.Limits)
	c.Resources.Requests = withDefaults(c.Resources.Requests, d.Resources.Requests)
}

func withDefaults(have, defaults corev1.ResourceList) corev1.ResourceList {
	for name, q := range defaults {
		if _, ok := have[name]; ok {
			continue
		}
		if have == nil {
			have = corev1.ResourceList{}
		}
		have[name] = q.DeepCopy()
	}
	return have
}

func defaultToken(p *v1beta1.PodSpec, d Defaults) {
	if p.AutomountServiceAccountToken == nil {
		mount := d.AutomountServiceAccountToken
		p.AutomountServiceAccountToken = &mount
	}
}
