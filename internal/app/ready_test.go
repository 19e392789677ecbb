package app

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// shelf is an API that has one graph and one trained model, which become ready at a time.
type shelf struct {
	client.Client
	began        time.Time
	graph, model time.Duration // negative for never
}

func (s shelf) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	is := func(after time.Duration) (metav1.ConditionStatus, string) {
		if after < 0 || time.Since(s.began) < after {
			return metav1.ConditionFalse, "StepNotReady"
		}
		return metav1.ConditionTrue, ""
	}
	switch o := into.(type) {
	case *v1alpha1.InferenceGraph:
		status, reason := is(s.graph)
		o.Generation, o.Status.ObservedGeneration = 2, 2
		o.Status.Conditions = []v1beta1.Condition{{Type: v1beta1.ConditionReady, Reason: reason, Message: "why"}}
		o.Status.Conditions[0].Status = "False"
		if status == metav1.ConditionTrue {
			o.Status.Conditions[0].Status = "True"
		}
	case *v1alpha1.TrainedModel:
		status, reason := is(s.model)
		o.Spec.InferenceService = "many"
		o.Status.Conditions = []v1alpha1.TrainedModelCondition{{Type: v1alpha1.TrainedModelReady, Reason: reason, Message: "why", Status: "False"}}
		if status == metav1.ConditionTrue {
			o.Status.Conditions[0].Status = "True"
		}
	default:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "others"}, key.Name)
	}
	return nil
}

func TestUpWaitsForGraphsAndTrainedModels(t *testing.T) {
	tests := map[string]struct {
		graph, model time.Duration
		want         time.Duration
		says         string
	}{
		"until both are ready": {
			graph: 2 * time.Second, model: 5 * time.Second, want: 5 * time.Second,
			says: "waiting for default/flow: StepNotReady: why\nserving inferencegraph default/flow\nwaiting for default/digits: StepNotReady: why\nserving trainedmodel default/digits\n",
		},
		"not beyond the limit": {
			graph: -1, model: 5 * time.Second, want: applyWait,
			says: "waiting for default/flow: StepNotReady: why\nnot serving inferencegraph default/flow yet: StepNotReady: why\nserving trainedmodel default/digits\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				s := &standalone{cfg: Config{Out: &out}}
				flow := route.Service{Key: spec.ServiceKey{Namespace: "default", Name: "flow"}, Graph: &spec.Graph{}}
				s.table.Publish(route.Compile([]route.Service{lineOf("many"), flow}))
				began := time.Now()
				s.waitReady(t.Context(), shelf{began: began, graph: tc.graph, model: tc.model}, []*unstructured.Unstructured{
					applied("ServingRuntime", "none"), applied("InferenceGraph", "flow"), applied("TrainedModel", "digits"),
				})
				if took := time.Since(began); took < tc.want || took > tc.want+time.Second {
					t.Errorf("waited %v, want %v", took, tc.want)
				}
				if out.String() != tc.says {
					t.Errorf("said\n%s\nwant\n%s", out.String(), tc.says)
				}
			})
		})
	}
}

func TestUpSaysNothingOfWhatItDidntComeToBeforeItStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		var out strings.Builder
		s := &standalone{cfg: Config{Out: &out}}
		s.waitReady(ctx, shelf{began: time.Now(), graph: -1}, []*unstructured.Unstructured{
			applied("InferenceGraph", "flow"), applied("TrainedModel", "digits"),
		})
		const want = "waiting for default/flow: StepNotReady: why\nnot serving inferencegraph default/flow yet: stopping; last: StepNotReady: why\n"
		if out.String() != want {
			t.Errorf("said\n%s\nwant\n%s", out.String(), want)
		}
	})
}

func applied(kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"kind": kind, "metadata": map[string]any{"namespace": "default", "name": name}}}
}
