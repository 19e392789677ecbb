package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// listLag is how long to wait for a service's own reconcile to tell its engines of a model.
const listLag = 50 * time.Millisecond

// trainedModel keeps the status of TrainedModels. What makes engines serve them is the list that
// their service's reconcile writes.
type trainedModel struct{ c *Controller }

func (c *Controller) buildTrainedModel(mgr ctrl.Manager, said chan event.GenericEvent) error {
	skipNameCheck := true
	err := ctrl.NewControllerManagedBy(mgr).
		Named("trainedmodel").
		// Our own writes wake us, too: what was decided on an old status is decided again.
		For(&v1alpha1.TrainedModel{}).
		Watches(&v1beta1.InferenceService{}, handler.EnqueueRequestsFromMapFunc(c.modelsOf)).
		WatchesRawSource(source.Channel(said, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(c.heard, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 2, SkipNameValidation: &skipNameCheck,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](20*time.Millisecond, longestRetry),
		}).
		Complete(trainedModel{c})
	if err != nil {
		return fmt.Errorf("build controller of trained models: %w", err)
	}
	return nil
}

// modelsOf wakes the trained models of a service.
func (c *Controller) modelsOf(ctx context.Context, is client.Object) []reconcile.Request {
	models, err := c.trainedModels(ctx, spec.ServiceKey{Namespace: is.GetNamespace(), Name: is.GetName()})
	if err != nil {
		c.log.ErrorContext(ctx, "list trained models after their service changed", "service", is.GetName(), "err", err)
		return nil
	}
	out := make([]reconcile.Request, len(models))
	for i := range models {
		out[i].NamespacedName = client.ObjectKeyFromObject(&models[i])
	}
	return out
}

// serviceOf wakes the service that a trained model names.
func serviceOf(_ context.Context, tm client.Object) []reconcile.Request {
	var out []reconcile.Request
	for _, name := range indexByService(tm) {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: tm.GetNamespace(), Name: name}})
	}
	return out
}

