package manifest

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// The containers that KServe knows by name.
const (
	// ServerContainer runs the engine; every runtime has one.
	ServerContainer = "kserve-container"
	// TransformerContainer is a transformer that lives in the predictor's pod and takes its
	// traffic.
	TransformerContainer = "transformer-container"
)

// MergeContainer lays over on base as KServe does (pkg/utils/container_merge.go): by
// Kubernetes' strategic merge, so that scalars and command are replaced, env, ports and mounts
// merge by their key and resources by name; args are joined, base's first. The name stays
// base's. Where over gives an environment variable, a probe or a hook another source, base's
// is dropped, since two would be no valid container; so is base's ban on more privileges where over is
// privileged. Neither argument is changed.
func MergeContainer(base, over corev1.Container) corev1.Container {
	b, o := *base.DeepCopy(), *over.DeepCopy()
	args := slices.Concat(b.Args, o.Args)
	o.Args, o.Name = nil, b.Name
	for _, v := range o.Env {
		i := slices.IndexFunc(b.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name })
		switch {
		case i < 0:
		case v.ValueFrom != nil:
			b.Env[i] = corev1.EnvVar{Name: v.Name}
		case v.Value != "":
			b.Env[i].ValueFrom = nil
		}
	}
	yieldProbe(b.StartupProbe, o.StartupProbe)
	yieldProbe(b.ReadinessProbe, o.ReadinessProbe)
	yieldProbe(b.LivenessProbe, o.LivenessProbe)
	if b.Lifecycle != nil && o.Lifecycle != nil {
		if o.Lifecycle.PreStop != nil {
			b.Lifecycle.PreStop = nil
		}
		if o.Lifecycle.PostStart != nil {
			b.Lifecycle.PostStart = nil
		}
	}
	yieldPrivileges(b.SecurityContext, o.SecurityContext)
	strategicMerge(&b, o)
	b.Args = args
	return b
}

// yieldPrivileges takes base's ban on more privileges away where over asks for all: no API server takes
// both.
func yieldPrivileges(base, over *corev1.SecurityContext) {
	if base != nil && over != nil && over.Privileged != nil && *over.Privileged && over.AllowPrivilegeEscalation == nil {
		base.AllowPrivilegeEscalation = nil
	}
}

// yieldProbe empties base's action when over brings one of its own.
func yieldProbe(base, over *corev1.Probe) {
	if base != nil && over != nil && over.ProbeHandler != (corev1.ProbeHandler{}) {
		base.ProbeHandler = corev1.ProbeHandler{}
	}
}

// MergePod lays a component's pod fields on a runtime's by Kubernetes' strategic merge;
// containers are left out, see MergeContainers. A volume that both have is over's alone. The
// runtime's hostIPC is carried over, which KServe forgets.
func MergePod(base servingv1alpha1.ServingRuntimePodSpec, over servingv1beta1.PodSpec) corev1.PodSpec {
	b, o := base.DeepCopy().Core(), over.DeepCopy().Core()
	b.Containers, o.Containers = nil, nil
	b.Volumes = slices.DeleteFunc(b.Volumes, func(v corev1.Volume) bool {
		return slices.ContainsFunc(o.Volumes, func(w corev1.Volume) bool { return v.Name == w.Name })
	})
	strategicMerge(&b, o)
	return b
}

// MergeContainers puts a predictor's containers together in KServe's order: the server (the
// runtime's kserve-container with the model's fields over it), the transformer-container, the
// runtime's others, the service's others. Containers that both have are merged.
func MergeContainers(runtime []corev1.Container, model corev1.Container, service []corev1.Container) ([]corev1.Container, error) {
	i := slices.IndexFunc(runtime, named(ServerContainer))
	if i < 0 {
		return nil, fmt.Errorf("the runtime has no container named %s: add one, it is the one that serves", ServerContainer)
	}
	merged := []corev1.Container{MergeContainer(runtime[i], model)}
	for _, c := range runtime {
		if c.Name != ServerContainer {
			merged = append(merged, *c.DeepCopy())
		}
	}
	for _, c := range service {
		i := slices.IndexFunc(merged, named(c.Name))
		if i < 0 {
			merged = append(merged, *c.DeepCopy())
			continue
		}
		merged[i] = MergeContainer(merged[i], c)
	}
	if i := slices.IndexFunc(merged, named(TransformerContainer)); i > 1 {
		t := merged[i]
		merged = slices.Insert(slices.Delete(merged, i, i+1), 1, t)
	}
	return merged, nil
}

func named(name string) func(corev1.Container) bool {
	return func(c corev1.Container) bool { return c.Name == name }
}
