package measure

import (
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestPagesOverTLSAreThoseOfEnginesThatProveThemselves(t *testing.T) {
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_waiting 3\n")
	}))
	engine.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	engine.StartTLS()
	defer engine.Close()
	roots := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: engine.Certificate().Raw}))
	for name, tc := range map[string]struct {
		security enginetls.TLS
		status   int
		body     string
	}{
		"it does":               {enginetls.TLS{ServerName: "example.com", Roots: roots}, http.StatusOK, "vllm:num_requests_waiting 3"},
		"it has another's name": {enginetls.TLS{ServerName: "iris-predictor.team.svc", Roots: roots}, http.StatusBadGateway, "certificate"},
		"it isn't known":        {enginetls.TLS{ServerName: "example.com", Roots: "none"}, http.StatusBadGateway, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			table := route.Compile([]route.Service{{
				Key: spec.ServiceKey{Namespace: "team", Name: "llm"}, Entry: spec.Predictor,
				Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{
					Revision: "llm-predictor-00001", Weight: 100, Engine: "vllm",
					Endpoints: []route.Endpoint{{Replica: "a", HTTP: engine.Listener.Addr().String(), Metrics: engine.URL + "/metrics", Security: enginetls.Of(tc.security)}},
				}}}},
			}})
			topic := new(state.Topic[route.Table])
			topic.Publish(table)
			s := NewSampler(topic, nil)
			got := httptest.NewRecorder()
			s.Pages().ServeHTTP(got, httptest.NewRequest(http.MethodGet, "/engines/team/llm/a/metrics", http.NoBody))
			if got.Code != tc.status || !strings.Contains(got.Body.String(), tc.body) {
				t.Errorf("page: %d %s", got.Code, got.Body)
			}
			var look found
			for e := range endpoints(table) {
				w := map[ReplicaKey]*watched{}
				follow(w, table, look.at)
				look = s.lookAt(t.Context(), w[e.ReplicaKey])
			}
			if (look.err == nil) != (tc.status == http.StatusOK) {
				t.Errorf("look: %v", look.err)
			}
			if look.err != nil && !strings.Contains(look.err.Error(), tc.body) {
				t.Errorf("look: %v", look.err)
			}
		})
	}
}
