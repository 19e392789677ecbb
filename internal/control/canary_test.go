package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// withCanary sets predictor.canaryTrafficPercent; a negative percent removes it.
func withCanary(percent int64) func(*v1beta1.InferenceService) {
	return func(is *v1beta1.InferenceService) {
		is.Spec.Predictor.CanaryTrafficPercent = &percent
		if percent < 0 {
			is.Spec.Predictor.CanaryTrafficPercent = nil
		}
	}
}

// split is the gateway's share of each revision of a service's predictor, e.g. "1=90 2=10".
func (b *bench) split(name string) string {
	m, ok := b.table.Load().Named(b.key(name), "/")
	if !ok || m.Backend == nil {
		return ""
	}
	shares := map[string]int{}
	for _, t := range m.Backend.Targets {
		shares[strings.TrimLeft(t.Revision[len(t.Revision)-5:], "0")] = t.Weight
	}
	var out []string
	for _, rev := range slices.Sorted(maps.Keys(shares)) {
		out = append(out, fmt.Sprintf("%s=%d", rev, shares[rev]))
	}
	return strings.Join(out, " ")
}

func (b *bench) untilSplit(name, want string) {
	b.t.Helper()
	b.eventually("split "+want, func() string {
		if got := b.split(name); got != want {
			return got
		}
		return ""
	})
}

func (b *bench) predictor(name string) v1beta1.ComponentStatusSpec {
	b.t.Helper()
	return b.ready(name).Status.Components[v1beta1.PredictorComponent]
}

// change edits a service as one does with kubectl apply.
func (b *bench) change(name string, changes ...func(*v1beta1.InferenceService)) {
	b.t.Helper()
	b.edit(name, func(is *v1beta1.InferenceService) {
		for _, c := range changes {
			c(is)
		}
	})
}

func TestACanaryIsSharedPromotedAndRolledBack(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")

	b.change("iris", withModel("file:///models/two"), withCanary(10))
	b.untilSplit("iris", "1=90 2=10")
	c := b.predictor("iris")
	if c.LatestRolledoutRevision != "iris-predictor-00001" || c.LatestReadyRevision != "iris-predictor-00002" || len(c.Traffic) != 2 {
		t.Fatalf("predictor %+v", c)
	}
	latest, prev := c.Traffic[0], c.Traffic[1]
	if *latest.Percent != 10 || latest.LatestRevision == nil || !*latest.LatestRevision || latest.Tag != "latest" ||
		latest.URL != "http://latest-iris-predictor-"+b.ns+".localhost:8080" {
		t.Errorf("the latest revision's traffic %+v", latest)
	}
	if *prev.Percent != 90 || prev.LatestRevision != nil || prev.Tag != "prev" || prev.RevisionName != "iris-predictor-00001" {
		t.Errorf("the stable revision's traffic %+v", prev)
	}
	var r smv1alpha1.Route
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(b.get("iris")), &r); err != nil {
		t.Fatal(err)
	}
	want := []smv1alpha1.RouteTarget{{RevisionName: "iris-predictor-00002", Percent: 10, Tag: "latest"}, {RevisionName: "iris-predictor-00001", Percent: 90, Tag: "prev"}}
	if !slices.Equal(r.Spec.Components[0].Targets, want) {
		t.Errorf("route %+v", r.Spec.Components[0].Targets)
	}

	b.change("iris", withCanary(50))
	b.untilSplit("iris", "1=50 2=50")
	b.change("iris", withCanary(0))
	b.untilSplit("iris", "1=100 2=0")
	b.change("iris", withCanary(-1))
	b.untilSplit("iris", "2=100")
	if c := b.predictor("iris"); c.LatestRolledoutRevision != "iris-predictor-00002" || c.PreviousRolledoutRevision != "iris-predictor-00001" {
		t.Errorf("after the promotion: %+v", c)
	}

	b.change("iris", withCanary(0))
	b.untilSplit("iris", "1=100 2=0")
	if c := b.predictor("iris"); c.LatestRolledoutRevision != "iris-predictor-00001" || c.LatestReadyRevision != "iris-predictor-00002" {
		t.Errorf("after the rollback: %+v", c)
	}
	if got := b.revisions("iris"); len(got) != 2 {
		t.Errorf("revisions %v", got)
	}
}

