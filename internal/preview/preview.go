// Package preview says of an object that is about to be stored what its reconcile would say of it:
// what it names and isn't there, which runtime would serve it or why none does, and what would do
// nothing. Admission adds this to its warnings, so that a dry run tells all of it.
package preview

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Preview looks at objects beside what exists. It keeps nothing and is safe for concurrent use.
type Preview struct {
	// OneMachine says that services run as processes of one machine.
	OneMachine bool
	// Direct says that the operator was told of a Gateway that leads past its own.
	Direct bool
	// Cached reads services, runtimes and trained models, Live config maps, claims, service accounts
	// and, on one machine, secrets: those of a cluster are for kubelets.
	Cached, Live client.Reader
	// Try has a cluster judge what a revision would run by, and returns a sentence for each thing that it
	// says; elsewhere means that somebody else sets its number of replicas. Nil means that nobody is asked.
	// What keeps it from an answer is nobody's business here.
	Try func(ctx context.Context, is *v1beta1.InferenceService, rev *smv1alpha1.Revision, elsewhere bool) ([]string, error)
}

// Warnings returns a sentence for each thing about a decoded object of a namespace that would be
// wrong or do nothing beside what manifest.Admit tells. old is what is stored of it; nil for a new
// one. The error is the API's; what was found before it comes with it.
func (p *Preview) Warnings(ctx context.Context, namespace string, obj, old manifest.Object) ([]string, error) {
	s := sight{Preview: p, namespace: namespace}
	var err error
	switch o := obj.(type) {
	case *v1beta1.InferenceService:
		err = s.service(ctx, o)
	case *v1alpha1.TrainedModel:
		err = s.trainedModel(ctx, o)
	case *v1alpha1.InferenceGraph:
		err = s.graph(ctx, o)
	case *v1alpha1.ServingRuntime:
		if before, ok := old.(*v1alpha1.ServingRuntime); ok {
			err = s.runtime(ctx, catalogue.KindServingRuntime, runtimeShape{o.Name, &o.Spec, o.Annotations}, runtimeShape{o.Name, &before.Spec, before.Annotations})
		}
	case *v1alpha1.ClusterServingRuntime:
		if before, ok := old.(*v1alpha1.ClusterServingRuntime); ok {
			err = s.runtime(ctx, catalogue.KindClusterServingRuntime, runtimeShape{o.Name, &o.Spec, o.Annotations}, runtimeShape{o.Name, &before.Spec, before.Annotations})
		}
	}
	return s.found, err
}

// sight is one look at one object.
type sight struct {
	*Preview
	namespace string
	found     []string
	// runtimes are listed once.
	namespaced *v1alpha1.ServingRuntimeList
	cluster    *v1alpha1.ClusterServingRuntimeList
}

func (s *sight) say(format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf(format, args...))
}

// service looks at an InferenceService.
func (s *sight) service(ctx context.Context, written *v1beta1.InferenceService) error {
	s.tell(manifest.DirectNotInEffect(written, s.Direct))
	if s.Direct && !s.OneMachine && manifest.Direct(written) {
		s.routes(ctx)
	}
	is := written.DeepCopy()
	is.Namespace = s.namespace
	manifest.Default(is, manifest.Defaults{})
	for _, name := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		if manifest.Extension(is, string(name)) == nil {
			continue
		}
		idle, err := control.ScalingNotInEffect(is, name, s.OneMachine)
		if err != nil {
			s.say("spec.%s can't be scaled: %v", name, err)
		}
		s.tell(idle)
		if err := s.component(ctx, is, name, "spec."+string(name)); err != nil {
			return err
		}
	}
	for i := range is.Spec.Canary {
		at := fmt.Sprintf("spec.canary[%d].predictor", i)
		with, err := manifest.CanaryService(is, i)
		if err != nil {
			s.say("%s can't run: %v", at, err)
			continue
		}
		if err := s.component(ctx, with, spec.Predictor, at); err != nil {
			return err
		}
	}
	idle, err := control.PrefillNotInEffect(ctx, s.Cached, is)
	s.tell(idle)
	return err
}

func (s *sight) tell(idle []manifest.NotInEffect) {
	for _, n := range idle {
		if s.OneMachine || !n.ClusterOnly {
			s.found = append(s.found, n.Warning())
		}
	}
}

// component compiles a component and looks at what its pods name.
func (s *sight) component(ctx context.Context, is *v1beta1.InferenceService, name spec.Component, at string) error {
	compiled, err := s.compile(ctx, is, name)
	var selection *catalogue.SelectionError
	var compile *manifest.CompileError
	switch {
	case errors.As(err, &selection):
		s.say("%s.model has no runtime: %v", at, selection)
		return nil
	case errors.As(err, &compile):
		s.say("%s can't run: %v", at, compile.Reason)
		return nil
	case err != nil:
		return err
	}
	if s.OneMachine {
		for _, f := range compiled.Unsupported {
			s.tell([]manifest.NotInEffect{{Field: f, Reason: "it has no meaning for a process on one machine"}})
		}
	}
	if err := s.references(ctx, is, &compiled, at); err != nil {
		return err
	}
	s.try(ctx, is, &compiled, at)
	return nil
}

// httpRoutes is the kind of what leads past our gateway.
var httpRoutes = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "HTTPRouteList"}

