package keeper

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
	"stationmaster.dev/stationmaster/test/testkit/llmsim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var llm = spec.ServiceKey{Namespace: "default", Name: "llm"}

// stage is a keeper with engines.
type stage struct {
	t      *testing.T
	table  state.Topic[route.Table]
	wanted state.Topic[lora.Wanted]
	known  state.Topic[lora.Known]
	// released counts the adapters that nobody holds any more.
	released atomic.Int64
}

func newStage(t *testing.T, change func(*Config)) *stage {
	t.Helper()
	s := &stage{t: t}
	cfg := Config{
		Table: &s.table, Wanted: &s.wanted, Known: &s.known, Every: 50 * time.Millisecond,
		Fetch: func(_ context.Context, namespace, uri string) (string, func(), error) {
			if strings.Contains(uri, "missing") {
				return "", nil, errors.New("there is nothing at " + uri)
			}
			return "/store/" + namespace + "/" + uri, func() { s.released.Add(1) }, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	k := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return s
}

func (s *stage) engine(cfg llmsim.Config) (e *llmsim.Engine, address string) {
	s.t.Helper()
	e = llmsim.New(cfg)
	server := httptest.NewServer(e)
	s.t.Cleanup(server.Close)
	return e, strings.TrimPrefix(server.URL, "http://")
}

// serve publishes a table with replicas at addresses.
func (s *stage) serve(addresses ...string) {
	target := route.Target{Revision: "llm-1", Weight: 100, OpenAI: "/", ModelName: "sim"}
	for _, a := range addresses {
		target.Endpoints = append(target.Endpoints, route.Endpoint{Replica: a, HTTP: a})
	}
	s.table.Publish(route.Compile([]route.Service{{
		Key: llm, Entry: spec.Predictor, Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{target}}},
	}}))
}

func (s *stage) want(wants ...lora.Want) { s.wanted.Publish(&lora.Wanted{llm: wants}) }

// until waits for what is known to be as it should.
func (s *stage) until(what string, ok func(lora.Known) bool) {
	s.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		known, changed := s.known.Watch()
		if known != nil && ok(*known) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			s.t.Fatalf("not %s: %+v", what, known)
		}
	}
}

func names(r lora.Replica) []string {
	var out []string
	for _, a := range r.Adapters {
		out = append(out, a.Name)
	}
	return out
}

func TestListedAdaptersAreLoadedOnEachReplica(t *testing.T) {
	for name, sglang := range map[string]bool{"by vLLM's calls": false, "by SGLang's calls": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, nil)
			cfg := llmsim.Config{LoRA: llmsim.LoRA{Slots: 2, SGLang: sglang}}
			one, at1 := s.engine(cfg)
			s.serve(at1)
			s.want(lora.Want{Name: "sql", URI: "sql-1"}, lora.Want{Name: "chat", URI: "chat-1"})
			both := []string{"chat", "sql"}
			s.until("both loaded", func(k lora.Known) bool { return slices.Equal(names(k[at1]), both) })

			two, at2 := s.engine(cfg)
			s.serve(at1, at2)
			s.until("both loaded on the new replica", func(k lora.Known) bool { return slices.Equal(names(k[at2]), both) })
			if a, _ := (*s.known.Load())[at2].Adapter("sql"); a.Parent != "sim" || a.Root != "/store/default/sql-1" {
				t.Errorf("the adapter is known as %+v", a)
			}

			s.want(lora.Want{Name: "sql", URI: "sql-2", Generation: 2})
			s.until("the new bytes loaded and the other adapter gone", func(k lora.Known) bool {
				for _, at := range []string{at1, at2} {
					a, _ := k[at].Adapter("sql")
					if len(k[at].Adapters) != 1 || a.Root != "/store/default/sql-2" {
						return false
					}
				}
				return true
			})
			for _, e := range []*llmsim.Engine{one, two} {
				if got := e.Adapters(); !slices.Equal(got, []string{"sql"}) {
					t.Errorf("an engine has %v", got)
				}
			}
			s.serve(at2)
			s.until("the replica that is gone forgotten", func(k lora.Known) bool { _, has := k[at1]; return !has })
		})
	}
}