func TestAThirdShapeTakesTheCanarysPlace(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"), withCanary(20))
	b.untilSplit("iris", "1=80 2=20")
	b.change("iris", withModel("file:///models/three"))
	b.untilSplit("iris", "1=80 3=20")
	b.eventually("the second revision is let go", func() string {
		if _, there := b.assignment(b.key("iris"), "iris-predictor-00002"); there {
			return fmt.Sprint(b.wanted(b.key("iris")))
		}
		return ""
	})
}

func TestRestoringTheManifestFindsTheRevisionAgain(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"), withCanary(20))
	b.untilSplit("iris", "1=80 2=20")
	b.edit("iris", func(is *v1beta1.InferenceService) { is.Spec = newService("", "").Spec })
	b.untilSplit("iris", "1=100")
	if c := b.predictor("iris"); c.LatestCreatedRevision != "iris-predictor-00001" || len(b.revisions("iris")) != 2 {
		t.Errorf("predictor %+v, revisions %v", c, b.revisions("iris"))
	}
}

func TestACanaryThatFailsGetsNothingAndSaysSo(t *testing.T) {
	b := newBench(t)
	b.failModel("file:///models/two", &spec.Failure{Reason: spec.Exited, Message: "the engine exited with 3", ExitCode: 3, At: time.Now(), RetryAt: time.Now().Add(time.Minute)})
	b.service("iris")
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"), withCanary(20))
	is := b.until("iris", "blocked", func(is *v1beta1.InferenceService) bool {
		return is.Status.ModelStatus.TransitionStatus == v1beta1.BlockedByFailedLoad
	})
	if got := b.split("iris"); got != "1=100" {
		t.Errorf("traffic %s", got)
	}
	c := conditionOf(is.Status.Conditions, v1beta1.ConditionPredictorReady)
	if c.Reason != "Exited" || !strings.Contains(c.Message, "all traffic still goes to revision iris-predictor-00001") {
		t.Errorf("PredictorReady %+v", c)
	}
}

func TestACanaryOutlivesTheControlPlanesRestart(t *testing.T) {
	b := newBench(t)
	b.service("iris")
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"), withCanary(30))
	b.untilSplit("iris", "1=70 2=30")
	b.ready("iris")
	b.settle()
	b.restart()
	b.untilSplit("iris", "1=70 2=30")
	b.settle()
	if n := b.totalWrites(); n != 0 {
		t.Errorf("the restart wrote %d times: %v", n, b.writes.n)
	}
}

func withCanaries(canaries ...v1beta1.CanarySpec) func(*v1beta1.InferenceService) {
	return func(is *v1beta1.InferenceService) { is.Spec.Canary = canaries }
}

func namedCanary(name, uri string, percent int32) v1beta1.CanarySpec {
	c := v1beta1.CanarySpec{TrafficPercent: percent}
	c.Predictor.Name, c.Predictor.Model = name, &v1beta1.ModelSpec{}
	c.Predictor.Model.StorageURI = &uri
	return c
}

