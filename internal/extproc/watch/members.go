package watch

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Kind is InferencePool of the Gateway API Inference Extension, in the version that is watched.
var Kind = schema.GroupVersionKind{Group: "inference.networking.k8s.io", Version: "v1", Kind: "InferencePool"}

// Annotations of an InferencePool that say how its endpoints are picked, and which engine its pods
// run; they are those of an InferenceService.
const (
	PickingAnnotation = "stationmaster.dev/picking"
	EngineAnnotation  = "stationmaster.dev/engine"
)

// inferencePool is what is read of one.
type inferencePool struct {
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int64 `json:"number"`
		} `json:"targetPorts"`
		AppProtocol string `json:"appProtocol"`
	} `json:"spec"`
}

// selector returns what a pool's pods are chosen by.
func selector(o *unstructured.Unstructured) (inferencePool, labels.Selector, error) {
	var p inferencePool
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
		return p, labels.Nothing(), fmt.Errorf("read InferencePool %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	if len(p.Spec.Selector.MatchLabels) == 0 { // which would be every pod
		return p, labels.Nothing(), nil
	}
	return p, labels.SelectorFromSet(p.Spec.Selector.MatchLabels), nil
}

// members makes of an InferencePool and pods of its namespace what is picked from: each port of each
// pod that is ready and isn't about to end.
func members(key spec.ServiceKey, o *unstructured.Unstructured, pods []corev1.Pod) (*pool.Pool, error) {
	p, chosen, err := selector(o)
	if err != nil {
		return nil, err
	}
	out := &pool.Pool{
		Key: key, Known: true,
		Picking: o.GetAnnotations()[PickingAnnotation], Engine: o.GetAnnotations()[EngineAnnotation],
	}
	selected := 0
	for i := range pods {
		pod := &pods[i]
		if !chosen.Matches(labels.Set(pod.Labels)) {
			continue
		}
		selected++
		if !ready(pod) {
			continue
		}
		for _, port := range p.Spec.TargetPorts {
			number := strconv.FormatInt(port.Number, 10)
			out.Endpoints = append(out.Endpoints, pool.Endpoint{
				Replica: string(pod.UID) + ":" + number, Address: net.JoinHostPort(pod.Status.PodIP, number),
			})
		}
	}
	slices.SortFunc(out.Endpoints, func(a, b pool.Endpoint) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(a.Replica, b.Replica))
	})
	// A pod that has gone may be seen with an address that another has by now.
	out.Endpoints = slices.CompactFunc(out.Endpoints, func(a, b pool.Endpoint) bool { return a.Address == b.Address })
	switch {
	case len(out.Endpoints) > 0:
	case len(p.Spec.TargetPorts) == 0:
		out.Problem = "it has no targetPorts"
	case selected == 0:
		out.Problem = "its selector chooses no pod"
	default:
		out.Problem = fmt.Sprintf("none of its %d pods is ready", selected)
	}
	return out, nil
}

// ready reports whether a pod may get requests.
func ready(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
