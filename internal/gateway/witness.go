package gateway

import (
	"net/http"
	"time"

	"google.golang.org/grpc/codes"

	"stationmaster.dev/stationmaster/internal/gateway/meter"
	"stationmaster.dev/stationmaster/internal/route"
)

// sharing returns the revisions of a table that share their component's traffic.
func sharing(table *route.Table) map[meter.Key]bool {
	var out map[meter.Key]bool
	for s, b := range table.Backends {
		if len(b.Targets) < 2 {
			continue
		}
		if out == nil {
			out = map[meter.Key]bool{}
		}
		for i := range b.Targets {
			out[meter.Key{Service: s.Key, Revision: b.Targets[i].Revision}] = true
		}
	}
	return out
}

// witness counts the request for its revision, unless it asks for no inference: what probes hear
// says nothing of that.
func (x *exchange) witness(took time.Duration) {
	if x.target == nil || x.target.answers == nil {
		return
	}
	switch x.match.Call.Op {
	case route.Infer, route.Predict, route.Explain, route.Generate, route.GenerateStream:
	case route.Other, route.OtherOfModel:
		if x.r.Method != http.MethodPost {
			return
		}
	default:
		return
	}
	x.target.answers.Answered(x.status >= http.StatusInternalServerError, x.status == statusClientGone, took)
}

// witness does so for a call over gRPC.
func (c *call) witness(code codes.Code, took time.Duration) {
	if c.target == nil || c.target.answers == nil || c.oip != "" && c.oip != "ModelInfer" {
		return
	}
	c.target.answers.Answered(serversFault(code), code == codes.Canceled, took)
}

// serversFault reports whether a code blames the server. A deadline that passed does: it was the
// answer that didn't come.
func serversFault(c codes.Code) bool {
	switch c {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}
