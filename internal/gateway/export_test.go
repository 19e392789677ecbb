package gateway

// Held returns how many requests wait for a replica.
func (g *Gateway) Held() int64 { return int64(g.crowd.Size()) }

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
