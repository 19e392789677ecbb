package control

import (
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/evidence"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// answers is evidence that a test adds to.
type answers struct {
	mu  sync.Mutex
	all map[spec.RevisionKey]evidence.Counts
}

func (a *answers) Of(key spec.RevisionKey) evidence.Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[key]
}

func (a *answers) add(key spec.RevisionKey, c evidence.Counts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[spec.RevisionKey]evidence.Counts{}
	}
	a.all[key] = a.all[key].Plus(c)
}

// newGuardedBench has a service with one revision whose rollouts are guarded.
func newGuardedBench(t *testing.T, annotations ...string) (*bench, *answers) {
	t.Helper()
	seen := &answers{}
	b := newBench(t, func(c *Config) { c.Evidence = seen })
	b.service("iris", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{
			manifest.GuardStepsAnnotation: "10,50", manifest.GuardBakeAnnotation: "1s", manifest.GuardMinRequestsAnnotation: "10",
		}
		for i := 0; i < len(annotations); i += 2 {
			is.Annotations[annotations[i]] = annotations[i+1]
		}
	})
	b.ready("iris")
	return b, seen
}

func (b *bench) guard(name string) smv1alpha1.GuardedRollout {
	b.t.Helper()
	return guardedStatus(b.get(name))["predictor"]
}

// untilGuard waits until the predictor's guarded rollout is in a phase of a step.
func (b *bench) untilGuard(name, phase string, step int) smv1alpha1.GuardedRollout {
	b.t.Helper()
	var g smv1alpha1.GuardedRollout
	b.eventually("guarded rollout "+phase, func() string {
		if g = b.guard(name); g.Phase != phase || g.Step != step {
			return g.Phase + ": " + g.Why
		}
		return ""
	})
	return g
}

func (b *bench) reasons(name string) []string {
	var out []string
	for _, e := range b.events(name) {
		out = append(out, e.Reason)
	}
	return out
}

func TestAGuardedRolloutTakesItsStepsAndSaysSo(t *testing.T) {
	b, seen := newGuardedBench(t)
	two := spec.RevisionKey{Namespace: b.ns, Name: "iris-predictor-00002"}
	b.change("iris", withModel("file:///models/two"))
	b.untilSplit("iris", "1=90 2=10")
	g := b.untilGuard("iris", smv1alpha1.RolloutWaiting, 1)
	if g.Revision != two.Name || g.Steps != 3 || g.Percent != 10 || g.Since == nil || g.Until == nil || !strings.Contains(g.Why, "needs 10 requests and has 0") {
		t.Errorf("%+v", g)
	}
	is := b.get("iris")
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionPredictorReady); c.Status != corev1.ConditionUnknown || c.Reason != "RollingOut" ||
		!strings.Contains(c.Message, "step 1 of 3, to 10 %") || !strings.Contains(c.Message, "errors - of 0 requests (limit 1 %)") {
		t.Errorf("PredictorReady %+v", c)
	}
	// A new control plane goes on where the old one was.
	b.restart()
	b.eventually("the step begins anew", func() string {
		if again := b.guard("iris"); again.Phase != smv1alpha1.RolloutWaiting || again.Since.Equal(g.Since) {
			return again.Phase
		}
		return ""
	})
	if got := b.split("iris"); got != "1=90 2=10" {
		t.Errorf("after a restart: %s", got)
	}
	seen.add(two, evidence.Counts{Requests: 10})
	b.untilSplit("iris", "1=50 2=50")
	if g := b.untilGuard("iris", smv1alpha1.RolloutWaiting, 2); g.Passed == nil || g.Passed.Percent != 10 || len(g.Passed.Readings) != 1 || g.Passed.Readings[0].Of != 10 {
		t.Errorf("what decided on the first step: %+v", g.Passed)
	}
	seen.add(two, evidence.Counts{Requests: 10})
	b.untilSplit("iris", "2=100")
	is = b.ready("iris")
	if c := is.Status.Components["predictor"]; c.LatestRolledoutRevision != two.Name || c.PreviousRolledoutRevision != "iris-predictor-00001" {
		t.Errorf("predictor %+v", c)
	}
	for _, e := range b.events("iris") {
		if e.Reason == "RolloutCompleted" && !strings.Contains(e.Message, "it passed 50 %: 10 requests in") || e.Reason == "RolloutAdvanced" && !strings.Contains(e.Message, "errors 0 % of 10 requests") {
			t.Errorf("event without the numbers that decided: %s: %s", e.Reason, e.Message)
		}
	}
	if raw := is.Status.Annotations[smv1alpha1.RolloutAnnotation]; raw != "" {
		t.Errorf("the annotation is still there: %s", raw)
	}
	b.eventually("events", func() string {
		got := b.reasons("iris")
		for _, want := range []string{"RolloutAdvanced", "RolloutCompleted"} {
			if !slices.Contains(got, want) {
				return strings.Join(got, " ")
			}
		}
		return ""
	})
}

