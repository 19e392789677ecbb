package foreign_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"stationmaster.dev/stationmaster/internal/foreign"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an API server that has the kind widgets or doesn't, and one watcher of it at most.
type api struct {
	*httptest.Server
	mu     sync.Mutex
	has    bool
	events chan string
	// asked are the label selectors of watches.
	asked chan string
}

func newAPI(t *testing.T) *api {
	a := &api{events: make(chan string, 9), asked: make(chan string, 9)}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	has := a.has
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case !has:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
	case r.URL.Path == "/apis/example.com/v1":
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "widgets"}}})
	case r.URL.Query().Get("watch") == "":
		http.Error(w, "watch", http.StatusNotImplemented)
	default:
		a.watch(w, r)
	}
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	fmt.Fprint(w, event("ADDED", "kept", 1, 1, ""), event("ADDED", "other", 1, 1, ""),
		event("BOOKMARK", "", 0, 1, `"annotations":{"k8s.io/initial-events-end":"true"},`))
	_ = flush.Flush()
	a.asked <- r.URL.Query().Get("labelSelector")
	for {
		select {
		case e := <-a.events:
			fmt.Fprint(w, e)
			_ = flush.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func event(what, name string, generation, version int, more string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{%s"namespace":"team","name":%q,"generation":%d,"resourceVersion":"%d"}}}`+"\n",
		what, more, name, generation, version)
}

func TestWhoHarmsAnObjectIsTold(t *testing.T) {
	a := newAPI(t)
	told := make(chan string, 9)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- foreign.Watch(ctx, foreign.Config{
			API: &rest.Config{Host: a.URL}, Kinds: []schema.GroupVersionResource{{Group: "example.com", Version: "v1", Resource: "widgets"}},
			Selector: "of=us", Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			Changed: func(o *metav1.PartialObjectMetadata) { told <- o.Name + " " + o.ResourceVersion },
		})
	}()
	wait := func(from <-chan string) string {
		t.Helper()
		select {
		case s := <-from:
			return s
		case <-time.After(time.Minute):
			t.Fatal("nothing in a minute")
			return ""
		}
	}
	// The kind comes while it is asked for.
	a.mu.Lock()
	a.has = true
	a.mu.Unlock()
	if selector := wait(a.asked); selector != "of=us" {
		t.Errorf("objects of %q are watched", selector)
	}
	a.events <- event("MODIFIED", "kept", 1, 2, "") // its status
	a.events <- event("MODIFIED", "kept", 2, 3, "")
	a.events <- event("MODIFIED", "kept", 2, 4, `"labels":{"of":"us","more":"1"},`)
	a.events <- event("MODIFIED", "kept", 2, 5, `"labels":{"of":"us","more":"1"},"deletionTimestamp":"2030-01-01T00:00:00Z",`)
	a.events <- event("DELETED", "kept", 2, 6, `"labels":{"of":"us","more":"1"},"deletionTimestamp":"2030-01-01T00:00:00Z",`)
	a.events <- event("DELETED", "other", 1, 7, "")
	var got []string
	for range 5 {
		got = append(got, wait(told))
	}
	if want := "kept 3, kept 4, kept 5, kept 6, other 7"; strings.Join(got, ", ") != want {
		t.Errorf("told of %v, want %s", got, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAKindThatNeverComesKeepsNobody(t *testing.T) {
	a := newAPI(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := foreign.Watch(ctx, foreign.Config{
		API: &rest.Config{Host: a.URL}, Kinds: []schema.GroupVersionResource{{Group: "example.com", Version: "v1", Resource: "widgets"}}, Every: time.Millisecond,
		Changed: func(o *metav1.PartialObjectMetadata) { t.Errorf("told of %s", o.Name) }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Error(err)
	}
}
