package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// toZero lets a service scale from none to some replicas.
func toZero(most int32) func(*v1beta1.InferenceService) {
	return func(is *v1beta1.InferenceService) {
		none := int32(0)
		is.Spec.Predictor.MinReplicas, is.Spec.Predictor.MaxReplicas = &none, most
	}
}

func TestWhatScales(t *testing.T) {
	metric := func(m v1beta1.ScaleMetric) func(*v1beta1.InferenceService) {
		return func(is *v1beta1.InferenceService) { is.Spec.Predictor.ScaleMetric = &m }
	}
	bounds := func(least, most int32) func(*v1beta1.InferenceService) {
		return func(is *v1beta1.InferenceService) {
			is.Spec.Predictor.MinReplicas, is.Spec.Predictor.MaxReplicas = &least, most
		}
	}
	annotation := func(name, value string) func(*v1beta1.InferenceService) {
		return func(is *v1beta1.InferenceService) {
			if is.Annotations == nil {
				is.Annotations = map[string]string{}
			}
			is.Annotations[name] = value
		}
	}
	tests := map[string]struct {
		change []func(*v1beta1.InferenceService)
		want   string // "least-most metric", "fixed" or an error's part
	}{
		"nothing said":                      {nil, "fixed"},
		"one number":                        {[]func(*v1beta1.InferenceService){bounds(3, 3)}, "fixed"},
		"a number and no bound":             {[]func(*v1beta1.InferenceService){bounds(3, 0)}, "fixed"},
		"room for more":                     {[]func(*v1beta1.InferenceService){bounds(2, 5)}, "2-5 concurrency"},
		"none at least":                     {[]func(*v1beta1.InferenceService){toZero(0)}, "0-1 concurrency"},
		"none at least, many at most":       {[]func(*v1beta1.InferenceService){toZero(9), metric("rps")}, "0-9 rps"},
		"no bound on purpose":               {[]func(*v1beta1.InferenceService){toZero(0), annotation("autoscaling.knative.dev/max-scale", "0")}, "0-0 concurrency"},
		"bounds of Knative's annotations":   {[]func(*v1beta1.InferenceService){annotation("autoscaling.knative.dev/min-scale", "0"), annotation("autoscaling.knative.dev/max-scale", "4")}, "0-4 concurrency"},
		"nobody scales":                     {[]func(*v1beta1.InferenceService){toZero(3), annotation("serving.kserve.io/autoscalerClass", "none")}, "fixed"},
		"somebody else scales":              {[]func(*v1beta1.InferenceService){toZero(3), annotation("serving.kserve.io/autoscalerClass", "external")}, "fixed"},
		"on the processor":                  {[]func(*v1beta1.InferenceService){bounds(1, 3), metric("cpu")}, "1-3 metrics"},
		"on the processor, none at least":   {[]func(*v1beta1.InferenceService){toZero(3), metric("cpu")}, "1-3 metrics"},
		"on memory without a target":        {[]func(*v1beta1.InferenceService){bounds(2, 3), metric("memory")}, "fixed"},
		"by Kubernetes' autoscaler":         {[]func(*v1beta1.InferenceService){bounds(1, 3), annotation("serving.kserve.io/autoscalerClass", "hpa")}, "1-3 metrics"},
		"by Knative's name for it":          {[]func(*v1beta1.InferenceService){bounds(1, 3), annotation("autoscaling.knative.dev/class", "hpa.autoscaling.knative.dev")}, "1-3 metrics"},
		"on a metric, to zero":              {[]func(*v1beta1.InferenceService){toZero(3), onQueue}, "0-3 metrics"},
		"on a metric, by KEDA":              {[]func(*v1beta1.InferenceService){toZero(3), onQueue, annotation("serving.kserve.io/autoscalerClass", "keda")}, "0-3 metrics"},
		"on a metric, without room":         {[]func(*v1beta1.InferenceService){bounds(2, 0), onQueue}, "fixed"},
		"on a metric, by nobody":            {[]func(*v1beta1.InferenceService){toZero(3), onQueue, annotation("serving.kserve.io/autoscalerClass", "none")}, "fixed"},
		"an annotation that isn't a number": {[]func(*v1beta1.InferenceService){toZero(3), annotation("autoscaling.knative.dev/target", "many")}, `autoscaling.knative.dev/target is "many"`},
		"an annotation that isn't known":    {[]func(*v1beta1.InferenceService){toZero(3), annotation("autoscaling.knative.dev/windows", "6s")}, "autoscaling.knative.dev/windows"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			is := newService("n", "iris", tc.change...)
			how, err := scaling(is, &is.Spec.Predictor.ComponentExtensionSpec, true)
			cfg := how.cfg
			got := "fixed"
			switch {
			case err != nil:
				got = err.Error()
			case how.metrics != nil:
				got = fmt.Sprintf("%d-%d metrics", cfg.MinScale, cfg.MaxScale)
			case cfg != nil:
				got = fmt.Sprintf("%d-%d %s", cfg.MinScale, cfg.MaxScale, cfg.Metric)
				if err := cfg.Validate(); err != nil {
					t.Error(err)
				}
			}
			if !strings.Contains(got, tc.want) || (err == nil && got != tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// decide does as the autoscaler does.
func (b *bench) decide(service, revision string, n int) {
	key := b.key(service)
	b.cfg.Scaling.Wants.Store(spec.RevisionKey{Namespace: key.Namespace, Name: revision}, demand.Want{Replicas: n})
	b.cfg.Scaling.Changed.Notify(key)
}

func (b *bench) replicas(service string, want int) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("%d replicas of %s", want, service), func() string {
		o, _ := b.platform.Observe(b.t.Context(), b.key(service))
		if len(o.Replicas) != want {
			return fmt.Sprintf("%d replicas", len(o.Replicas))
		}
		return ""
	})
}

func scalable(c *Config) { c.Scaling = &demand.Board{} }

func standby(is *v1beta1.InferenceService) bool {
	s := is.Status.ModelStatus.ModelRevisionStates
	return isReady(is) && s != nil && s.ActiveModelState == v1beta1.Standby &&
		conditionOf(is.Status.Conditions, v1beta1.ConditionPredictorReady).Reason == routing.ReasonAsleep
}

func TestAServiceGoesToZeroAndComesBack(t *testing.T) {
	b := newBench(t, scalable)
	key := b.key("iris")
	b.service("iris", toZero(3))
	b.ready("iris")
	b.replicas("iris", 1)
	subjects, _ := b.cfg.Scaling.Subjects.Load(key)
	if len(subjects) != 1 || subjects[0].Revision != "iris-predictor-00001" || subjects[0].Config.MaxScale != 3 || !subjects[0].RolledOut {
		b.eventually("the autoscaler is told of what was rolled out", func() string {
			subjects, _ = b.cfg.Scaling.Subjects.Load(key)
			if len(subjects) == 1 && subjects[0].RolledOut && subjects[0].Ready == 1 && subjects[0].Asked == 1 {
				return ""
			}
			return fmt.Sprintf("%+v", subjects)
		})
	}

	b.decide("iris", "iris-predictor-00001", 0)
	b.eventually("the gateway holds requests before the replica ends", func() string {
		m, _ := b.table.Load().Named(key, "/")
		if m.Backend == nil || !m.Backend.Cold || len(m.Backend.Targets) != 1 || len(m.Backend.Targets[0].Endpoints) != 0 {
			return fmt.Sprintf("%+v", m.Backend)
		}
		if o, _ := b.platform.Observe(t.Context(), key); len(o.Replicas) != 1 {
			t.Error("the replica has ended before the gateway could know")
		}
		return ""
	})
	b.replicas("iris", 0)
	is := b.until("iris", "asleep and ready", standby)
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionIngressReady); c.Status != corev1.ConditionTrue {
		t.Errorf("IngressReady %+v", c)
	}
	if tr := is.Status.Components["predictor"].Traffic; len(tr) != 1 || *tr[0].Percent != 100 {
		t.Errorf("traffic %+v", tr)
	}

	b.eventually("an event tells that it went to zero", func() string {
		for _, e := range b.events("iris") {
			if e.Reason == routing.ReasonAsleep && strings.Contains(e.Message, "PredictorReady: no replica runs") {
				return ""
			}
		}
		return fmt.Sprint(b.events("iris"))
	})

	// A restart leaves it asleep, though nothing was decided yet.
	b.stop()
	b.cfg.Scaling = &demand.Board{}
	b.start()
	<-b.control.Synced()
	b.settle()
	b.replicas("iris", 0)
	if m, _ := b.table.Load().Named(key, "/"); !m.Backend.Cold {
		t.Error("the gateway holds no requests after the restart")
	}

	b.decide("iris", "iris-predictor-00001", 2)
	b.replicas("iris", 2)
	is = b.until("iris", "awake", func(is *v1beta1.InferenceService) bool {
		return isReady(is) && is.Status.ModelStatus.ModelRevisionStates.ActiveModelState == v1beta1.Loaded
	})
	if b.serving(key) != "iris-predictor-00001" {
		t.Errorf("not served: %s", describe(is))
	}
	// What runs goes on running over a restart, though nothing was decided yet.
	b.stop()
	b.cfg.Scaling = &demand.Board{}
	b.start()
	<-b.control.Synced()
	b.settle()
	b.replicas("iris", 2)
}

func TestAWakeThatFailsIsToldAndRequestsAreRefused(t *testing.T) {
	b := newBench(t, scalable)
	key := b.key("iris")
	b.service("iris", toZero(1))
	b.ready("iris")
	b.decide("iris", "iris-predictor-00001", 0)
	b.until("iris", "asleep", standby)
	b.failModel("file:///models/one", &spec.Failure{Reason: spec.ModelPullFailed, Message: "the disk is gone", ExitCode: -1, At: time.Now(), Terminal: true})
	b.decide("iris", "iris-predictor-00001", 1)
	b.eventually("the gateway refuses, with the reason", func() string {
		m, _ := b.table.Load().Named(key, "/")
		if m.Backend.Cold || !strings.Contains(m.Backend.NotReady, "the disk is gone") {
			return fmt.Sprintf("%+v", m.Backend)
		}
		return ""
	})
	b.until("iris", "not ready", func(is *v1beta1.InferenceService) bool {
		return conditionOf(is.Status.Conditions, v1beta1.ConditionReady).Reason == "ModelPullFailed"
	})
	// The autoscaler gives up; the next request may try again.
	b.fails.Store(nil)
	b.decide("iris", "iris-predictor-00001", 0)
	b.until("iris", "asleep again", standby)
}

func TestANewShapeOfWhatSleepsComesUpOnce(t *testing.T) {
	b := newBench(t, scalable)
	b.service("iris", toZero(1))
	b.ready("iris")
	b.decide("iris", "iris-predictor-00001", 0)
	b.until("iris", "asleep", standby)
	b.edit("iris", withModel("file:///models/two"))
	b.until("iris", "rolled out", func(is *v1beta1.InferenceService) bool {
		return isReady(is) && is.Status.Components["predictor"].LatestRolledoutRevision == "iris-predictor-00002"
	})
	b.replicas("iris", 1)
	b.eventually("the old shape is no longer scaled", func() string {
		subjects, _ := b.cfg.Scaling.Subjects.Load(b.key("iris"))
		if len(subjects) != 1 || subjects[0].Revision != "iris-predictor-00002" {
			return fmt.Sprintf("%+v", subjects)
		}
		return ""
	})
	b.decide("iris", "iris-predictor-00002", 0)
	b.until("iris", "asleep", standby)
}

func TestScalingThatIsWrongIsRefusedAndWhatRunsGoesOn(t *testing.T) {
	b := newBench(t, scalable)
	b.service("iris", toZero(1))
	b.ready("iris")
	b.edit("iris", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{"autoscaling.knative.dev/window": "1s"}
	})
	is := b.until("iris", "refused", func(is *v1beta1.InferenceService) bool {
		return is.Status.ModelStatus.TransitionStatus == v1beta1.InvalidSpec
	})
	if c := conditionOf(is.Status.Conditions, v1beta1.ConditionReady); !strings.Contains(c.Message, `autoscaling.knative.dev/window is "1s"`) {
		t.Errorf("Ready %+v", c)
	}
	b.replicas("iris", 1)
}

func TestStopAndDeletionEndTheScaling(t *testing.T) {
	b := newBench(t, scalable)
	b.service("iris", toZero(1))
	is := b.ready("iris")
	gone := func() {
		t.Helper()
		b.eventually("nothing to scale", func() string {
			if s, ok := b.cfg.Scaling.Subjects.Load(b.key("iris")); ok {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
	b.edit("iris", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{manifest.StopAnnotation: "true"}
	})
	gone()
	b.edit("iris", func(is *v1beta1.InferenceService) { delete(is.Annotations, manifest.StopAnnotation) })
	b.ready("iris")
	b.eventually("it scales again", func() string {
		s, _ := b.cfg.Scaling.Subjects.Load(b.key("iris"))
		if !slices.ContainsFunc(s, func(s demand.Subject) bool { return s.RolledOut }) {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	if err := b.Delete(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	gone()
}
