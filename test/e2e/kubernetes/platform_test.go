package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube"
	"stationmaster.dev/stationmaster/internal/platform/platformtest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// These tests are about the Kubernetes platform alone: real pods, without operator and gateway.

// recorded is a platform that makes the revisions of the workloads it is told to run.
type recorded struct {
	*kube.Platform
	mu        sync.Mutex
	revisions map[spec.RevisionKey]*smv1alpha1.Revision
}

func (r *recorded) Apply(ctx context.Context, key spec.ServiceKey, want []platform.Assignment) error {
	r.mu.Lock()
	for _, a := range want {
		r.revisions[a.Workload.Revision] = revisionOf(a.Workload)
	}
	r.mu.Unlock()
	return r.Platform.Apply(ctx, key, want)
}

func (r *recorded) read(_ context.Context, key spec.RevisionKey) (*smv1alpha1.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev := r.revisions[key]; rev != nil {
		return rev, nil
	}
	return nil, errdef.New(errdef.ErrNotFound, "no revision "+key.String())
}

// revisionOf turns a workload back into the revision that it could have been made from. Where
// the container listens it is ready when it answers.
func revisionOf(w spec.Workload) *smv1alpha1.Revision {
	grace := int64(w.GracePeriod / time.Second)
	rev := &smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Revision.Namespace, Name: w.Revision.Name},
		Spec:       smv1alpha1.RevisionSpec{Service: w.Service.Name, Component: string(w.Component), Hash: w.Hash},
	}
	pod := &rev.Spec.PodTemplate.Spec
	pod.TerminationGracePeriodSeconds = &grace
	for _, c := range w.Containers {
		made := corev1.Container{Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args}
		for _, p := range c.Ports {
			made.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
			made.ReadinessProbe.TCPSocket.Port.IntVal = int32(p.Number)
		}
		pod.Containers = append(pod.Containers, made)
	}
	for _, m := range w.Models {
		rev.Spec.Models = append(rev.Spec.Models, smv1alpha1.RevisionModel{URI: m.URI, MountPath: m.MountPath})
	}
	return rev
}

func configOf(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// startPlatform runs a platform over some namespaces until the test ends; then nothing of what
// it ran is left.
func startPlatform(t *testing.T, cfg kube.Config) *recorded {
	t.Helper()
	r := &recorded{revisions: map[spec.RevisionKey]*smv1alpha1.Revision{}}
	cfg.Revisions = r.read
	ctrllog.SetLogger(logr.Discard())
	p, err := kube.New(configOf(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Platform = p
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the platform ended with %v", err)
		}
	})
	t.Cleanup(func() { removeAll(ctx, t, p) })
	<-p.Synced()
	return r
}

// removeAll removes every service and waits for its pods to be gone.
func removeAll(ctx context.Context, t *testing.T, p *kube.Platform) {
	t.Helper()
	eventually(t, "nothing runs any more", func() error {
		services, err := p.Services(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			if err := p.Apply(ctx, s, nil); err != nil {
				return err
			}
		}
		if len(services) > 0 {
			return fmt.Errorf("there are %v", services)
		}
		return nil
	})
}

func echo(image string, command ...string) []spec.Container {
	return []spec.Container{{
		Name: "kserve-container", Image: image, Command: command, Ports: []spec.Port{{Number: 8080, Scheme: spec.HTTP}},
	}}
}

func TestTheKubernetesPlatformConforms(t *testing.T) {
	team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	if err := api.Create(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), team); err != nil {
			t.Error(err)
		}
	})
	platformtest.Run(t, func(t *testing.T) platformtest.Fixture {
		return platformtest.Fixture{
			Platform: startPlatform(t, kube.Config{Namespaces: []string{"default", "team"}}),
			Serve:    func() []spec.Container { return echo(echoImage) },
			// The port is taken by the first, so that the second ends with an error.
			Fail: func() []spec.Container {
				return append(echo(echoImage), spec.Container{Name: "second", Image: echoImage})
			},
			Patience: patience,
		}
	})
}

func workloadIn(namespace string, containers []spec.Container, models ...spec.Model) spec.Workload {
	return spec.Workload{
		Service: spec.ServiceKey{Namespace: namespace, Name: "iris"}, Revision: spec.RevisionKey{Namespace: namespace, Name: "iris-predictor-00001"},
		Component: spec.Predictor, Hash: "a", Containers: containers, Models: models, GracePeriod: 2 * time.Second,
	}
}

