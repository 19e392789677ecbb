package kube_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/spec"
)

// list is the config map with the models of the service iris.
func list(text string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "default", "name": "modelconfig-iris-0"},
		"data": map[string]any{"models.json": text},
	}}
}

func TestPodsAreToldOfAListOfModelsThatChanged(t *testing.T) {
	const key = "configmaps/default/modelconfig-iris-0"
	c := newCluster(t)
	p := start(t, c, guarded)
	many := platform.Assignment{Workload: workload("iris-predictor-00001", "a"), Replicas: 2}
	many.Workload.Volumes = []spec.Volume{{Name: "list", Kind: spec.VolumeConfigMap, Source: "modelconfig-iris-0"}}
	one := platform.Assignment{Workload: workload("iris-predictor-00002", "b"), Replicas: 1}
	c.mu.Lock()
	c.put(key, list("[]"))
	c.mu.Unlock()
	apply(t, p, many, one)
	until(t, p, "three ready", ready(3))

	// told is what the pods of a revision were told, by their names.
	told := func(revision string) map[string]string {
		out := map[string]string{}
		c.mu.Lock()
		defer c.mu.Unlock()
		for key, o := range c.objects {
			if strings.HasPrefix(key, "pods/default/"+revision) {
				out[key] = o.GetAnnotations()["stationmaster.dev/model-list"]
			}
		}
		return out
	}
	all := func(before string) func(spec.Observed) bool {
		return func(spec.Observed) bool {
			apply(t, p, many, one)
			values := slices.Compact(slices.Sorted(maps.Values(told("iris-predictor-00001"))))
			return len(values) == 1 && values[0] != before
		}
	}
	steady := func(spec.Observed) bool {
		c.written()
		apply(t, p, many, one)
		return len(c.written()) == 0
	}
	until(t, p, "both told", all(""))
	until(t, p, "no more writes", steady)
	before := slices.Collect(maps.Values(told("iris-predictor-00001")))[0]
	c.edit(key, func(o *unstructured.Unstructured) { o.Object = list(`[{"modelName":"m"}]`).Object })
	until(t, p, "both told again", all(before))
	until(t, p, "no more writes", steady)
	for pod, value := range told("iris-predictor-00002") {
		if value != "" {
			t.Errorf("%s reads no list, and was told of %s", pod, value)
		}
	}
}
