package manifest

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

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
// is dropped, since two would be no valid container. Neither argument is changed.
func MergeContainer(base, over corev1.Container) (corev1.Container, error) {
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
	merged, err := strategicMerge(b, o)
	if err != nil {
		return corev1.Container{}, fmt.Errorf("merge container %s: %w", b.Name, err)
	}
	merged.Args = args
	return merged, nil
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
func MergePod(base servingv1alpha1.ServingRuntimePodSpec, over servingv1beta1.PodSpec) (corev1.PodSpec, error) {
	b, o := base.DeepCopy().Core(), over.DeepCopy().Core()
	b.Containers, o.Containers = nil, nil
	b.Volumes = slices.DeleteFunc(b.Volumes, func(v corev1.Volume) bool {
		return slices.ContainsFunc(o.Volumes, func(w corev1.Volume) bool { return v.Name == w.Name })
	})
	merged, err := strategicMerge(b, o)
	if err != nil {
		return corev1.PodSpec{}, fmt.Errorf("merge pod: %w", err)
	}
	return merged, nil
}

// MergeContainers puts a predictor's containers together in KServe's order: the server (the
// runtime's kserve-container with the model's fields over it), the transformer-container, the
// runtime's others, the service's others. Containers that both have are merged.
func MergeContainers(runtime []corev1.Container, model corev1.Container, service []corev1.Container) ([]corev1.Container, error) {
	i := slices.IndexFunc(runtime, named(ServerContainer))
	if i < 0 {
		return nil, fmt.Errorf("the runtime has no container named %s: add one, it is the one that serves", ServerContainer)
	}
	server, err := MergeContainer(runtime[i], model)
	if err != nil {
		return nil, err
	}
	merged := []corev1.Container{server}
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
		if merged[i], err = MergeContainer(merged[i], c); err != nil {
			return nil, err
		}
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

// strategicMerge lays the fields that over sets on base.
func strategicMerge[T any](base, over T) (T, error) {
	var zero, out T
	b, err := json.Marshal(base)
	if err != nil {
		return zero, err
	}
	o, err := json.Marshal(over)
	if err != nil {
		return zero, err
	}
	var patch map[string]any
	if err := json.Unmarshal(o, &patch); err != nil {
		return zero, err
	}
	// A null in a patch deletes; here it only is a field without omitempty.
	dropNulls(patch)
	if o, err = json.Marshal(patch); err != nil {
		return zero, err
	}
	m, err := strategicpatch.StrategicMergePatch(b, o, zero)
	if err != nil {
		return zero, err
	}
	if err := json.Unmarshal(m, &out); err != nil {
		return zero, err
	}
	return out, nil
}

func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e == nil {
				delete(v, k)
				continue
			}
			dropNulls(e)
		}
	case []any:
		for _, e := range v {
			dropNulls(e)
		}
	}
}
