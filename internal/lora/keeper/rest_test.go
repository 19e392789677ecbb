package keeper

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

type engineFunc func(*http.Request) (int, string)

func (f engineFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := f(r)
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r, Header: http.Header{}}, nil
}

// anHour runs a keeper for an hour against an engine below a root, with one adapter wanted.
func anHour(t *testing.T, root string, log io.Writer, f engineFunc) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var table state.Topic[route.Table]
		var wanted state.Topic[lora.Wanted]
		var known state.Topic[lora.Known]
		table.Publish(route.Compile([]route.Service{{
			Key: llm, Entry: spec.Predictor,
			Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{
				Revision: "llm-1", Weight: 100, OpenAI: root, Endpoints: []route.Endpoint{{Replica: "a", HTTP: "engine:80"}},
			}}}},
		}}))
		wanted.Publish(&lora.Wanted{llm: {{Name: "sql", URI: "sql-1"}}})
		k := New(Config{
			Table: &table, Wanted: &wanted, Known: &known, Logger: slog.New(slog.NewTextHandler(log, nil)),
			Fetch: func(context.Context, string, string) (string, func(), error) { return "/store/sql", func() {}, nil },
		})
		k.client = &http.Client{Transport: f}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = k.Run(ctx) })
		time.Sleep(time.Hour)
		cancel()
		wg.Wait()
	})
}

func TestAnEngineWithoutAListIsLeftAlone(t *testing.T) {
	var asked atomic.Int64
	anHour(t, "/v3", io.Discard, func(r *http.Request) (int, string) {
		asked.Add(1)
		if r.URL.Path != "/v3/models" {
			t.Errorf("the engine is asked for %s", r.URL.Path)
		}
		return http.StatusNotFound, ""
	})
	if n := asked.Load(); n < 8 || n > 40 {
		t.Errorf("the engine was asked %d times in an hour", n)
	}
}

func TestWhatFailsIsLoggedWhenItChanges(t *testing.T) {
	var log strings.Builder
	var tries int
	anHour(t, "/", &log, func(r *http.Request) (int, string) {
		if r.Method == http.MethodGet {
			return http.StatusOK, `{"data":[{"id":"base","owned_by":"vllm"}]}`
		}
		if tries++; tries <= 20 {
			return http.StatusBadRequest, `{"error":{"message":"no room"}}`
		}
		return http.StatusBadRequest, `{"error":{"message":"broken"}}`
	})
	if n := strings.Count(log.String(), "level=WARN"); tries < 100 || n != 2 || !strings.Contains(log.String(), "no room") || !strings.Contains(log.String(), "broken") {
		t.Errorf("%d tries, %d warnings:\n%.2000s", tries, n, log.String())
	}
}
