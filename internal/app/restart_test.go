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

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// stored is an API that has services and nothing else.
type stored struct {
	client.Client
	services map[string]*v1beta1.InferenceService
}

func (s stored) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	is, ok := s.services[key.Name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "inferenceservices"}, key.Name)
	}
	is.DeepCopyInto(into.(*v1beta1.InferenceService))
	return nil
}

func (s stored) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	for _, is := range s.services {
		list := into.(*v1beta1.InferenceServiceList)
		list.Items = append(list.Items, *is.DeepCopy())
	}
	return nil
}

func stands(name string, status string, reason string) *v1beta1.InferenceService {
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}}
	is.Status.ObservedGeneration = 1
	c := v1beta1.Condition{Type: v1beta1.ConditionReady, Reason: reason}
	c.Status = "True"
	if status != "True" {
		c.Status, c.Message = "False", "why"
	}
	is.Status.Conditions = []v1beta1.Condition{c}
	return is
}

func lineOf(name string) route.Service {
	return route.Service{
		Key: spec.ServiceKey{Namespace: "default", Name: name}, PathPrefix: "/serving/default/" + name, Entry: spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{
			Revision: name + "-1", Weight: 100, Endpoints: []route.Endpoint{{Replica: "r", HTTP: "127.0.0.1:1"}},
		}}}},
	}
}

func TestOnlyServicesThatWereReadyAreWaitedForAfterARestart(t *testing.T) {
	leaving := stands("leaving", "True", "")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	got, err := readyBefore(t.Context(), stored{services: map[string]*v1beta1.InferenceService{
		"iris": stands("iris", "True", ""), "broken": stands("broken", "False", "Exited"), "leaving": leaving,
		"new": {ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}},
	}})
	if err != nil || len(got) != 1 || got[0].Name != "iris" {
		t.Errorf("waits for %v, %v; want iris alone", got, err)
	}
	applied := &unstructured.Unstructured{Object: map[string]any{"kind": "InferenceService", "metadata": map[string]any{"namespace": "default", "name": "iris"}}}
	if left := without(got, []*unstructuredObject{applied}); len(left) != 0 {
		t.Errorf("what was applied is waited for twice: %v", left)
	}
}

func TestReadyWaitsForWhatServedBefore(t *testing.T) {
	tests := map[string]struct {
		stored *v1beta1.InferenceService
		routed time.Duration // after the start; zero means never
		want   time.Duration
		says   string
	}{
		"until it is routed again, though its stored status says Ready from the start": {
			stored: stands("iris", "True", ""), routed: 3 * time.Second, want: 3 * time.Second,
		},
		"not beyond the limit": {
			stored: stands("iris", "False", "Exited"), want: 30 * time.Second,
			says: "no longer waiting for default/iris, which served before: Exited: why\n",
		},
		"not for one whose runtime is gone": {
			stored: stands("iris", "False", "RuntimeNotInstalled"), want: 0,
			says: "no longer waiting for default/iris, which served before: RuntimeNotInstalled: why\n",
		},
		"not for one that is deleted meanwhile": {
			stored: nil, want: 0, says: "no longer waiting for default/iris, which served before: it was deleted\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := stored{services: map[string]*v1beta1.InferenceService{}}
				if tc.stored != nil {
					api.services["iris"] = tc.stored
				}
				var out strings.Builder
				s := &standalone{cfg: Config{Out: &out}}
				s.table.Publish(route.Compile(nil))
				if tc.routed > 0 {
					time.AfterFunc(tc.routed, func() { s.table.Publish(route.Compile([]route.Service{lineOf("iris")})) })
				}
				began := time.Now()
				s.waitRouted(t.Context(), api, []client.ObjectKey{{Namespace: "default", Name: "iris"}}, began.Add(restartWait))
				took := time.Since(began)
				if took < tc.want || took > tc.want+100*time.Millisecond {
					t.Errorf("waited %v, want %v", took, tc.want)
				}
				if out.String() != tc.says {
					t.Errorf("said %q, want %q", out.String(), tc.says)
				}
			})
		})
	}
}
