package control

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// What stands here says of an object that isn't stored yet what its reconcile will say of it.

// ScalingNotInEffect returns what of a component's manifest does nothing because of how its number
// of replicas moves. is has its defaults. The error, of kind errdef.ErrInvalid, is why the component
// can't be scaled as it asks.
func ScalingNotInEffect(is *v1beta1.InferenceService, name spec.Component, oneMachine bool) ([]manifest.NotInEffect, error) {
	ext := extension(is, name)
	if ext == nil {
		return nil, nil
	}
	how, err := scaling(is, ext, oneMachine)
	if err != nil {
		return nil, err
	}
	return strategyNotInEffect(ext, name, how.cfg != nil), nil
}

// ReplicasElsewhere reports whether another than us sets a component's number of replicas. is has its
// defaults and can be scaled.
func ReplicasElsewhere(is *v1beta1.InferenceService, name spec.Component, oneMachine bool) bool {
	ext := extension(is, name)
	if ext == nil {
		return false
	}
	how, err := scaling(is, ext, oneMachine)
	return err == nil && how.elsewhere
}

// WhyNotServed returns why a service's predictor, compiled as rev, doesn't serve a trained model;
// empty means that it does.
func WhyNotServed(tm *v1alpha1.TrainedModel, rev *smv1alpha1.RevisionSpec, oneMachine bool) string {
	switch {
	case manifest.IsAdapter(tm):
		return manifest.CanFetchAdapter(tm.Spec.Model.StorageURI, oneMachine)
	case !manifest.IsMultiModel(rev):
		return notMultiModel(rev.Service)
	}
	if refused := refusalOf(tm, rev, oneMachine); refused != nil {
		return refused.message
	}
	return ""
}

// Readers are two ways to read the API.
type Readers struct {
	// Cached reads services, runtimes and trained models from memory, where it may be that the
	// latest writes aren't there yet. Live asks the API server.
	Cached, Live client.Reader
}

// Readers returns how the API is read, and false while Run hasn't begun.
func (c *Controller) Readers() (Readers, bool) {
	r := c.readers.Load()
	if r == nil {
		return Readers{}, false
	}
	return *r, true
}
