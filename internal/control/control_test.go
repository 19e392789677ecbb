package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAServiceBecomesARevisionARouteAndAStatus(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	is := b.ready("iris")

	if got := b.revisions("iris"); !slices.Equal(got, []string{"iris-predictor-00001"}) {
		t.Errorf("revisions %v", got)
	}
	var r smv1alpha1.Route
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(is), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Spec.Components) != 1 || r.Spec.Components[0].Targets[0] != (smv1alpha1.RouteTarget{RevisionName: "iris-predictor-00001", Percent: 100}) {
		t.Errorf("route %+v", r.Spec)
	}
	if got := b.serving(b.key("iris")); got != "iris-predictor-00001" {
		t.Errorf("the gateway's table leads to %q", got)
	}
	s := is.Status
	host := "iris-" + b.ns + ".localhost"
	if s.URL != "http://"+host+":8080" || s.Address == nil || s.Address.URL != "http://127.0.0.1:8080/serving/"+b.ns+"/iris" {
		t.Errorf("url %s, address %+v", s.URL, s.Address)
	}
	c := s.Components["predictor"]
	if c.LatestCreatedRevision != "iris-predictor-00001" || c.LatestReadyRevision != c.LatestCreatedRevision || c.LatestRolledoutRevision != c.LatestCreatedRevision {
		t.Errorf("predictor %+v", c)
	}
	if s.ServingRuntimeName != "onnx" || s.ClusterServingRuntimeName != "" {
		t.Errorf("runtime %q and cluster runtime %q", s.ServingRuntimeName, s.ClusterServingRuntimeName)
	}
	if s.ModelStatus.TransitionStatus != v1beta1.UpToDate || s.Annotations[statusProtocols] != "v1,v2,grpc-v2" {
		t.Errorf("model status %+v, annotations %v", s.ModelStatus, s.Annotations)
	}
	if is.Finalizers[0] != finalizer {
		t.Errorf("finalizers %v", is.Finalizers)
	}
	if s.Conditions[0].Type != v1beta1.ConditionReady {
		t.Errorf("the first condition is %s", s.Conditions[0].Type)
	}
}

func TestAnUpdateMovesTrafficOnlyWhenItIsReadyAndDrainsTheOldOne(t *testing.T) {
	b := newBench(t)
	key := b.key("iris")
	b.failModel("file:///models/two", &spec.Failure{Reason: spec.ModelPullFailed, Message: "no such folder", ExitCode: -1, At: time.Now(), RetryAt: time.Now().Add(time.Minute)})
	b.service("iris")
	b.ready("iris")

	b.edit("iris", withModel("file:///models/two"))
	is := b.until("iris", "blocked by the failed load", func(is *v1beta1.InferenceService) bool {
		return is.Status.ObservedGeneration == 2 && is.Status.ModelStatus.TransitionStatus == v1beta1.BlockedByFailedLoad
	})
	if got := b.serving(key); got != "iris-predictor-00001" {
		t.Errorf("while the new revision fails, traffic goes to %q", got)
	}
	if got := b.wanted(key); len(got) != 2 {
		t.Errorf("assignments %v, want the new and the old", got)
	}
	pred := conditionOf(is.Status.Conditions, v1beta1.ConditionPredictorReady)
	if pred.Status != corev1.ConditionFalse || pred.Reason != "ModelPullFailed" || !strings.Contains(pred.Message, "all traffic still goes to revision iris-predictor-00001") {
		t.Errorf("PredictorReady %+v", pred)
	}
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady); c.Status != corev1.ConditionTrue {
		t.Errorf("IngressReady %+v though the old revision serves", c)
	}
	if c := is.Status.Components["predictor"]; c.LatestCreatedRevision != "iris-predictor-00002" || c.LatestReadyRevision != "iris-predictor-00001" || c.Traffic[0].Tag != "prev" {
		t.Errorf("predictor %+v", c)
	}

	b.set(key, "iris-predictor-00002", becomeReady)
	b.eventually("traffic moves", func() string {
		if got := b.serving(key); got != "iris-predictor-00002" {
			return "it goes to " + got
		}
		return ""
	})
	moved := time.Now()
	is = b.ready("iris")
	if is.Status.ModelStatus.LastFailureInfo != nil {
		t.Errorf("lastFailureInfo %+v after the recovery", is.Status.ModelStatus.LastFailureInfo)
	}
	b.eventually("the old revision is let go", func() string {
		if _, there := b.assignment(key, "iris-predictor-00001"); there {
			return fmt.Sprint(b.wanted(key))
		}
		return ""
	})
	// The table was polled, so that the move may be some milliseconds older than noticed.
	if took := time.Since(moved); took < plan.DrainDelay-500*time.Millisecond {
		t.Errorf("the old revision was let go %v after its traffic moved, want %v", took, plan.DrainDelay)
	}
	is = b.get("iris")
	if c := is.Status.Components["predictor"]; c.LatestRolledoutRevision != "iris-predictor-00002" || c.PreviousRolledoutRevision != "iris-predictor-00001" {
		t.Errorf("predictor %+v", c)
	}
}

