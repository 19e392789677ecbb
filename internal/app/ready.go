package app

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// standing is how far an object of a kind that becomes ready has come.
type standing struct {
	// seen says that its status speaks of the object as it is.
	seen bool
	// status, reason and message are those of its condition Ready.
	status, reason, message string
	// final says that waiting is of no use.
	final bool
	// routes is what the gateway has to have a line for: the object itself, or what serves it.
	routes client.ObjectKey
}

// reader reads where an object stands.
type reader func(context.Context, client.Client, client.ObjectKey) (standing, error)

// readers are those of all kinds that become ready, by kind.
var readers = map[string]reader{
	"InferenceService": readService,
	"InferenceGraph":   readGraph,
	"TrainedModel":     readTrainedModel,
}

// ready takes over what conditions say of Ready.
func (st *standing) ready(conditions []v1beta1.Condition) {
	for _, c := range conditions {
		if c.Type == v1beta1.ConditionReady {
			st.status, st.reason, st.message = string(c.Status), c.Reason, c.Message
		}
	}
}

func readService(ctx context.Context, c client.Client, key client.ObjectKey) (standing, error) {
	var is v1beta1.InferenceService
	err := c.Get(ctx, key, &is)
	st := standing{seen: is.Status.ObservedGeneration == is.Generation, routes: key}
	st.ready(is.Status.Conditions)
	st.final = is.Status.ModelStatus.TransitionStatus == v1beta1.InvalidSpec || st.reason == "RuntimeNotInstalled"
	return st, err
}

func readGraph(ctx context.Context, c client.Client, key client.ObjectKey) (standing, error) {
	var g v1alpha1.InferenceGraph
	err := c.Get(ctx, key, &g)
	st := standing{seen: g.Status.ObservedGeneration == g.Generation, routes: key}
	st.ready(g.Status.Conditions)
	return st, err
}

func readTrainedModel(ctx context.Context, c client.Client, key client.ObjectKey) (standing, error) {
	var tm v1alpha1.TrainedModel
	err := c.Get(ctx, key, &tm)
	st := standing{
		seen:   tm.Status.ObservedGeneration == tm.Generation,
		routes: client.ObjectKey{Namespace: key.Namespace, Name: tm.Spec.InferenceService},
	}
	for _, cond := range tm.Status.Conditions {
		if cond.Type == v1alpha1.TrainedModelReady {
			st.status, st.reason, st.message = string(cond.Status), cond.Reason, cond.Message
		}
	}
	return st, err
}

// waitReady waits until each of the objects whose kind becomes ready is so, at most applyWait in
// all, and says a line for each. One that isn't is said as well, with what its condition tells; that
// is no error: others serve, and the manifest can be mended. When ctx ends, those that it didn't come
// to get no line.
func (s *standalone) waitReady(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) {
	out, deadline := s.cfg.Out, time.Now().Add(applyWait)
	for _, o := range objects {
		read, becomesReady := readers[o.GetKind()]
		if !becomesReady {
			continue
		}
		name := o.GetNamespace() + "/" + o.GetName()
		if o.GetKind() != "InferenceService" {
			name = strings.ToLower(o.GetKind()) + " " + name
		}
		why := s.awaitOne(ctx, c, read, client.ObjectKeyFromObject(o), deadline, out)
		if why == "" {
			fmt.Fprintf(out, "serving %s\n", name)
		} else {
			fmt.Fprintf(out, "not serving %s yet: %s\n", name, why)
		}
		if ctx.Err() != nil {
			return // nothing is known of those that weren't looked at
		}
	}
}

// awaitOne polls one object until it is ready, has failed for good, or time is up. It tells each
// kind of failure once, and returns why the object isn't ready, empty when it is.
func (s *standalone) awaitOne(ctx context.Context, c client.Client, read reader, key client.ObjectKey, deadline time.Time, out io.Writer) string {
	why, told := "nothing was observed yet", ""
	for {
		st, err := read(ctx, c, key)
		switch {
		case apierrors.IsNotFound(err):
			return "it was deleted"
		case err != nil:
			why = err.Error()
		case !st.seen || st.status == "":
		case st.status == "True":
			// After a restart the stored status may be that of before.
			if s.routed(st.routes) {
				return ""
			}
		default:
			why = strings.TrimPrefix(st.reason+": "+st.message, ": ")
			if st.final {
				return why
			}
			if st.status == "False" && st.reason != told {
				told = st.reason
				first, _, _ := strings.Cut(why, "\n")
				fmt.Fprintf(out, "waiting for %s: %s\n", key, first)
			}
		}
		if time.Now().After(deadline) {
			return why
		}
		select {
		case <-ctx.Done():
			return "stopping; last: " + why
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// routed reports whether the gateway has a ready replica for a service's requests, or wakes one;
// of a graph, whether the gateway knows it.
func (s *standalone) routed(key client.ObjectKey) bool {
	m, ok := s.table.Load().Named(spec.ServiceKey{Namespace: key.Namespace, Name: key.Name}, "/")
	if ok && m.Service.Graph != nil {
		return true
	}
	return ok && m.Backend != nil && (m.Backend.NotReady == "" || m.Backend.Cold)
}
