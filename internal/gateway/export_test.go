package gateway

// Held returns how many requests wait for a replica.
func (g *Gateway) Held() int64 { return g.held.Load() }