// observed applies an assignment again and again until what is observed is as it should be.
func observed(t *testing.T, p platform.Platform, want platform.Assignment, what string, ok func(spec.Observed) bool) spec.Observed {
	t.Helper()
	var o spec.Observed
	eventually(t, what, func() error {
		if err := p.Apply(t.Context(), want.Workload.Service, []platform.Assignment{want}); err != nil {
			return err
		}
		var err error
		if o, err = p.Observe(t.Context(), want.Workload.Service); err != nil {
			return err
		}
		if !ok(o) {
			return fmt.Errorf("there is %+v", o.Replicas)
		}
		return nil
	})
	return o
}

func served(o spec.Observed) bool { return len(o.Replicas) == 1 && o.Replicas[0].Phase == spec.Ready }

func failed(o spec.Observed) bool {
	return len(o.Replicas) == 1 && o.Replicas[0].Phase == spec.Failed && o.Replicas[0].Failure != nil
}

func TestAModelsImageIsMountedAndItsDigestTold(t *testing.T) {
	ns := namespace(t, nil)
	p := startPlatform(t, kube.Config{Namespaces: []string{ns}})
	w := workloadIn(ns, echo(echoImage), spec.Model{URI: "oci://" + modelImage, MountPath: "/mnt/models"})
	r := observed(t, p, platform.Assignment{Workload: w, Replicas: 1}, "the engine is ready", served).Replicas[0]
	if text, err := get(t.Context(), "http://"+r.HTTP+"/file?path=/mnt/models/weights.txt"); err != nil || text != "the weights" {
		t.Errorf("the model's file reads %q, %v", text, err)
	}
	// Kubernetes tells the digest where its feature ImageVolumeWithDigest is on.
	if d := r.Digests["oci://"+modelImage]; d != "" && !strings.HasPrefix(d, "sha256:") {
		t.Errorf("the model's digest is %q", d)
	}
	if !strings.HasPrefix(r.RuntimeDigest, "sha256:") {
		t.Errorf("the engine's digest is %q", r.RuntimeDigest)
	}
	eventually(t, "the component's Service answers", func() error {
		_, err := get(t.Context(), "http://iris-predictor."+ns+".svc.cluster.local/")
		return err
	})
}

func TestWhatCantStartSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		workload func(ns string) spec.Workload
		reason   spec.FailureReason
		says     string
	}{
		"no such image": {
			func(ns string) spec.Workload { return workloadIn(ns, echo("localhost:5000/absent:1")) },
			spec.StartFailed, "localhost:5000/absent:1",
		},
		"no such model image": {
			func(ns string) spec.Workload {
				return workloadIn(ns, echo(echoImage), spec.Model{URI: "oci://localhost:5000/nomodel:1", MountPath: "/mnt/models"})
			},
			spec.ModelPullFailed, "oci://localhost:5000/nomodel:1",
		},
		"no such command": {
			func(ns string) spec.Workload { return workloadIn(ns, echo(echoImage, "/absent")) },
			spec.StartFailed, "/absent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t, nil)
			p := startPlatform(t, kube.Config{Namespaces: []string{ns}})
			o := observed(t, p, platform.Assignment{Workload: tc.workload(ns), Replicas: 1}, "a failure shows", failed)
			if f := o.Replicas[0].Failure; f.Reason != tc.reason || !strings.Contains(f.Message, tc.says) {
				t.Errorf("failure %s: %s; want %s that speaks of %s", f.Reason, f.Message, tc.reason, tc.says)
			}
		})
	}
}

func TestANamespaceThatRefusesPodsSaysSo(t *testing.T) {
	// Our defaults don't force a user on an image, which this profile asks for.
	ns := namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	p := startPlatform(t, kube.Config{Namespaces: []string{ns}})
	o := observed(t, p, platform.Assignment{Workload: workloadIn(ns, echo(echoImage)), Replicas: 1}, "a failure shows", failed)
	if f := o.Replicas[0].Failure; f.Reason != spec.StartFailed || !strings.Contains(f.Message, "runAsNonRoot") {
		t.Errorf("failure %s: %s; want one that speaks of runAsNonRoot", f.Reason, f.Message)
	}
}

