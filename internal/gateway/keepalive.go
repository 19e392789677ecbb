package gateway

import (
	"mime"
	"net/http"

	"stationmaster.dev/stationmaster/internal/gateway/alive"
	"stationmaster.dev/stationmaster/internal/route"
)

// wantsEvents reports whether a request's answer can only be a stream of events.
func (x *exchange) wantsEvents() bool {
	if x.r.Method == http.MethodPost && x.match.Call.Op == route.GenerateStream {
		return true
	}
	accept := x.r.Header["Accept"]
	if len(accept) != 1 {
		return false
	}
	kind, _, err := mime.ParseMediaType(accept[0]) // one that lists several is no media type
	return err == nil && kind == "text/event-stream"
}

// watchWait keeps the client alive from now on, if it waits for a stream.
func (x *exchange) watchWait() {
	silence := x.g.cfg.OpenAI.Silence
	if silence <= 0 || x.alive != nil || x.target != nil || x.ask != nil && x.ask.relay != nil || !x.r.ProtoAtLeast(1, 1) || len(x.r.Header["Expect"]) > 0 || !x.wantsEvents() {
		return
	}
	if x.r.ProtoMajor == 1 {
		// What there is of a body that wasn't read stays to be read after the head went out.
		_ = http.NewResponseController(x.w).EnableFullDuplex()
	}
	x.alive = alive.Watch(x.w, x.id, x.match.Call.Op == route.GenerateStream, silence)
}

// goesOn ends the watch. What was begun takes the place of the client's writer.
func (x *exchange) goesOn() {
	if x.alive == nil {
		return
	}
	switch first, begun := x.alive.GoesOn(); {
	case !first: // a later wait, of a request that was given to an engine
	case begun:
		x.w = x.alive
	default:
		x.alive = nil
	}
}
