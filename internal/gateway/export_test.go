package gateway

import "net/http"

// Held returns how many requests wait for a replica.
func (g *Gateway) Held() int64 { return int64(g.crowd.size()) }

// Drift compares an answer in JSON that a client heard with that of a copy.
func Drift(wantStatus int, want string, gotStatus int, got string) (compared, differs bool) {
	header := http.Header{"Content-Type": {"application/json"}}
	return drift(reply{status: wantStatus, header: header, body: []byte(want)}, reply{status: gotStatus, header: header, body: []byte(got)})
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
