package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestDemandIsStreamedUntilTheServerEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var reports state.Topic[demand.Report]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ln, Config{Metrics: prometheus.NewRegistry(), Ready: func() error { return nil }, Demand: &reports})
	}()
	resp, err := http.Get("http://" + ln.Addr().String() + "/demand")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range uint64(3) {
		want := demand.Report{Second: i, Samples: []demand.Sample{
			{Service: spec.ServiceKey{Namespace: "n", Name: "iris"}, Revision: "iris-1", Concurrency: 1.5, RPS: 2, Held: 3},
			{Service: spec.ServiceKey{Namespace: "n", Name: "idle"}, Revision: "idle-1"},
		}}
		reports.Publish(&want)
		var got demand.Report
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
	}
	cancel()
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("the stream didn't end by itself: %q, %v", lines.Text(), lines.Err())
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}
