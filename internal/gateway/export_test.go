package gateway

// Held returns how many requests wait for a replica.
func (g *Gateway) Held() int64 { return int64(g.crowd.size()) }
