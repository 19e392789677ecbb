package manifest

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// built is a pod in the making, with what is known of the engine in it.
type built struct {
	// pod has no containers; they stand apart, the server first.
	pod        corev1.PodSpec
	containers []corev1.Container
	// local is how the server runs without its image, filled in; nil means unknown.
	local     *LocalRuntime
	models    []smv1alpha1.RevisionModel
	modelName string
	protocol  spec.Protocol
	protocols []spec.Protocol
	unset     []string
}

// buildModel merges a model's fields with its runtime.
func buildModel(in Input, p part, dot *subject, local *LocalRuntime) (built, error) {
	var b built
	m := p.model
	over := *m.Container.DeepCopy()
	var err error
	if b.models, err = modelsOf(p); err != nil {
		return b, err
	}
	for i := range p.pod.Containers {
		if p.pod.Containers[i].Name == TransformerContainer && envValue(p.pod.Containers[i], "STORAGE_URI") != "" {
			return b, fmt.Errorf("%s.containers[%d]: STORAGE_URI isn't possible on %s: give the model as model.storageUri or storageUris", p.path, i, TransformerContainer)
		}
	}
	e := engine{
		serverType: serverType(in.RuntimeName, in.RuntimeAnnotations), format: m.ModelFormat.Name,
		hasModel: len(b.models) > 0 || m.Storage != nil,
		protocol: spec.Protocol(LowestProtocol(in.Runtime.ProtocolVersions)),
	}
	repository := repositoryOf(in.Runtime)
	if e.serverType == "" {
		e.serverType = repository
	}
	if m.ProtocolVersion != nil {
		e.protocol = spec.Protocol(*m.ProtocolVersion)
	}
	if dot.Annotations[ModelFormatAnnotation] == "" {
		dot.Annotations[ModelFormatAnnotation] = m.ModelFormat.Name
	}
	b.protocol = e.defaults(&over, dot)

	if b.containers, err = MergeContainers(in.Runtime.Containers, over, p.pod.Containers); err != nil {
		return b, err
	}
	b.pod = MergePod(in.Runtime.ServingRuntimePodSpec, *p.pod)
	// A command of the manifest's own is meant as it stands, on every platform.
	if local != nil && len(over.Command) == 0 {
		local.adopt(over)
		b.local = local
	}
	if isTrue(in.Runtime.MultiModel) && ReadsModelList(in.Runtime) {
		if e.hasModel {
			return b, fmt.Errorf("%s.model: the runtime %s serves many models: leave the model's storage out, and make a TrainedModel for each", p.path, in.RuntimeName)
		}
		mountModelList(&b, in.Service.Name)
	} else if repository != "" && !e.hasModel {
		addAgent(&b, repository, dot.Labels["modelClass"])
		mountModelList(&b, in.Service.Name)
	}
	r := renderer{dot: dot}
	for i, c := range b.containers {
		if c.Name != ServerContainer && c.Name != TransformerContainer {
			continue
		}
		var filled corev1.Container
		if err := r.value(c.Name, c, &filled); err != nil {
			return b, err
		}
		b.containers[i] = filled
	}
	if b.local != nil {
		filled := &LocalRuntime{}
		lr := renderer{dot: dot}
		if err := lr.value("annotation "+LocalAnnotation, b.local, filled); err != nil {
			return b, err
		}
		b.local = filled
	}
	b.unset = r.unset
	server := &b.containers[0]
	server.Image = e.image(*server, m.RuntimeVersion, m.Image != "", mergedAnnotations(in, p))
	b.modelName = servedName(*server, e)
	if repository != "" && !e.hasModel {
		b.modelName = "" // it has many
	}
	b.protocols = protocolsOf(in.Runtime.ProtocolVersions, b.protocol, portsOf(*server, b.local))
	return b, nil
}

func mergedAnnotations(in Input, p part) map[string]string {
	out := maps.Clone(in.Service.Annotations)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, p.ext.Annotations)
	return out
}

