package extproc

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/pick"
	topics "stationmaster.dev/stationmaster/internal/state"
)

// BenchmarkExchange is what of a picked request is ours: without gRPC, and without reading and
// writing messages.
func BenchmarkExchange(b *testing.B) {
	var all []string
	for i := range 16 {
		all = append(all, fmt.Sprintf("10.0.0.%d:8000", i+1))
	}
	static, err := pool.Static(strings.Join(all, ","))
	if err != nil {
		b.Fatal(err)
	}
	var known topics.Topic[pool.Pool]
	var samples topics.Topic[pick.Samples]
	known.Publish(static)
	s := New(Config{Pool: &known, Samples: &samples, Logger: slog.New(slog.DiscardHandler)})
	field := func(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, RawValue: []byte(v)} }
	for _, size := range []int{1 << 10, 220 << 10} {
		text := []byte(`{"model":"llama","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum ", size/12) + `"}]}`)
		var sent []*extprocv3.ProcessingRequest
		sent = append(sent, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			field(":method", "POST"), field(":path", "/v1/chat/completions"), field("content-type", "application/json"), field("content-length", fmt.Sprint(len(text))),
		}}}}})
		for at := 0; at < len(text); at += 16 << 10 {
			end := min(at+16<<10, len(text))
			sent = append(sent, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: text[at:end], EndOfStream: end == len(text)}}})
		}
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				back := 0
				x := &exchange{state: states.Get().(*state), p: s.picker, send: func(m *extprocv3.ProcessingResponse) error {
					back += len(m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
					return nil
				}}
				for _, m := range sent {
					if err := x.take(m); err != nil {
						b.Fatal(err)
					}
				}
				if back != len(text) {
					b.Fatalf("%d of %d bytes came back", back, len(text))
				}
				x.release()
			}
		})
	}
}
