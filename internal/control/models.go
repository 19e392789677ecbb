package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/modellist"
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

// told is what a service's engines were told of a trained model.
type told struct {
	generation int64
	uri        string // as engines know it
	// refused is why they weren't told of it as it is now. What they were told before stays true
	// where before says so.
	refused *modelRefusal
	before  bool
}

// serves says whether engines have the model on their list, be it as it was before.
func (t told) serves() bool { return t.refused == nil || t.before }

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
	all = slices.DeleteFunc(all, func(tm v1alpha1.TrainedModel) bool { return manifest.IsAdapter(&tm) })
	var have corev1.ConfigMap
	have.Namespace, have.Name = s.key.Namespace, manifest.ModelListName(s.key.Name)
	err = c.client.Get(ctx, client.ObjectKeyFromObject(&have), &have)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("read the list of models: %w", err)
	}
	var list []modellist.Model
	list, s.models = c.modelsToList(all, rev, linesOf(have.Data[manifest.ModelListKey]))
	text, err := modellist.Encode(list)
	if err != nil {
		return err
	}
	want := map[string]string{manifest.ModelListKey: text}
	switch {
	case absent:
		have.Labels = map[string]string{labelService: s.key.Name}
		have.OwnerReferences = []metav1.OwnerReference{owner(s.asWritten)}
		have.Data = want
		if err := c.client.Create(ctx, &have); err != nil {
			return fmt.Errorf("create the list of models: %w", err)
		}
	case !maps.Equal(have.Data, want):
		before := have.DeepCopy()
		have.Data = want
		if err := c.client.Patch(ctx, &have, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("write the list of models: %w", err)
		}
	default:
		return nil
	}
	s.relisted = true
	return nil
}

// linesOf are the models of a list that was written before, by name; none where it can't be read.
func linesOf(text string) map[string]modellist.Model {
	lines, _ := modellist.Parse([]byte(text)) // somebody's own text is replaced
	out := make(map[string]modellist.Model, len(lines))
	for _, l := range lines {
		out[l.Name] = l
	}
	return out
}

// modelsToList decides which trained models go on a service's list. One whose bytes can't be had
// from where they are now stays as it was listed before.
func (c *Controller) modelsToList(all []v1alpha1.TrainedModel, rev *smv1alpha1.Revision, before map[string]modellist.Model) ([]modellist.Model, map[string]told) {
	var list []modellist.Model
	models := make(map[string]told, len(all))
	room := roomFor(rev)
	for _, tm := range inTurn(all, before) {
		t := told{generation: tm.Generation, refused: c.refusalOf(tm, rev)}
		if t.refused == nil {
			t.refused = room.take(tm)
		}
		line, listed := before[tm.Name]
		switch {
		case t.refused == nil:
			t.uri = c.modelAt(tm, rev)
			list = append(list, modellist.Model{Name: tm.Name, URI: t.uri, Framework: tm.Spec.Model.Framework, Memory: tm.Spec.Model.Memory.Value()})
		case t.refused.reason == reasonNoStorage && listed:
			t.uri, t.before = line.URI, true
			list = append(list, line)
		}
		models[tm.Name] = t
	}
	return list, models
}