func TestAFailingReplicaIsToldWithCodeTimeAndLogAndForgottenWhenItRecovers(t *testing.T) {
	b := newBench(t)
	key := b.key("iris")
	b.service("iris")
	b.ready("iris")
	at := time.Now().Truncate(time.Second)
	b.set(key, "iris-predictor-00001", func(r *spec.Replica) {
		r.Phase, r.Restarts = spec.Failed, 3
		r.Failure = &spec.Failure{
			Reason: spec.Exited, Container: "kserve-container", Message: "the engine exited with 3", ExitCode: 3,
			At: at, LogTail: []string{"loading", "out of luck"}, RetryAt: at.Add(time.Minute),
		}
	})
	is := b.until("iris", "not ready", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionReady).Status == corev1.ConditionFalse
	})
	info := is.Status.ModelStatus.LastFailureInfo
	if info == nil || info.ExitCode != 3 || !info.Time.Time.Equal(at) || info.Reason != v1beta1.RuntimeUnhealthy ||
		!strings.Contains(info.Message, "out of luck") || info.ModelRevisionName != "iris-predictor-00001" || info.Location == "" {
		t.Errorf("lastFailureInfo %+v", info)
	}
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); c.Reason != "Exited" || !strings.Contains(c.Message, "restarted 3 times") {
		t.Errorf("Ready %+v", c)
	}
	if got := b.serving(key); got != "" {
		t.Errorf("traffic goes to %q though no replica is ready", got)
	}
	if m, ok := b.table.Load().Named(key, "/"); !ok || !strings.Contains(m.Backend.NotReady, "the engine exited with 3") {
		t.Error("the gateway can't say why the service isn't ready")
	}
	b.set(key, "iris-predictor-00001", becomeReady)
	if is = b.ready("iris"); is.Status.ModelStatus.LastFailureInfo != nil || is.Status.ModelStatus.ModelCopies.FailedCopies != 0 {
		t.Errorf("model status %+v after the recovery", is.Status.ModelStatus)
	}
	if got := b.revisions("iris"); len(got) != 1 {
		t.Errorf("a failure made revisions %v", got)
	}
}

func TestAManifestThatCannotBeServedIsInvalidAndTheOldRevisionServesOn(t *testing.T) {
	yes := true
	runtimeNamed := func(name string) func(*v1beta1.InferenceService) {
		return func(is *v1beta1.InferenceService) { is.Spec.Predictor.Model.Runtime = &name }
	}
	tests := map[string]struct {
		change func(*v1beta1.InferenceService)
		reason v1beta1.FailureReason
		says   string
	}{
		"a format that nothing serves":            {withFormat("parchment"), v1beta1.NoSupportingRuntime, "parchment"},
		"a runtime that isn't there":              {runtimeNamed("nope"), v1beta1.RuntimeNotRecognized, "nope"},
		"a runtime that is disabled":              {runtimeNamed("off"), v1beta1.RuntimeDisabled, "off"},
		"a runtime that doesn't serve the format": {runtimeNamed("other"), v1beta1.NoSupportingRuntime, "other"},
		"a placeholder that leads nowhere":        {runtimeNamed("broken"), v1beta1.InvalidPredictorSpec, "Labels"},
	}
	b := newBench(t)
	b.runtime("off", func(r *v1alpha1.ServingRuntime) {
		r.Spec.Disabled = &yes
		r.Spec.SupportedModelFormats[0].Name = "onnx"
	})
	b.runtime("other", nil)
	b.runtime("broken", func(r *v1alpha1.ServingRuntime) {
		r.Spec.SupportedModelFormats[0] = v1alpha1.SupportedModelFormat{Name: "onnx"}
		r.Spec.Containers[0].Args = []string{"--x={{.Labels.none.none}}"}
	})
	i := 0
	for name, tc := range tests {
		i++
		served, fresh := fmt.Sprintf("served%d", i), fmt.Sprintf("fresh%d", i)
		t.Run(name, func(t *testing.T) {
			invalid := func(is *v1beta1.InferenceService) bool {
				return is.Status.ObservedGeneration == is.Generation && is.Status.ModelStatus.TransitionStatus == v1beta1.InvalidSpec
			}
			b.service(served)
			b.ready(served)
			b.edit(served, tc.change)
			is := b.until(served, "invalid", invalid)
			info := is.Status.ModelStatus.LastFailureInfo
			if info == nil || info.Reason != tc.reason || !strings.Contains(info.Message, tc.says) {
				t.Errorf("lastFailureInfo %+v, want %s with %q", info, tc.reason, tc.says)
			}
			if c := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); c.Status != corev1.ConditionFalse || c.Reason != string(tc.reason) ||
				!strings.Contains(c.Message, "revision "+served+"-predictor-00001, made before, still serves") {
				t.Errorf("Ready %+v", c)
			}
			if got := b.serving(b.key(served)); got != served+"-predictor-00001" {
				t.Errorf("traffic goes to %q", got)
			}
			b.service(fresh, tc.change)
			if is := b.until(fresh, "invalid", invalid); conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady).Status == corev1.ConditionTrue {
				t.Errorf("a service that never served: %s", describe(is))
			}
			b.edit(served, func(is *v1beta1.InferenceService) { is.Spec = newService("", "").Spec })
			if is := b.ready(served); is.Status.ModelStatus.LastFailureInfo != nil || len(b.revisions(served)) != 1 {
				t.Errorf("mended: %s, revisions %v", describe(is), b.revisions(served))
			}
		})
	}
}

