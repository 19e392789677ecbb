package rollout

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

func ptr[T any](v T) *T { return &v }

func status(created, rolledOut, previous string) v1beta1.ComponentStatusSpec {
	return v1beta1.ComponentStatusSpec{LatestCreatedRevision: created, LatestRolledoutRevision: rolledOut, PreviousRolledoutRevision: previous}
}

func service(t *testing.T, percent *int64, cs v1beta1.ComponentStatusSpec) *Service {
	t.Helper()
	is := &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris"}}
	is.Spec.Predictor.CanaryTrafficPercent = percent
	is.Status.Components = map[v1beta1.ComponentType]v1beta1.ComponentStatusSpec{v1beta1.PredictorComponent: cs}
	sch := runtime.NewScheme()
	if err := v1beta1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	return &Service{Client: fake.NewClientBuilder().WithScheme(sch).WithObjects(is).Build(), Namespace: "team", Name: "iris"}
}

func TestCommandsChangeThePercentOrSayWhyNot(t *testing.T) {
	type act = func(*Service, context.Context) error
	share := func(n int64) act {
		return func(s *Service, ctx context.Context) error { return s.Share(ctx, n) }
	}
	tests := map[string]struct {
		act     act
		percent *int64
		status  v1beta1.ComponentStatusSpec
		want    *int64
		err     error
	}{
		"promote a canary":                        {act: (*Service).Promote, percent: ptr[int64](10), status: status("r2", "r1", "")},
		"promote what is rolled out":              {act: (*Service).Promote, status: status("r2", "r2", "r1"), err: errdef.ErrConflict},
		"promote what rolls out by itself":        {act: (*Service).Promote, status: status("r2", "r1", ""), err: errdef.ErrConflict},
		"pause a canary":                          {act: (*Service).Pause, percent: ptr[int64](10), status: status("r2", "r1", ""), want: ptr[int64](0)},
		"pause a rollout that waits":              {act: (*Service).Pause, status: status("r2", "r1", ""), want: ptr[int64](0)},
		"pause what is rolled out":                {act: (*Service).Pause, status: status("r2", "r2", "r1"), err: errdef.ErrConflict},
		"undo a canary":                           {act: (*Service).Undo, percent: ptr[int64](10), status: status("r2", "r1", ""), want: ptr[int64](0)},
		"undo what is rolled out":                 {act: (*Service).Undo, status: status("r2", "r2", "r1"), want: ptr[int64](0)},
		"undo the first revision":                 {act: (*Service).Undo, status: status("r1", "r1", ""), err: errdef.ErrConflict},
		"undo where there is nothing to go to":    {act: (*Service).Undo, status: status("r1", "r1", "r1"), err: errdef.ErrConflict},
		"share with a canary":                     {act: share(25), percent: ptr[int64](10), status: status("r2", "r1", ""), want: ptr[int64](25)},
		"share what is rolled out":                {act: share(25), status: status("r2", "r2", "r1"), err: errdef.ErrConflict},
		"a share above all":                       {act: share(101), percent: ptr[int64](10), status: status("r2", "r1", ""), want: ptr[int64](10), err: errdef.ErrInvalid},
		"a first revision that isn't rolled out":  {act: (*Service).Pause, status: status("r1", "", ""), err: errdef.ErrConflict},
		"undo before the first one is rolled out": {act: (*Service).Undo, status: status("r1", "", ""), err: errdef.ErrConflict},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := service(t, tc.percent, tc.status)
			if err := tc.act(s, t.Context()); !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			is, err := s.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := is.Spec.Predictor.CanaryTrafficPercent
			if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("canaryTrafficPercent %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAnotherComponentIsLeftAlone(t *testing.T) {
	s := service(t, ptr[int64](10), status("r2", "r1", ""))
	s.Component = v1beta1.TransformerComponent
	if err := s.Promote(t.Context()); !errors.Is(err, errdef.ErrConflict) {
		t.Errorf("error %v", err)
	}
}

func TestAServiceThatIsNotThere(t *testing.T) {
	s := service(t, nil, status("", "", ""))
	s.Name = "nope"
	if err := s.Undo(t.Context()); !errors.Is(err, errdef.ErrNotFound) || !strings.Contains(err.Error(), "nope") {
		t.Errorf("error %v", err)
	}
}

func TestDescribeSaysWhoGetsWhat(t *testing.T) {
	cs := status("r2", "r1", "r0")
	cs.Traffic = []v1beta1.TrafficTarget{
		{RevisionName: "r2", Percent: ptr[int64](10), Tag: "latest", URL: "http://latest"},
		{RevisionName: "r1", Percent: ptr[int64](90), Tag: "prev", URL: "http://prev"},
	}
	s := service(t, ptr[int64](10), cs)
	is, err := s.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	is.Status.Conditions = []v1beta1.Condition{{Type: v1beta1.ConditionReady, Status: corev1.ConditionTrue}}
	want := `team/iris  Ready=True
predictor  canaryTrafficPercent=10
   10 %  r2  latest  http://latest
   90 %  r1  prev  http://prev
  before: r0
`
	if got := Describe(is, time.Time{}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestCommandsNameSpecCanaryAndSayWhatToDo(t *testing.T) {
	for name, act := range map[string]func(*Service, context.Context) error{
		"promote": (*Service).Promote, "pause": (*Service).Pause, "undo": (*Service).Undo, "resume": (*Service).Resume,
		"share": func(s *Service, ctx context.Context) error { return s.Share(ctx, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			s := service(t, nil, status("r2", "r2", "r1")) // which undo could go back from
			is, err := s.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			blue := v1beta1.CanarySpec{TrafficPercent: 10}
			blue.Predictor.Name = "blue"
			is.Spec.Canary = []v1beta1.CanarySpec{blue}
			if err := s.Client.Update(t.Context(), is); err != nil {
				t.Fatal(err)
			}
			err = act(s, t.Context())
			if !errors.Is(err, errdef.ErrConflict) || !strings.Contains(err.Error(), "spec.canary (blue at 10 %)") || !strings.Contains(err.Error(), "to promote one, give spec.predictor its name and what it sets") {
				t.Errorf("error %v", err)
			}
			if is, _ = s.Get(t.Context()); is.Spec.Predictor.CanaryTrafficPercent != nil {
				t.Errorf("it wrote a percent beside spec.canary")
			}
			s.Component = v1beta1.TransformerComponent
			if err := act(s, t.Context()); err == nil || strings.Contains(err.Error(), "spec.canary") {
				t.Errorf("of another component: %v", err)
			}
		})
	}
}