// servedName is the name under which the engine knows its model, as its command line or
// environment says. Triton and TorchServe name models by what lies in their repository, so
// that theirs is unknown (empty).
func servedName(server corev1.Container, e engine) string {
	if e.serverType == "tritonserver" || e.serverType == "torchserve" {
		return ""
	}
	if n := envValue(server, "MLSERVER_MODEL_NAME"); e.serverType == "mlserver" && n != "" {
		return n
	}
	return argValue(server, "--model_name", "--model-name", "--served-model-name", "--alias", "--model_alias")
}

// protocolsOf returns what the engine speaks: what the runtime lists, or else the one asked
// for. An engine of the Open Inference Protocol with an HTTP/2 port speaks it over gRPC too,
// which KServe's lists leave out.
func protocolsOf(listed []servingv1alpha1.Protocol, chosen spec.Protocol, ports []spec.Port) []spec.Protocol {
	var out []spec.Protocol
	for _, p := range listed {
		out = append(out, spec.Protocol(p))
	}
	if len(out) == 0 && chosen != "" {
		out = append(out, chosen)
	}
	h2c := slices.ContainsFunc(ports, func(p spec.Port) bool { return p.Scheme == spec.H2C })
	if h2c && slices.Contains(out, spec.V2) && !slices.Contains(out, spec.GRPCV2) {
		out = append(out, spec.GRPCV2)
	}
	return out
}

// LowestProtocol returns the lowest of the protocols in KServe's numbering (pkg/constants:
// v1, v2, grpc-v1, grpc-v2, then unknown ones), and the empty one for none.
func LowestProtocol(ps []servingv1alpha1.Protocol) servingv1alpha1.Protocol {
	if len(ps) == 0 {
		return ""
	}
	return slices.MinFunc(ps, func(a, b servingv1alpha1.Protocol) int { return ProtocolRank(a) - ProtocolRank(b) })
}

// ProtocolRank returns a protocol's place in KServe's numbering from 0; unknown ones and the
// empty one come last.
func ProtocolRank(p servingv1alpha1.Protocol) int {
	order := []servingv1alpha1.Protocol{"v1", "v2", "grpc-v1", "grpc-v2"}
	if i := slices.Index(order, p); i >= 0 {
		return i
	}
	return len(order)
}

// modelsOf returns the models that a component names by URI.
func modelsOf(p part) ([]smv1alpha1.RevisionModel, error) {
	var out []smv1alpha1.RevisionModel
	if p.model != nil && p.model.StorageURI != nil && *p.model.StorageURI != "" {
		out = append(out, smv1alpha1.RevisionModel{URI: *p.model.StorageURI, MountPath: DefaultModelPath})
	}
	if p.model != nil && p.model.Storage != nil && len(out) == 0 {
		out = append(out, smv1alpha1.RevisionModel{URI: storageURI(&p.model.Storage.StorageSpec), MountPath: DefaultModelPath})
	}
	if p.art != nil && p.art.StorageURI != "" {
		out = append(out, smv1alpha1.RevisionModel{URI: p.art.StorageURI, MountPath: DefaultModelPath})
	}
	if len(out) > 0 && len(p.ext.StorageURIs) > 0 {
		return nil, fmt.Errorf("%s: storageUri and storageUris exclude each other: keep one", p.path)
	}
	for _, u := range p.ext.StorageURIs {
		m := smv1alpha1.RevisionModel{URI: u.URI, MountPath: u.MountPath}
		if m.MountPath == "" {
			m.MountPath = DefaultModelPath
		}
		out = append(out, m)
	}
	return out, nil
}

