// Package adopt takes the services of a namespace over from KServe. Pods that are as they would
// be made here run on: they pass from KServe's Deployment to a ReplicaSet that the operator's own
// Deployment takes as its newest. It works on the API alone and needs no operator to run.
package adopt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Config says what is taken over. API is required.
type Config struct {
	// API is a client of Scheme's kinds.
	API client.Client
	// Namespace is the one whose services are taken over.
	Namespace string
	// Image is the image of Stationmaster that the operator has: pods that pull models are made
	// with it, and others than the operator's are replaced. Empty means that of the operator which
	// is installed.
	Image string
	// OCIDelivery is how the operator has models of oci:// reach pods, for pods that come otherwise are
	// replaced; empty means as the operator that is installed, else by image volumes.
	OCIDelivery string
	// DryRun looks, and changes nothing.
	DryRun bool
	// Every is how long to wait between two looks at what the cluster is doing; zero means 200 ms.
	Every time.Duration
}

// Verdict is what becomes of a component.
type Verdict string

// The verdicts on a component.
const (
	// Adopted: its pods run on; in a dry run, they would.
	Adopted Verdict = "adopted"
	// WouldRestart: it is left as it is, because the operator makes pods of another shape.
	WouldRestart Verdict = "would restart"
	// CleanedUp: the operator serves it already, and what KServe had for it is gone.
	CleanedUp Verdict = "cleaned up"
	// NotPossible: it is left as it is.
	NotPossible Verdict = "not possible"
	// Ours: there is nothing of KServe's to take over.
	Ours Verdict = "served already"
)

// Result is what became of one component of a service.
type Result struct {
	Service   string
	Component spec.Component
	Verdict   Verdict
	// Why are the fields for which it would restart, or the reason.
	Why []string
	// Later are the fields in which pods that start later differ from those that run.
	Later []string
}

// Scheme returns the kinds that Run reads and writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, autoscalingv2.AddToScheme, admissionv1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme, smv1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return s, nil
}

