package control

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/spec"
)

// ModelWatch tells what the replicas of services say of trained models. It is safe for concurrent
// use, and none of its methods blocks.
type ModelWatch interface {
	// Follow says which replicas of a service are asked, by "host:port"; none ends it. news says
	// that what they are to serve has changed.
	Follow(service spec.ServiceKey, replicas []string, news bool)
	// Of returns what each replica says that tells of models at all; the zero Entry for one that
	// says nothing of this model yet.
	Of(service spec.ServiceKey, model string) []modellist.Entry
	// Changes yields each model of which a replica says something new, until ctx ends.
	Changes(ctx context.Context) <-chan modellist.Key
}

// followModels wakes trained models of which replicas say something new, or of which they were told
// something new, until ctx ends.
func (c *Controller) followModels(ctx context.Context, out chan<- event.GenericEvent) error {
	retold := c.retold.Subscribe(ctx)
	said := make(<-chan modellist.Key)
	if c.cfg.Models != nil {
		said = c.cfg.Models.Changes(ctx)
	}
	for {
		var key modellist.Key
		select {
		case key = <-retold:
		case key = <-said:
		case <-ctx.Done():
			// Both end with ctx; their goroutines have left when they are closed.
			for range retold {
			}
			if c.cfg.Models != nil {
				for range said {
				}
			}
			return nil
		}
		if key == (modellist.Key{}) {
			continue // closed, for ctx ends
		}
		tm := &v1alpha1.TrainedModel{}
		tm.Namespace, tm.Name = key.Namespace, key.Name
		select {
		case out <- event.GenericEvent{Object: tm}:
		case <-ctx.Done():
		}
	}
}

const servesOn = "; the model from before the change serves on"

// served says how far a model is that nothing in its manifest keeps from being served: whether
// engines were told of it, and what they say. The second verdict is on its memory.
func (c *Controller) served(tm *v1alpha1.TrainedModel) (rest, memory verdict) {
	yes := verdict{status: corev1.ConditionTrue}
	t, ok := c.toldOf(tm)
	switch {
	case !ok:
		return verdict{corev1.ConditionUnknown, reasonListing, "the service's engines are being told of the model"}, yes
	case t.refused != nil:
		// It depends on the service's other models, so that its reconcile alone can tell.
		return yes, verdict{corev1.ConditionFalse, t.refused.reason, t.refused.message}
	case c.cfg.Models == nil:
		return yes, yes
	}
	said := c.cfg.Models.Of(spec.ServiceKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}, tm.Name)
	was := tm.Status
	if was.ObservedGeneration != tm.Generation {
		was = v1alpha1.TrainedModelStatus{}
	}
	return judgeModel(t.uri, said, was)
}

// judgeModel sums up what replicas say of a model at uri. was is what its status said of the same
// spec before, empty for nothing.
func judgeModel(uri string, said []modellist.Entry, was v1alpha1.TrainedModelStatus) (rest, memory verdict) {
	rest, memory = verdict{status: corev1.ConditionTrue}, verdict{status: corev1.ConditionTrue}
	before := modelCondition(was.Conditions, v1alpha1.TrainedModelReady)
	if len(said) == 0 {
		// Nothing runs, or nothing that tells of models. What was wrong last is wrong until
		// somebody finds that it isn't.
		switch modellist.Reason(before.Reason) {
		case modellist.NotFetched, modellist.NotLoaded:
			rest = verdict{before.Status, before.Reason, before.Message}
		case modellist.TooLarge:
			c := modelCondition(was.Conditions, v1alpha1.TrainedModelMemoryAvailable)
			memory = verdict{c.Status, c.Reason, c.Message}
		}
		return rest, memory
	}
	var failed *modellist.Entry
	ready, fails := 0, 0
	for i := range said {
		switch e := &said[i]; {
		case e.URI != uri:
		case e.State == modellist.Ready:
			ready++
		case e.State == modellist.Failed:
			if fails++; failed == nil {
				failed = e
			}
		}
	}
	switch {
	case failed != nil:
		v := verdict{corev1.ConditionFalse, string(failed.Reason), explain(failed, fails, len(said))}
		if failed.Reason == modellist.TooLarge && !failed.Serves {
			return rest, v
		}
		return v, memory
	case ready == len(said), ready > 0 && before.Status == corev1.ConditionTrue:
		return rest, memory
	}
	return verdict{corev1.ConditionUnknown, reasonLoading, fmt.Sprintf("the model is on its way; it is there on %d of %d replicas", ready, len(said))}, memory
}

// explain words why replicas don't serve a model.
func explain(e *modellist.Entry, fails, replicas int) string {
	what := "the engine can't load the model"
	switch e.Reason {
	case modellist.NotFetched:
		what = "the model's bytes can't be had"
	case modellist.TooLarge:
		what = "the model is too large"
	}
	if replicas > 1 {
		what = fmt.Sprintf("on %d of %d replicas %s", fails, replicas, what)
	}
	what += ": " + e.Message
	if e.Serves {
		what += servesOn
	}
	return what
}