// buildCustom makes the pod of a component that brings its own containers, or of the built-in
// explainer.
func buildCustom(in Input, p part, local *LocalRuntime) (built, error) {
	b := built{pod: p.pod.DeepCopy().Core()}
	b.pod.Containers = nil
	var err error
	if b.models, err = modelsOf(p); err != nil {
		return b, err
	}
	var containers []corev1.Container
	if p.art != nil {
		containers = append(containers, artContainer(in, p))
	}
	for _, c := range p.pod.Containers {
		containers = append(containers, *c.DeepCopy())
	}
	if len(containers) == 0 {
		return b, fmt.Errorf("%s: no container says what to run: add one named %s to containers, or a model", p.path, ServerContainer)
	}
	if len(containers) == 1 && containers[0].Name == "" {
		containers[0].Name = ServerContainer
	}
	if i := slices.IndexFunc(containers, named(ServerContainer)); i > 0 {
		server := containers[i]
		containers = slices.Insert(slices.Delete(containers, i, i+1), 0, server)
	}
	b.containers = containers
	server := &b.containers[0]
	for i := range b.containers {
		c := &b.containers[i]
		for j := range c.Env {
			v := &c.Env[j]
			if v.Name != "STORAGE_URI" || v.Value == "" {
				continue
			}
			switch {
			case c.Name == TransformerContainer && in.Component == spec.Predictor:
				return b, fmt.Errorf("%s: STORAGE_URI isn't possible on %s: set it on %s", p.path, TransformerContainer, ServerContainer)
			case len(b.models) > 0:
				return b, fmt.Errorf("%s: STORAGE_URI of container %s would hide another model at %s: keep one", p.path, c.Name, DefaultModelPath)
			}
			b.models = append(b.models, smv1alpha1.RevisionModel{URI: v.Value, MountPath: DefaultModelPath})
			v.Value = DefaultModelPath
		}
	}
	if in.Component != spec.Predictor && p.art == nil {
		wire(server, in, p)
	}
	if pr := envValue(*server, "PROTOCOL"); pr != "" {
		b.protocol = spec.Protocol(pr)
		b.protocols = []spec.Protocol{b.protocol}
	}
	b.modelName = argValue(*server, "--model_name", "--model-name", "--served-model-name")
	b.local = local
	return b, nil
}

// wire appends the arguments by which KServe tells a transformer or an explainer of its model
// and predictor, unless the manifest gives them.
func wire(c *corev1.Container, in Input, p part) {
	add := func(flag, value string) {
		if !hasArg(*c, flag) {
			c.Args = append(c.Args, flag, value)
		}
	}
	add("--model_name", in.Service.Name)
	add("--predictor_host", predictorHost(in))
	add("--http_port", itoa(DefaultHTTPPort))
	if p.ext.ContainerConcurrency != nil {
		add("--workers", itoa(*p.ext.ContainerConcurrency))
	}
}

func predictorHost(in Input) string {
	if in.PredictorHost != "" {
		return in.PredictorHost
	}
	return PredictorName(in.Service.Name, in.Service.Spec.Predictor.Name) + "." + in.Service.Namespace
}

// artContainer makes the container of KServe's built-in explainer (pkg/apis/serving/v1beta1/
// explainer_art.go).
func artContainer(in Input, p part) corev1.Container {
	c := *p.art.Container.DeepCopy()
	own := c.Args
	c.Name, c.Args = ServerContainer, nil
	if c.Image == "" {
		c.Image = "kserve/art-explainer:latest"
		if v := p.art.RuntimeVersion; v != nil && *v != "" {
			c.Image = "kserve/art-explainer:" + *v
		}
	}
	given := corev1.Container{Command: c.Command, Args: own}
	c.Args = []string{"--model_name", in.Service.Name, "--http_port", itoa(DefaultHTTPPort)}
	if !hasArg(given, "--predictor_host") {
		c.Args = append(c.Args, "--predictor_host", predictorHost(in))
	}
	if n := p.ext.ContainerConcurrency; n != nil && !hasArg(given, "--workers") {
		c.Args = append(c.Args, "--workers", itoa(*n))
	}
	if p.art.StorageURI != "" {
		c.Args = append(c.Args, "--storage_uri", DefaultModelPath)
	}
	c.Args = append(c.Args, "--adversary_type", string(p.art.Type))
	for _, k := range slices.Sorted(maps.Keys(p.art.Config)) {
		c.Args = append(c.Args, "--"+k, p.art.Config[k])
	}
	c.Args = append(c.Args, own...)
	return c
}
