// Package golden records what Knative's pod autoscaler decides over traces of load, in virtual
// time. TestRecord writes the recordings; README.md says how.
//
// What runs is Knative's own code: MetricCollector averages, MultiScaler ticks, the
// autoscaler decides, and the two functions of the KPA's reconciler that turn a decision into
// replicas, which that package keeps to itself, are reached by their link names.
package golden

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
	_ "unsafe" // for go:linkname

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	_ "knative.dev/serving/pkg/reconciler/autoscaling/kpa" // what the link names are of
)

// scaler has the layout of kpa.scaler at the version in go.mod.
type scaler struct {
	listerFactory  func(schema.GroupVersionResource) (cache.GenericLister, error)
	dynamicClient  dynamic.Interface
	transport      http.RoundTripper
	activatorProbe func(*autoscalingv1alpha1.PodAutoscaler, http.RoundTripper) (bool, error)
	probeManager   asyncProber
	enqueueCB      func(any, time.Duration)
}

// asyncProber has the methods of kpa.asyncProber.
type asyncProber interface {
	Offer(context.Context, string, any, time.Duration, time.Duration, ...any) bool
}

// podCounts has the layout of kpa.podCounts.
type podCounts struct {
	want, ready, notReady, pending, terminating int
}

//go:linkname scale knative.dev/serving/pkg/reconciler/autoscaling/kpa.(*scaler).scale
func scale(ks *scaler, ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler, sks *netv1alpha1.ServerlessService, desired int32) (int32, error)

//go:linkname computeActiveCondition knative.dev/serving/pkg/reconciler/autoscaling/kpa.computeActiveCondition
func computeActiveCondition(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler, pc podCounts)

// deployment is the one scale target: what the KPA reads and patches the replicas of.
type deployment struct {
	name     string
	replicas int32
}

func (d *deployment) lister(schema.GroupVersionResource) (cache.GenericLister, error) {
	return deploymentLister{d}, nil
}

type deploymentLister struct{ d *deployment }

func (l deploymentLister) ByNamespace(string) cache.GenericNamespaceLister { return l }

func (l deploymentLister) List(labels.Selector) ([]runtime.Object, error) {
	o, err := l.Get(l.d.name)
	return []runtime.Object{o}, err
}

func (l deploymentLister) Get(name string) (runtime.Object, error) {
	if name != l.d.name {
		return nil, fmt.Errorf("no deployment %s", name)
	}
	ps := &autoscalingv1alpha1.PodScalable{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ps.Spec.Replicas = &l.d.replicas
	return ps, nil
}

// client is a dynamic client that can do one thing: patch the deployment's replicas.
type client struct {
	dynamic.NamespaceableResourceInterface
	d *deployment
}

func (c client) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return c
}
func (c client) Namespace(string) dynamic.ResourceInterface { return c }

func (c client) Patch(_ context.Context, name string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	var ops []struct {
		Op, Path string
		Value    int32
	}
	if err := json.Unmarshal(patch, &ops); err != nil {
		return nil, err
	}
	if name != c.d.name || len(ops) != 1 || ops[0].Path != "/spec/replicas" {
		return nil, fmt.Errorf("unexpected patch of %s: %s", name, patch)
	}
	c.d.replicas = ops[0].Value
	return &unstructured.Unstructured{}, nil
}

type noProber struct{}

func (noProber) Offer(context.Context, string, any, time.Duration, time.Duration, ...any) bool {
	return true
}