// Reconcile writes one trained model's status.
func (t trainedModel) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c := t.c
	var tm v1alpha1.TrainedModel
	if err := c.client.Get(ctx, req.NamespacedName, &tm); apierrors.IsNotFound(err) || err == nil && !tm.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, c.wantAdapters(ctx)
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read trained model %s: %w", req, err)
	}
	if manifest.IsAdapter(&tm) || c.wantsAdapter(&tm) {
		if err := c.wantAdapters(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	next, err := c.trainedModelStatus(ctx, &tm)
	if err != nil {
		return reconcile.Result{}, err
	}
	ready := modelCondition(next.Conditions, v1alpha1.TrainedModelReady)
	var result reconcile.Result
	if ready.Reason == reasonListing && !manifest.IsAdapter(&tm) {
		result.RequeueAfter = listLag
	}
	if equality.Semantic.DeepEqual(tm.Status, next) {
		return result, nil
	}
	before := tm.DeepCopy()
	tm.Status = next
	if err := c.client.Status().Patch(ctx, &tm, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("write status of trained model %s: %w", req, err)
	}
	switch was := modelCondition(before.Status.Conditions, v1alpha1.TrainedModelReady); {
	case ready.Status == corev1.ConditionTrue && was.Status != corev1.ConditionTrue:
		c.events.Eventf(&tm, corev1.EventTypeNormal, "TrainedModelReady", "TrainedModel [%s] is Ready", tm.Name)
	case ready.Status == corev1.ConditionFalse && was.Reason != ready.Reason:
		c.events.Eventf(&tm, corev1.EventTypeWarning, cmp.Or(ready.Reason, "TrainedModelNotReady"), "%s", ready.Message)
	}
	return result, nil
}

// Reasons of a trained model's conditions; the first four are KServe's.
const (
	reasonServiceNotReady = "InferenceServiceNotReady"
	reasonNotSupported    = "FrameworkNotSupported"
	reasonNoMemory        = "MemoryResourceNotAvailable"
	reasonNotMultiModel   = "IsNotMMSPredictor"
	reasonNoService       = "InferenceServiceNotFound"
	reasonNoStorage       = "StorageNotSupported"
	reasonInvalid         = "InvalidSpec"
	reasonListing         = "Listing"
	reasonLoading         = "Loading"
)

// modelRefusal is why a revision doesn't serve a trained model. An empty condition means that only
// Ready tells of it.
type modelRefusal struct {
	condition       v1alpha1.TrainedModelConditionType
	reason, message string
}

// refusalOf returns why a multi-model revision doesn't serve a trained model; nil means that it does.
func (c *Controller) refusalOf(tm *v1alpha1.TrainedModel, rev *smv1alpha1.Revision) *modelRefusal {
	return refusalOf(tm, &rev.Spec, c.cfg.OneMachine)
}

func refusalOf(tm *v1alpha1.TrainedModel, rev *smv1alpha1.RevisionSpec, oneMachine bool) *modelRefusal {
	if errs := manifest.ValidateTrainedModel(tm, nil); len(errs) > 0 {
		return &modelRefusal{"", reasonInvalid, errs.ToAggregate().Error()}
	}
	model := &tm.Spec.Model
	if f := rev.ModelFormat; f != nil && !strings.EqualFold(f.Name, model.Framework) {
		return &modelRefusal{v1alpha1.TrainedModelFrameworkSupported, reasonNotSupported, fmt.Sprintf(
			"Inference Service %q serves %s, not the framework %q of this model", rev.Service, f.Name, model.Framework)}
	}
	if budget, ok := manifest.ModelBudget(rev); ok && model.Memory.Value() > budget {
		return &modelRefusal{v1alpha1.TrainedModelMemoryAvailable, reasonNoMemory, fmt.Sprintf(
			"Inference Service %q memory resources are not available: the model takes %s and all models together may take %d bytes; raise the memory limit or --memory_budget",
			rev.Service, model.Memory.String(), budget)}
	}
	if why := manifest.CanFetch(model.StorageURI, oneMachine); why != "" {
		return &modelRefusal{"", reasonNoStorage, why}
	}
	if inClaim(tm, oneMachine) {
		if _, why := manifest.InMountedClaim(rev, model.StorageURI); why != "" {
			return &modelRefusal{"", reasonNoStorage, why}
		}
	}
	return nil
}

// trainedModelStatus computes what a trained model's status should say.
func (c *Controller) trainedModelStatus(ctx context.Context, tm *v1alpha1.TrainedModel) (v1alpha1.TrainedModelStatus, error) {
	if manifest.IsAdapter(tm) {
		return c.adapterStatus(ctx, tm)
	}
	next := v1alpha1.TrainedModelStatus{ObservedGeneration: tm.Generation, Annotations: tm.Status.Annotations}
	conds := modelConditions{old: tm.Status.Conditions, now: metav1.Now()}
	yes := verdict{status: corev1.ConditionTrue}
	unknown := verdict{status: corev1.ConditionUnknown}
	no := func(reason, message string) verdict { return verdict{corev1.ConditionFalse, reason, message} }
	serviceReady, multi, framework, memory, rest := yes, unknown, unknown, unknown, yes

	var is v1beta1.InferenceService
	err := c.client.Get(ctx, client.ObjectKey{Namespace: tm.Namespace, Name: tm.Spec.InferenceService}, &is)
	if client.IgnoreNotFound(err) != nil {
		return next, fmt.Errorf("read service of trained model %s/%s: %w", tm.Namespace, tm.Name, err)
	}
	if err != nil {
		serviceReady = no(reasonNoService, fmt.Sprintf("there is no InferenceService %q in the namespace %s; create it", tm.Spec.InferenceService, tm.Namespace))
	} else {
		if r := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); r.Status != corev1.ConditionTrue {
			serviceReady = no(reasonServiceNotReady, "Inference Service needs to be ready before Trained Model can be ready")
		}
		rev, err := c.latestRevision(ctx, &is)
		if err != nil {
			return next, err
		}
		switch {
		case rev == nil:
		case !manifest.IsMultiModel(&rev.Spec):
			multi = no(reasonNotMultiModel, notMultiModel(is.Name))
		default:
			multi, framework, memory = yes, yes, yes
			switch refused := c.refusalOf(tm, rev); {
			case refused == nil:
				rest, memory = c.served(tm)
			case refused.condition == v1alpha1.TrainedModelFrameworkSupported:
				framework = no(refused.reason, refused.message)
			case refused.condition == v1alpha1.TrainedModelMemoryAvailable:
				memory = no(refused.reason, refused.message)
			default:
				rest = no(refused.reason, refused.message)
				if t, ok := c.toldOf(tm); ok && t.before {
					rest.message += servesOn
				}
			}
			next.URL, next.Address = modelURLs(&is, rev, tm.Name)
		}
	}
	ready := verdict{status: corev1.ConditionTrue}
	for _, v := range []verdict{rest, serviceReady, multi, framework, memory} {
		ready = worse(ready, v)
	}
	conds.set(v1alpha1.TrainedModelReady, ready)
	conds.set(v1alpha1.TrainedModelServiceReady, serviceReady)
	conds.set(v1alpha1.TrainedModelIsMultiModel, multi)
	conds.set(v1alpha1.TrainedModelFrameworkSupported, framework)
	conds.set(v1alpha1.TrainedModelMemoryAvailable, memory)
	next.Conditions = conds.list
	return next, nil
}

