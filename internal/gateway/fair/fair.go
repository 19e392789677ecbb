// Package fair shares what a gateway has for requests that wait: the places, among namespaces, then
// services, then callers; and within one service the turns, among callers. It is pure, and not safe
// for concurrent use.
package fair

import (
	"hash/maphash"
	"net/netip"
)

// Flow tells callers apart, roughly: there are 256 flows, so that what is kept for them is bounded,
// and two callers may have the same one (P. McKenney, "Stochastic fairness queueing", 1990).
type Flow uint8

// FlowOf returns the flow of a caller: of its credential, where it shows one, else of its address
// ("host:port" or a bare host), of IPv6 the network of 64 bits. The seed makes it another one in each
// process, and 8 bits of it tell nothing of a credential. A credential isn't checked here: it tells
// apart callers that mean well, and nothing more.
func FlowOf(seed maphash.Seed, credential, address string) Flow {
	if credential != "" {
		return Flow(maphash.String(seed, "c"+credential))
	}
	if at, err := netip.ParseAddrPort(address); err == nil {
		address = network(at.Addr())
	} else if ip, err := netip.ParseAddr(address); err == nil {
		address = network(ip)
	}
	return Flow(maphash.String(seed, "a"+address))
}

func network(ip netip.Addr) string {
	if ip = ip.Unmap(); ip.Is6() {
		if prefix, err := ip.WithZone("").Prefix(64); err == nil {
			return prefix.String()
		}
	}
	return ip.String()
}
