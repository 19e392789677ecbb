package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/spec"
)

var t0 = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func replica(rev string, phase spec.Phase, failure *spec.Failure) spec.Replica {
	return spec.Replica{ID: rev + "-a", Revision: spec.RevisionKey{Namespace: "default", Name: rev}, Phase: phase, Failure: failure}
}

func exited(code int, everReady bool) spec.Replica {
	r := replica("r2", spec.Failed, &spec.Failure{Reason: spec.Exited, Message: "engine exited with 3", ExitCode: code, At: t0, LogTail: []string{"no such file"}, RetryAt: t0.Add(time.Second)})
	if everReady {
		r.Timings.ReadyAt = t0.Add(-time.Minute)
	}
	return r
}

func TestStatusOfAComponent(t *testing.T) {
	tests := map[string]struct {
		facts          facts
		wantStatus     corev1.ConditionStatus
		wantReason     string
		wantInMessage  string
		wantTransition v1beta1.TransitionStatus
		wantActive     v1beta1.ModelState
		wantTarget     v1beta1.ModelState
		wantFailure    v1beta1.FailureReason
	}{
		"a fresh service whose replica pulls its model is Unknown and Pending": {
			facts:      facts{want: 1, latest: "r1", replicas: []spec.Replica{replica("r1", spec.Pulling, nil)}},
			wantStatus: corev1.ConditionUnknown, wantReason: "Starting", wantInMessage: "0 of 1 replicas ready (1 Pulling)",
			wantTransition: v1beta1.InProgress, wantActive: v1beta1.Pending, wantTarget: v1beta1.Loading,
		},
		"a ready and rolled-out service is True and Loaded": {
			facts:      facts{want: 1, latest: "r1", rolledOut: "r1", serving: "r1", settled: true, replicas: []spec.Replica{replica("r1", spec.Ready, nil)}},
			wantStatus: corev1.ConditionTrue, wantTransition: v1beta1.UpToDate, wantActive: v1beta1.Loaded, wantTarget: v1beta1.Loaded,
		},
		"while a new revision starts the old one serves and the condition says so": {
			facts: facts{want: 1, latest: "r2", rolledOut: "r1", serving: "r1", replicas: []spec.Replica{
				replica("r1", spec.Ready, nil), replica("r2", spec.Loading, nil)}},
			wantStatus: corev1.ConditionUnknown, wantReason: "RollingOut", wantInMessage: "all traffic still goes to revision r1",
			wantTransition: v1beta1.InProgress, wantActive: v1beta1.Loaded, wantTarget: v1beta1.Loading,
		},
		"a new revision that exits is a failed load, with code and log, and the old one serves": {
			facts: facts{want: 1, latest: "r2", rolledOut: "r1", serving: "r1", replicas: []spec.Replica{
				replica("r1", spec.Ready, nil), exited(3, false)}},
			wantStatus: corev1.ConditionFalse, wantReason: "Exited", wantInMessage: "all traffic still goes to revision r1",
			wantTransition: v1beta1.BlockedByFailedLoad, wantActive: v1beta1.Loaded, wantTarget: v1beta1.FailedToLoad, wantFailure: v1beta1.ModelLoadFailed,
		},
		"one of two replicas crashing makes it False though the other serves": {
			facts: facts{want: 2, latest: "r2", rolledOut: "r2", serving: "r2", replicas: []spec.Replica{
				replica("r2", spec.Ready, nil), exited(3, true)}},
			wantStatus: corev1.ConditionFalse, wantReason: "Exited", wantInMessage: "1 of 2 ready",
			wantTransition: v1beta1.BlockedByFailedLoad, wantActive: v1beta1.Loaded, wantTarget: v1beta1.FailedToLoad, wantFailure: v1beta1.RuntimeUnhealthy,
		},
		"a replica on its way out says nothing about the service": {
			facts: facts{want: 1, latest: "r1", rolledOut: "r1", serving: "r1", settled: true, replicas: []spec.Replica{
				replica("r1", spec.Ready, nil), replica("r1", spec.Draining, &spec.Failure{Reason: spec.Exited})}},
			wantStatus: corev1.ConditionTrue, wantTransition: v1beta1.UpToDate, wantActive: v1beta1.Loaded, wantTarget: v1beta1.Loaded,
		},
		"a manifest that no runtime fits is InvalidSpec with the reason": {
			facts:      facts{want: 1, refused: &refusal{v1beta1.NoSupportingRuntime, "no runtime serves format foo"}},
			wantStatus: corev1.ConditionFalse, wantReason: "NoSupportingRuntime", wantInMessage: "no runtime serves format foo",
			wantTransition: v1beta1.InvalidSpec, wantFailure: v1beta1.NoSupportingRuntime,
		},
		"a stopped service stands by": {
			facts:      facts{want: 1, latest: "r1", rolledOut: "r1", stopped: true},
			wantStatus: corev1.ConditionFalse, wantReason: "Stopped", wantInMessage: "remove it to serve again",
			wantTransition: v1beta1.UpToDate, wantActive: v1beta1.Standby,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			v := tc.facts.judge()
			if v.status != tc.wantStatus || v.reason != tc.wantReason || !strings.Contains(v.message, tc.wantInMessage) {
				t.Errorf("verdict %s %q %q, want %s %q with %q", v.status, v.reason, v.message, tc.wantStatus, tc.wantReason, tc.wantInMessage)
			}
			m := tc.facts.modelStatus()
			if m.TransitionStatus != tc.wantTransition || m.ModelRevisionStates.ActiveModelState != tc.wantActive || m.ModelRevisionStates.TargetModelState != tc.wantTarget {
				t.Errorf("model status %s active %q target %q, want %s %q %q", m.TransitionStatus,
					m.ModelRevisionStates.ActiveModelState, m.ModelRevisionStates.TargetModelState, tc.wantTransition, tc.wantActive, tc.wantTarget)
			}
			switch {
			case tc.wantFailure == "" && m.LastFailureInfo != nil:
				t.Errorf("lastFailureInfo %+v on a service without a failure", m.LastFailureInfo)
			case tc.wantFailure != "" && (m.LastFailureInfo == nil || m.LastFailureInfo.Reason != tc.wantFailure):
				t.Errorf("lastFailureInfo %+v, want reason %s", m.LastFailureInfo, tc.wantFailure)
			}
		})
	}
}