// routes looks whether the cluster knows HTTPRoutes. One that can't be asked says nothing.
func (s *sight) routes(ctx context.Context) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(httpRoutes)
	err := s.Live.List(ctx, &list, client.InNamespace(s.namespace), client.Limit(1))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		s.say("metadata.annotations[%s]: this cluster has no kind HTTPRoute (%s), which this needs: install the Gateway API", manifest.DirectAnnotation, httpRoutes.GroupVersion())
	}
}

// tryWait bounds how long a cluster is asked about one component: what else there is to tell counts more.
const tryWait = time.Second

// unused is the number of a revision that no service has.
const unused = 99999

// try has the cluster judge a component. One that can't be asked, or not in time, says nothing.
func (s *sight) try(ctx context.Context, is *v1beta1.InferenceService, c *manifest.Compiled, at string) {
	if s.Try == nil || s.OneMachine {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	name := c.Workload.Component
	rev := &smv1alpha1.Revision{Spec: c.RevisionSpec()}
	rev.Namespace, rev.Name = s.namespace, manifest.RevisionName(is.Name, name, unused)
	said, _ := s.Try(ctx, is, rev, control.ReplicasElsewhere(is, name, false))
	for _, text := range said {
		s.say("%s: %s", at, text)
	}
}

// compile chooses a component's runtime, tells what is wrong with it, and merges the two.
func (s *sight) compile(ctx context.Context, is *v1beta1.InferenceService, name spec.Component) (manifest.Compiled, error) {
	in := manifest.Input{Service: is, Component: name}
	if request, needs := catalogue.RequestOf(&is.Spec.Predictor); needs && name == spec.Predictor {
		if err := s.listRuntimes(ctx); err != nil {
			return manifest.Compiled{}, err
		}
		chosen, err := catalogue.Select(request, s.namespaced.Items, s.cluster.Items)
		if err != nil {
			return manifest.Compiled{}, err
		}
		for _, fault := range catalogue.Faults(chosen, s.namespaced.Items, s.cluster.Items) {
			s.say("the runtime wouldn't be accepted today: %s", fault)
		}
		in.Runtime, in.RuntimeName, in.RuntimeKind, in.RuntimeAnnotations = chosen.Spec, chosen.Name, chosen.Kind, chosen.Annotations
	}
	var unread error
	in.ConfigMap = func(name string) (map[string]string, error) {
		data, err := s.configMap(ctx, s.namespace, name)
		if err != nil && !apierrors.IsNotFound(err) {
			unread = err
		}
		return data, err
	}
	compiled, err := manifest.Compile(in)
	if unread != nil {
		return manifest.Compiled{}, unread
	}
	return compiled, err
}

// configMap reads a config map's data.
func (s *sight) configMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	var m corev1.ConfigMap
	if err := s.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &m); err != nil {
		return nil, fmt.Errorf("read config map %s of the namespace %s: %w", name, namespace, err)
	}
	return m.Data, nil
}

func (s *sight) listRuntimes(ctx context.Context) error {
	if s.cluster != nil {
		return nil
	}
	namespaced, cluster := &v1alpha1.ServingRuntimeList{}, &v1alpha1.ClusterServingRuntimeList{}
	if err := s.Cached.List(ctx, namespaced, client.InNamespace(s.namespace)); err != nil {
		return fmt.Errorf("list serving runtimes: %w", err)
	}
	if err := s.Cached.List(ctx, cluster); err != nil {
		return fmt.Errorf("list cluster serving runtimes: %w", err)
	}
	s.namespaced, s.cluster = namespaced, cluster
	return nil
}

// inferenceService returns a service of the namespace, nil for none.
func (s *sight) inferenceService(ctx context.Context, name string) (*v1beta1.InferenceService, error) {
	var is v1beta1.InferenceService
	err := s.Cached.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &is)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read service %s: %w", name, err)
	}
	return &is, nil
}

// trainedModel looks at a TrainedModel beside the service that it names.
func (s *sight) trainedModel(ctx context.Context, tm *v1alpha1.TrainedModel) error {
	is, err := s.inferenceService(ctx, tm.Spec.InferenceService)
	if err != nil {
		return err
	}
	var rev manifest.Compiled
	if is == nil {
		s.say("spec.inferenceService names %s, which isn't there: the model is served once it is", tm.Spec.InferenceService)
		if !manifest.IsAdapter(tm) {
			return nil
		}
	} else if !manifest.IsAdapter(tm) {
		is := is.DeepCopy()
		manifest.Default(is, manifest.Defaults{})
		if rev, err = s.compile(ctx, is, spec.Predictor); err != nil {
			var selection *catalogue.SelectionError
			var compile *manifest.CompileError
			if errors.As(err, &selection) || errors.As(err, &compile) {
				s.say("the InferenceService %s doesn't run: %v", is.Name, err)
				return nil
			}
			return err
		}
	}
	shape := rev.RevisionSpec()
	if why := control.WhyNotServed(tm, &shape, s.OneMachine); why != "" {
		s.say("the model won't be served: %s", why)
	}
	return nil
}

// graph looks for the services that a graph's steps call.
func (s *sight) graph(ctx context.Context, g *v1alpha1.InferenceGraph) error {
	for _, name := range manifest.GraphServices(g) {
		is, err := s.inferenceService(ctx, name)
		if err != nil {
			return err
		}
		if is == nil {
			s.say("a step calls the InferenceService %s, which isn't there: the graph isn't ready before it is", name)
		}
	}
	taken, err := s.inferenceService(ctx, g.Name)
	if err == nil && taken != nil {
		s.say("the InferenceService %s has the graph's name, so that one host and one path prefix would lead to both: give one of them another", g.Name)
	}
	return err
}