func TestAChangedRuntimeRollsOut(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")
	var r v1alpha1.ServingRuntime
	if err := b.Get(t.Context(), client.ObjectKey{Namespace: b.ns, Name: "onnx"}, &r); err != nil {
		t.Fatal(err)
	}
	r.Spec.Containers[0].Image = "example.com/onnx:2"
	if err := b.Update(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	b.until("iris", "rolled over to the new runtime", func(is *v1beta1.InferenceService) bool {
		return isReady(is) && is.Status.Components["predictor"].LatestRolledoutRevision == "iris-predictor-00002"
	})
	if a, ok := b.assignment(b.key("iris"), "iris-predictor-00002"); !ok || a.Workload.Containers[0].Image != "example.com/onnx:2" {
		t.Errorf("assigned %+v", a)
	}
}

func TestARuntimeThatComesLaterMendsAService(t *testing.T) {
	b := newBench(t)
	b.service("m", withFormat("late"))
	b.until("m", "invalid", func(is *v1beta1.InferenceService) bool {
		return is.Status.ModelStatus.TransitionStatus == v1beta1.InvalidSpec
	})
	b.runtime("late", nil)
	b.ready("m")
}

func TestDeletingAServiceRemovesAllOfIt(t *testing.T) {
	b := newBench(t)
	key := b.key("iris")
	is := b.service("iris")
	b.ready("iris")
	if err := b.Delete(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	b.eventually("gone", func() string {
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(is), &v1beta1.InferenceService{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint("the service is still there: ", err)
		}
		return ""
	})
	if got := b.revisions("iris"); len(got) > 0 {
		t.Errorf("revisions %v are left", got)
	}
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(is), &smv1alpha1.Route{}); !apierrors.IsNotFound(err) {
		t.Errorf("the route: %v", err)
	}
	if got, _ := b.platform.Services(t.Context()); len(got) > 0 {
		t.Errorf("the platform still has %v", got)
	}
	if _, there := b.table.Load().Named(key, "/"); there {
		t.Error("the gateway still has it")
	}
	// The same name once more starts a history of its own.
	b.service("iris")
	b.ready("iris")
}

func TestAServiceDeletedWhileNobodyLookedIsRemovedFromThePlatform(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")
	b.service("stays")
	b.ready("stays")
	b.stop()
	is := b.get("iris")
	is.Finalizers = nil
	if err := b.Update(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.eventually("the platform lets go", func() string {
		if got := b.wanted(b.key("iris")); len(got) > 0 {
			return fmt.Sprint(got)
		}
		return ""
	})
	if got := b.wanted(b.key("stays")); len(got) != 1 {
		t.Errorf("the other service has %v", got)
	}
}

func TestARestartChangesNothing(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")
	b.edit("iris", withModel("file:///models/two"))
	b.until("iris", "rolled over", func(is *v1beta1.InferenceService) bool {
		return isReady(is) && is.Status.Components["predictor"].LatestRolledoutRevision == "iris-predictor-00002"
	})
	b.eventually("drained", func() string {
		if got := b.wanted(b.key("iris")); len(got) != 1 {
			return fmt.Sprint(got)
		}
		return ""
	})
	quiet := b.settle()
	before := b.get("iris")
	observed, _ := b.platform.Observe(t.Context(), b.key("iris"))
	b.stop()
	b.table.Publish(nil)
	b.start()
	select {
	case <-b.control.Synced():
	case <-time.After(patience):
		t.Fatal("the controller never said that it has seen all")
	}
	if b.serving(b.key("iris")) == "" {
		t.Error("the table lacks a service that served before, though the controller says that it has seen all")
	}
	b.settle()
	if after := b.get("iris"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the restart wrote to the service: %s, before %s", describe(after), describe(before))
	}
	if n := b.totalWrites(); n != 0 {
		t.Errorf("the restart wrote %d times: %v (settled at %d before)", n, b.writes.n, quiet)
	}
	if again, _ := b.platform.Observe(t.Context(), b.key("iris")); again.Replicas[0].ID != observed.Replicas[0].ID {
		t.Errorf("replica %s became %s", observed.Replicas[0].ID, again.Replicas[0].ID)
	}
}

// settle waits until nothing was written for a while and returns the number of writes.
func (b *bench) settle() int {
	b.t.Helper()
	n, since := b.totalWrites(), time.Now()
	for time.Since(since) < 500*time.Millisecond {
		time.Sleep(20 * time.Millisecond)
		if m := b.totalWrites(); m != n {
			n, since = m, time.Now()
		}
	}
	return n
}

func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	b := newBench(t)
	b.service("well")
	b.ready("well")
	b.service("invalid", withFormat("parchment"))
	b.failModel("file:///bad", &spec.Failure{Reason: spec.Exited, Message: "exited", ExitCode: 1, At: time.Now(), RetryAt: time.Now().Add(time.Hour)})
	b.service("failing", withModel("file:///bad"))
	for _, name := range []string{"invalid", "failing"} {
		b.until(name, "not ready", func(is *v1beta1.InferenceService) bool {
			return conditionOf(is.Status.Conditions, v1beta1.ConditionReady).Status == corev1.ConditionFalse
		})
	}
	n := b.settle()
	// Waking every service again must not write either.
	for _, name := range []string{"well", "invalid", "failing"} {
		b.edit(name, func(is *v1beta1.InferenceService) { is.Labels = map[string]string{"touched": "yes"} })
	}
	time.Sleep(2 * time.Second)
	if m := b.totalWrites(); m != n {
		t.Errorf("%d writes while nothing changed: %v", m-n, b.writes.n)
	}
}

func TestTheOlderOfTwoServicesKeepsTheBareName(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	older := b.ready("iris")
	first := b.ns
	b.ns = b.namespace()
	b.runtime("onnx", nil)
	for time.Now().Truncate(time.Second).Equal(older.CreationTimestamp.Time.Truncate(time.Second)) {
		time.Sleep(10 * time.Millisecond) // the API's times are whole seconds
	}
	b.service("iris")
	is := b.ready("iris")
	c := conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady)
	if c.Status != corev1.ConditionTrue || c.Reason != "ModelNameTaken" || !strings.Contains(c.Message, "belongs to the older service "+first+"/iris") || !strings.Contains(c.Message, "/serving/"+b.ns+"/iris") {
		t.Errorf("the younger's IngressReady %+v", c)
	}
	m, err := b.table.Load().Model("iris", "/v2/models/iris/infer")
	if err != nil || m.Service.Key.Namespace != first {
		t.Errorf("the bare name leads to %+v, %v", m.Service, err)
	}
	// Both serve by host, and a restart in whatever order tells the same.
	b.restart()
	b.settle()
	if c := conditionOf(b.get("iris").Status.Conditions, v1beta1.ConditionIngressReady); c.Reason != "ModelNameTaken" {
		t.Errorf("the younger's IngressReady after a restart %+v", c)
	}
	if err := b.Delete(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	b.until("iris", "told that the name is its own now", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady).Reason == ""
	})
}