// Run takes over what it can, component by component, and says what became of each; it stops at
// the first error, and what was done until then is done. It may be run again: what was begun is
// then ended. It fails with errdef.ErrConflict while KServe's controller runs, which would take
// everything back. It blocks until ctx ends at most.
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	if cfg.Every == 0 {
		cfg.Every = 200 * time.Millisecond
	}
	if err := cfg.alone(ctx); err != nil && !cfg.DryRun {
		return nil, err
	}
	if cfg.Image == "" {
		var err error
		if cfg.Image, err = cfg.operatorsImage(ctx); err != nil {
			return nil, err
		}
	}
	if cfg.OCIDelivery == "" {
		var err error
		if cfg.OCIDelivery, err = cfg.operatorsDelivery(ctx); err != nil {
			return nil, err
		}
	}
	var services v1beta1.InferenceServiceList
	if err := cfg.API.List(ctx, &services, client.InNamespace(cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	runtimes, err := cfg.runtimes(ctx)
	if err != nil {
		return nil, err
	}
	var out []Result
	for i := range services.Items {
		is := &services.Items[i]
		for _, c := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
			if manifest.Extension(is, string(c)) == nil {
				continue
			}
			r := Result{Service: is.Name, Component: c}
			if err := cfg.component(ctx, is, runtimes, &r); err != nil {
				return out, fmt.Errorf("%s %s: %w", is.Name, c, err)
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// component takes over one component.
func (cfg *Config) component(ctx context.Context, is *v1beta1.InferenceService, runtimes runtimes, r *Result) error {
	r.Verdict = NotPossible
	theirs, err := cfg.deployment(ctx, is, r.Component)
	if err != nil {
		return err
	}
	served, err := cfg.revisions(ctx, is, r.Component)
	switch {
	case err != nil:
		return err
	case served && theirs == nil:
		r.Verdict = Ours
		return nil
	case served:
		return cfg.cleanUp(ctx, is, theirs, r)
	}
	if reason := unfit(is, theirs); reason != "" {
		r.Why = []string{reason}
		return nil
	}
	rev, err := runtimes.revision(is, r.Component)
	if err != nil {
		r.Why = []string{err.Error()}
		return nil //nolint:nilerr // it is the manifest's
	}
	mine, pod, err := cfg.replicaSet(ctx, rev)
	if err != nil {
		r.Why = []string{err.Error()}
		return nil //nolint:nilerr // it is the manifest's, or the cluster's no to it
	}
	if theirs == nil {
		return cfg.goOn(ctx, mine, r)
	}
	sets, pods, err := cfg.below(ctx, theirs)
	if err != nil {
		return err
	}
	for i := range pods {
		restart, later := Compare(&pods[i].Spec, &pod.Spec, modelsOf(rev))
		if r.Later = later; len(restart) > 0 {
			r.Verdict, r.Why = WouldRestart, restart
			return nil
		}
	}
	if r.Verdict = Adopted; cfg.DryRun {
		return nil
	}
	return cfg.take(ctx, theirs, sets, pods, mine)
}

// unfit says why KServe's Deployment can't be taken over, whatever its pods are.
func unfit(is *v1beta1.InferenceService, theirs *appsv1.Deployment) string {
	switch {
	case is.DeletionTimestamp != nil:
		return "it is being deleted"
	case len(is.Spec.Canary) > 0:
		return "it has spec.canary, of which KServe makes Deployments of their own: promote the canary, or take it away, first"
	case is.Spec.Predictor.WorkerSpec != nil:
		return "a replica over several nodes is another kind of object here: the operator makes new ones"
	case theirs == nil:
		return ""
	case theirs.Status.ObservedGeneration != theirs.Generation || theirs.Status.UpdatedReplicas != theirs.Status.Replicas:
		return "Deployment " + theirs.Name + " is being rolled out: run this again when it is done"
	}
	return ""
}

// deployment returns KServe's Deployment of a component, or nil.
func (cfg *Config) deployment(ctx context.Context, is *v1beta1.InferenceService, c spec.Component) (*appsv1.Deployment, error) {
	var d appsv1.Deployment
	name := manifest.ComponentName(is.Name, c)
	if c == spec.Predictor {
		name = manifest.PredictorName(is.Name, is.Spec.Predictor.Name)
	}
	err := cfg.API.Get(ctx, client.ObjectKey{Namespace: is.Namespace, Name: name}, &d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", name, err)
	}
	if owner := metav1.GetControllerOf(&d); owner == nil || owner.UID != is.UID {
		return nil, nil
	}
	return &d, nil
}

// revisions reports whether the operator has made a revision of a component.
func (cfg *Config) revisions(ctx context.Context, is *v1beta1.InferenceService, c spec.Component) (bool, error) {
	var list smv1alpha1.RevisionList
	err := cfg.API.List(ctx, &list, client.InNamespace(is.Namespace), client.MatchingLabels{labelService: is.Name})
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list revisions: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(r smv1alpha1.Revision) bool { return r.Spec.Component == string(c) }), nil
}

// cleanUp deletes what KServe had for a component that the operator serves.
func (cfg *Config) cleanUp(ctx context.Context, is *v1beta1.InferenceService, theirs *appsv1.Deployment, r *Result) error {
	if !isReady(is) {
		r.Why = []string{"the operator has made revisions of it already, and the service isn't Ready: run this again when it is, and Deployment " + theirs.Name + " goes"}
		return nil
	}
	r.Verdict, r.Why = CleanedUp, []string{"Deployment " + theirs.Name + " isn't needed any more"}
	if cfg.DryRun {
		return nil
	}
	if err := cfg.endScalers(ctx, theirs); err != nil {
		return err
	}
	return cfg.remove(ctx, theirs, metav1.DeletePropagationBackground)
}

func isReady(is *v1beta1.InferenceService) bool {
	if is.Status.ObservedGeneration != is.Generation {
		return false
	}
	return slices.ContainsFunc(is.Status.Conditions, func(c v1beta1.Condition) bool {
		return c.Type == v1beta1.ConditionReady && c.Status == corev1.ConditionTrue
	})
}

// take passes the pods of KServe's Deployment to our ReplicaSet. The pods get our labels first, by
// which a run that broke off afterwards finds them; nothing scales them meanwhile.
func (cfg *Config) take(ctx context.Context, theirs *appsv1.Deployment, sets []appsv1.ReplicaSet, pods []corev1.Pod, mine *appsv1.ReplicaSet) error {
	for i := range pods {
		if err := cfg.mark(ctx, &pods[i], mine); err != nil {
			return err
		}
	}
	if err := cfg.endScalers(ctx, theirs); err != nil {
		return err
	}
	if err := cfg.remove(ctx, theirs, metav1.DeletePropagationOrphan); err != nil {
		return err
	}
	for i := range sets {
		if err := cfg.remove(ctx, &sets[i], metav1.DeletePropagationOrphan); err != nil {
			return err
		}
	}
	return cfg.hold(ctx, mine, pods)
}

// goOn ends what a run began that broke off after KServe's Deployment was gone.
func (cfg *Config) goOn(ctx context.Context, mine *appsv1.ReplicaSet, r *Result) error {
	pods, err := cfg.orphans(ctx, mine)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		r.Why = []string{"KServe has no Deployment of it: a service that runs with Knative, or isn't deployed, is made anew by the operator"}
		return nil
	}
	if r.Verdict = Adopted; cfg.DryRun {
		return nil
	}
	return cfg.hold(ctx, mine, pods)
}

// mark gives a pod the labels and annotations of those that the operator makes.
func (cfg *Config) mark(ctx context.Context, pod *corev1.Pod, mine *appsv1.ReplicaSet) error {
	before := pod.DeepCopy()
	for k, v := range mine.Spec.Template.Labels {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, k, v)
	}
	for k, v := range mine.Spec.Template.Annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
	}
	if err := cfg.API.Patch(ctx, pod, client.MergeFrom(before)); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("label pod %s: %w", pod.Name, err)
	}
	return nil
}

