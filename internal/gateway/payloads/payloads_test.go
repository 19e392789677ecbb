package payloads_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sink is a collector that keeps what it gets and answers as it is told.
type sink struct {
	*httptest.Server
	mu      sync.Mutex
	got     []http.Header
	bodies  []string
	answers []int // the next ones; 202 when there is none
}

func newSink(t *testing.T, answers ...int) *sink {
	t.Helper()
	s := &sink{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got, s.bodies = append(s.got, r.Header), append(s.bodies, string(body))
		status := http.StatusAccepted
		if len(s.answers) > 0 {
			status, s.answers = s.answers[0], s.answers[1:]
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s
}

func event(url string) *payloads.Event {
	return &payloads.Event{
		URL: url, Kind: payloads.Response, ID: "id-1", Source: "iris-predictor-00001", Time: time.Unix(1700000000, 5e8),
		Service: spec.ServiceKey{Namespace: "default", Name: "iris"}, Component: spec.Predictor, Endpoint: "default",
		Revision: "iris-predictor-00001", RequestID: "r1", Status: 404,
		Headers: map[string][]string{"X-Tenant": {"100% naïve 😀"}}, Annotations: map[string]string{"team": "red"},
		ContentType: "application/json", Data: []byte(`{"predictions":[1]}`),
	}
}

func newEmitter(t *testing.T, cfg payloads.Config) (*payloads.Emitter, func(result string) float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	cfg.Metrics, cfg.Pause = registry, time.Millisecond
	e, err := payloads.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e, func(result string) float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "stationmaster_payload_events_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "result" && l.GetValue() == result {
						return m.GetCounter().GetValue()
					}
				}
			}
		}
		return 0
	}
}

func TestAnEventIsACloudEventInBinaryMode(t *testing.T) {
	s := newSink(t)
	e, count := newEmitter(t, payloads.Config{})
	e.Emit(event(s.URL))
	e.Close(t.Context())
	if len(s.got) != 1 || count("delivered") != 1 {
		t.Fatalf("%d events came, %v counted", len(s.got), count("delivered"))
	}
	want := map[string]string{
		"Ce-Specversion": "1.0", "Ce-Type": "org.kubeflow.serving.inference.response", "Ce-Id": "id-1",
		"Ce-Source": "iris-predictor-00001", "Ce-Time": "2023-11-14T22:13:20.5Z", "Ce-Recordedtime": "2023-11-14T22:13:20.5Z",
		"Ce-Inferenceservicename": "iris", "Ce-Namespace": "default", "Ce-Component": "predictor", "Ce-Endpoint": "default",
		"Ce-Revision": "iris-predictor-00001", "Ce-Requestid": "r1", "Ce-Statuscode": "404",
		"Ce-Metadata":    `{"X-Tenant":["100\u0025 na\u00efve \ud83d\ude00"]}`,
		"Ce-Annotations": `{"team":"red"}`, "Content-Type": "application/json",
	}
	got := map[string]string{}
	for name := range s.got[0] {
		if name == "Content-Type" || name[:3] == "Ce-" {
			got[name] = s.got[0].Get(name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if !json.Valid([]byte(s.bodies[0])) || s.bodies[0] != `{"predictions":[1]}` {
		t.Errorf("data %q", s.bodies[0])
	}
}

func TestDelivery(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []int
		tries   int
		result  string
	}{
		"at once":                            {tries: 1, result: "delivered"},
		"at the third try":                   {answers: []int{500, 503}, tries: 3, result: "delivered"},
		"after a collector that is too busy": {answers: []int{429}, tries: 2, result: "delivered"},
		"a collector that fails each time":   {answers: []int{500, 500, 500, 500, 500}, tries: 4, result: "failed"},
		"a collector that doesn't want it":   {answers: []int{400}, tries: 1, result: "rejected"},
		"a collector that leads elsewhere":   {answers: []int{307}, tries: 1, result: "rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSink(t, tc.answers...)
			e, count := newEmitter(t, payloads.Config{})
			e.Emit(event(s.URL))
			e.Close(t.Context())
			if len(s.got) != tc.tries || count(tc.result) != 1 {
				t.Errorf("%d tries, want %d; %v counted as %s", len(s.got), tc.tries, count(tc.result), tc.result)
			}
		})
	}
}

func TestACollectorThatHangsHoldsNeitherRequestsNorOthers(t *testing.T) {
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	s := newSink(t)
	e, count := newEmitter(t, payloads.Config{MaxEvents: 20, Senders: 2})
	for range 30 {
		e.Emit(event(hangs.URL)) // it would block here
	}
	if got := count("dropped"); got != 20 {
		t.Errorf("%v events of one collector were dropped, want 20: it may have half of 20 places", got)
	}
	for range 5 {
		e.Emit(event(s.URL))
	}
	for end := time.Now().Add(time.Minute); count("delivered") < 5; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the other collector got %v events, want 5", count("delivered"))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.Close(ctx)
	if got := count("dropped"); got != 30 {
		t.Errorf("%v dropped after the end, want 30", got)
	}
	e.Emit(event(s.URL))
	if got := count("dropped"); got != 31 {
		t.Errorf("an event after the end: %v dropped, want 31", got)
	}
}

func TestBytesAreBoundedToo(t *testing.T) {
	s := newSink(t)
	e, count := newEmitter(t, payloads.Config{MaxBytes: 1 << 20})
	ev := event(s.URL)
	ev.Data = make([]byte, 600<<10)
	e.Emit(ev)
	e.Close(t.Context())
	if count("dropped") != 1 || len(s.got) != 0 {
		t.Errorf("%v dropped, %d came: one collector may have half", count("dropped"), len(s.got))
	}
}

func TestSeriesOfGoneServicesGo(t *testing.T) {
	s := newSink(t)
	registry := prometheus.NewRegistry()
	e, err := payloads.New(payloads.Config{Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	e.Emit(event(s.URL))
	e.Close(t.Context())
	series := func() int {
		n, err := testutil.GatherAndCount(registry, "stationmaster_payload_events_total")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	e.Prune(func(spec.ServiceKey) bool { return true })
	if series() != 1 {
		t.Errorf("%d series, want 1", series())
	}
	e.Prune(func(spec.ServiceKey) bool { return false })
	if series() != 0 {
		t.Errorf("%d series are left", series())
	}
}
