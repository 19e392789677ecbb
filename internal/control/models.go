package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// byService is the index of trained models by the service that they name.
const byService = "spec.inferenceService"

func indexByService(o client.Object) []string {
	if tm, ok := o.(*v1alpha1.TrainedModel); ok {
		return []string{tm.Spec.InferenceService}
	}
	return nil
}

// trainedModels returns the trained models that name a service, in the order of their names.
func (c *Controller) trainedModels(ctx context.Context, key spec.ServiceKey) ([]v1alpha1.TrainedModel, error) {
	var list v1alpha1.TrainedModelList
	if err := c.client.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{byService: key.Name}); err != nil {
		return nil, fmt.Errorf("list trained models of %s: %w", key, err)
	}
	return list.Items, nil
}

// multiModel returns the predictor's newest revision if it serves many models.
func (s *service) multiModel() *smv1alpha1.Revision {
	if latest := s.component(spec.Predictor).latest; latest != nil && manifest.IsMultiModel(&latest.Spec) {
		return latest
	}
	return nil
}

// listModels writes the list of the models that the service's engines serve: the trained models
// that name it and that it can serve.
func (c *Controller) listModels(ctx context.Context, s *service) error {
	rev := s.multiModel()
	if rev == nil {
		return nil
	}
	all, err := c.trainedModels(ctx, s.key)
	if err != nil {
		return err
	}
	var serve []*v1alpha1.TrainedModel
	s.models = map[string]int64{}
	for i := range all {
		if tm := &all[i]; tm.DeletionTimestamp.IsZero() && c.refusalOf(tm, rev) == nil {
			serve = append(serve, tm)
			s.models[tm.Name] = tm.Generation
		}
	}
	text, err := manifest.ModelList(serve, func(tm *v1alpha1.TrainedModel) string {
		if c.cfg.ModelAt != nil {
			return c.cfg.ModelAt(tm.Namespace, tm.Spec.Model.StorageURI)
		}
		return tm.Spec.Model.StorageURI
	})
	if err != nil {
		return err
	}
	want := map[string]string{manifest.ModelListKey: text}
	var have corev1.ConfigMap
	have.Namespace, have.Name = s.key.Namespace, manifest.ModelListName(s.key.Name)
	err = c.client.Get(ctx, client.ObjectKeyFromObject(&have), &have)
	switch {
	case apierrors.IsNotFound(err):
		have.Labels = map[string]string{labelService: s.key.Name}
		have.OwnerReferences = []metav1.OwnerReference{owner(s.asWritten)}
		have.Data = want
		if err := c.client.Create(ctx, &have); err != nil {
			return fmt.Errorf("create the list of models: %w", err)
		}
	case err != nil:
		return fmt.Errorf("read the list of models: %w", err)
	case !maps.Equal(have.Data, want):
		before := have.DeepCopy()
		have.Data = want
		if err := c.client.Patch(ctx, &have, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("write the list of models: %w", err)
		}
	}
	return nil
}

// listed remembers what a service's engines were told to serve.
func (c *Controller) listed(s *service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.models == nil {
		delete(c.lists, s.key)
		return
	}
	c.lists[s.key] = s.models
}

// isListed reports whether a service's engines were told of a trained model as it is now.
func (c *Controller) isListed(tm *v1alpha1.TrainedModel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	generation, ok := c.lists[spec.ServiceKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}][tm.Name]
	return ok && generation == tm.Generation
}

// modelNames are the names of the trained models that a service serves, sorted; nil for a service
// that has one model of its own.
func (s *service) modelNames() []string {
	if s.models == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.models))
}

// removeModels deletes the list of a service that is deleted, and with it its trained models, as
// KServe does.
func (c *Controller) removeModels(ctx context.Context, key spec.ServiceKey) error {
	models, err := c.trainedModels(ctx, key)
	if err != nil {
		return err
	}
	for i := range models {
		if err := c.client.Delete(ctx, &models[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete trained model %s of %s: %w", models[i].Name, key, err)
		}
	}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: manifest.ModelListName(key.Name)}}
	if err := c.client.Delete(ctx, list); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the list of models of %s: %w", key, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lists, key)
	return nil
}