func TestNamedCanariesShareAndOneIsPromotedWithoutAnotherStart(t *testing.T) {
	b := newBench(t)
	b.failModel("file:///models/bad", &spec.Failure{Reason: spec.Exited, Message: "the engine exited with 3", ExitCode: 3, At: time.Now(), RetryAt: time.Now().Add(time.Minute)})
	b.service("iris", func(is *v1beta1.InferenceService) { is.Spec.Predictor.Name = "one" })
	b.ready("iris")
	b.change("iris", withCanaries(namedCanary("two", "file:///models/two", 20), namedCanary("three", "file:///models/three", 10), namedCanary("bad", "file:///models/bad", 30)))
	b.untilSplit("iris", "1=70 2=20 3=10")
	is := b.until("iris", "canary statuses", func(is *v1beta1.InferenceService) bool {
		return len(is.Status.CanaryStatuses) == 3 && is.Status.CanaryStatuses[1].Ready && is.Status.CanaryStatuses[2].ModelStatus.TransitionStatus == v1beta1.BlockedByFailedLoad
	})
	two, bad := is.Status.CanaryStatuses[0], is.Status.CanaryStatuses[2]
	if two.Name != "two" || !two.Ready || two.TrafficPercent != 20 || two.ModelStatus.TransitionStatus != v1beta1.UpToDate || two.ModelStatus.ModelRevisionStates.ActiveModelState != v1beta1.Loaded {
		t.Errorf("canary two: %+v, %+v", two, two.ModelStatus)
	}
	if bad.Ready || bad.TrafficPercent != 0 || bad.ModelStatus.LastFailureInfo == nil || bad.ModelStatus.LastFailureInfo.ExitCode != 3 {
		t.Errorf("canary bad: %+v, %+v", bad, bad.ModelStatus)
	}
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionCanaryPredictorReady); c.Reason != "CanariesNotReady" || !strings.Contains(c.Message, "bad: ") {
		t.Errorf("CanaryPredictorReady %+v", c)
	}
	if !isReady(is) {
		t.Errorf("a canary that fails makes the service not ready: %s", describe(is))
	}
	tags := map[string]string{}
	for _, target := range is.Status.Components["predictor"].Traffic {
		tags[target.RevisionName] = target.Tag
	}
	if tags["iris-predictor-00002"] != "two" || tags["iris-predictor-00003"] != "three" {
		t.Errorf("tags %v", tags)
	}
	observed, _ := b.platform.Observe(t.Context(), b.key("iris"))
	ran := observed.Of(spec.RevisionKey{Namespace: b.ns, Name: "iris-predictor-00002"})

	b.change("iris", withModel("file:///models/two"), withCanaries(), func(is *v1beta1.InferenceService) { is.Spec.Predictor.Name = "two" })
	b.untilSplit("iris", "2=100")
	is = b.ready("iris")
	if c := is.Status.Components["predictor"]; c.LatestRolledoutRevision != "iris-predictor-00002" || len(is.Status.CanaryStatuses) != 0 {
		t.Errorf("after the promotion: %+v, canaries %v", c, is.Status.CanaryStatuses)
	}
	observed, _ = b.platform.Observe(t.Context(), b.key("iris"))
	if runs := observed.Of(spec.RevisionKey{Namespace: b.ns, Name: "iris-predictor-00002"}); len(runs) != 1 || runs[0].ID != ran[0].ID {
		t.Errorf("promoted replica %+v, before %+v", runs, ran)
	}
	b.eventually("the other canaries are let go", func() string {
		if got := b.wanted(b.key("iris")); len(got) != 1 {
			return fmt.Sprint(got)
		}
		return ""
	})
}

func annotated(key, value string) func(*v1beta1.InferenceService) {
	return func(is *v1beta1.InferenceService) {
		if is.Annotations == nil {
			is.Annotations = map[string]string{}
		}
		is.Annotations[key] = value
	}
}