func TestARestartedReplicaGetsItsAdaptersAgain(t *testing.T) {
	s := newStage(t, nil)
	var current atomic.Pointer[llmsim.Engine]
	fresh := func() { current.Store(llmsim.New(llmsim.Config{LoRA: llmsim.LoRA{Slots: 2}})) }
	fresh()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
	defer server.Close()
	at := strings.TrimPrefix(server.URL, "http://")
	s.serve(at)
	s.want(lora.Want{Name: "sql", URI: "sql-1"})
	loaded := func(k lora.Known) bool {
		return slices.Equal(names(k[at]), []string{"sql"}) && len(current.Load().Adapters()) == 1
	}
	s.until("loaded", loaded)
	fresh() // at the same address, so fast that the table doesn't know
	s.until("loaded again", loaded)
}

func TestWhatTheEngineHasOfItselfStays(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Ours = func(root string) bool { return strings.HasPrefix(root, "/store/") } })
	e, at := s.engine(llmsim.Config{LoRA: llmsim.LoRA{Slots: 2}})
	for name, path := range map[string]string{"own": "/models/own", "left": "/store/default/left"} {
		if err := e.LoadAdapter(name, path); err != nil {
			t.Fatal(err)
		}
	}
	s.serve(at)
	s.until("both known while it isn't known what is wanted", func(k lora.Known) bool { return slices.Equal(names(k[at]), []string{"left", "own"}) })
	s.want()
	s.until("only the one of an earlier keeper unloaded", func(k lora.Known) bool { return slices.Equal(names(k[at]), []string{"own"}) })
}

func TestAKeeperWithoutWishesOnlyAsks(t *testing.T) {
	s := newStage(t, func(c *Config) { c.Wanted = nil })
	e, at := s.engine(llmsim.Config{LoRA: llmsim.LoRA{Slots: 2}})
	s.serve(at)
	s.until("asked", func(k lora.Known) bool { _, has := k[at]; return has })
	if err := e.LoadAdapter("own", "/models/own"); err != nil {
		t.Fatal(err)
	}
	s.until("known", func(k lora.Known) bool { return slices.Equal(names(k[at]), []string{"own"}) })
}

func TestProblemsAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		engine llmsim.Config
		uri    string
		want   string
	}{
		"an engine without LoRA":         {llmsim.Config{}, "sql-1", "--enable-lora"},
		"an engine that has no room":     {llmsim.Config{LoRA: llmsim.LoRA{Slots: 1, Registered: 1}}, "sql-1", "the engine answers 400: No room"},
		"SGLang has no room":             {llmsim.Config{LoRA: llmsim.LoRA{Slots: 1, Registered: 1, SGLang: true}}, "sql-1", "the engine answers 400: No room"},
		"an adapter that isn't anywhere": {llmsim.Config{LoRA: llmsim.LoRA{Slots: 1}}, "missing", "fetch it: there is nothing at missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, nil)
			e, at := s.engine(tc.engine)
			_ = e.LoadAdapter("own", "/models/own")
			s.serve(at)
			s.want(lora.Want{Name: "sql", URI: tc.uri})
			s.until("told", func(k lora.Known) bool { return strings.Contains(k[at].Problems["sql"], tc.want) })
			s.want()
			s.until("forgotten with the wish", func(k lora.Known) bool { return k[at].Problems == nil })
		})
	}
}

func TestBytesAreReleasedWithTheAdapter(t *testing.T) {
	s := newStage(t, nil)
	_, at := s.engine(llmsim.Config{LoRA: llmsim.LoRA{Slots: 1}})
	s.serve(at)
	s.want(lora.Want{Name: "sql", URI: "sql-1"})
	s.until("loaded", func(k lora.Known) bool { return len(k[at].Adapters) == 1 })
	if n := s.released.Load(); n != 0 {
		t.Fatalf("%d released while it is loaded", n)
	}
	s.serve()
	s.until("gone", func(k lora.Known) bool { return len(k) == 0 })
	s.serve(at)
	s.until("adopted", func(k lora.Known) bool { return len(k[at].Adapters) == 1 })
	s.want()
	s.until("unloaded", func(k lora.Known) bool { return len(k[at].Adapters) == 0 })
}

func FuzzModels(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"sim","parent":null},{"id":"sql","root":"/p","parent":"sim","owned_by":"vllm"}]}`))
	f.Add([]byte(`{"data":[{"id":"a","parent":"b"},{"id":"a","parent":"c"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e := &engine{}
		got, err := e.read(body)
		if err != nil {
			return
		}
		for i, a := range got {
			if a.Name == "" || a.Parent == "" || i > 0 && a.Name <= got[i-1].Name {
				t.Fatalf("%+v", got)
			}
		}
	})
}
