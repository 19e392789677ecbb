package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Whatever becomes of a request, what it counted for at its replica is given back.
func TestWhatARequestCountedForIsGivenBack(t *testing.T) {
	held := make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/completions") && r.Header.Get("X-Case") == "stream":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"choices\":[]}\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-held:
			}
		case r.Header.Get("X-Case") == "break":
			panic(http.ErrAbortHandler)
		case r.Header.Get("X-Case") == "fail":
			http.Error(w, "no", http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`)
		}
	}))
	defer engine.Close()
	defer close(held)
	key := spec.ServiceKey{Namespace: "default", Name: "m"}
	var table state.Topic[route.Table]
	table.Publish(route.Compile([]route.Service{{
		Key: key, BareNames: []string{"m"}, Entry: spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{
			Revision: "m-1", Weight: 100, ModelName: "m", OpenAI: "/", Endpoints: []route.Endpoint{{Replica: "a", HTTP: engine.Listener.Addr().String()}},
		}}}},
	}}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Config{HTTP: l, Table: &table})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer func() { cancel(); <-done }()
	replica := func() *pick.Replica {
		for _, t := range g.view().targets {
			return t.replicas[0]
		}
		panic("BUG: no target")
	}()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(ctx context.Context, path, body, which string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Case", which)
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for name, tc := range map[string]struct{ path, body, which string }{
		"an answer":                {"/v1/completions", `{"model":"m","prompt":"hello","max_tokens":50}`, ""},
		"an error":                 {"/v1/completions", `{"model":"m","prompt":"hello","max_tokens":50}`, "fail"},
		"an engine that breaks":    {"/v1/completions", `{"model":"m","prompt":"hello"}`, "break"},
		"a stream that is dropped": {"/v1/completions", `{"model":"m","prompt":"hello","stream":true,"max_tokens":50}`, "stream"},
		"text over V2":             {"/v2/models/m/generate", `{"text_input":"hello","parameters":{"max_tokens":50}}`, ""},
		"V2's stream, dropped":     {"/v2/models/m/generate_stream", `{"text_input":"hello","parameters":{"max_tokens":50}}`, "stream"},
		"what can't be translated": {"/v2/models/m/generate", `{"text_input":5}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp := post(ctx, tc.path, tc.body, tc.which)
			if tc.which == "stream" && tc.path == "/v1/completions" {
				if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				if replica.Requests() != 1 || replica.Tokens() <= 0 || replica.Tokens() >= 50 {
					t.Errorf("%d requests and %d tokens are in flight", replica.Requests(), replica.Tokens())
				}
			}
			cancel()
			_ = resp.Body.Close()
			look := time.NewTicker(time.Millisecond)
			defer look.Stop()
			until := time.After(30 * time.Second)
			for replica.Requests() != 0 || replica.Tokens() != 0 {
				select {
				case <-look.C:
				case <-until:
					t.Fatalf("%d requests and %d tokens are left", replica.Requests(), replica.Tokens())
				}
			}
		})
	}
}
