package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

// refusal says why a component couldn't be turned into a revision.
type refusal struct {
	reason  v1beta1.FailureReason
	message string
}

// facts is all that a component's status follows from.
type facts struct {
	component spec.Component
	// want is the number of replicas of the latest revision that are asked for.
	want int
	// refused is set when the manifest couldn't be compiled; latest is then what it was before.
	refused   *refusal
	latest    string
	rolledOut string
	previous  string
	replicas  []spec.Replica
	// traffic is who gets which share; it is empty when none is ready.
	traffic []plan.Share
	// serving is the revision with the greatest share, empty when there is none.
	serving string
	// settled says that the rollout is where the manifest wants it, at a canary's share too.
	settled bool
	// asleep says that the rolled-out revision keeps its share though nothing of it is ready, for
	// there was nothing to do; want is above 0 when it is being started again.
	asleep  bool
	stopped bool
	// guard is where a guarded rollout stands; its zero value means that there is none.
	guard smv1alpha1.GuardedRollout
}

// of returns the replicas of one revision that aren't on their way out.
func (f *facts) of(revision string) []spec.Replica {
	var out []spec.Replica
	for _, r := range f.replicas {
		if r.Revision.Name == revision && r.Phase != spec.Draining {
			out = append(out, r)
		}
	}
	return out
}

// verdict is one component's condition before it is written down.
type verdict struct {
	status  corev1.ConditionStatus
	reason  string
	message string
}

// judge says whether a component is as the manifest wants it. It looks at every replica of
// the latest revision: Ready while a pod crashes is the fault of KServe's that it avoids
// (kserve.md 1.9, issue 2733).
func (f *facts) judge() verdict {
	switch {
	case f.stopped:
		return verdict{corev1.ConditionFalse, "Stopped", "stopped by the annotation serving.kserve.io/stop; remove it to serve again"}
	case f.refused != nil:
		v := verdict{corev1.ConditionFalse, string(f.refused.reason), f.refused.message}
		if f.serving != "" {
			v.message += fmt.Sprintf("; revision %s, made before, still serves", f.serving)
		}
		return v
	}
	if f.guard.Phase == smv1alpha1.RolloutRolledBack {
		v, _ := f.guardVerdict()
		return v
	}
	latest := f.of(f.latest)
	ready := 0
	for _, r := range latest {
		if r.Phase == spec.Ready {
			ready++
		}
	}
	if failed := worst(latest); failed != nil {
		return verdict{corev1.ConditionFalse, string(failed.Failure.Reason), f.failureMessage(failed)}
	}
	if f.rolledOut != f.latest {
		// A stable revision that fails beside its successor is what most requests meet.
		if failed := worst(f.of(f.rolledOut)); failed != nil {
			return verdict{corev1.ConditionFalse, string(failed.Failure.Reason), f.failureMessage(failed)}
		}
	}
	switch {
	case f.asleep && f.rolledOut == f.latest && (f.want == 0 || ready > 0):
		return verdict{corev1.ConditionTrue, routing.ReasonAsleep, "no replica runs, for there was nothing to do; the next request starts one"}
	case f.asleep && f.rolledOut == f.latest:
		return verdict{corev1.ConditionTrue, routing.ReasonWaking, fmt.Sprintf("revision %s starts for requests that wait%s", f.latest, phases(latest))}
	case f.settled && ready >= f.want:
		return verdict{corev1.ConditionTrue, "", ""}
	case f.rolledOut == f.latest && ready >= f.want && f.latest != "" && f.previous != "":
		previous := f.of(f.previous)
		if failed := worst(previous); failed != nil {
			return verdict{corev1.ConditionFalse, string(failed.Failure.Reason), f.failureMessage(failed)}
		}
		return verdict{corev1.ConditionUnknown, "RollingBack", fmt.Sprintf("revision %s starts to take its traffic back%s%s", f.previous, phases(previous), f.goes())}
	}
	if v, guarded := f.guardVerdict(); guarded {
		return v
	}
	if f.rolledOut != "" && ready >= f.want && f.want > 0 {
		return verdict{corev1.ConditionUnknown, "RollingOut", fmt.Sprintf("revision %s is ready and takes over%s", f.latest, f.goes())}
	}
	v := verdict{corev1.ConditionUnknown, "Starting", fmt.Sprintf("revision %s: %d of %d replicas ready%s", f.latest, ready, f.want, phases(latest))}
	if f.serving != "" && f.serving != f.latest {
		v.reason = "RollingOut"
		v.message += f.goes()
	}
	return v
}

