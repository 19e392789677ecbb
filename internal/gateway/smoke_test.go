package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/route"
)

func TestSmoke(t *testing.T) {
	addr := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Path", r.URL.Path)
		_, _ = w.Write(b)
	})
	g := start(t, nil, service("iris", route.Endpoint{HTTP: addr}))
	for _, n := range []int{10, 1000, 100_000, 1_000_000} {
		body := strings.Repeat("x", n)
		for range 3 {
			resp, err := http.Post(g.url("/v2/models/iris/infer"), "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(b) != body || err != nil {
				t.Fatalf("%d: got %d bytes, %v %v", n, len(b), err, resp.Header)
			}
			if n == 10 {
				t.Log(resp.Status, resp.Header)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
