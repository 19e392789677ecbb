package gateway

import (
	"cmp"
	"strings"

	"google.golang.org/grpc/peer"

	"stationmaster.dev/stationmaster/internal/gateway/fair"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
)

// credentialFields are the fields, as gRPC writes them, in which callers show a credential.
var credentialFields = []string{"authorization", "x-api-key", "api-key"}

func (x *exchange) caller() fair.Flow {
	return x.g.flowOf(func(field string) string { return x.r.Header.Get(field) }, x.r.RemoteAddr)
}

func (c *call) caller() fair.Flow {
	address := ""
	if p, ok := peer.FromContext(c.ctx); ok {
		address = p.Addr.String()
	}
	return c.g.flowOf(func(field string) string {
		if v := c.md[field]; len(v) > 0 {
			return v[0]
		}
		return ""
	}, address)
}

// flowOf tells callers apart by the credential that they show, which is neither kept nor checked,
// else by the address that they come from; of what others say of that address only as much is
// believed as TrustForwarded says.
func (g *Gateway) flowOf(field func(string) string, peer string) fair.Flow {
	credential := ""
	for _, name := range credentialFields {
		credential = cmp.Or(credential, field(name))
	}
	if g.cfg.TrustForwarded {
		if first, _, _ := strings.Cut(field("x-forwarded-for"), ","); first != "" {
			peer = strings.TrimSpace(first)
		}
	}
	return fair.FlowOf(g.seed, credential, peer)
}

func (x *exchange) kept() int {
	switch n := x.r.ContentLength; {
	case x.ask != nil && len(x.ask.read) > 0:
		return len(x.ask.read)
	case x.ahead != nil:
		return len(x.ahead)
	case x.readsAhead():
		return int(n)
	}
	return 0
}

// readsAhead says whether the body is taken into memory before a wait.
func (x *exchange) readsAhead() bool {
	n := x.r.ContentLength
	return x.r.ProtoMajor == 1 && n > 0 && n <= upstream.WholeBody && len(x.r.Header["Expect"]) == 0
}

func (c *call) kept() int {
	if c.first == nil {
		return 0
	}
	return c.first.Len()
}

func (x *exchange) waits() {
	x.readAhead()
	x.watchWait()
}

func (c *call) waits()  {}
func (c *call) goesOn() {}

var (
	_ asker = (*exchange)(nil)
	_ asker = (*call)(nil)
)