// goes tells where traffic goes, as the end of a sentence; it is empty where that is to be
// expected.
func (f *facts) goes() string {
	var parts []string
	for _, t := range f.traffic {
		if t.Percent > 0 {
			parts = append(parts, fmt.Sprintf("%d %% to %s", t.Percent, t.Revision))
		}
	}
	switch {
	case f.serving == "" || f.serving == f.latest && len(parts) < 2 && f.settled:
		return ""
	case len(parts) > 1:
		return "; of the traffic go " + strings.Join(parts, ", ")
	}
	return fmt.Sprintf("; all traffic still goes to revision %s", f.serving)
}

func (f *facts) failureMessage(r *spec.Replica) string {
	var b strings.Builder
	all, ready := f.of(r.Revision.Name), 0
	for _, other := range all {
		if other.Phase == spec.Ready {
			ready++
		}
	}
	fmt.Fprintf(&b, "replica %s of revision %s (%d of %d ready): %s", r.ID, r.Revision.Name, ready, len(all), r.Failure.Message)
	if !r.Failure.RetryAt.IsZero() {
		switch {
		case r.Restarts == 1:
			b.WriteString("; restarted once")
		case r.Restarts > 1:
			fmt.Fprintf(&b, "; restarted %d times", r.Restarts)
		}
		fmt.Fprintf(&b, "; next try at %s", r.Failure.RetryAt.UTC().Format("15:04:05Z"))
	}
	if f.serving != f.latest {
		b.WriteString(f.goes())
	}
	return b.String()
}

// worst returns the replica whose failure says most: a terminal one, else the newest; nil
// when none has failed.
func worst(replicas []spec.Replica) *spec.Replica {
	var found *spec.Replica
	for i := range replicas {
		r := &replicas[i]
		if r.Failure == nil {
			continue
		}
		if found == nil || (r.Failure.Terminal && !found.Failure.Terminal) ||
			(r.Failure.Terminal == found.Failure.Terminal && r.Failure.At.After(found.Failure.At)) {
			found = r
		}
	}
	return found
}

// phases lists what replicas that aren't ready do, e.g. " (1 Pulling, 1 Loading)".
func phases(replicas []spec.Replica) string {
	count := map[spec.Phase]int{}
	for _, r := range replicas {
		if r.Phase != spec.Ready {
			count[r.Phase]++
		}
	}
	var parts []string
	for _, p := range []spec.Phase{spec.Pending, spec.Pulling, spec.Starting, spec.Loading, spec.Failed} {
		if n := count[p]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, p))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// modelStatus fills KServe's modelStatus for the predictor. Unlike KServe's it counts every
// replica, and lastFailureInfo is there only while something is wrong.
func (f *facts) modelStatus() v1beta1.ModelStatus {
	latest := f.of(f.latest)
	failed := worst(latest)
	s := v1beta1.ModelStatus{
		ModelRevisionStates: &v1beta1.ModelRevisionStates{ActiveModelState: v1beta1.Pending},
		ModelCopies:         &v1beta1.ModelCopies{TotalCopies: len(f.of(cmp.Or(f.serving, f.latest)))},
	}
	for _, t := range f.traffic {
		if t.Revision != f.serving {
			s.ModelCopies.TotalCopies += len(f.of(t.Revision))
		}
	}
	if f.serving != "" {
		s.ModelRevisionStates.ActiveModelState = v1beta1.Loaded
	}
	s.ModelRevisionStates.TargetModelState = targetState(latest, failed)
	for _, r := range latest {
		if r.Failure != nil {
			s.ModelCopies.FailedCopies++
		}
	}
	switch {
	case f.asleep && f.refused == nil && !f.stopped && len(latest) == 0 && f.latest == f.rolledOut:
		s.TransitionStatus = v1beta1.UpToDate
		s.ModelRevisionStates = &v1beta1.ModelRevisionStates{ActiveModelState: v1beta1.Standby, TargetModelState: v1beta1.Standby}
		return s
	case f.refused != nil:
		s.TransitionStatus = v1beta1.InvalidSpec
		s.ModelRevisionStates.TargetModelState = ""
		s.LastFailureInfo = &v1beta1.FailureInfo{Reason: f.refused.reason, Message: f.refused.message}
		if f.serving == "" {
			s.ModelRevisionStates.ActiveModelState = ""
		}
		return s
	case f.stopped:
		s.TransitionStatus = v1beta1.UpToDate
		s.ModelRevisionStates = &v1beta1.ModelRevisionStates{ActiveModelState: v1beta1.Standby}
		return s
	case f.guard.Phase == smv1alpha1.RolloutRolledBack:
		s.TransitionStatus = v1beta1.BlockedByFailedLoad
		at := f.guard.At
		s.LastFailureInfo = &v1beta1.FailureInfo{Reason: v1beta1.RuntimeUnhealthy, Message: f.guard.Why, ModelRevisionName: f.guard.Revision, Time: &at}
	case failed != nil:
		s.TransitionStatus = v1beta1.BlockedByFailedLoad
		s.LastFailureInfo = failureInfo(failed)
		if f.serving == "" {
			s.ModelRevisionStates.ActiveModelState = ""
		}
	case f.settled && f.serving != "":
		s.TransitionStatus = v1beta1.UpToDate
	default:
		s.TransitionStatus = v1beta1.InProgress
	}
	return s
}

