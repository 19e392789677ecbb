package lws_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAGroupIsOneReplica(t *testing.T) {
	leader := func(p spec.Phase) spec.Replica { return spec.Replica{ID: "llama-0", Phase: p, HTTP: "10.0.0.1:8080"} }
	worker := func(p spec.Phase) spec.Replica { return spec.Replica{ID: "llama-0-1", Phase: p, Restarts: 2} }
	lingering := worker(spec.Loading)
	lingering.Lingers = true
	broken := worker(spec.Failed)
	broken.Failure = &spec.Failure{Reason: spec.StartFailed, Message: "no device"}
	ready := leader(spec.Ready)
	ready.Timings.ReadyAt = time.Unix(1, 0)
	for name, tc := range map[string]struct {
		leader  spec.Replica
		workers []spec.Replica
		phase   spec.Phase
		lingers bool
		failure string
	}{
		"ready when every pod is":                             {ready, []spec.Replica{worker(spec.Ready), worker(spec.Ready)}, spec.Ready, false, ""},
		"not ready while a worker loads":                      {ready, []spec.Replica{worker(spec.Ready), worker(spec.Loading)}, spec.Loading, false, ""},
		"not ready while a worker isn't there":                {ready, []spec.Replica{worker(spec.Ready)}, spec.Loading, false, ""},
		"of use while the worker's node is silent":            {ready, []spec.Replica{worker(spec.Ready), lingering}, spec.Loading, true, ""},
		"failed by a worker, which is named":                  {leader(spec.Loading), []spec.Replica{worker(spec.Loading), broken}, spec.Failed, false, "worker llama-0-1: no device"},
		"on its way out with its leader, whatever workers do": {leader(spec.Draining), []spec.Replica{worker(spec.Ready), broken}, spec.Draining, false, "worker llama-0-1: no device"},
	} {
		t.Run(name, func(t *testing.T) {
			got := lws.Join(tc.leader, 3, tc.workers)
			failure := ""
			if got.Failure != nil {
				failure = got.Failure.Message
			}
			if got.Phase != tc.phase || got.Lingers != tc.lingers || failure != tc.failure {
				t.Errorf("phase %v, lingers %v, failure %q", got.Phase, got.Lingers, failure)
			}
			if got.ID != "llama-0" || got.HTTP != "10.0.0.1:8080" || got.Restarts != 2*len(tc.workers) {
				t.Errorf("it is %+v", got)
			}
		})
	}
	if broken.Failure.Message != "no device" {
		t.Error("the worker's failure was changed")
	}
}

func set() lws.Set {
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Env: []corev1.EnvVar{{Name: "HEAD_SVC", Value: "mine"}, {Name: "B", Value: "$(WORKER_SVC)"}},
	}}}}
	return lws.Set{Meta: metav1.ObjectMeta{Namespace: "n", Name: "llama-1"}, Replicas: 2, Size: 3, Leader: pod, Workers: pod}
}

func TestTheSetTellsItsPodsOfEachOther(t *testing.T) {
	s := set()
	u, err := lws.Object(s)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(part string) *corev1.Pod {
		content, _, err := unstructured.NestedMap(u.Object, "spec", "leaderWorkerTemplate", part)
		if err != nil {
			t.Fatal(err)
		}
		p := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, p); err != nil {
			t.Fatal(err)
		}
		p.Labels = map[string]string{"leaderworkerset.sigs.k8s.io/group-index": "1", "stationmaster.dev/part": p.Labels["stationmaster.dev/part"]}
		return p
	}
	leader, worker := pod("leaderTemplate"), pod("workerTemplate")
	if lws.IsWorker(leader) || !lws.IsWorker(worker) || lws.Size(leader) != 3 || lws.Group(leader) != "1" || lws.Size(&corev1.Pod{}) != 1 {
		t.Errorf("leader %+v, worker %+v", leader.ObjectMeta, worker.ObjectMeta)
	}
	env := worker.Spec.Containers[0].Env
	if len(env) != 4 || env[0].ValueFrom == nil || env[1].Name != "WORKER_SVC" || env[1].Value != "llama-1" || env[2].Value != "mine" {
		t.Errorf("the environment is %v: what a container says itself counts", env)
	}
	if len(s.Leader.Spec.Containers[0].Env) != 2 {
		t.Error("the template was changed")
	}
}

func TestANameThatItsPodsCouldNotBearIsRefused(t *testing.T) {
	s := set()
	s.Meta.Name = strings.Repeat("a", 50)
	if _, err := lws.Object(s); err == nil || !strings.Contains(err.Error(), "by 4 letters") {
		t.Errorf("answers %v", err)
	}
}
