package kube

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/internal/spec"
)

func at(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }

// podFrom makes a pod of iris-predictor-00001, created at second 0, with the status that the
// text gives. Times in the text are "s0" to "s59", the seconds after that.
func podFrom(t *testing.T, status string, change func(*corev1.Pod)) corev1.Pod {
	t.Helper()
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "pod-1", CreationTimestamp: metav1.NewTime(at(0)),
			Labels:      map[string]string{labelService: "iris", labelRevision: "iris-predictor-00001", labelHash: "h"},
			Annotations: map[string]string{annotationServer: "kserve-container", annotationHTTP: "8080", annotationGRPC: "9000"},
		},
		Spec: corev1.PodSpec{
			NodeName: "node",
			InitContainers: []corev1.Container{
				{Name: "storage-initializer", Args: []string{"model", "pull", "https://models.example/iris"}},
			},
			Containers: []corev1.Container{{Name: "kserve-container"}},
		},
	}
	if err := yaml.UnmarshalStrict([]byte(timesIn(status)), &p.Status); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&p)
	}
	return p
}

var seconds = regexp.MustCompile(`At: s(\d+)|Time: s(\d+)`)

func timesIn(text string) string {
	return seconds.ReplaceAllStringFunc(text, func(found string) string {
		field, n, _ := strings.Cut(found, ": s")
		return field + ": 2026-01-01T00:00:" + ("0" + n)[len(n)-1:] + "Z"
	})
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

const (
	scheduled = `
podIP: 10.0.0.1
conditions:
- {type: PodScheduled, status: "True", lastTransitionTime: s1}
- {type: Ready, status: "False", lastTransitionTime: s1}
`
	pulledAll = `
initContainerStatuses:
- name: storage-initializer
  state: {terminated: {exitCode: 0, startedAt: s2, finishedAt: s5, message: '{"models":[{"uri":"https://models.example/iris","digest":"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","sizeBytes":7}]}'}}
`
)

var digest = map[string]string{"https://models.example/iris": "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}

func TestAPodIsReadAsAReplica(t *testing.T) {
	base := spec.Replica{
		ID: "pod-1", Revision: spec.RevisionKey{Namespace: "default", Name: "iris-predictor-00001"}, Hash: "h", Created: at(0),
		HTTP: "10.0.0.1:8080", GRPC: "10.0.0.1:9000",
	}
	with := func(change func(*spec.Replica)) spec.Replica {
		r := base
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		status string
		change func(*corev1.Pod)
		want   spec.Replica
	}{
		"new, without an address": {
			status: `{}`, change: func(p *corev1.Pod) { p.Spec.NodeName = "" },
			want: with(func(r *spec.Replica) { r.HTTP, r.GRPC, r.Phase = "", "", spec.Pending }),
		},
		"without a node to run on": {
			status: `
conditions:
- {type: PodScheduled, status: "False", reason: Unschedulable, message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", lastTransitionTime: s1}
`, change: func(p *corev1.Pod) { p.Spec.NodeName = "" },
			want: with(func(r *spec.Replica) {
				r.HTTP, r.GRPC, r.Phase = "", "", spec.Pending
				r.Failure = &spec.Failure{Reason: spec.Unschedulable, ExitCode: -1, At: at(1), Message: "no node takes the pod: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
			}),
		},
		"waiting for the pull": {
			status: scheduled + `
initContainerStatuses:
- {name: storage-initializer, state: {waiting: {reason: PodInitializing}}}
containerStatuses:
- {name: kserve-container, state: {waiting: {reason: PodInitializing}}}
`, want: with(func(r *spec.Replica) { r.Phase = spec.Pending }),
		},
		"pulling": {
			status: scheduled + `
initContainerStatuses:
- {name: storage-initializer, state: {running: {startedAt: s2}}}
`, want: with(func(r *spec.Replica) { r.Phase = spec.Pulling }),
		},
		"pulling again after a failure": {
			status: scheduled + `
initContainerStatuses:
- {name: storage-initializer, restartCount: 1, state: {running: {startedAt: s9}}, lastState: {terminated: {exitCode: 1, finishedAt: s3, reason: Error, message: "opening\nno such model\n"}}}
`, want: with(func(r *spec.Replica) {
				r.Phase, r.Restarts = spec.Pulling, 1
				r.Failure = &spec.Failure{Reason: spec.ModelPullFailed, Container: "storage-initializer", ExitCode: 1, At: at(3), LogTail: []string{"opening", "no such model"}, Message: "model https://models.example/iris couldn't be pulled: no such model"}
			}),
		},
		"unable to pull, in back-off": {
			status: scheduled + `
initContainerStatuses:
- {name: storage-initializer, restartCount: 3, state: {waiting: {reason: CrashLoopBackOff, message: "back-off 40s restarting failed container=storage-initializer pod=x"}}, lastState: {terminated: {exitCode: 1, finishedAt: s3, reason: Error}}}
`, want: with(func(r *spec.Replica) {
				r.Phase, r.Restarts = spec.Failed, 3
				r.Failure = &spec.Failure{Reason: spec.ModelPullFailed, Container: "storage-initializer", ExitCode: 1, At: at(3), RetryAt: at(43), Message: "model https://models.example/iris couldn't be pulled: ended with exit code 1"}
			}),
		},
		"pulled, its engine being created": {
			status: scheduled + pulledAll + `
containerStatuses:
- {name: kserve-container, state: {waiting: {reason: ContainerCreating}}}
`, want: with(func(r *spec.Replica) {
				r.Phase, r.Digests, r.Timings = spec.Starting, digest, spec.Timings{Pull: 3 * time.Second}
			}),
		},
		"loading": {
			status: scheduled + pulledAll + `
containerStatuses:
- {name: kserve-container, imageID: "registry.example/engine@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", state: {running: {startedAt: s7}}}
`, want: with(func(r *spec.Replica) {
				r.Phase, r.Digests, r.RuntimeDigest = spec.Loading, digest, "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
				r.Timings = spec.Timings{Pull: 3 * time.Second, Start: 2 * time.Second}
			}),
		},
		"ready, after a crash it recovered from": {
			status: `
podIP: "fd00::1"
conditions:
- {type: PodScheduled, status: "True", lastTransitionTime: s1}
- {type: Ready, status: "True", lastTransitionTime: s11}
` + pulledAll + `
containerStatuses:
- {name: kserve-container, restartCount: 1, state: {running: {startedAt: s7}}, lastState: {terminated: {exitCode: 1, finishedAt: s6}}}
`, want: with(func(r *spec.Replica) {
				r.HTTP, r.GRPC = "[fd00::1]:8080", "[fd00::1]:9000"
				r.Phase, r.Digests, r.Restarts = spec.Ready, digest, 1
				r.Timings = spec.Timings{Pull: 3 * time.Second, Start: 2 * time.Second, Load: 4 * time.Second, ReadyAt: at(11)}
			}),
		},
		"on its way out, ready or not": {
			status: scheduled, change: func(p *corev1.Pod) { now := metav1.NewTime(at(9)); p.DeletionTimestamp = &now },
			want: with(func(r *spec.Replica) { r.Phase = spec.Draining }),
		},
		"crashed": {
			status: scheduled + pulledAll + `
containerStatuses:
- {name: kserve-container, state: {terminated: {exitCode: 3, startedAt: s7, finishedAt: s8, reason: Error, message: "bad flag"}}}
`, want: with(func(r *spec.Replica) {
				r.Phase, r.Digests, r.Timings = spec.Failed, digest, spec.Timings{Pull: 3 * time.Second}
				r.Failure = &spec.Failure{Reason: spec.Exited, Container: "kserve-container", ExitCode: 3, At: at(8), LogTail: []string{"bad flag"}, Message: "container kserve-container ended with exit code 3"}
			}),
		},
		"ended without an error, which an engine must not": {
			status: scheduled + pulledAll + `
containerStatuses:
- {name: kserve-container, state: {terminated: {exitCode: 0, finishedAt: s8, reason: Completed}}}
`, want: with(func(r *spec.Replica) {
				r.Phase, r.Digests, r.Timings = spec.Failed, digest, spec.Timings{Pull: 3 * time.Second}
				r.Failure = &spec.Failure{Reason: spec.Exited, Container: "kserve-container", At: at(8), Message: "container kserve-container ended with exit code 0"}
			}),
		},
		"loading again after it ran out of memory": {
			status: scheduled + `
containerStatuses:
- {name: kserve-container, restartCount: 1, state: {running: {startedAt: s9}}, lastState: {terminated: {exitCode: 137, finishedAt: s8, reason: OOMKilled}}}
`, change: func(p *corev1.Pod) {
				p.Spec.InitContainers = nil
				p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *quantity("2Gi")}
			},
			want: with(func(r *spec.Replica) {
				r.Phase, r.Restarts, r.Timings = spec.Loading, 1, spec.Timings{Start: 8 * time.Second}
				r.Failure = &spec.Failure{Reason: spec.OOMKilled, Container: "kserve-container", ExitCode: 137, At: at(8), Message: "container kserve-container was ended for memory (ended with exit code 137 (SIGKILL)), its limit is 2Gi: raise limits.memory"}
			}),
		},
		"without an image that can be pulled": {
			status: scheduled + `
containerStatuses:
- {name: kserve-container, image: "registry.example/absent:1", state: {waiting: {reason: ImagePullBackOff, message: "Back-off pulling image"}}}
`, want: with(func(r *spec.Replica) {
				r.Phase = spec.Failed
				r.Failure = &spec.Failure{Reason: spec.StartFailed, Container: "kserve-container", ExitCode: -1, At: at(0), Message: "container kserve-container (image registry.example/absent:1): ImagePullBackOff: Back-off pulling image; check the image's name, and the pull secret"}
			}),
		},
		"without a secret": {
			status: scheduled + `
containerStatuses:
- {name: kserve-container, image: i, state: {waiting: {reason: CreateContainerConfigError, message: 'secret "token" not found'}}}
`, want: with(func(r *spec.Replica) {
				r.Phase = spec.Failed
				r.Failure = &spec.Failure{Reason: spec.StartFailed, Container: "kserve-container", ExitCode: -1, At: at(0), Message: `container kserve-container (image i): CreateContainerConfigError: secret "token" not found; check the secrets and config maps that it names`}
			}),
		},
		"without the model's image": {
			status: scheduled + `
containerStatuses:
- {name: kserve-container, image: i, state: {waiting: {reason: ErrImagePull, message: "failed to pull registry.example/model:1"}}}
`, change: func(p *corev1.Pod) { imageModel(p, "registry.example/model:1") },
			want: with(func(r *spec.Replica) {
				r.Phase = spec.Failed
				r.Failure = &spec.Failure{Reason: spec.ModelPullFailed, Container: "kserve-container", ExitCode: -1, At: at(0), Message: "model oci://registry.example/model:1: ErrImagePull: failed to pull registry.example/model:1; check the image's name, and the pull secret"}
			}),
		},
		"with a model's image whose digest its node tells": {
			status: scheduled + `
containerStatuses:
- name: kserve-container
  state: {running: {startedAt: s3}}
  volumeMounts: [{name: m, mountPath: /mnt/models, volumeStatus: {image: {imageRef: "registry.example/model@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}}}]
`, change: func(p *corev1.Pod) { imageModel(p, "registry.example/model:1") },
			want: with(func(r *spec.Replica) {
				r.Phase, r.Digests, r.Timings = spec.Loading, map[string]string{"oci://registry.example/model:1": "sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}, spec.Timings{Start: 2 * time.Second}
			}),
		},
		"with a model's image that is pinned": {
			status: scheduled, change: func(p *corev1.Pod) {
				imageModel(p, "registry.example/model@sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee")
			},
			want: with(func(r *spec.Replica) {
				r.Phase, r.Digests = spec.Pending, map[string]string{"oci://registry.example/model@sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee": "sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}
			}),
		},
		"without a modelcar's image": {
			status: scheduled + `
initContainerStatuses:
- {name: modelcar-init, image: i, state: {waiting: {reason: ImagePullBackOff, message: "no such image"}}}
- {name: modelcar, state: {waiting: {reason: PodInitializing}}}
`, change: carModel,
			want: with(func(r *spec.Replica) {
				r.Phase = spec.Failed
				r.Failure = &spec.Failure{Reason: spec.ModelPullFailed, Container: "modelcar-init", ExitCode: -1, At: at(0), Message: "model oci://registry.example/model:1: ImagePullBackOff: no such image; check the image's name, and the pull secret"}
			}),
		},
		"with an image that is no modelcar": {
			status: scheduled + `
initContainerStatuses:
- {name: modelcar-init, state: {terminated: {exitCode: 1, finishedAt: s8, reason: Error, message: the image has no directory /models}}}
`, change: carModel,
			want: with(func(r *spec.Replica) {
				r.Phase = spec.Failed
				r.Failure = &spec.Failure{
					Reason: spec.ModelPullFailed, Container: "modelcar-init", ExitCode: 1, At: at(8), LogTail: []string{"the image has no directory /models"},
					Message: "model oci://registry.example/model:1 can't come by modelcar: the image has no directory /models; its image needs a shell with test, ln and sleep, and the model below /models",
				}
			}),
		},
		"while a modelcar's image comes": {
			status: scheduled + `
initContainerStatuses:
- {name: modelcar-init, state: {waiting: {reason: PodInitializing}}}
`, change: carModel,
			want: with(func(r *spec.Replica) { r.Phase = spec.Pulling }),
		},
		"with a modelcar beside the engine": {
			status: scheduled + `
initContainerStatuses:
- {name: modelcar-init, imageID: "registry.example/model@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd", state: {terminated: {exitCode: 0, startedAt: s1, finishedAt: s1, reason: Completed}}}
- {name: modelcar, started: true, state: {running: {startedAt: s1}}}
containerStatuses:
- {name: kserve-container, state: {running: {startedAt: s3}}}
`, change: carModel,
			want: with(func(r *spec.Replica) {
				r.Phase, r.Digests, r.Timings = spec.Loading, map[string]string{"oci://registry.example/model:1": "sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}, spec.Timings{Start: 2 * time.Second}
			}),
		},
		"on a node without image volumes": {
			status: scheduled + `
containerStatuses:
- {name: kserve-container, image: i, state: {waiting: {reason: CreateContainerError, message: "no mount"}}}
`, change: func(p *corev1.Pod) { imageModel(p, "registry.example/model:1") },
			want: with(func(r *spec.Replica) {
				r.Phase = spec.Failed
				r.Failure = &spec.Failure{Reason: spec.StartFailed, Container: "kserve-container", ExitCode: -1, At: at(0), Message: "container kserve-container (image i): CreateContainerError: no mount; where the node has no image volumes: " + otherDelivery}
			}),
		},
		"evicted": {
			status: "phase: Failed\nreason: Evicted\nmessage: the node was low on memory\n",
			want: with(func(r *spec.Replica) {
				r.HTTP, r.GRPC, r.Phase = "", "", spec.Failed
				r.Failure = &spec.Failure{Reason: spec.Exited, ExitCode: -1, At: at(0), Message: "the pod ended: Evicted the node was low on memory"}
			}),
		},
		"crashed beside a transformer that runs": {
			status: scheduled + `
containerStatuses:
- {name: kserve-container, state: {terminated: {exitCode: 1, finishedAt: s8, reason: Error}}}
- {name: transformer-container, state: {running: {startedAt: s3}}}
`, change: func(p *corev1.Pod) { p.Annotations[annotationServer] = "transformer-container" },
			want: with(func(r *spec.Replica) {
				r.Phase, r.Timings = spec.Failed, spec.Timings{Start: 2 * time.Second}
				r.Failure = &spec.Failure{Reason: spec.Exited, Container: "kserve-container", ExitCode: 1, At: at(8), Message: "container kserve-container ended with exit code 1"}
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podFrom(t, tc.status, tc.change)
			if d := cmp.Diff(tc.want, replicaOf(&pod)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func imageModel(p *corev1.Pod, reference string) {
	p.Annotations[annotationImages] = `{"m":"oci://` + reference + `"}`
	p.Spec.Volumes = []corev1.Volume{{Name: "m", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: reference}}}}
	p.Spec.InitContainers = nil
}

func carModel(p *corev1.Pod) {
	p.Annotations[annotationImages] = `{"modelcar-init":"oci://registry.example/model:1"}`
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{{Name: "modelcar-init"}, {Name: "modelcar", RestartPolicy: &always}}
}

func TestAPodThatMayStillAnswerLingers(t *testing.T) {
	const conditions = `
podIP: 10.0.0.1
phase: Running
conditions:
- {type: Ready, status: "%s"}
- {type: ContainersReady, status: "%s"}
- {type: example.com/in-service, status: "%s"}
`
	for name, tc := range map[string]struct {
		ready, containers, gate string
		change                  func(*corev1.Pod)
		want                    bool
	}{
		"ready: it needs no leave":                      {"True", "True", "True", nil, false},
		"about to end, its containers weren't told yet": {"True", "True", "True", ending, true},
		"about to end, its containers have stopped":     {"False", "False", "True", ending, false},
		"unready because its node is silent":            {"False", "True", "True", nil, true},
		"unready by its containers":                     {"False", "False", "True", nil, false},
		"unready by a gate":                             {"False", "True", "False", gated, false},
		"unready though its gate is open":               {"False", "True", "True", gated, true},
		"without an address":                            {"True", "True", "True", func(p *corev1.Pod) { ending(p); p.Status.PodIP = "" }, false},
		"ended for good":                                {"False", "True", "True", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := podFrom(t, fmt.Sprintf(conditions, tc.ready, tc.containers, tc.gate), tc.change)
			if got := replicaOf(&p); got.Lingers != tc.want {
				t.Errorf("in phase %s, lingers: %t, want %t", got.Phase, got.Lingers, tc.want)
			}
		})
	}
}

func ending(p *corev1.Pod) {
	now := metav1.NewTime(at(9))
	p.DeletionTimestamp = &now
}

func gated(p *corev1.Pod) {
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/in-service"}}
}

func TestAnEvictedPodIsForgottenOnceAnotherLives(t *testing.T) {
	gone := podFrom(t, "{phase: Failed, reason: Evicted}", nil)
	fresh := podFrom(t, scheduled, func(p *corev1.Pod) { p.Name = "pod-2" })
	other := podFrom(t, scheduled, func(p *corev1.Pod) { p.Name, p.Labels[labelRevision] = "pod-3", "iris-predictor-00002" })
	names := func(pods ...corev1.Pod) (out []string) {
		for _, r := range sorted(replicasOf(pods)) {
			out = append(out, r.ID)
		}
		return out
	}
	if d := cmp.Diff([]string{"pod-1", "pod-3"}, names(other, gone)); d != "" {
		t.Errorf("alone (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"pod-2"}, names(gone, fresh)); d != "" {
		t.Errorf("replaced (-want +got):\n%s", d)
	}
}

func TestWhatBlocksADeploymentShows(t *testing.T) {
	quota := appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota", LastTransitionTime: metav1.NewTime(at(5))}
	late := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: "timed out progressing", LastTransitionTime: metav1.NewTime(at(6))}
	fine := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}
	loading := podFrom(t, scheduled+"containerStatuses:\n- {name: kserve-container, state: {running: {startedAt: s7}}}\n", nil)
	crashed := podFrom(t, scheduled+"containerStatuses:\n- {name: kserve-container, state: {terminated: {exitCode: 1, finishedAt: s8}}}\n", nil)
	for name, tc := range map[string]struct {
		pods      []corev1.Pod
		condition appsv1.DeploymentCondition
		// want lists "ID phase reason" of each replica.
		want []string
	}{
		"nothing, when all is well":                  {[]corev1.Pod{loading}, fine, []string{"pod-1 Loading "}},
		"a quota, as a replica of its own":           {nil, quota, []string{"iris-predictor-00001 Failed StartFailed"}},
		"a quota beside pods that there is room for": {[]corev1.Pod{loading}, quota, []string{"iris-predictor-00001 Failed StartFailed", "pod-1 Loading "}},
		"being late, on the pods that are":           {[]corev1.Pod{loading}, late, []string{"pod-1 Loading StartupTimeout"}},
		"being late, when pods tell more":            {[]corev1.Pod{crashed}, late, []string{"pod-1 Failed Exited"}},
		"being late without any pod":                 {nil, late, []string{"iris-predictor-00001 Failed StartupTimeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "iris-predictor-00001"}}
			d.Status.Conditions = []appsv1.DeploymentCondition{tc.condition}
			var got []string
			for _, r := range sorted(blocked(replicasOf(tc.pods), []appsv1.Deployment{d})) {
				line := r.ID + " " + string(r.Phase) + " "
				if r.Failure != nil {
					line += string(r.Failure.Reason)
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzAReportIsRead feeds the pull's termination message, which anything in its image could
// write: only digests that are some come out.
func FuzzAReportIsRead(f *testing.F) {
	f.Add(`{"models":[{"uri":"https://models.example/iris","digest":"sha256:`+strings.Repeat("a", 64)+`","sizeBytes":7}]}`, `{"m":"oci://r/m"}`)
	f.Add(`{"models":[{"uri":"","digest":"sha256:"}]}`, `{"m":1}`)
	f.Add("no such model", "")
	f.Fuzz(func(t *testing.T, message, images string) {
		p := corev1.Pod{}
		p.Annotations = map[string]string{annotationImages: images}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: pullContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}}
		p.Spec.Volumes = []corev1.Volume{{Name: "m", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: message}}}}
		for uri, d := range replicaOf(&p).Digests {
			if len(d) != len("sha256:")+64 || !strings.HasPrefix(d, "sha256:") {
				t.Errorf("the digest of %q is %q", uri, d)
			}
		}
	})
}