func TestABadRevisionIsRolledBackWithTheNumbersAndStaysSo(t *testing.T) {
	b, seen := newGuardedBench(t)
	two := spec.RevisionKey{Namespace: b.ns, Name: "iris-predictor-00002"}
	b.change("iris", withModel("file:///models/two"))
	b.untilSplit("iris", "1=90 2=10")
	seen.add(two, evidence.Counts{Requests: 8, Errors: 4})
	b.untilSplit("iris", "1=100 2=0")
	told := func() {
		t.Helper()
		const why = "errors 50 % of 8 requests (limit 1 %)"
		if g := b.untilGuard("iris", smv1alpha1.RolloutRolledBack, 1); g.Why != why || g.Percent != 10 || len(g.Readings) != 1 || !g.Readings[0].Exceeds || g.Readings[0].Of != 8 || g.Readings[0].Text != why {
			t.Errorf("%+v", g)
		}
		is := b.get("iris")
		for _, condition := range []v1beta1.ConditionType{v1beta1.ConditionPredictorReady, v1beta1.ConditionReady} {
			c := conditionOf(is.Status.Conditions, condition)
			if c.Status != corev1.ConditionFalse || c.Reason != "RolledBack" || !strings.Contains(c.Message, why) || !strings.Contains(c.Message, "rolled back from 10 %") {
				t.Errorf("%s %+v", condition, c)
			}
		}
		if c := conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady); c.Status != corev1.ConditionTrue {
			t.Errorf("IngressReady %+v though the stable revision serves", c)
		}
		if m := is.Status.ModelStatus; m.TransitionStatus != v1beta1.BlockedByFailedLoad || m.LastFailureInfo == nil || m.LastFailureInfo.Message != why || m.LastFailureInfo.ModelRevisionName != two.Name {
			t.Errorf("model status %+v", m)
		}
	}
	told()
	b.eventually("event", func() string {
		if got := b.reasons("iris"); !slices.Contains(got, "RolloutRolledBack") {
			return strings.Join(got, " ")
		}
		return ""
	})
	b.restart()
	b.untilSplit("iris", "1=100 2=0")
	told()
	if got := b.reasons("iris"); slices.Contains(got, "RolledBack") || slices.Contains(got, "RolloutCompleted") {
		t.Errorf("events %v: the roll-back is told twice, or the first revision's start as the end of a rollout", got)
	}

	// Another shape begins anew; the bad one, promoted by hand, has all.
	b.change("iris", withModel("file:///models/three"))
	b.untilSplit("iris", "1=90 3=10")
	b.change("iris", withModel("file:///models/two"), func(is *v1beta1.InferenceService) { is.Annotations[manifest.PromotedAnnotation] = two.Name })
	b.untilSplit("iris", "2=100")
	b.ready("iris")
}

func TestAGuardedRolloutIsPausedAndHeldByThePercent(t *testing.T) {
	b, seen := newGuardedBench(t)
	two := spec.RevisionKey{Namespace: b.ns, Name: "iris-predictor-00002"}
	b.change("iris", withModel("file:///models/two"), withCanary(20))
	b.untilSplit("iris", "1=90 2=10")
	seen.add(two, evidence.Counts{Requests: 10})
	b.untilSplit("iris", "1=80 2=20")
	if g := b.untilGuard("iris", smv1alpha1.RolloutHeld, 2); g.Percent != 20 || g.Why != "canaryTrafficPercent is 20; errors - of 0 requests (limit 1 %)" {
		t.Errorf("%+v", g)
	}
	b.ready("iris") // as asked
	b.change("iris", withCanary(0))
	b.untilSplit("iris", "1=100 2=0")
	b.eventually("paused", func() string {
		if g := b.guard("iris"); g.Phase != smv1alpha1.RolloutHeld || g.Step != 2 || g.Percent != 0 || g.Why != "canaryTrafficPercent is 0" {
			return g.Phase + ": " + g.Why
		}
		return ""
	})
	b.ready("iris")
	b.change("iris", withCanary(-1))
	b.untilSplit("iris", "1=50 2=50")
}

func TestALimitOnDriftMirrorsStableTraffic(t *testing.T) {
	b, seen := newGuardedBench(t, manifest.GuardDriftAnnotation, "2%")
	b.change("iris", withModel("file:///models/two"))
	b.untilSplit("iris", "1=90 2=10")
	mirror := func() *smv1alpha1.MirrorTarget {
		var r smv1alpha1.Route
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(b.get("iris")), &r); err != nil {
			t.Fatal(err)
		}
		return r.Spec.Components[0].Mirror
	}
	b.eventually("a mirror", func() string {
		if m := mirror(); m == nil || m.RevisionName != "iris-predictor-00002" || m.Percent != manifest.DefaultGuardMirror {
			return "none"
		}
		return ""
	})
	seen.add(spec.RevisionKey{Namespace: b.ns, Name: "iris-predictor-00002"}, evidence.Counts{Requests: 20, Compared: 10, Differ: 3})
	g := b.untilGuard("iris", smv1alpha1.RolloutRolledBack, 1)
	if g.Why != "drift 30 % of 10 comparisons (limit 2 %)" {
		t.Errorf("%+v", g)
	}
	b.eventually("no mirror", func() string {
		if mirror() != nil {
			return "there is one"
		}
		return ""
	})
}

func TestOnAClusterAGuardThatCannotBeReadIsRefusedInTheStatus(t *testing.T) {
	b := newBench(t, func(c *Config) { c.OneMachine = false })
	b.service("iris")
	b.ready("iris")
	b.edit("iris", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{manifest.GuardStepsAnnotation: "50,5"}
	})
	is := b.until("iris", "refused", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionReady).Status == corev1.ConditionFalse
	})
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); !strings.Contains(c.Message, "stationmaster.dev/rollout-steps") || !strings.Contains(c.Message, "must be percents that rise") {
		t.Errorf("Ready %+v", c)
	}
	if got := b.serving(b.key("iris")); got != "iris-predictor-00001" {
		t.Errorf("%q serves", got)
	}
}
