package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
)

// TestAnswersTellTheRevision sends answers in one piece through the gateway.
func TestAnswersTellTheRevision(t *testing.T) {
	answer := ""
	g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(answer, "error") {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, answer)
	})}))
	long := `{"choices":[{"text":"` + strings.Repeat("long", 9<<20/4) + `"}]}`
	c := client(t)
	for name, tc := range map[string]struct{ path, answer, want string }{
		"none":            {"/v1/completions", `{"choices":[]}`, `{"system_fingerprint":"llm-00001@4f2b","choices":[]}`},
		"null":            {"/v1/chat/completions", `{"choices":[],"system_fingerprint":null}`, `{"choices":[],"system_fingerprint":"llm-00001@4f2b"}`},
		"the engine's":    {"/v1/chat/completions", `{"choices":[],"system_fingerprint":"b1"}`, `{"choices":[],"system_fingerprint":"b1"}`},
		"no choices":      {"/v1/embeddings", `{"data":[]}`, `{"data":[]}`},
		"no JSON":         {"/v1/completions", `choices`, `choices`},
		"an error":        {"/v1/completions", `{"error":{"message":"choices"}}`, `{"error":{"message":"choices"}}`},
		"more than 8 MiB": {"/v1/completions", long, long},
	} {
		answer = tc.answer
		a := do(t, c, request(t, http.MethodPost, g.url(tc.path), `{"model":"llm"}`))
		if a.body != tc.want {
			t.Errorf("%s: %d %.300s", name, a.StatusCode, a.body)
		}
	}
}
