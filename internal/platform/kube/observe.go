package kube

import (
	"cmp"
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/spec"
)

// replicasOf says what the pods of a service are. Pods that ended for good (evicted, refused
// by their node) are left out once a living one of their revision stands in. The pods of a group
// are one replica.
func replicasOf(pods []corev1.Pod) []spec.Replica {
	type group struct{ revision, index string }
	alive := map[string]bool{}
	workers := map[group][]spec.Replica{}
	for i := range pods {
		p := &pods[i]
		switch revision := p.Labels[labelRevision]; {
		case !living(p) && !lws.IsWorker(p):
		case lws.IsWorker(p):
			of := group{revision, lws.Group(p)}
			workers[of] = append(workers[of], replicaOf(p))
		default:
			alive[revision] = true
		}
	}
	var out []spec.Replica
	for i := range pods {
		p := &pods[i]
		revision := p.Labels[labelRevision]
		if lws.IsWorker(p) || (!living(p) && alive[revision]) {
			continue
		}
		r := replicaOf(p)
		if size := lws.Size(p); size > 1 {
			r = lws.Join(r, size, workers[group{revision, lws.Group(p)}])
		}
		out = append(out, r)
	}
	return out
}

func living(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
}

func sorted(replicas []spec.Replica) []spec.Replica {
	slices.SortFunc(replicas, func(a, b spec.Replica) int { return strings.Compare(a.ID, b.ID) })
	return replicas
}

// replicaOf says what a pod is.
func replicaOf(p *corev1.Pod) spec.Replica {
	r := spec.Replica{
		ID:       p.Name,
		Revision: spec.RevisionKey{Namespace: p.Namespace, Name: p.Labels[labelRevision]},
		Hash:     p.Labels[labelHash],
		Created:  p.CreationTimestamp.Time,
		HTTP:     address(p, annotationHTTP),
		GRPC:     address(p, annotationGRPC),
		Models:   address(p, annotationModels),
		Digests:  digestsOf(p),
		Timings:  timingsOf(p),
	}
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range statuses {
			r.Restarts += int(s.RestartCount)
		}
	}
	if s := serverStatus(p); s != nil {
		r.RuntimeDigest = digestIn(s.ImageID)
	}
	r.Phase, r.Failure = phaseOf(p)
	r.Lingers = r.Phase != spec.Ready && lingers(p)
	return r
}

// lingers says whether a pod that doesn't count as ready may answer all the same: one that is
// about to end does so until its containers are told; and where a node has been silent for long,
// which an outage of the control plane alone brings about too, Kubernetes calls its pods unready
// without having heard of them, but leaves what was last heard of their containers.
func lingers(p *corev1.Pod) bool {
	if !living(p) || p.Status.PodIP == "" || !isTrueIn(p, corev1.ContainersReady) {
		return false
	}
	for _, gate := range p.Spec.ReadinessGates {
		if !isTrueIn(p, gate.ConditionType) {
			return false
		}
	}
	return true
}