func TestFailureInfoCarriesCodeTimePlaceAndLog(t *testing.T) {
	r := exited(3, false)
	info := failureInfo(&r)
	if info.ExitCode != 3 || !info.Time.Time.Equal(t0) || info.Location != "r2-a" || info.ModelRevisionName != "r2" || !strings.Contains(info.Message, "no such file") {
		t.Errorf("got %+v", info)
	}
}

func TestConditionKeepsItsTransitionTimeWhileItsStatusStays(t *testing.T) {
	then := v1beta1.Condition{Type: v1beta1.ConditionReady, Status: corev1.ConditionTrue}
	then.LastTransitionTime.Time = t0
	c := &conditions{old: []v1beta1.Condition{then}}
	c.now.Time = t0.Add(time.Hour)
	c.set(v1beta1.ConditionReady, verdict{status: corev1.ConditionTrue, message: "x"}, "")
	c.set(v1beta1.ConditionPredictorReady, verdict{status: corev1.ConditionTrue}, "")
	if !c.list[0].LastTransitionTime.Time.Equal(t0) || !c.list[1].LastTransitionTime.Time.Equal(t0.Add(time.Hour)) {
		t.Errorf("transition times %v and %v", c.list[0].LastTransitionTime, c.list[1].LastTransitionTime)
	}
}

// A revision that took over in part, before the manifest went another way, has traffic and no tag;
// after a restart that is known from the status.
func TestARevisionSetAsideIsRememberedAndHasNoTag(t *testing.T) {
	share := func(name, tag string, percent int64) v1beta1.TrafficTarget {
		return v1beta1.TrafficTarget{RevisionName: name, Tag: tag, Percent: &percent}
	}
	last := rolloutOf(v1beta1.ComponentStatusSpec{
		LatestCreatedRevision: "r3", LatestRolledoutRevision: "r1",
		Traffic: []v1beta1.TrafficTarget{share("r3", manifest.TagLatest, 25), share("r1", manifest.TagPrevious, 25), share("r2", "", 25), share("r4", "blue", 25)},
	})
	if !slices.Equal(last.Aside, []string{"r2"}) || last.Share != 25 {
		t.Errorf("%+v", last)
	}
	s := &service{plan: plan.Plan{Rollouts: []plan.Rollout{{Component: spec.Predictor, Latest: "r3", RolledOut: "r1", Aside: []string{"r2"}}}}}
	comp := &component{name: spec.Predictor, latest: &smv1alpha1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "r3"}}}
	for revision, want := range map[string]string{"r3": manifest.TagLatest, "r1": manifest.TagPrevious, "r2": ""} {
		if got := s.tag(comp, revision); got != want {
			t.Errorf("%s has the tag %q, want %q", revision, got, want)
		}
	}
}
