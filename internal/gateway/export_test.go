package gateway

import (
	"net/http"
	"strconv"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Held returns how many requests wait for a replica.
func (g *Gateway) Held() int64 { return int64(g.crowd.size()) }

// Drift compares an answer in JSON that a client heard with that of a copy.
func Drift(wantStatus int, want string, gotStatus int, got string) (compared, differs bool) {
	header := http.Header{"Content-Type": {"application/json"}}
	return drift(reply{status: wantStatus, header: header, body: []byte(want)}, reply{status: gotStatus, header: header, body: []byte(got)})
}

// Heard is an answer: JSON, or with the length of its JSON one with binary tensors, or a
// ModelInferResponse.
type Heard struct {
	Body    []byte
	JSONLen int
	Message bool
}

func (h Heard) reply() reply {
	r := reply{status: 200, header: http.Header{"Content-Type": {"application/json"}}, body: h.Body, message: h.Message}
	if h.JSONLen > 0 {
		r.header = http.Header{"Content-Type": {"application/octet-stream"}, oip.HeaderLength: {strconv.Itoa(h.JSONLen)}}
	}
	return r
}

// Compared compares a good answer that a client heard with that of a copy: the classes, and all
// of it as the metric says.
func Compared(want, got Heard) (compared, differs bool, result string) {
	compared, differs = drift(want.reply(), got.reply())
	return compared, differs, compare(want.reply(), got.reply())
}

// Waiting returns how many requests wait in batches, or of those the ones that nobody waits for.
func (g *Gateway) Waiting(gone bool) int {
	g.batches.mu.Lock()
	defer g.batches.mu.Unlock()
	n := 0
	for w := range g.batches.queue.Items {
		if !gone || w.base().gone.Load() {
			n++
		}
	}
	return n
}
