package modelagent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/modellist"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an engine: it loads a model from the file "model" of its folder, unless that says "broken".
type fake struct {
	*httptest.Server
	root string

	mu     sync.Mutex
	loaded map[string]string // what each model is
	down   bool
	loads  int
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{root: t.TempDir(), loaded: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/repository/index", func(w http.ResponseWriter, _ *http.Request) {
		lines := []map[string]string{{"name": own}}
		for name := range f.loaded {
			lines = append(lines, map[string]string{"name": name, "version": "1", "state": "READY"})
		}
		_ = json.NewEncoder(w).Encode(lines)
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/load", func(w http.ResponseWriter, r *http.Request) {
		f.loads++
		name := r.PathValue("name")
		text, err := os.ReadFile(filepath.Join(f.root, name, "1", "model"))
		if err != nil || string(text) == "broken" {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"it can't be read"}`))
			return
		}
		f.loaded[name] = string(text)
	})
	mux.HandleFunc("POST /v2/repository/models/{name}/unload", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := f.loaded[r.PathValue("name")]; !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		delete(f.loaded, r.PathValue("name"))
	})
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) has(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loaded[name]
}

// run begins an agent of the engine, which ends with the test or when it is told to.
func (f *fake) run(t *testing.T, list string) (a *Agent, stop func()) {
	t.Helper()
	a, err := New(Config{
		List: list, Repository: f.root, Layout: Triton, Engine: strings.TrimPrefix(f.URL, "http://"),
		Fetch: func(_ context.Context, uri string) (string, func(), error) {
			if uri == "nowhere" {
				return "", nil, errors.New("there is nothing there")
			}
			dir, err := os.MkdirTemp(filepath.Join(f.root, own, "new"), ".fetch-")
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "model"), []byte(uri), 0o600)
			}
			return dir, func() { _ = os.RemoveAll(dir) }, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return a, stop
}

func list(t *testing.T, path string, models ...modellist.Model) {
	t.Helper()
	text, err := modellist.Encode(models)
	if err == nil {
		err = errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func (a *Agent) says(name string) modellist.Entry {
	for _, e := range a.report().Models {
		if e.Name == name {
			return e
		}
	}
	return modellist.Entry{}
}

func line(name, uri string) modellist.Model { return modellist.Model{Name: name, URI: uri} }

func TestTheEngineIsKeptToTheList(t *testing.T) {
	f, at := newFake(t), filepath.Join(t.TempDir(), "models.json")
	a, _ := f.run(t, at)
	if a.ready() == nil {
		t.Error("ready without a list")
	}
	list(t, at, line("a", "1"), line("lost", "nowhere"))
	eventually(t, "ready, whatever can't be had", func() bool { return a.ready() == nil })
	if f.has("a") != "1" || a.says("a") != (modellist.Entry{Name: "a", URI: "1", State: modellist.Ready}) {
		t.Errorf("a is %q, %+v", f.has("a"), a.says("a"))
	}
	lost := modellist.Entry{Name: "lost", URI: "nowhere", State: modellist.Failed, Reason: modellist.NotFetched, Message: "there is nothing there"}
	if got := a.says("lost"); got != lost {
		t.Errorf("lost: %+v", got)
	}
	list(t, at, line("a", "2"), line("b", "3"))
	eventually(t, "a is another and b is there", func() bool { return f.has("a") == "2" && f.has("b") == "3" })
	list(t, at, line("b", "3"))
	eventually(t, "a is gone", func() bool {
		_, err := os.Stat(filepath.Join(f.root, "a"))
		return f.has("a") == "" && os.IsNotExist(err)
	})
	left, err := os.ReadDir(filepath.Join(f.root, own, "new"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestAnUpdateThatFailsLeavesWhatServes(t *testing.T) {
	f, at := newFake(t), filepath.Join(t.TempDir(), "models.json")
	list(t, at, line("a", "1"))
	a, _ := f.run(t, at)
	eventually(t, "loaded", func() bool { return a.says("a").State == modellist.Ready })
	for uri, want := range map[string]modellist.Entry{
		"nowhere": {Name: "a", URI: "nowhere", State: modellist.Failed, Reason: modellist.NotFetched, Message: "there is nothing there", Serves: true},
		"broken":  {Name: "a", URI: "broken", State: modellist.Failed, Reason: modellist.NotLoaded, Message: "it can't be read", Serves: true},
	} {
		list(t, at, line("a", uri))
		eventually(t, uri+" is told of", func() bool { return a.says("a") == want })
		text, err := os.ReadFile(filepath.Join(f.root, "a", "1", "model"))
		if f.has("a") != "1" || string(text) != "1" || err != nil {
			t.Errorf("%s: the engine has %q, the repository %q, %v", uri, f.has("a"), text, err)
		}
	}
}

func TestAnEngineThatStartsAnewGetsItsModelsFromTheRepository(t *testing.T) {
	f, at := newFake(t), filepath.Join(t.TempDir(), "models.json")
	list(t, at, line("a", "1"), line("b", "2"))
	a, stop := f.run(t, at)
	eventually(t, "loaded", func() bool { return a.ready() == nil })
	f.mu.Lock()
	f.loaded, f.down = map[string]string{}, true
	f.mu.Unlock()
	eventually(t, "not ready without the engine", func() bool { return a.ready() != nil })
	f.mu.Lock()
	f.down = false
	f.mu.Unlock()
	eventually(t, "ready again", func() bool { return a.ready() == nil })
	if f.has("a") != "1" || f.has("b") != "2" {
		t.Errorf("a is %q, b is %q", f.has("a"), f.has("b"))
	}

	// An agent that starts anew loads nothing twice, and takes away what left the list meanwhile.
	stop()
	before := f.loads
	list(t, at, line("a", "1"))
	if err := os.Mkdir(filepath.Join(f.root, "stray"), 0o700); err != nil {
		t.Fatal(err)
	}
	a, _ = f.run(t, at)
	eventually(t, "b and what nobody knows are gone", func() bool {
		entries, err := os.ReadDir(f.root)
		return err == nil && len(entries) == 2 && f.has("b") == ""
	})
	eventually(t, "ready", func() bool { return a.ready() == nil })
	if f.loads != before || a.says("a").State != modellist.Ready {
		t.Errorf("%d loads after %d; %+v", f.loads, before, a.says("a"))
	}
}