func TestARuntimeThatChangesIsHeldBackWhereTheServiceAsksForThat(t *testing.T) {
	b := newBench(t)
	b.service("held", annotated("serving.kserve.io/disable-auto-update", "true"))
	b.ready("held")
	b.change("held", withCanaries(namedCanary("two", "file:///models/two", 20)))
	b.untilSplit("held", "1=80 2=20")
	b.ready("held")
	b.service("follows")
	b.ready("follows")
	var r v1alpha1.ServingRuntime
	if err := b.Get(t.Context(), client.ObjectKey{Namespace: b.ns, Name: "onnx"}, &r); err != nil {
		t.Fatal(err)
	}
	r.Spec.Containers[0].Image = "example.com/onnx:2"
	if err := b.Update(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	b.untilSplit("follows", "2=100")
	b.change("held", annotated("touched", "yes"))
	b.settle()
	if got := b.revisions("held"); len(got) != 2 || b.split("held") != "1=80 2=20" {
		t.Errorf("revisions %v, split %s", got, b.split("held"))
	}
	b.change("held", withModel("file:///models/three"), withCanaries())
	b.untilSplit("held", "3=100")
	if a, ok := b.assignment(b.key("held"), "held-predictor-00003"); !ok || a.Workload.Containers[0].Image != "example.com/onnx:2" {
		t.Errorf("a change of the service's own takes the changed runtime, too: %+v", a)
	}
}

func TestARolloutDurationMovesTrafficInSteps(t *testing.T) {
	b := newBench(t)
	b.service("iris", annotated("serving.knative.dev/rollout-duration", "4s"))
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"))
	seen := map[string]bool{}
	b.eventually("all traffic has moved", func() string {
		got := b.split("iris")
		seen[got] = true
		if got != "2=100" {
			return got
		}
		return ""
	})
	if len(seen) < 4 {
		t.Errorf("splits seen: %v", seen)
	}
	b.ready("iris")
}

func TestRecreateNeverRunsTwoRevisions(t *testing.T) {
	b := newBench(t)
	b.service("iris", func(is *v1beta1.InferenceService) {
		is.Spec.Predictor.DeploymentStrategy = &appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	})
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"))
	b.eventually("the new revision serves", func() string {
		if got := b.wanted(b.key("iris")); len(got) > 1 {
			t.Fatalf("both revisions are asked for: %v", got)
		}
		if got := b.split("iris"); got != "2=100" {
			return got
		}
		return ""
	})
	if is := b.ready("iris"); conditionOf(is.Status.Conditions, v1beta1.ConditionFieldsInEffect).Status != "True" {
		t.Errorf("%s", describe(is))
	}
}

func TestARollingUpdateReplacesReplicaByReplica(t *testing.T) {
	b := newBench(t)
	three, one, none := int32(3), intstr.FromInt32(1), intstr.FromInt32(0)
	b.service("iris", func(is *v1beta1.InferenceService) {
		p := &is.Spec.Predictor
		p.MinReplicas, p.MaxReplicas = &three, three
		p.DeploymentStrategy = &appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &none}}
	})
	b.ready("iris")
	b.change("iris", withModel("file:///models/two"))
	b.eventually("the new revision serves alone", func() string {
		all := 0
		for _, revision := range b.revisions("iris") {
			if a, ok := b.assignment(b.key("iris"), revision); ok {
				all += a.Replicas
			}
		}
		if all > 4 {
			t.Fatalf("%d replicas are asked for", all)
		}
		if got := b.split("iris"); got != "2=100" || all != 3 {
			return fmt.Sprint(got, ", replicas ", all)
		}
		return ""
	})
	if is := b.ready("iris"); conditionOf(is.Status.Conditions, v1beta1.ConditionFieldsInEffect).Status != "True" {
		t.Errorf("%s", describe(is))
	}
}

func TestACanaryAtZeroIsMirroredToWhereTheServiceAsksForThat(t *testing.T) {
	b := newBench(t)
	b.service("iris", annotated("stationmaster.dev/mirror", "25"), annotated("stationmaster.dev/sticky", "cookie=user"))
	b.ready("iris")
	mirror := func() (smv1alpha1.MirrorTarget, int) {
		var r smv1alpha1.Route
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(b.get("iris")), &r); err != nil {
			t.Fatal(err)
		}
		m, _ := b.table.Load().Named(b.key("iris"), "/")
		if r.Spec.Components[0].Sticky == nil || r.Spec.Components[0].Sticky.Cookie != "user" || m.Backend.Sticky.Cookie != "user" {
			t.Errorf("sticky %+v, gateway's %+v", r.Spec.Components[0].Sticky, m.Backend.Sticky)
		}
		if got := r.Spec.Components[0].Mirror; got != nil {
			return *got, m.Backend.Mirror.Percent
		}
		return smv1alpha1.MirrorTarget{}, m.Backend.Mirror.Percent
	}
	if got, percent := mirror(); got.Percent != 0 || percent != 0 {
		t.Errorf("mirrored to %+v (%d %%) without a canary", got, percent)
	}
	b.change("iris", withModel("file:///models/two"), withCanary(0))
	b.untilSplit("iris", "1=100 2=0")
	b.ready("iris")
	if got, percent := mirror(); got != (smv1alpha1.MirrorTarget{RevisionName: "iris-predictor-00002", Percent: 25}) || percent != 25 {
		t.Errorf("mirrored to %+v (%d %%)", got, percent)
	}
	b.change("iris", withCanary(10))
	b.untilSplit("iris", "1=90 2=10")
	b.ready("iris")
	if got, percent := mirror(); got.Percent != 0 || percent != 0 {
		t.Errorf("a canary with a share is mirrored to: %+v (%d %%)", got, percent)
	}
	b.change("iris", annotated("stationmaster.dev/mirror", "lots"))
	b.until("iris", "the annotation's fault is told", func(is *v1beta1.InferenceService) bool {
		return strings.Contains(conditionOf(is.Status.Conditions, v1beta1.ConditionFieldsInEffect).Message, "stationmaster.dev/mirror]: must be a percent")
	})
}
