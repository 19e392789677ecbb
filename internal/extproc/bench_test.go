package extproc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"stationmaster.dev/stationmaster/internal/extproc"
)

// conversation is what a proxy sends of one request and its answer, and how many answers it gets.
type conversation struct {
	sent []*extprocv3.ProcessingRequest
	// bodies is how many of them are the request's body.
	bodies int
}

// of makes a conversation with a body of about a size, which comes in pieces of 16 KiB.
func of(size int) (c conversation, bytes int64) {
	body := chat(strings.Repeat("lorem ipsum ", size/12))
	head := []*corev3.HeaderValue{
		header(":method", "POST"), header(":path", "/v1/chat/completions"), header(":authority", "models.example.com"),
		header("content-type", "application/json"), header("user-agent", "OpenAI/Python 2.0"), header("content-length", fmt.Sprint(len(body))),
	}
	c.sent = append(c.sent, &extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: head}}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: duplex, ResponseBodyMode: duplex},
	})
	pieces := split(body, (len(body)-1)/(16<<10)+1)
	c.bodies = len(pieces)
	for i, piece := range pieces {
		c.sent = append(c.sent, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: i == len(pieces)-1},
		}})
	}
	c.sent = append(c.sent,
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{header(":status", "200"), header("content-type", "application/json")}},
		}}},
		&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
			Body: []byte(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}`), EndOfStream: true,
		}}})
	return c, int64(len(body))
}

// BenchmarkPickedRequest is what one request costs from its head to the end of its answer, among 16
// endpoints, over gRPC on the loopback: the proxy's side of the stream is in the same process.
func BenchmarkPickedRequest(b *testing.B) {
	var all []string
	for i := range 16 {
		all = append(all, fmt.Sprintf("10.0.0.%d:8000", i+1))
	}
	for _, size := range []int{1 << 10, 220 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			p := serve(b, extproc.Config{}, strings.Join(all, ","))
			c, bytes := of(size)
			b.SetBytes(bytes)
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := context.WithCancel(b.Context())
				stream, err := p.proxy.Process(ctx)
				if err != nil {
					b.Fatal(err)
				}
				answers := 0
				var m extprocv3.ProcessingResponse
				take := func(n int) {
					for ; answers < n; answers++ {
						if err := stream.RecvMsg(&m); err != nil {
							b.Fatal(err)
						}
					}
				}
				for i, sent := range c.sent {
					if err := stream.Send(sent); err != nil {
						b.Fatal(err)
					}
					if i >= c.bodies { // up to there the answers come at once
						take(i + 1)
					}
				}
				if err := stream.CloseSend(); err != nil {
					b.Fatal(err)
				}
				cancel()
			}
		})
	}
}