func TestStopAndStartByAnnotation(t *testing.T) {
	b := newBench(t)
	key := b.key("iris")
	b.service("iris")
	b.ready("iris")
	b.edit("iris", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{manifest.StopAnnotation: "true"}
	})
	is := b.until("iris", "stopped", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionStopped).Status == corev1.ConditionTrue
	})
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); c.Status != corev1.ConditionFalse || c.Reason != "Stopped" {
		t.Errorf("Ready %+v", c)
	}
	b.eventually("no replica", func() string {
		if o, _ := b.platform.Observe(t.Context(), key); len(o.Replicas) > 0 {
			return fmt.Sprint(o.Replicas)
		}
		return ""
	})
	if len(b.revisions("iris")) != 1 {
		t.Errorf("revisions %v", b.revisions("iris"))
	}
	if m, ok := b.table.Load().Named(b.key("iris"), "/"); !ok || !m.Backend.Stopped {
		t.Errorf("the routing table doesn't say that it was stopped")
	}
	b.edit("iris", func(is *v1beta1.InferenceService) { delete(is.Annotations, manifest.StopAnnotation) })
	is = b.until("iris", "ready again", func(is *v1beta1.InferenceService) bool {
		return isReady(is) && is.Status.ModelStatus.TransitionStatus == v1beta1.UpToDate
	})
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionStopped); c.Status == corev1.ConditionTrue {
		t.Errorf("Stopped %+v", c)
	}
}

