package control

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// reasonNotLoaded is that of an adapter which some replica's engine doesn't load.
const reasonNotLoaded = "AdapterNotLoaded"

// listAdapters notes the LoRA adapters that a service lists.
func (c *Controller) listAdapters(ctx context.Context, s *service) error {
	models, err := c.trainedModels(ctx, s.key)
	if err != nil {
		return err
	}
	s.adapters = routing.AdapterNames(models)
	return nil
}

// wantAdapters publishes the adapters that all services list and that engines can get.
func (c *Controller) wantAdapters(ctx context.Context) error {
	if c.cfg.Adapters == nil {
		return nil
	}
	c.wanting.Lock() // what was listed last is published last
	defer c.wanting.Unlock()
	var list v1alpha1.TrainedModelList
	if err := c.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list trained models for adapters: %w", err)
	}
	wanted := lora.Wanted{}
	for i := range list.Items {
		tm := &list.Items[i]
		if !tm.DeletionTimestamp.IsZero() || !manifest.IsAdapter(tm) || c.refusedAdapter(tm) != nil {
			continue
		}
		key := spec.ServiceKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}
		wanted[key] = append(wanted[key], lora.Want{Name: tm.Name, URI: tm.Spec.Model.StorageURI, Generation: tm.Generation})
	}
	for _, wants := range wanted {
		slices.SortFunc(wants, func(a, b lora.Want) int { return strings.Compare(a.Name, b.Name) })
	}
	if old := c.cfg.Adapters.Wanted.Load(); old == nil || !reflect.DeepEqual(*old, wanted) {
		c.cfg.Adapters.Wanted.Publish(&wanted)
	}
	return nil
}

// wantsAdapter reports whether a trained model was taken for an adapter until now.
func (c *Controller) wantsAdapter(tm *v1alpha1.TrainedModel) bool {
	if c.cfg.Adapters == nil {
		return false
	}
	wanted := c.cfg.Adapters.Wanted.Load()
	return wanted != nil && slices.ContainsFunc((*wanted)[spec.ServiceKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}], func(w lora.Want) bool {
		return w.Name == tm.Name
	})
}

// refusedAdapter returns why an adapter isn't asked of engines at all, nil where it is.
func (c *Controller) refusedAdapter(tm *v1alpha1.TrainedModel) *modelRefusal {
	if errs := manifest.ValidateTrainedModel(tm, nil); len(errs) > 0 {
		return &modelRefusal{"", reasonInvalid, errs.ToAggregate().Error()}
	}
	if why := manifest.CanFetchAdapter(tm.Spec.Model.StorageURI, c.cfg.OneMachine); why != "" {
		return &modelRefusal{"", reasonNoStorage, why}
	}
	return nil
}