func TestASteadyDeploymentIsLeftAloneAndADriftingOneRepaired(t *testing.T) {
	ns := namespace(t, nil)
	p := startPlatform(t, kube.Config{
		Namespaces: []string{ns}, GatewayHost: "gateway.system.svc.cluster.local",
		GatewayPods: []kube.PodSelector{{Namespace: "system", Labels: map[string]string{"app": "gateway"}}},
	})
	want := platform.Assignment{Workload: workloadIn(ns, echo(echoImage)), Replicas: 2}
	ready := func(o spec.Observed) bool {
		return len(o.Replicas) == 2 && o.Replicas[0].Phase == spec.Ready && o.Replicas[1].Phase == spec.Ready
	}
	observed(t, p, want, "both are ready", ready)
	before := versions(t, ns)
	for range 3 {
		if err := p.Apply(t.Context(), want.Workload.Service, []platform.Assignment{want}); err != nil {
			t.Fatal(err)
		}
	}
	if after := versions(t, ns); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("applying the same made %v of %v", after, before)
	}
	var d appsv1.Deployment
	key := client.ObjectKey{Namespace: ns, Name: "iris-predictor-00001"}
	if err := api.Get(t.Context(), key, &d); err != nil {
		t.Fatal(err)
	}
	patch := client.MergeFrom(d.DeepCopy())
	none := int32(0)
	d.Spec.Replicas = &none
	if err := api.Patch(t.Context(), &d, patch); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the number of replicas is put right", func() error {
		if err := p.Apply(t.Context(), want.Workload.Service, []platform.Assignment{want}); err != nil {
			return err
		}
		if err := api.Get(t.Context(), key, &d); err != nil {
			return err
		}
		if *d.Spec.Replicas != 2 {
			return errors.New("it isn't")
		}
		return nil
	})
	observed(t, p, want, "both are ready again", ready)
}

// versions returns the generations, and where there are none the versions, of what the
// platform made.
func versions(t *testing.T, ns string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, kind := range []string{"apps/v1/Deployment", "v1/Service", "policy/v1/PodDisruptionBudget", "networking.k8s.io/v1/NetworkPolicy"} {
		i := strings.LastIndex(kind, "/")
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: kind[:i], Kind: kind[i+1:] + "List"}}
		if err := api.List(t.Context(), list, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) == 0 {
			t.Errorf("the platform made no %s", kind)
		}
		for _, o := range list.Items {
			out[kind+"/"+o.Name] = fmt.Sprint(o.Generation)
			if o.Generation == 0 {
				out[kind+"/"+o.Name] = o.ResourceVersion
			}
		}
	}
	return out
}

// TestAPulledModelIsPinnedWithoutARestart: the first pod pulls whatever the source has, later
// ones that very content, and the first isn't replaced for it.
func TestAPulledModelIsPinnedWithoutARestart(t *testing.T) {
	(&installation{binary: filepath.Join(t.TempDir(), "stationmaster")}).publish(t)
	ns := namespace(t, map[string]string{"pod-security.kubernetes.io/warn": "restricted"})
	p := startPlatform(t, kube.Config{Namespaces: []string{ns}, Image: ownImage})
	from := workloadIn(ns, echo(echoImage), spec.Model{URI: "oci://" + modelImage, MountPath: "/mnt/models"})
	from.Service.Name, from.Revision.Name = "source", "source-predictor-00001"
	source := observed(t, p, platform.Assignment{Workload: from, Replicas: 1}, "the model is offered", served).Replicas[0]

	uri := "http://" + source.HTTP + "/file?path=/mnt/models/weights.txt"
	want := platform.Assignment{Workload: workloadIn(ns, echo(echoImage), spec.Model{URI: uri, MountPath: "/mnt/models"}), Replicas: 1}
	first := observed(t, p, want, "the model is pulled", served).Replicas[0]
	if text, err := get(t.Context(), "http://"+first.HTTP+"/file?path=/mnt/models/file"); err != nil || text != "the weights" {
		t.Errorf("the model's file reads %q, %v", text, err)
	}
	digest := first.Digests[uri]
	if digest == "" {
		t.Fatal("the pull told no digest")
	}
	want.Workload.Models[0].Digest = digest
	want.Replicas = 2
	both := observed(t, p, want, "two serve", func(o spec.Observed) bool {
		return len(o.Replicas) == 2 && o.Replicas[0].Phase == spec.Ready && o.Replicas[1].Phase == spec.Ready
	})
	if both.Replicas[0].ID != first.ID && both.Replicas[1].ID != first.ID {
		t.Errorf("pinning replaced %s", first.ID)
	}
	// A pin that the source doesn't have is what keeps a third pod from serving other bytes.
	next := want
	next.Workload.Revision.Name, next.Workload.Hash = "iris-predictor-00002", "b"
	next.Workload.Models = []spec.Model{{URI: uri, MountPath: "/mnt/models", Digest: "sha256:" + strings.Repeat("0", 64)}}
	next.Replicas = 1
	f := observed(t, p, next, "the other content is refused", failed).Replicas[0].Failure
	if f.Reason != spec.ModelPullFailed || !strings.Contains(f.Message, digest) {
		t.Errorf("failure %s: %s; want one that names the digest %s", f.Reason, f.Message, digest)
	}
}