func TestHistoryIsTrimmedAndWhatServesIsKept(t *testing.T) {
	b := newBench(t, func(c *Config) { c.History = 2 })
	b.service("iris")
	b.ready("iris")
	for i := 2; i <= 6; i++ {
		b.edit("iris", withModel(fmt.Sprintf("file:///models/%d", i)))
		want := fmt.Sprintf("iris-predictor-%05d", i)
		b.until("iris", "rolled over to "+want, func(is *v1beta1.InferenceService) bool {
			return isReady(is) && is.Status.Components["predictor"].LatestRolledoutRevision == want
		})
	}
	b.eventually("history of two beside what serves and what served before", func() string {
		got := b.revisions("iris")
		if !slices.Equal(got, []string{"iris-predictor-00003", "iris-predictor-00004", "iris-predictor-00005", "iris-predictor-00006"}) {
			return fmt.Sprint(got)
		}
		return ""
	})
}

func TestADigestIsPinnedOnceResolved(t *testing.T) {
	b := newBench(t)
	key := b.key("iris")
	b.service("iris")
	b.ready("iris")
	rev := "iris-predictor-00001"
	b.set(key, rev, func(r *spec.Replica) { r.Digests = map[string]string{"file:///models/one": "sha256:aa"} })
	b.eventually("pinned", func() string {
		if a, _ := b.assignment(key, rev); a.Workload.Models[0].Digest != "sha256:aa" {
			return fmt.Sprintf("%+v", a.Workload.Models)
		}
		return ""
	})
	// Another digest under the same URI doesn't change what this revision is.
	b.set(key, rev, func(r *spec.Replica) { r.Digests = map[string]string{"file:///models/one": "sha256:bb"} })
	b.settle()
	b.restart()
	b.eventually("routed", func() string {
		if b.serving(key) == "" {
			return "not yet"
		}
		return ""
	})
	if a, _ := b.assignment(key, rev); a.Workload.Models[0].Digest != "sha256:aa" {
		t.Errorf("pinned %+v after a restart", a.Workload.Models)
	}
	if got := b.get("iris").Status.Annotations[statusDigest]; got != "sha256:aa" {
		t.Errorf("the status says %s", got)
	}
}

func TestEventsTellTransitionsAndDoNotFlood(t *testing.T) {
	b := newBench(t)
	key := b.key("iris")
	b.service("iris")
	b.ready("iris")
	fail := func(n int) func(*spec.Replica) {
		return func(r *spec.Replica) {
			r.Phase, r.Restarts = spec.Failed, n
			r.Failure = &spec.Failure{Reason: spec.Exited, Message: "the engine exited with 3", ExitCode: 3, At: time.Now(), RetryAt: time.Now().Add(time.Minute)}
		}
	}
	for i := range 30 {
		b.set(key, "iris-predictor-00001", fail(i+1))
		want := fmt.Sprintf("restarted %d times", i+1)
		if i == 0 {
			want = "restarted once"
		}
		b.until("iris", want, func(is *v1beta1.InferenceService) bool {
			return strings.Contains(conditionOf(is.Status.Conditions, v1beta1.ConditionReady).Message, want)
		})
	}
	b.set(key, "iris-predictor-00001", becomeReady)
	b.ready("iris")
	for i := range 30 {
		b.set(key, "iris-predictor-00001", fail(i))
		b.until("iris", "not ready", func(is *v1beta1.InferenceService) bool { return !isReady(is) })
		b.set(key, "iris-predictor-00001", becomeReady)
		b.ready("iris")
	}
	reasons := func() map[string]int {
		out := map[string]int{}
		for _, e := range b.events("iris") {
			out[e.Reason]++
		}
		return out
	}
	b.eventually("events", func() string {
		got := reasons()
		if got["RevisionCreated"] == 0 || got["InferenceServiceReady"] == 0 || got["InferenceServiceNotReady"] == 0 {
			return fmt.Sprint(got)
		}
		return ""
	})
	if total := len(b.events("iris")); total > 20 {
		t.Errorf("%d events for one flapping service: %v", total, reasons())
	}
}

