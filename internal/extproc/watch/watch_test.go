package watch_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/extproc/watch"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type object = map[string]any

// api answers what a watcher asks an API server: discovery, and one list and watch for each kind. The
// real one is asked in test/e2e/kubernetes.
type api struct {
	mu      sync.Mutex
	known   bool // the kind InferencePool
	objects map[string][]object
	changed chan struct{}
}

func (a *api) set(resource string, known bool, objects ...object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = known
	a.objects[resource] = objects
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) now(resource string) (objects []object, known bool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects[resource], a.known, a.changed
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	write := func(o any) { _ = json.NewEncoder(w).Encode(o) }
	resource := func(name, kind string) object {
		return object{"name": name, "kind": kind, "namespaced": true, "verbs": []string{"get", "list", "watch"}}
	}
	_, known, _ := a.now("")
	group := object{"name": "inference.networking.k8s.io", "versions": []object{{"groupVersion": "inference.networking.k8s.io/v1", "version": "v1"}}}
	switch path := strings.TrimSuffix(r.URL.Path, "/"); {
	case path == "/api":
		write(object{"kind": "APIVersions", "versions": []string{"v1"}})
	case path == "/api/v1":
		write(object{"kind": "APIResourceList", "groupVersion": "v1", "resources": []object{resource("pods", "Pod")}})
	case path == "/apis" && known:
		write(object{"kind": "APIGroupList", "groups": []object{group}})
	case path == "/apis":
		write(object{"kind": "APIGroupList", "groups": []object{}})
	case path == "/apis/inference.networking.k8s.io" && known:
		write(group)
	case path == "/apis/inference.networking.k8s.io/v1" && known:
		write(object{"kind": "APIResourceList", "groupVersion": "inference.networking.k8s.io/v1", "resources": []object{resource("inferencepools", "InferencePool")}})
	case strings.HasSuffix(path, "/namespaces/team-a/pods"):
		a.list(w, r, "pods", "v1", "Pod")
	case strings.HasSuffix(path, "/namespaces/team-a/inferencepools") && known:
		a.list(w, r, "inferencepools", "inference.networking.k8s.io/v1", "InferencePool")
	default:
		w.WriteHeader(http.StatusNotFound)
		write(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})
	}
}

// list answers with what there is; a watch ends when something changed, so that it is listed anew.
func (a *api) list(w http.ResponseWriter, r *http.Request, resource, version, kind string) {
	objects, _, changed := a.now(resource)
	if r.URL.Query().Get("watch") == "" {
		if objects == nil {
			objects = []object{}
		}
		_ = json.NewEncoder(w).Encode(object{"kind": kind + "List", "apiVersion": version, "metadata": object{"resourceVersion": "1"}, "items": objects})
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422})
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	select {
	case <-changed:
		_ = json.NewEncoder(w).Encode(object{"type": "ERROR", "object": object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}})
	case <-r.Context().Done():
	}
}

func poolObject(labels, annotations object) object {
	return object{
		"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
		"metadata": object{"namespace": "team-a", "name": "llama", "annotations": annotations, "resourceVersion": "1"},
		"spec":     object{"selector": object{"matchLabels": labels}, "targetPorts": []object{{"number": 8000}}},
	}
}

func podObject(name, ip, ready string) object {
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"namespace": "team-a", "name": name, "uid": name, "labels": object{"app": "llama"}, "resourceVersion": "1"},
		"spec":     object{"containers": []object{{"name": "engine"}}},
		"status":   object{"podIP": ip, "conditions": []object{{"type": "Ready", "status": ready}}},
	}
}

// until waits until the pool's addresses are these and its problem has these words.
func until(t *testing.T, topic *state.Topic[pool.Pool], addresses, problem string) *pool.Pool {
	t.Helper()
	deadline := time.After(time.Minute)
	last := "nothing"
	for {
		p, changed := topic.Watch()
		if p != nil {
			var all []string
			for _, e := range p.Endpoints {
				all = append(all, e.Address)
			}
			last = strings.Join(all, " ") + " " + p.Problem
			if strings.Join(all, " ") == addresses && strings.Contains(p.Problem, problem) {
				return p
			}
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("the pool has %s, want %s %s", last, addresses, problem)
		}
	}
}

func TestAPoolFollowsTheCluster(t *testing.T) {
	a := &api{objects: map[string][]object{}, changed: make(chan struct{})}
	server := httptest.NewServer(a)
	defer server.Close()
	defer server.CloseClientConnections()
	config := &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
	var topic state.Topic[pool.Pool]
	w, err := watch.New(config, spec.ServiceKey{Namespace: "team-a", Name: "llama"}, &topic, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()

	if p := until(t, &topic, "", "doesn't know the kind InferencePool"); p.Known {
		t.Error("a pool of a kind that there isn't is known")
	}
	<-w.Synced()
	a.set("pods", true, podObject("a", "10.0.0.1", "True"), podObject("b", "10.0.0.2", "False"))
	if p := until(t, &topic, "", "no InferencePool of this name"); p.Known {
		t.Error("a pool that there isn't is known")
	}
	a.set("inferencepools", true, poolObject(object{"app": "llama"}, object{"stationmaster.dev/picking": "least-tokens"}))
	if p := until(t, &topic, "10.0.0.1:8000", ""); p.Picking != "least-tokens" || !p.Known {
		t.Errorf("%+v", p)
	}
	a.set("pods", true, podObject("a", "10.0.0.1", "True"), podObject("b", "10.0.0.2", "True"))
	until(t, &topic, "10.0.0.1:8000 10.0.0.2:8000", "")
	a.set("pods", true)
	until(t, &topic, "", "chooses no pod")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
}
