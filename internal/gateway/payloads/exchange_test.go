package payloads_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/spec"
)

type taken []payloads.Event

func (t *taken) Emit(e *payloads.Event) { *t = append(*t, *e) }

func TestAnExchangeIsToldAsItWent(t *testing.T) {
	came := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	about := payloads.Event{ID: "1", Time: came, Service: spec.ServiceKey{Namespace: "team", Name: "iris"}, Component: spec.Predictor}
	whole := payloads.Event{
		URL: "http://collector", ID: "1", Service: about.Service, Component: spec.Predictor, Headers: map[string][]string{"X-Mine": {"a"}},
	}
	for name, tc := range map[string]struct {
		log         spec.PayloadLog
		end         payloads.End
		endpoint    string
		source      string
		wantCut     bool
		kinds, long int
	}{
		"both":               {log: spec.PayloadLog{Requests: true, Responses: true}, end: payloads.End{Revision: "iris-00001", Tag: "prev"}, endpoint: "prev", source: "iris-00001", kinds: 2},
		"the answer alone":   {log: spec.PayloadLog{Responses: true}, end: payloads.End{Revision: "iris-00001", Cut: true}, endpoint: "default", source: "iris-00001", wantCut: true, kinds: 1},
		"by no revision":     {log: spec.PayloadLog{Responses: true}, endpoint: "default", source: "team/iris", kinds: 1},
		"more than is kept":  {log: spec.PayloadLog{Responses: true}, end: payloads.End{Revision: "r"}, endpoint: "default", source: "r", wantCut: true, kinds: 1, long: payloads.MaxKept},
		"as much as is kept": {log: spec.PayloadLog{Responses: true}, end: payloads.End{Revision: "r"}, endpoint: "default", source: "r", kinds: 1, long: payloads.MaxKept - len("answer")},
	} {
		t.Run(name, func(t *testing.T) {
			tc.log.URL, tc.log.Headers = "http://collector", []string{"x-mine", "x-none"}
			var to taken
			x := payloads.NewExchange(&to, &tc.log, about, http.Header{"X-Mine": {"a"}}.Values)
			body, w := x.Body(io.NopCloser(strings.NewReader("request"))), httptest.NewRecorder()
			if _, err := io.ReadAll(body); err != nil {
				t.Fatal(err)
			}
			out := x.Writer(w)
			for _, p := range [][]byte{[]byte("answer"), bytes.Repeat([]byte("x"), tc.long)} {
				if _, err := out.Write(p); err != nil {
					t.Fatal(err)
				}
			}
			tc.end.At, tc.end.Status = came.Add(time.Second), 200
			tc.end.Request = func(e *payloads.Event) { e.ContentType = "in" }
			tc.end.Answer = func(e *payloads.Event) { e.ContentType = "out" }
			x.Tell(tc.end)
			x.Answered([]byte("late"))
			if len(to) != tc.kinds {
				t.Fatalf("%d events", len(to))
			}
			asked, answered := whole, whole
			asked.Kind, asked.Time, asked.Data, asked.ContentType = payloads.Request, came, []byte("request"), "in"
			data := w.Body.Bytes()
			answered.Kind, answered.Time, answered.Data, answered.ContentType = payloads.Response, tc.end.At, data[:min(len(data), payloads.MaxKept)], "out"
			answered.Status, answered.Truncated = 200, tc.wantCut
			want := taken{asked, answered}[2-tc.kinds:]
			for i := range want {
				want[i].Endpoint, want[i].Source, want[i].Revision = tc.endpoint, tc.source, tc.end.Revision
			}
			for i := range want {
				if !bytes.Equal(want[i].Data, to[i].Data) {
					t.Errorf("%d bytes are told, want %d", len(to[i].Data), len(want[i].Data))
				}
				want[i].Data, to[i].Data = nil, nil // which a comparison byte by byte takes seconds for
			}
			if d := cmp.Diff(want, to); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