func notMultiModel(service string) string {
	return fmt.Sprintf(
		"Inference Service %q predictor is not configured for multi-model serving: leave its storageUri out and choose a runtime that is multiModel and takes its models from %s, such as stationmaster-onnx-multi",
		service, manifest.ModelListDir+"/"+manifest.ModelListKey)
}

// latestRevision returns the predictor's newest revision, nil where there is none yet.
func (c *Controller) latestRevision(ctx context.Context, is *v1beta1.InferenceService) (*smv1alpha1.Revision, error) {
	name := is.Status.Components[v1beta1.PredictorComponent].LatestCreatedRevision
	if name == "" {
		return nil, nil //nolint:nilnil // none yet is no error
	}
	var rev smv1alpha1.Revision
	err := c.client.Get(ctx, client.ObjectKey{Namespace: is.Namespace, Name: name}, &rev)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, fmt.Errorf("read revision %s: %w", name, err)
	}
	return &rev, nil
}

// modelURLs are where predictions of a trained model go, outside and inside the platform, by the
// protocol that the service speaks first.
func modelURLs(is *v1beta1.InferenceService, rev *smv1alpha1.Revision, model string) (url string, address *v1alpha1.TrainedModelAddress) {
	path := "/v1/models/" + model + ":predict"
	chosen := is.Spec.Predictor.Model
	if !slices.Contains(rev.Spec.Protocols, "v1") || chosen != nil && chosen.ProtocolVersion != nil && *chosen.ProtocolVersion != "v1" || is.Spec.Predictor.ONNX != nil {
		path = "/v2/models/" + model + "/infer"
	}
	if is.Status.URL != "" {
		url = is.Status.URL + path
	}
	if a := is.Status.Address; a != nil && a.URL != "" {
		address = &v1alpha1.TrainedModelAddress{URL: a.URL + path}
	}
	return url, address
}

// modelConditions are written in a fixed order, so that an unchanged status is the same.
type modelConditions struct {
	list, old []v1alpha1.TrainedModelCondition
	now       metav1.Time
}

// set adds a condition; its transition time stays when the status does.
func (c *modelConditions) set(t v1alpha1.TrainedModelConditionType, v verdict) {
	n := v1alpha1.TrainedModelCondition{Type: t, Status: v.status, Reason: v.reason, Message: bounded(v.message), LastTransitionTime: c.now}
	if o := modelCondition(c.old, t); o.Status == n.Status && !o.LastTransitionTime.IsZero() {
		n.LastTransitionTime = o.LastTransitionTime
	}
	c.list = append(c.list, n)
}

// modelCondition returns a condition, Unknown when it is absent.
func modelCondition(list []v1alpha1.TrainedModelCondition, t v1alpha1.TrainedModelConditionType) v1alpha1.TrainedModelCondition {
	for _, c := range list {
		if c.Type == t {
			return c
		}
	}
	return v1alpha1.TrainedModelCondition{Type: t, Status: corev1.ConditionUnknown}
}
