package modelwatch_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/modelwatch"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica tells what its report says; a status of its own comes before that.
type replica struct {
	*httptest.Server
	report atomic.Pointer[modellist.Report]
	status atomic.Int64
	same   atomic.Int64 // answers that nothing changed
}

func newReplica(t *testing.T, entries ...modellist.Entry) *replica {
	t.Helper()
	r := &replica{}
	r.say(entries...)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if code := r.status.Load(); code != 0 {
			w.WriteHeader(int(code))
			return
		}
		text, etag, err := r.report.Load().Encode()
		if err != nil || req.URL.Path != modellist.ReportPath {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Etag", etag)
		if req.Header.Get("If-None-Match") == etag {
			r.same.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(text)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *replica) say(entries ...modellist.Entry) {
	r.report.Store(&modellist.Report{Models: entries})
}

func (r *replica) at() string { return strings.TrimPrefix(r.URL, "http://") }

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func start(t *testing.T) (w *modelwatch.Watch, changes <-chan modellist.Key) {
	t.Helper()
	w = modelwatch.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	changes = w.Changes(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for range changes { // until it is closed
			continue
		}
	})
	return w, changes
}

var many = spec.ServiceKey{Namespace: "ns", Name: "many"}

func TestWhatEachReplicaSaysIsKnownAndNewsAreTold(t *testing.T) {
	w, changes := start(t)
	loading := modellist.Entry{Name: "m", URI: "u", State: modellist.Loading}
	ready := modellist.Entry{Name: "m", URI: "u", State: modellist.Ready}
	a, b := newReplica(t, loading), newReplica(t, ready)
	w.Follow(many, []string{a.at(), b.at()}, true)
	if key := <-changes; key != (modellist.Key{Namespace: "ns", Name: "m"}) {
		t.Errorf("%+v changed", key)
	}
	eventually(t, "both are heard", func() bool {
		return reflect.DeepEqual(w.Of(many, "m"), []modellist.Entry{loading, ready})
	})
	a.say(ready)
	eventually(t, "the first is ready", func() bool { return reflect.DeepEqual(w.Of(many, "m"), []modellist.Entry{ready, ready}) })
	eventually(t, "what stays the same isn't sent again", func() bool { return b.same.Load() > 0 })
	if got := w.Of(many, "other"); !reflect.DeepEqual(got, []modellist.Entry{{}, {}}) {
		t.Errorf("of a model that nobody has: %+v", got)
	}
	b.status.Store(http.StatusBadGateway)
	w.Follow(many, []string{a.at(), b.at()}, true)
	a.say()
	eventually(t, "what one has no more is gone, and the other's last word stays", func() bool {
		return reflect.DeepEqual(w.Of(many, "m"), []modellist.Entry{{}, ready})
	})
	w.Follow(many, nil, false)
	if got := w.Of(many, "m"); got != nil {
		t.Errorf("of no replica: %+v", got)
	}
}

func TestAServerThatDoesNotTellOfModelsIsLeftOut(t *testing.T) {
	w, _ := start(t)
	ready := modellist.Entry{Name: "m", URI: "u", State: modellist.Ready}
	tells, other := newReplica(t, ready), newReplica(t)
	other.status.Store(http.StatusNotFound)
	w.Follow(many, []string{other.at(), tells.at()}, false)
	eventually(t, "one is left", func() bool { return reflect.DeepEqual(w.Of(many, "m"), []modellist.Entry{ready}) })
}