func TestATransformerReachesItsPredictorByAnAddressOfItsOwn(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.ComponentAddress = func(key spec.ServiceKey, comp spec.Component) string { return "127.64.1.2:8080" }
	})
	key := b.key("iris")
	b.service("iris", func(is *v1beta1.InferenceService) {
		is.Spec.Transformer = &v1beta1.TransformerSpec{}
		is.Spec.Transformer.Containers = []corev1.Container{{Name: "kserve-container", Image: "example.com/transformer:1"}}
	})
	is := b.ready("iris")
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionTransformerReady); c.Status != corev1.ConditionTrue {
		t.Errorf("TransformerReady %+v", c)
	}
	a, ok := b.assignment(key, "iris-transformer-00001")
	if !ok || !slices.Contains(a.Workload.Containers[0].Args, "127.64.1.2:8080") {
		t.Errorf("the transformer runs as %+v", a.Workload.Containers)
	}
	table := b.table.Load()
	if m, ok := table.Named(key, "/"); !ok || m.Backend.Targets[0].Revision != "iris-transformer-00001" {
		t.Errorf("a request meets %+v first", m.Backend)
	}
	if m, ok := table.Host("127.64.1.2"); !ok || m.Backend.Targets[0].Revision != "iris-predictor-00001" {
		t.Errorf("the predictor's address leads to %+v, %v", m.Backend, ok)
	}
	// A broken transformer must not take traffic past itself.
	b.set(key, "iris-transformer-00001", func(r *spec.Replica) {
		r.Phase, r.Failure = spec.Failed, &spec.Failure{Reason: spec.Exited, Message: "exited", ExitCode: 1, At: time.Now()}
	})
	b.until("iris", "not ready", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionTransformerReady).Status == corev1.ConditionFalse
	})
	if got := b.serving(key); got != "" {
		t.Errorf("traffic goes to %s", got)
	}
	if c := conditionOf(b.get("iris").Status.Conditions, v1beta1.ConditionPredictorReady); c.Status != corev1.ConditionTrue {
		t.Errorf("PredictorReady %+v though only the transformer is broken", c)
	}
}

func TestWhatOthersDeleteIsMadeAgain(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	is := b.ready("iris")
	observed, _ := b.platform.Observe(t.Context(), b.key("iris"))
	r := &smv1alpha1.Route{}
	r.Namespace, r.Name = is.Namespace, is.Name
	if err := b.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	rev := &smv1alpha1.Revision{}
	rev.Namespace, rev.Name = is.Namespace, "iris-predictor-00001"
	if err := b.Delete(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	b.eventually("both are back", func() string {
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
			return err.Error()
		}
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(rev), rev); err != nil {
			return err.Error()
		}
		return ""
	})
	b.ready("iris")
	if again, _ := b.platform.Observe(t.Context(), b.key("iris")); len(again.Replicas) != 1 || again.Replicas[0].ID != observed.Replicas[0].ID {
		t.Errorf("replicas %+v, before %+v", again.Replicas, observed.Replicas)
	}
}

func TestFiftyServicesAtOnceConverge(t *testing.T) {
	b := newBench(t)
	for i := range 50 {
		b.service(fmt.Sprintf("s%02d", i))
	}
	b.eventually("all ready", func() string {
		var list v1beta1.InferenceServiceList
		if err := b.List(t.Context(), &list, client.InNamespace(b.ns)); err != nil {
			return err.Error()
		}
		ready := 0
		for i := range list.Items {
			if isReady(&list.Items[i]) {
				ready++
			}
		}
		if ready < 50 {
			return fmt.Sprintf("%d of 50", ready)
		}
		return ""
	})
	if n := len(b.table.Load().Services()); n != 50 {
		t.Errorf("the gateway knows %d", n)
	}
}
