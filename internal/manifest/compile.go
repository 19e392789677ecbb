package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// DefaultModelPath is where a model's bytes are mounted unless storageUris says otherwise.
const DefaultModelPath = "/mnt/models"

// DefaultHTTPPort is the port of a container that declares none (KServe: pkg/constants).
const DefaultHTTPPort = 8080

// Input is one component of a service and the runtime selected for it.
type Input struct {
	// Service is defaulted; its predictor's framework fields are rewritten to model.
	Service   *servingv1beta1.InferenceService
	Component spec.Component
	// Runtime, with its name, kind (ServingRuntime or ClusterServingRuntime) and metadata
	// annotations, is what catalogue.Select returned; nil for components without a model.
	Runtime            *servingv1alpha1.ServingRuntimeSpec
	RuntimeName        string
	RuntimeKind        string
	RuntimeAnnotations map[string]string
	// PredictorHost is "host" or "host:port" where a transformer or explainer reaches the
	// predictor; empty means KServe's "<service>-predictor.<namespace>".
	PredictorHost string
	// ConfigMap returns the data of a config map of the service's namespace, for what annotations
	// name one of. Nil means that there is none to be looked up.
	ConfigMap func(name string) (map[string]string, error)
}

// Compiled is a component in the forms that platforms and revisions want.
type Compiled struct {
	// PodTemplate is the pod with runtime and manifest merged and placeholders filled in.
	// Fetching models is not in it: Models of the workload say what is needed where.
	PodTemplate corev1.PodTemplateSpec
	// Workers are the other pods of a replica over several nodes; nil where it is one pod.
	Workers *smv1alpha1.RevisionWorkers
	// Workload is the same for platforms that run processes; its revision's name and its
	// models' digests are still empty.
	Workload spec.Workload
	// Protocol is the one that the manifest asks for, or else the engine's or runtime's
	// default; empty where nothing says one.
	Protocol spec.Protocol
	// ModelFormat and Runtime are nil for custom containers.
	ModelFormat *smv1alpha1.ModelFormat
	Runtime     *smv1alpha1.RuntimeIdentity
	// Unsupported lists the fields that lose their effect by the choice of runtime when the
	// component runs as processes on one machine, sorted: image and runtimeVersion where the
	// runtime's local command stands in for its image. Fields that never have one there are
	// NotInEffectOf's and NotInEffectOfRuntime's.
	Unsupported []string
	// Unset lists the strings with a placeholder whose label or annotation doesn't exist and
	// which therefore was left empty, sorted.
	Unset []string

	timeout, concurrency int64
}

// CompileError says that a component's manifest, or its runtime, makes no valid workload
// (KServe's reason InvalidPredictorSpec). It is of kind errdef.ErrInvalid.
type CompileError struct {
	Component spec.Component
	Reason    error
}

// Error names the component and the reason.
func (e *CompileError) Error() string { return fmt.Sprintf("%s: %v", e.Component, e.Reason) }

// Unwrap returns the kind and the reason.
func (e *CompileError) Unwrap() []error { return []error{errdef.ErrInvalid, e.Reason} }

// part is the component that is compiled, found in the service.
type part struct {
	path  string
	pod   *servingv1beta1.PodSpec
	ext   *servingv1beta1.ComponentExtensionSpec
	model *servingv1beta1.ModelSpec
	art   *servingv1beta1.ARTExplainerSpec
}

// Compile merges a component with its runtime as KServe does and states what a platform has
// to run. It changes nothing it is given, depends on nothing else, and returns equal results
// for equal input. Every error is a *CompileError.
func Compile(in Input) (Compiled, error) {
	c, err := compile(in)
	if err != nil {
		return Compiled{}, &CompileError{Component: in.Component, Reason: err}
	}
	return c, nil
}

