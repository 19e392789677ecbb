package app

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
)

// contested is an API in which somebody else writes a runtime between our read and our write,
// once.
type contested struct {
	client.Client
	stored *v1alpha1.ClusterServingRuntime
	theirs *v1alpha1.ClusterServingRuntime
}

var resource = schema.GroupResource{Group: "serving.kserve.io", Resource: "clusterservingruntimes"}

func (c *contested) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if c.stored == nil {
		return apierrors.NewNotFound(resource, key.Name)
	}
	c.stored.DeepCopyInto(into.(*v1alpha1.ClusterServingRuntime))
	return nil
}

// interfere lets the other's write come first.
func (c *contested) interfere() bool {
	if c.theirs == nil {
		return false
	}
	c.stored, c.theirs = c.theirs, nil
	return true
}

func (c *contested) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if c.interfere() || c.stored != nil {
		return apierrors.NewAlreadyExists(resource, o.GetName())
	}
	c.stored = o.(*v1alpha1.ClusterServingRuntime)
	return nil
}

func (c *contested) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	if c.interfere() || c.stored.ResourceVersion != o.GetResourceVersion() {
		return apierrors.NewConflict(resource, o.GetName(), nil)
	}
	c.stored = o.(*v1alpha1.ClusterServingRuntime)
	return nil
}

func shipped(disabled bool) *v1alpha1.ClusterServingRuntime {
	r := &v1alpha1.ClusterServingRuntime{}
	r.Name, r.Spec.Disabled = "stationmaster-onnx", &disabled
	return r
}

func TestOperatorsThatShipTheSameRuntimeAtOnceAgree(t *testing.T) {
	old, older := shipped(true), shipped(true)
	old.ResourceVersion, older.ResourceVersion = "1", "0"
	for _, r := range []*v1alpha1.ClusterServingRuntime{old, older} {
		r.Annotations = map[string]string{shippedDigest: "of another version"}
	}
	for name, tc := range map[string]struct {
		stored, theirs *v1alpha1.ClusterServingRuntime
	}{
		"nobody else does":                     {},
		"the other creates it first":           {theirs: old},
		"the other updates it first":           {stored: older, theirs: old},
		"an older version shipped another one": {stored: old},
	} {
		t.Run(name, func(t *testing.T) {
			api := &contested{stored: tc.stored, theirs: tc.theirs}
			if err := ensureRuntime(t.Context(), api, shipped(false)); err != nil {
				t.Fatal(err)
			}
			if api.stored == nil || *api.stored.Spec.Disabled || api.stored.Annotations[shippedDigest] == "" {
				t.Errorf("stored is %+v", api.stored)
			}
		})
	}
}

func TestARuntimeOfSomebodyElseIsLeft(t *testing.T) {
	theirs := shipped(true)
	api := &contested{stored: theirs}
	if err := ensureRuntime(t.Context(), api, shipped(false)); err != nil {
		t.Fatal(err)
	}
	if api.stored != theirs || !*api.stored.Spec.Disabled {
		t.Errorf("stored is %+v", api.stored)
	}
}

func TestATrainedModelIsWhereItsEngineFindsIt(t *testing.T) {
	for uri, want := range map[string]string{
		"models/a":              "/srv/models/a",
		"file://models/a":       "/srv/models/a",
		"/models/a":             "/models/a",
		"file:///models/a":      "file:///models/a",
		"file://localhost/a":    "file://localhost/a",
		"https://x/a":           "https://x/a",
		"pvc://claim/a/b":       "/claims/team/claim/a/b",
		"pvc://claim":           "/claims/team/claim",
		"pvc://../../etc/a":     "/claims/team/etc/a",
		"pvc://claim/../../etc": "/claims/team/claim/etc",
	} {
		if got := modelAt("/srv", "/claims", "team", uri); got != want {
			t.Errorf("%s: %s, want %s", uri, got, want)
		}
	}
}