func targetState(latest []spec.Replica, failed *spec.Replica) v1beta1.ModelState {
	if failed != nil {
		return v1beta1.FailedToLoad
	}
	state := v1beta1.Pending
	for _, r := range latest {
		switch r.Phase {
		case spec.Ready:
			return v1beta1.Loaded
		case spec.Pulling, spec.Starting, spec.Loading:
			state = v1beta1.Loading
		}
	}
	return state
}

// exitCode is a failure's exit code as a shell and Kubernetes give it: 128 and the signal's number
// where one ended the process, and 0, which leaves the field out, where there was no process or
// nobody can tell.
func exitCode(f *spec.Failure) int32 {
	switch {
	case f.ExitCode >= 0:
		return int32(f.ExitCode)
	case f.Signal != "":
		return 128 + int32(unix.SignalNum(f.Signal))
	}
	return 0
}

func failureInfo(r *spec.Replica) *v1beta1.FailureInfo {
	info := &v1beta1.FailureInfo{
		Location:          r.ID,
		Reason:            v1beta1.ModelLoadFailed,
		Message:           r.Failure.Message,
		ModelRevisionName: r.Revision.Name,
		ExitCode:          exitCode(r.Failure),
	}
	// The API keeps whole seconds; anything finer would look like a change on each pass.
	at := metav1.NewTime(r.Failure.At).Rfc3339Copy()
	info.Time = &at
	switch r.Failure.Reason {
	case spec.RuntimeNotInstalled, spec.StartFailed, spec.LivenessFailed, spec.Unschedulable:
		info.Reason = v1beta1.RuntimeUnhealthy
	case spec.Exited, spec.OOMKilled, spec.StartupTimeout:
		if !r.Timings.ReadyAt.IsZero() {
			info.Reason = v1beta1.RuntimeUnhealthy
		}
	}
	if r.Failure.Signal != "" {
		info.Message += " (" + r.Failure.Signal + ")"
	}
	if len(r.Failure.LogTail) > 0 {
		info.Message += "\n" + strings.Join(r.Failure.LogTail, "\n")
	}
	return info
}

// conditions are written in this order, so that an unchanged status is byte for byte the same.
type conditions struct {
	list []v1beta1.Condition
	old  []v1beta1.Condition
	now  metav1.Time
}

// set adds a condition; its transition time stays when the status does.
func (c *conditions) set(t v1beta1.ConditionType, v verdict, severity string) {
	n := v1beta1.Condition{Type: t, Status: v.status, Reason: v.reason, Message: bounded(v.message), Severity: severity, LastTransitionTime: c.now}
	if i := slices.IndexFunc(c.old, func(o v1beta1.Condition) bool { return o.Type == t }); i >= 0 && c.old[i].Status == n.Status {
		n.LastTransitionTime = c.old[i].LastTransitionTime
	}
	c.list = append(c.list, n)
}

// bounded keeps a message within what an object should carry.
func bounded(s string) string {
	const limit = 4096
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// conditionOf returns the status of a condition, Unknown when it is absent.
func conditionOf(list []v1beta1.Condition, t v1beta1.ConditionType) v1beta1.Condition {
	for _, c := range list {
		if c.Type == t {
			return c
		}
	}
	return v1beta1.Condition{Type: t, Status: corev1.ConditionUnknown}
}
