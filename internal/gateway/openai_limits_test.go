package gateway_test

import (
	"net/http"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
)

// What an engine says of its limits reaches the client as it is: SDKs wait by it.
func TestWhatEnginesSayOfTheirLimitsPasses(t *testing.T) {
	said := map[string]string{
		"Retry-After": "7", "Retry-After-Ms": "6500", "X-Should-Retry": "true",
		"X-Ratelimit-Reset-Tokens": "6m0s", "X-Ratelimit-Remaining-Requests": "0",
	}
	const refused = `{"error":{"message":"slow","type":"requests","param":null,"code":"rate_limit_exceeded"}}`
	g := start(t, nil, llm("llm", "/", "llm", route.Endpoint{HTTP: engine(t, func(w http.ResponseWriter, r *http.Request) {
		for name, value := range said {
			w.Header().Set(name, value)
		}
		switch r.Header.Get("X-Want") {
		case "stream":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: [DONE]\n\n"))
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(refused))
		}
	})}))
	c := client(t)
	for want, status := range map[string]int{"stream": 200, "refusal": 429} {
		r := request(t, http.MethodPost, g.url("/v1/chat/completions"), `{"model":"llm","stream":true}`)
		r.Header.Set("X-Want", want)
		a := do(t, c, r)
		if a.StatusCode != status || status == 429 && a.body != refused {
			t.Errorf("%s: %d %s", want, a.StatusCode, a.body)
		}
		for name, value := range said {
			if got := a.Header.Get(name); got != value {
				t.Errorf("%s: %s is %q, want %q", want, name, got, value)
			}
		}
	}
}