// inTurn are the trained models that aren't being deleted: those that are listed, then the others in
// the order in which they came.
func inTurn(all []v1alpha1.TrainedModel, listed map[string]modellist.Model) []*v1alpha1.TrainedModel {
	out := make([]*v1alpha1.TrainedModel, 0, len(all))
	for i := range all {
		if all[i].DeletionTimestamp.IsZero() {
			out = append(out, &all[i])
		}
	}
	place := func(tm *v1alpha1.TrainedModel) int {
		if _, ok := listed[tm.Name]; ok {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b *v1alpha1.TrainedModel) int {
		return cmp.Or(place(a)-place(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

// room is the memory for models of an engine that has all of them in memory at once.
type room struct {
	service     string
	all, taken  int64
	isUnlimited bool
}

func roomFor(rev *smv1alpha1.Revision) *room {
	budget, known := manifest.ModelBudget(&rev.Spec)
	return &room{service: rev.Spec.Service, all: budget, isUnlimited: !known || !manifest.LoadsAll(&rev.Spec)}
}

// take gives a model its memory, or says why it gets none.
func (r *room) take(tm *v1alpha1.TrainedModel) *modelRefusal {
	memory := tm.Spec.Model.Memory
	if n := memory.Value(); r.isUnlimited || r.taken+n <= r.all {
		r.taken += n
		return nil
	}
	return &modelRefusal{v1alpha1.TrainedModelMemoryAvailable, reasonNoMemory, fmt.Sprintf(
		"Inference Service %q memory resources are not available: the model takes %s, models that came before it take %d bytes, and all together may take %d; raise the memory limit",
		r.service, memory.String(), r.taken, r.all)}
}

// inClaim says whether a model lies in a claim that pods have to mount.
func (c *Controller) inClaim(tm *v1alpha1.TrainedModel) bool { return inClaim(tm, c.cfg.OneMachine) }

func inClaim(tm *v1alpha1.TrainedModel, oneMachine bool) bool {
	return !oneMachine && strings.HasPrefix(tm.Spec.Model.StorageURI, "pvc://")
}

// modelAt returns where engines find what a trained model's URI names.
func (c *Controller) modelAt(tm *v1alpha1.TrainedModel, rev *smv1alpha1.Revision) string {
	if c.inClaim(tm) {
		at, _ := manifest.InMountedClaim(&rev.Spec, tm.Spec.Model.StorageURI) // refusalOf has seen that there is one
		return at
	}
	if c.cfg.ModelAt != nil {
		return c.cfg.ModelAt(tm.Namespace, tm.Spec.Model.StorageURI)
	}
	return tm.Spec.Model.StorageURI
}

// listed remembers what a service's engines were told to serve, and has those that run asked how
// far they are.
func (c *Controller) listed(s *service) {
	c.mu.Lock()
	before := c.lists[s.key]
	if s.models == nil {
		delete(c.lists, s.key)
	} else {
		c.lists[s.key] = s.models
	}
	c.mu.Unlock()
	for name, t := range s.models {
		if !reflect.DeepEqual(before[name], t) {
			c.retold.Notify(modellist.Key{Namespace: s.key.Namespace, Name: name})
		}
	}
	if c.cfg.Models == nil {
		return
	}
	var ask []string
	for _, r := range s.observed.Replicas {
		rev := s.component(spec.Predictor).revision(r.Revision.Name)
		if at := cmp.Or(r.Models, r.HTTP); len(s.models) > 0 && rev != nil && manifest.IsMultiModel(&rev.Spec) && r.Phase == spec.Ready && at != "" {
			ask = append(ask, at)
		}
	}
	c.cfg.Models.Follow(s.key, ask, s.relisted)
}

// toldOf returns what a service's engines were told of a trained model as it is now, and whether
// they were.
func (c *Controller) toldOf(tm *v1alpha1.TrainedModel) (told, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.lists[spec.ServiceKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}][tm.Name]
	return t, ok && t.generation == tm.Generation
}

// modelNames are the names of the trained models that a service serves, sorted; nil for a service
// that has one model of its own.
func (s *service) modelNames() []string {
	if s.models == nil {
		return nil
	}
	names := []string{}
	for name, t := range s.models {
		if t.serves() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// removeModels deletes the list of a service that is deleted, and with it its trained models, as
// KServe does.
func (c *Controller) removeModels(ctx context.Context, key spec.ServiceKey, revisions []smv1alpha1.Revision) error {
	models, err := c.trainedModels(ctx, key)
	if err != nil {
		return err
	}
	for i := range models {
		if err := c.client.Delete(ctx, &models[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete trained model %s of %s: %w", models[i].Name, key, err)
		}
	}
	if mayHaveList(revisions) {
		list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: manifest.ModelListName(key.Name)}}
		if err := c.client.Delete(ctx, list); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the list of models of %s: %w", key, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lists, key)
	if c.cfg.Models != nil {
		c.cfg.Models.Follow(key, nil, false)
	}
	return nil
}

// mayHaveList reports whether a service with these revisions can have had a list of models: one of
// them serves many, or may have been trimmed that did.
func mayHaveList(revisions []smv1alpha1.Revision) bool {
	whole := false
	for i := range revisions {
		if manifest.IsMultiModel(&revisions[i].Spec) {
			return true
		}
		whole = whole || revisions[i].Labels[labelComponent] == string(spec.Predictor) && number(&revisions[i]) == 1
	}
	return len(revisions) > 0 && !whole
}
