package kube

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/spec"
)

// startReasons are those for which a container waits that couldn't be started (kubelet:
// pkg/kubelet/images and pkg/kubelet/kuberuntime), each with what a person should look at.
var startReasons = map[string]string{
	"ErrImagePull":               "check the image's name, and the pull secret",
	"ImagePullBackOff":           "check the image's name, and the pull secret",
	"ErrImageNeverPull":          "load the image on the node, or let it be pulled",
	"InvalidImageName":           "correct the image's name",
	"ImageInspectError":          "",
	"RegistryUnavailable":        "",
	"SignatureValidationFailed":  "",
	"CreateContainerConfigError": "check the secrets and config maps that it names",
	"CreateContainerError":       "",
	"RunContainerError":          "check its command",
	"PreCreateHookError":         "",
	"PreStartHookError":          "",
	"PostStartHookError":         "",
	"ImageVolumeMountFailed":     "",
}

const (
	crashLoop = "CrashLoopBackOff"
	oomKilled = "OOMKilled"
	tailLines = 20
)

func asRefusal(err error) *refusedError {
	var r *refusedError
	if errors.As(err, &r) {
		return r
	}
	return nil
}

func isRefusal(err error) bool { return asRefusal(err) != nil }

// unschedulable returns why no node takes a pod, or nil.
func unschedulable(p *corev1.Pod) *spec.Failure {
	c := condition(p, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonUnschedulable {
		return nil
	}
	return &spec.Failure{Reason: spec.Unschedulable, Message: "no node takes the pod: " + c.Message, ExitCode: -1, At: c.LastTransitionTime.Time}
}

// podFailure is that of a pod that ended as a whole, such as one that was evicted.
func podFailure(p *corev1.Pod) *spec.Failure {
	f, _ := failureOf(p)
	if f == nil {
		f = &spec.Failure{Reason: spec.Exited, ExitCode: -1, At: p.CreationTimestamp.Time}
		if c := condition(p, corev1.PodReady); c != nil {
			f.At = c.LastTransitionTime.Time
		}
	}
	if text := strings.TrimSpace(p.Status.Reason + " " + p.Status.Message); text != "" {
		f.Message = "the pod ended: " + text
	} else if f.Message == "" {
		f.Message = "the pod ended"
	}
	return f
}

// failureOf returns the failure that a pod which isn't ready hasn't recovered from, and whether
// it stands still, as opposed to being tried again at this moment. The container that stands
// in the way of the others comes first.
func failureOf(p *corev1.Pod) (f *spec.Failure, stands bool) {
	server := p.Annotations[annotationServer]
	statuses := slices.Clone(p.Status.ContainerStatuses)
	slices.SortStableFunc(statuses, func(a, b corev1.ContainerStatus) int {
		switch server {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return 0
	})
	var past *spec.Failure
	for i, s := range append(slices.Clone(p.Status.InitContainerStatuses), statuses...) {
		initial := i < len(p.Status.InitContainerStatuses) && !sidecar(p, s.Name)
		f, stands := containerFailure(p, &s, initial)
		if stands {
			return f, true
		}
		if past == nil {
			past = f
		}
	}
	return past, false
}

func containerFailure(p *corev1.Pod, s *corev1.ContainerStatus, initial bool) (f *spec.Failure, stands bool) {
	if w := s.State.Waiting; w != nil {
		if hint, ok := startReasons[w.Reason]; ok {
			return startFailure(p, s, hint), true
		}
		if w.Reason == crashLoop && s.LastTerminationState.Terminated != nil {
			f := ended(p, s, s.LastTerminationState.Terminated)
			if d := backOff(w.Message); d > 0 {
				f.RetryAt = f.At.Add(d)
			}
			return f, true
		}
	}
	if t := s.State.Terminated; t != nil {
		if initial && t.ExitCode == 0 {
			return nil, false
		}
		return ended(p, s, t), true
	}
	if t := s.LastTerminationState.Terminated; t != nil && (!initial || t.ExitCode != 0) {
		return ended(p, s, t), false
	}
	return nil, false
}

// startFailure is that of a container that couldn't be started. Where it brings a modelcar's image, or
// the message speaks of an image volume, it is the model that is missing.
func startFailure(p *corev1.Pod, s *corev1.ContainerStatus, hint string) *spec.Failure {
	w := s.State.Waiting
	f := &spec.Failure{Reason: spec.StartFailed, Container: s.Name, ExitCode: -1, At: waitingSince(p)}
	what := fmt.Sprintf("container %s (image %s)", s.Name, s.Image)
	volumes := modelImages(p)
	if uri, ok := volumes[s.Name]; ok && oci.Prefetch(s.Name) {
		f.Reason, what = spec.ModelPullFailed, "model "+uri
	}
	for _, v := range p.Spec.Volumes {
		uri, model := volumes[v.Name]
		if model && v.Image != nil && (strings.Contains(w.Message, v.Image.Reference) || w.Reason == "ImageVolumeMountFailed") {
			f.Reason, what = spec.ModelPullFailed, "model "+uri
			break
		}
	}
	f.Message = what + ": " + w.Reason
	if m := strings.TrimSpace(w.Message); m != "" {
		f.Message += ": " + m
	}
	if hint != "" {
		f.Message += "; " + hint
	}
	if (w.Reason == "ImageVolumeMountFailed" || w.Reason == "CreateContainerError") && hasImageVolume(&p.Spec) {
		f.Message += "; where the node has no image volumes: " + otherDelivery
	}
	return f
}

// waitingSince is when a pod's containers began to be unready: Kubernetes doesn't tell since
// when a container waits.
func waitingSince(p *corev1.Pod) time.Time {
	for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodInitialized} {
		if c := condition(p, t); c != nil && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return p.CreationTimestamp.Time
}

// ended is the failure of a container whose process ended.
func ended(p *corev1.Pod, s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated) *spec.Failure {
	f := &spec.Failure{
		Reason: spec.Exited, Container: s.Name, ExitCode: int(t.ExitCode), At: latest(t.FinishedAt, t.StartedAt), LogTail: tail(t.Message),
	}
	if t.Signal > 0 {
		f.Signal = "signal " + strconv.Itoa(int(t.Signal))
	}
	if f.At.IsZero() {
		f.At = waitingSince(p)
	}
	how := fmt.Sprintf("ended with exit code %d", t.ExitCode)
	if name := signalName(t.ExitCode); name != "" {
		how += " (" + name + ")"
	}
	switch {
	case t.Reason == oomKilled:
		f.Reason = spec.OOMKilled
		f.Message = fmt.Sprintf("container %s was ended for memory (%s)%s: raise limits.memory", s.Name, how, memoryLimit(p, s.Name))
	case isPull(s.Name):
		f.Reason = spec.ModelPullFailed
		if n := len(f.LogTail); n > 0 {
			how = strings.TrimPrefix(f.LogTail[n-1], pullCommand)
		}
		f.Message = "model " + pulledModel(p, s.Name) + " couldn't be pulled: " + how
	case oci.Prefetch(s.Name) && modelImages(p)[s.Name] != "":
		f.Reason = spec.ModelPullFailed
		if why := strings.TrimSpace(t.Message); why != "" {
			how = why
		}
		f.Message = "model " + modelImages(p)[s.Name] + " can't come by modelcar: " + how + "; its image needs a shell with test, ln and sleep, and the model below /models"
	case t.Reason == "ContainerCannotRun", t.Reason == "StartError":
		f.Reason = spec.StartFailed
		f.Message = fmt.Sprintf("container %s (image %s) couldn't be started: %s", s.Name, s.Image, strings.TrimSpace(t.Message))
	default:
		f.Message = fmt.Sprintf("container %s %s", s.Name, how)
		if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
			f.Message += ": " + t.Reason
		}
	}
	return f
}

// pullCommand is how the pull begins what it says when it fails.
const pullCommand = "stationmaster: model pull: "

// pulledModel returns the URI that a pull was asked for, its last argument, without what may
// be secret in it: a query, and a user.
func pulledModel(p *corev1.Pod, name string) string {
	for _, c := range p.Spec.InitContainers {
		if c.Name == name && len(c.Args) > 0 {
			return openURI(strings.ReplaceAll(c.Args[len(c.Args)-1], "$$(", "$("))
		}
	}
	return "of " + name
}

// openURI leaves out of a URI what people who read a status needn't know.
func openURI(uri string) string {
	open, _, query := strings.Cut(uri, "?")
	if query {
		open += "?…"
	}
	scheme, rest, ok := strings.Cut(open, "://")
	if !ok {
		return open
	}
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		return scheme + "://…" + host[i:] + "/" + path
	}
	return open
}

func memoryLimit(p *corev1.Pod, name string) string {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if q := c.Resources.Limits.Memory(); c.Name == name && !q.IsZero() {
			return ", its limit is " + q.String()
		}
	}
	return ""
}

// signalName names the signal in the exit code of a shell or container runtime, 128 and its
// number.
func signalName(code int32) string {
	return map[int32]string{129: "SIGHUP", 130: "SIGINT", 131: "SIGQUIT", 132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}[code]
}

// tail returns the last lines of a container's output.
func tail(text string) []string {
	text = strings.TrimRight(text, "\n ")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-tailLines):]
}

var backOffText = regexp.MustCompile(`^back-off (\S+) restarting`)

// backOff reads from the kubelet's message how long after a container's end it is started
// again; 0 when the message doesn't say.
func backOff(message string) time.Duration {
	m := backOffText.FindStringSubmatch(message)
	if m == nil {
		return 0
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		return 0
	}
	return d
}