func compile(in Input) (Compiled, error) {
	p, err := partOf(in)
	if err != nil {
		return Compiled{}, err
	}
	var out Compiled
	dot := subjectOf(in.Service)
	local, err := localOf(in, p)
	if err != nil {
		return Compiled{}, err
	}
	var b built
	if p.model != nil {
		b, err = buildModel(in, p, dot, local)
	} else {
		b, err = buildCustom(in, p, local)
	}
	if err != nil {
		return Compiled{}, err
	}
	out.Protocol, out.Unset = b.protocol, b.unset
	if p.model != nil {
		out.ModelFormat = &smv1alpha1.ModelFormat{Name: p.model.ModelFormat.Name}
		if v := p.model.ModelFormat.Version; v != nil {
			out.ModelFormat.Version = *v
		}
		out.Runtime = &smv1alpha1.RuntimeIdentity{Name: in.RuntimeName, Kind: in.RuntimeKind, Image: b.containers[0].Image}
	}

	if in.Component == spec.Predictor {
		if out.Workers, err = group(in, &b, dot); err != nil {
			return Compiled{}, err
		}
		out.Unset = b.unset
	}
	pod := b.pod
	pod.Containers = b.containers
	for i := range pod.Containers {
		setEnv(&pod.Containers[i], "INFERENCE_SERVICE_NAME", in.Service.Name)
		if n := pod.Containers[i].Name; i == 0 || n == ServerContainer || n == TransformerContainer {
			defaultReadiness(&pod.Containers[i])
		}
		aimProbes(&pod.Containers[i])
	}
	out.PodTemplate = corev1.PodTemplateSpec{ObjectMeta: podMeta(in, p, dot), Spec: pod}
	if err := takeCertificates(out.PodTemplate.Annotations, in.ConfigMap); err != nil {
		return Compiled{}, err
	}
	if b.local != nil {
		if out.PodTemplate.Annotations[LocalAnnotation], err = b.local.annotation(); err != nil {
			return Compiled{}, err
		}
	}
	if out.Workers != nil {
		workers := &out.Workers.PodTemplate
		setEnv(&workers.Spec.Containers[0], "INFERENCE_SERVICE_NAME", in.Service.Name)
		workers.Labels, workers.Annotations = maps.Clone(out.PodTemplate.Labels), maps.Clone(out.PodTemplate.Annotations)
		workers.Labels["app"] = shorten("isvc."+WorkerName(in.Service.Name), maxLabel)
		delete(workers.Annotations, LocalAnnotation)
	}
	if p.ext.TimeoutSeconds != nil {
		out.timeout = *p.ext.TimeoutSeconds
	}
	if p.ext.ContainerConcurrency != nil {
		out.concurrency = *p.ext.ContainerConcurrency
	}

	if err := out.finish(in, p, b); err != nil {
		return Compiled{}, err
	}
	return out, nil
}

// finish derives the workload from the pod, as WorkloadOf does for a stored revision.
func (c *Compiled) finish(in Input, p part, b built) error {
	rev := smv1alpha1.RevisionSpec{
		Service: in.Service.Name, Component: string(in.Component), PodTemplate: c.PodTemplate,
		Workers: c.Workers, ModelName: b.modelName, Models: b.models,
	}
	for _, proto := range b.protocols {
		rev.Protocols = append(rev.Protocols, string(proto))
	}
	w, err := workload(in.Service.Namespace, &rev)
	if err != nil {
		return err
	}
	if w.Hash, err = hash(w, &c.PodTemplate, c.Workers); err != nil {
		return err
	}
	c.Workload = w
	if m := p.model; m != nil && b.local != nil && len(b.local.Command)+len(b.local.Args) > 0 {
		if m.Image != "" {
			c.Unsupported = append(c.Unsupported, p.path+".model.image")
		}
		if m.RuntimeVersion != nil {
			c.Unsupported = append(c.Unsupported, p.path+".model.runtimeVersion")
		}
	}
	slices.Sort(c.Unset)
	return nil
}

// RevisionSpec returns the immutable record of what was compiled. WorkloadOf turns it back
// into the workload.
func (c *Compiled) RevisionSpec() smv1alpha1.RevisionSpec {
	r := smv1alpha1.RevisionSpec{
		Service: c.Workload.Service.Name, Component: string(c.Workload.Component),
		PodTemplate: *c.PodTemplate.DeepCopy(), Workers: c.Workers.DeepCopy(), Runtime: c.Runtime, ModelFormat: c.ModelFormat,
		ModelName: c.Workload.ModelName, Hash: c.Workload.Hash,
		TimeoutSeconds: c.timeout, ContainerConcurrency: c.concurrency,
	}
	for _, p := range c.Workload.Protocols {
		r.Protocols = append(r.Protocols, string(p))
	}
	for _, m := range c.Workload.Models {
		r.Models = append(r.Models, smv1alpha1.RevisionModel{URI: m.URI, MountPath: m.MountPath})
	}
	return r
}

