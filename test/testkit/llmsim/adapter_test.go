package llmsim

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
)

// What vLLM's adapter makes of both generations of names is the same.
func TestTheAdapterReadsBothGenerations(t *testing.T) {
	for name, old := range map[string]bool{"V1": false, "V0": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{OldMetrics: old}, func(t *testing.T, e *Engine) {
				ask(e, "sim", 5, user(1000, "a"))
				ask(e, "sim", 5, user(1000, "a"))
				w := httptest.NewRecorder()
				e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
				r, err := engine.ByName("vllm").Metrics.Read(w.Body)
				if err != nil {
					t.Fatal(err)
				}
				for n, want := range map[adapter.Name]float64{
					adapter.Running: 0, adapter.Waiting: 0, adapter.PrefixHits: 992, adapter.PrefixQueries: 2000, adapter.PromptTokens: 2000,
					adapter.GeneratedTokens: 10, adapter.BatchSize: 0,
				} {
					if v, ok := r.Value(n, nil); !ok || v != want {
						t.Errorf("%s is %v, %v; want %v", n, v, ok, want)
					}
				}
				if v, ok := r.Value(adapter.KVCacheUsage, nil); !ok || v < 0 || v > 1 {
					t.Errorf("the cache's use is %v, %v", v, ok)
				}
				if r.FirstToken == nil || r.FirstToken.Count != 2 || r.PerToken == nil || r.PerToken.Count != 8 {
					t.Errorf("histograms %+v, %+v", r.FirstToken, r.PerToken)
				}
				if r.BlockSize != 16 || r.Blocks != 4096 {
					t.Errorf("%d blocks of %d", r.Blocks, r.BlockSize)
				}
			})
		})
	}
}