// followAdapters wakes the trained models that are adapters when engines report something new.
func (c *Controller) followAdapters(ctx context.Context) error {
	if c.cfg.Adapters == nil {
		return nil
	}
	if err := c.wantAdapters(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	for {
		known, changed := c.cfg.Adapters.Known.Watch()
		if known != nil {
			var list v1alpha1.TrainedModelList
			if err := c.client.List(ctx, &list); err != nil {
				c.log.ErrorContext(ctx, "list trained models after their engines told of adapters", "err", err)
			}
			for i := range list.Items {
				if !manifest.IsAdapter(&list.Items[i]) {
					continue
				}
				select {
				case c.heard <- event.GenericEvent{Object: &list.Items[i]}:
				case <-ctx.Done():
					return nil
				}
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// adapterStatus computes what the status of a LoRA adapter should say.
func (c *Controller) adapterStatus(ctx context.Context, tm *v1alpha1.TrainedModel) (v1alpha1.TrainedModelStatus, error) {
	next := v1alpha1.TrainedModelStatus{ObservedGeneration: tm.Generation, Annotations: tm.Status.Annotations}
	conds := modelConditions{old: tm.Status.Conditions, now: metav1.Now()}
	unknown := verdict{status: corev1.ConditionUnknown}
	serviceReady, takes, rest := verdict{status: corev1.ConditionTrue}, unknown, unknown
	var is v1beta1.InferenceService
	err := c.client.Get(ctx, client.ObjectKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}, &is)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return next, fmt.Errorf("read service of adapter %s/%s: %w", tm.Namespace, tm.Name, err)
	case err != nil:
		serviceReady = verdict{corev1.ConditionFalse, reasonNoService, fmt.Sprintf(
			"there is no InferenceService %q in the namespace %s; create it", tm.Spec.InferenceService, tm.Namespace)}
	default:
		if r := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); r.Status != corev1.ConditionTrue {
			serviceReady = verdict{corev1.ConditionFalse, reasonServiceNotReady, "Inference Service needs to be ready before Trained Model can be ready"}
		}
		takes, rest = c.judgeAdapter(tm)
		if is.Status.URL != "" {
			next.URL = is.Status.URL + "/v1/chat/completions"
		}
		if a := is.Status.Address; a != nil && a.URL != "" {
			next.Address = &v1alpha1.TrainedModelAddress{URL: a.URL + "/v1/chat/completions"}
		}
	}
	if refused := c.refusedAdapter(tm); refused != nil {
		rest = verdict{corev1.ConditionFalse, refused.reason, refused.message}
	}
	ready := verdict{status: corev1.ConditionTrue}
	for _, v := range []verdict{rest, serviceReady, takes} {
		ready = worse(ready, v)
	}
	conds.set(v1alpha1.TrainedModelReady, ready)
	conds.set(v1alpha1.TrainedModelServiceReady, serviceReady)
	conds.set(v1alpha1.TrainedModelIsMultiModel, takes)
	conds.set(v1alpha1.TrainedModelFrameworkSupported, takes)
	conds.set(v1alpha1.TrainedModelMemoryAvailable, verdict{corev1.ConditionTrue, "", "an adapter's memory is the engine's to judge; spec.model.memory isn't counted"})
	next.Conditions = conds.list
	return next, nil
}

// judgeAdapter says whether a service takes adapters, and whether its replicas have this one.
func (c *Controller) judgeAdapter(tm *v1alpha1.TrainedModel) (takes, loaded verdict) {
	c.mu.Lock()
	line, has := c.routes[spec.ServiceKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}]
	c.mu.Unlock()
	unknown := verdict{status: corev1.ConditionUnknown}
	b := line.Components[spec.Predictor]
	switch {
	case c.cfg.Adapters == nil:
		return verdict{corev1.ConditionFalse, reasonNotSupported, "nobody here has engines load adapters"}, unknown
	case !has || len(b.Targets) == 0:
		return unknown, unknown
	case slices.ContainsFunc(b.Targets, func(t route.Target) bool { return t.OpenAI == "" }):
		return verdict{corev1.ConditionFalse, reasonNotSupported, fmt.Sprintf(
			"the engine of Inference Service %q isn't known to speak the OpenAI API, so it can't be asked for LoRA adapters; if it does, annotate its runtime with %s",
			tm.Spec.InferenceService, routing.OpenAIRootAnnotation)}, unknown
	}
	takes = verdict{status: corev1.ConditionTrue}
	var known lora.Known
	if k := c.cfg.Adapters.Known.Load(); k != nil {
		known = *k
	}
	replicas, have := 0, 0
	problems := map[string]bool{}
	for _, t := range b.Targets {
		for _, e := range t.Endpoints {
			replicas++
			if _, ok := known[e.HTTP].Adapter(tm.Name); ok {
				have++
			}
			if p := known[e.HTTP].Problems[tm.Name]; p != "" {
				problems[p] = true
			}
		}
	}
	switch {
	case len(problems) > 0:
		return takes, verdict{corev1.ConditionFalse, reasonNotLoaded, fmt.Sprintf(
			"%d of %d replicas have the adapter: %s", have, replicas, slices.Sorted(maps.Keys(problems))[0])}
	case replicas == 0 && b.Cold:
		return takes, verdict{status: corev1.ConditionTrue} // it is loaded when a request starts the service
	case replicas == 0 || have < replicas:
		return takes, verdict{corev1.ConditionUnknown, reasonListing, fmt.Sprintf("%d of %d replicas have the adapter", have, replicas)}
	}
	return takes, verdict{status: corev1.ConditionTrue}
}