// hold makes the ReplicaSet that owns pods from now on. It asks for as many as there are, so that
// it neither makes nor ends one. The operator's Deployment has the same pod template, and so
// takes it for the newest of its own.
func (cfg *Config) hold(ctx context.Context, mine *appsv1.ReplicaSet, pods []corev1.Pod) error {
	byHash := map[string]int{}
	for i := range pods {
		byHash[pods[i].Labels[appsv1.DefaultDeploymentUniqueLabelKey]]++
	}
	if len(byHash) > 1 {
		return errdef.New(errdef.ErrConflict, fmt.Sprintf("its pods are of %d ReplicaSets: delete those of older ones", len(byHash)))
	}
	for hash, n := range byHash {
		set, count := mine.DeepCopy(), int32(n)
		set.Name = mine.Name + "-" + hash
		set.Spec.Replicas = &count
		metav1.SetMetaDataLabel(&set.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
		metav1.SetMetaDataLabel(&set.Spec.Template.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
		set.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
		if err := cfg.API.Create(ctx, set); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make ReplicaSet %s: %w", set.Name, err)
		}
	}
	return nil
}

// remove deletes an object and waits until it is gone, so that who is left behind is free.
func (cfg *Config) remove(ctx context.Context, o client.Object, how metav1.DeletionPropagation) error {
	uid := o.GetUID()
	err := cfg.API.Delete(ctx, o, client.PropagationPolicy(how), client.Preconditions{UID: &uid})
	for err == nil {
		if err = cfg.API.Get(ctx, client.ObjectKeyFromObject(o), o); err == nil && o.GetUID() != uid {
			return nil
		}
		if err == nil {
			err = pause(ctx, cfg.Every)
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete %T %s: %w", o, o.GetName(), err)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// below returns the ReplicaSets of a Deployment, and their pods that aren't on their way out.
func (cfg *Config) below(ctx context.Context, d *appsv1.Deployment) ([]appsv1.ReplicaSet, []corev1.Pod, error) {
	in := []client.ListOption{client.InNamespace(d.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels)}
	var sets appsv1.ReplicaSetList
	if err := cfg.API.List(ctx, &sets, in...); err != nil {
		return nil, nil, fmt.Errorf("list ReplicaSets: %w", err)
	}
	var pods corev1.PodList
	if err := cfg.API.List(ctx, &pods, in...); err != nil {
		return nil, nil, fmt.Errorf("list pods: %w", err)
	}
	own := slices.DeleteFunc(sets.Items, func(r appsv1.ReplicaSet) bool { return !metav1.IsControlledBy(&r, d) })
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !slices.ContainsFunc(own, func(r appsv1.ReplicaSet) bool { return metav1.IsControlledBy(&p, &r) })
	})
	return own, running, nil
}

// orphans returns the pods that bear the labels of our pods and that nobody owns.
func (cfg *Config) orphans(ctx context.Context, mine *appsv1.ReplicaSet) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := cfg.API.List(ctx, &list, client.InNamespace(mine.Namespace), client.MatchingLabels(mine.Spec.Selector.MatchLabels))
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || metav1.GetControllerOf(&p) != nil
	}), nil
}

// replicaSet makes what is to own the pods of a revision, and one of those pods as the API server
// would admit it. Neither is stored.
func (cfg *Config) replicaSet(ctx context.Context, rev *smv1alpha1.Revision) (*appsv1.ReplicaSet, *corev1.Pod, error) {
	platform := kube.Config{Image: cfg.Image}
	if err := platform.Deliver(cfg.OCIDelivery); err != nil {
		return nil, nil, errdef.New(errdef.ErrInvalid, "--oci-delivery: "+err.Error())
	}
	template, selector, err := platform.Template(rev)
	if err != nil {
		return nil, nil, err
	}
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.GenerateName = rev.Namespace, rev.Name+"-"
	if err := cfg.API.Create(ctx, pod, client.DryRunAll); err != nil {
		return nil, nil, fmt.Errorf("the cluster refuses its pods: %w", err)
	}
	none := int32(0)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: rev.Namespace, Name: rev.Name, Labels: maps.Clone(template.Labels)},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: selector}, Template: template},
	}, pod, nil
}