func isTrueIn(p *corev1.Pod, t corev1.PodConditionType) bool {
	c := condition(p, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// phaseOf says where a pod stands, and the failure that it hasn't recovered from.
func phaseOf(p *corev1.Pod) (spec.Phase, *spec.Failure) {
	if p.DeletionTimestamp != nil {
		return spec.Draining, nil
	}
	if !living(p) {
		return spec.Failed, podFailure(p)
	}
	if c := condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return spec.Ready, nil
	}
	failure, stands := failureOf(p)
	if stands {
		return spec.Failed, failure
	}
	if f := unschedulable(p); f != nil {
		return spec.Pending, f
	}
	return progress(p), failure
}

// progress is the phase of a pod that is neither ready nor failed.
func progress(p *corev1.Pod) spec.Phase {
	if p.Spec.NodeName == "" {
		return spec.Pending
	}
	for _, s := range p.Status.InitContainerStatuses {
		switch {
		case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0, s.Started != nil && *s.Started && sidecar(p, s.Name):
			continue
		case s.State.Running != nil && isPull(s.Name), s.State.Running == nil && oci.Prefetch(s.Name):
			return spec.Pulling
		case s.State.Running != nil:
			return spec.Starting
		}
		return spec.Pending
	}
	s := serverStatus(p)
	switch {
	case s == nil:
		return spec.Pending
	case s.State.Running != nil:
		return spec.Loading
	}
	return spec.Starting
}

// sidecar says whether an init container runs for as long as its pod does.
func sidecar(p *corev1.Pod, name string) bool {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.Name == name {
			return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// serverStatus returns the status of the container that takes the traffic, or nil.
func serverStatus(p *corev1.Pod) *corev1.ContainerStatus {
	name := p.Annotations[annotationServer]
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.Name == name {
			return s
		}
	}
	return nil
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// address is where a port of the pod is reached, empty before it has an address.
func address(p *corev1.Pod, annotation string) string {
	port := p.Annotations[annotation]
	if p.Status.PodIP == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(p.Status.PodIP, port)
}

var digestAtEnd = regexp.MustCompile(`sha256:[0-9a-f]{64}$`)

// digestIn returns the digest at the end of an image's ID or reference, or "".
func digestIn(imageID string) string { return digestAtEnd.FindString(imageID) }

// report is what the model pull command writes when it ends.
type report struct {
	Models []struct {
		URI       string `json:"uri"`
		Digest    string `json:"digest"`
		SizeBytes int64  `json:"sizeBytes"`
	} `json:"models"`
}

// digestsOf collects the digests of the models that a pod has: those that were pulled from
// what the pull reported, those in image volumes from the node or the reference.
func digestsOf(p *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, s := range p.Status.InitContainerStatuses {
		t := s.State.Terminated
		if !isPull(s.Name) || t == nil || t.ExitCode != 0 {
			continue
		}
		var r report
		if json.Unmarshal([]byte(t.Message), &r) != nil {
			continue
		}
		for _, m := range r.Models {
			if d := digestIn(m.Digest); m.URI != "" && d == m.Digest && d != "" {
				out[m.URI] = d
			}
		}
	}
	for name, uri := range modelImages(p) {
		if d := imageDigest(p, name); d != "" {
			out[uri] = d
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// modelImages returns the URIs of the models in images, by the volume or the init container that
// brings each.
func modelImages(p *corev1.Pod) map[string]string {
	var out map[string]string
	if json.Unmarshal([]byte(p.Annotations[annotationImages]), &out) != nil {
		return nil
	}
	return out
}

func imageDigest(p *corev1.Pod, name string) string {
	for _, s := range p.Status.InitContainerStatuses {
		if s.Name == name {
			return digestIn(s.ImageID)
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		for _, m := range s.VolumeMounts {
			if m.Name == name && m.VolumeStatus != nil && m.VolumeStatus.Image != nil {
				if d := digestIn(m.VolumeStatus.Image.ImageRef); d != "" {
					return d
				}
			}
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Name == name && v.Image != nil {
			return digestIn(v.Image.Reference)
		}
	}
	return ""
}

// timingsOf measures the start of a pod, as finely as the cluster's whole seconds allow.
func timingsOf(p *corev1.Pod) spec.Timings {
	var t spec.Timings
	begun := p.CreationTimestamp.Time
	if c := condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionTrue {
		begun = c.LastTransitionTime.Time
	}
	for _, s := range p.Status.InitContainerStatuses {
		if done := s.State.Terminated; done != nil && done.ExitCode == 0 {
			if isPull(s.Name) {
				t.Pull += positive(done.FinishedAt.Sub(done.StartedAt.Time))
			}
			begun = done.FinishedAt.Time
		}
	}
	s := serverStatus(p)
	if s == nil || s.State.Running == nil {
		return t
	}
	started := s.State.Running.StartedAt.Time
	t.Start = positive(started.Sub(begun))
	if c := condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		t.ReadyAt = c.LastTransitionTime.Time
		t.Load = positive(t.ReadyAt.Sub(started))
	}
	return t
}

func positive(d time.Duration) time.Duration { return max(d, 0) }

// blocked adds to a service's replicas what stands in the way of its Deployments: pods that
// can't be made, or that weren't ready in time. Where the pods tell their own failures, or all
// is well, nothing is added.
func blocked(replicas []spec.Replica, deployments []appsv1.Deployment) []spec.Replica {
	for i := range deployments {
		d := &deployments[i]
		o := obstacle(d)
		if o == nil || d.DeletionTimestamp != nil {
			continue
		}
		var waiting []*spec.Replica
		told := false
		for j := range replicas {
			r := &replicas[j]
			if r.Revision.Name != d.Name || r.Phase == spec.Draining || r.Phase == spec.Ready {
				continue
			}
			waiting = append(waiting, r)
			told = told || r.Failure != nil
		}
		switch {
		case o.Reason == spec.StartFailed:
			// Whatever the pods do that exist, others can't be made.
		case told:
			continue
		case len(waiting) > 0:
			for _, r := range waiting {
				r.Failure = o
			}
			continue
		}
		replicas = append(replicas, spec.Replica{
			ID: d.Name, Revision: spec.RevisionKey{Namespace: d.Namespace, Name: d.Name}, Hash: d.Labels[labelHash],
			Phase: spec.Failed, Created: d.CreationTimestamp.Time, Failure: o,
		})
	}
	return replicas
}

// obstacle returns what keeps a Deployment from its replicas, or nil.
func obstacle(d *appsv1.Deployment) *spec.Failure {
	var found *spec.Failure
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return &spec.Failure{
				Reason: spec.StartFailed, ExitCode: -1, At: c.LastTransitionTime.Time,
				Message: "the cluster refuses to make pods: " + cmp.Or(c.Message, c.Reason),
			}
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded":
			found = &spec.Failure{
				Reason: spec.StartupTimeout, ExitCode: -1, At: c.LastTransitionTime.Time,
				Message: "not ready within its progress deadline: " + cmp.Or(c.Message, c.Reason),
			}
		}
	}
	return found
}

// refusal is the replica that stands for a workload which the cluster doesn't take.
func refusal(w spec.Workload, err error, now time.Time) spec.Replica {
	f := &spec.Failure{Reason: spec.StartFailed, Message: err.Error(), ExitCode: -1, At: now, Terminal: true}
	if r := asRefusal(err); r != nil {
		f.Terminal = r.terminal
	}
	if !f.Terminal {
		f.RetryAt = now.Add(again)
	}
	return spec.Replica{
		ID: w.Revision.Name, Revision: w.Revision, Hash: w.Hash, Phase: spec.Failed, Created: now, Failure: f,
	}
}

// latest returns the latest of some times.
func latest(times ...metav1.Time) time.Time {
	var out time.Time
	for _, t := range times {
		if t.After(out) {
			out = t.Time
		}
	}
	return out
}