func partOf(in Input) (part, error) {
	s := &in.Service.Spec
	switch in.Component {
	case spec.Predictor:
		p := part{path: "spec.predictor", pod: &s.Predictor.PodSpec, ext: &s.Predictor.ComponentExtensionSpec, model: s.Predictor.Model}
		if p.model != nil && in.Runtime == nil {
			return p, errors.New("no runtime was selected for spec.predictor.model")
		}
		return p, nil
	case spec.Transformer:
		if s.Transformer == nil {
			return part{}, errors.New("the service has no spec.transformer")
		}
		return part{path: "spec.transformer", pod: &s.Transformer.PodSpec, ext: &s.Transformer.ComponentExtensionSpec}, nil
	case spec.Explainer:
		if s.Explainer == nil {
			return part{}, errors.New("the service has no spec.explainer")
		}
		return part{path: "spec.explainer", pod: &s.Explainer.PodSpec, ext: &s.Explainer.ComponentExtensionSpec, art: s.Explainer.ART}, nil
	}
	return part{}, fmt.Errorf("%q is no component: use predictor, transformer or explainer", in.Component)
}

// localOf returns the local command's document: the component's, the service's or the
// runtime's, in that order; nil without any.
func localOf(in Input, p part) (*LocalRuntime, error) {
	text, own := p.ext.Annotations[LocalAnnotation]
	if !own && in.Component == spec.Predictor {
		text, own = in.Service.Annotations[LocalAnnotation]
	}
	if !own && in.Runtime != nil {
		if text = in.RuntimeAnnotations[LocalAnnotation]; text == "" {
			text = in.Runtime.Annotations[LocalAnnotation]
		}
	}
	if text == "" {
		return nil, nil
	}
	return ParseLocal(text)
}

// disallowedAnnotations aren't passed on from services to pods (KServe: pkg/constants,
// ServiceAnnotationDisallowedList).
var disallowedAnnotations = []string{
	"autoscaling.knative.dev/min-scale",
	"autoscaling.knative.dev/max-scale",
	"internal.serving.kserve.io/storage-initializer-sourceuri",
	"kubectl.kubernetes.io/last-applied-configuration",
}

// podMeta joins labels and annotations: the component's win over the service's, and those
// over the runtime's; the labels that select pods win over all.
func podMeta(in Input, p part, dot *subject) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
	if in.Runtime != nil && p.model != nil {
		maps.Copy(m.Labels, in.Runtime.Labels)
		maps.Copy(m.Annotations, in.Runtime.Annotations)
	}
	runtimesPicking := m.Annotations[PickingAnnotation]
	maps.Copy(m.Labels, dot.Labels)
	layAnnotations(m.Annotations, in.Service.Annotations)
	for _, a := range disallowedAnnotations {
		delete(m.Annotations, a)
	}
	maps.Copy(m.Labels, p.ext.Labels)
	layAnnotations(m.Annotations, p.ext.Annotations)
	delete(m.Annotations, LocalAnnotation)
	onlyRuntimesPicking(m.Annotations, runtimesPicking)
	m.Labels["serving.kserve.io/inferenceservice"] = in.Service.Name
	m.Labels["component"] = string(in.Component)
	m.Labels["app"] = AppLabel(in.Service.Name, in.Component)
	return m
}

// defaultReadiness gives a container KServe's default for Standard mode: TCP on its first
// port, or 8080, each 10 s with 1 s to connect.
func defaultReadiness(c *corev1.Container) {
	if c.ReadinessProbe != nil && c.ReadinessProbe.ProbeHandler != (corev1.ProbeHandler{}) {
		return
	}
	probe := c.ReadinessProbe
	if probe == nil {
		probe = &corev1.Probe{TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}
	}
	probe.TCPSocket = &corev1.TCPSocketAction{}
	c.ReadinessProbe = probe
}

// aimProbes gives the probes that name no port, which KServe's schema admits, one: of the ports
// that the container declares the first, for httpGet the first that speaks HTTP/1; otherwise 8080.
func aimProbes(c *corev1.Container) {
	port := func(ok func(corev1.ContainerPort) bool) int32 {
		if i := slices.IndexFunc(c.Ports, ok); i >= 0 {
			return c.Ports[i].ContainerPort
		}
		return DefaultHTTPPort
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p == nil {
			continue
		}
		if get := p.HTTPGet; get != nil && get.Port == (intstr.IntOrString{}) {
			get.Port.IntVal = port(func(p corev1.ContainerPort) bool { return scheme(p.Name) == spec.HTTP })
		}
		if tcp := p.TCPSocket; tcp != nil && tcp.Port == (intstr.IntOrString{}) {
			tcp.Port.IntVal = port(func(corev1.ContainerPort) bool { return true })
		}
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
