package gateway

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/gateway/coding"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
)

// answerBody is the body of an engine's answer, as upstream.Response has it.
type answerBody interface {
	Next() ([]byte, error)
	Ready() bool
	Ended() bool
}

// readable asks the engine for an answer that the gateway can read, where it has to: a client that
// takes compressed answers gets a plain one.
func (x *exchange) readable(f []upstream.Field) []upstream.Field {
	if x.ask == nil || x.ask.relay == nil || len(x.r.Header["Accept-Encoding"]) == 0 {
		return f
	}
	return append(f, upstream.Field{Name: "Accept-Encoding", Value: "identity"})
}

// plainAnswer is the body of an engine's answer, in the plain where the gateway has to read it and the
// engine compressed it all the same. The answer's fields then are those of the plain one. done is to be
// called once the body isn't read any more.
func (x *exchange) plainAnswer(resp *upstream.Response) (body answerBody, done func()) {
	h := x.w.Header()
	name := h["Content-Encoding"]
	if len(name) != 1 || x.ask == nil || x.ask.relay == nil {
		return resp, func() {}
	}
	if strings.EqualFold(strings.TrimSpace(name[0]), "identity") { // which is none (RFC 9110, section 8.4.1)
		delete(h, "Content-Encoding")
		return resp, func() {}
	}
	if !coding.Known(name[0]) {
		return resp, func() {}
	}
	delete(h, "Content-Encoding")
	delete(h, "Content-Length")
	x.ask.relay.own = true
	u := &unpacked{resp, coding.New(name[0], resp)}
	return u, u.body.Close
}

// unpacked is an answer that came compressed.
type unpacked struct {
	resp *upstream.Response
	body *coding.Body
}

func (u *unpacked) Next() ([]byte, error) {
	piece, err := u.body.Next()
	if errors.Is(err, coding.ErrBroken) {
		err = u.resp.Fault(err)
	}
	return piece, err
}

// Ready and Ended know nothing: to decode what came may take more than that.
func (*unpacked) Ready() bool { return false }
func (*unpacked) Ended() bool { return false }

// ofBytes are the fields that are true of an answer's very bytes.
var ofBytes = []string{"Content-Md5", "Content-Digest", "Repr-Digest", "Digest", "Etag", "Accept-Ranges"}

// disown takes away what fields, and trailers, say of a body's bytes that aren't those any more.
func disown(h http.Header) {
	for _, name := range ofBytes {
		delete(h, name)
		delete(h, http.TrailerPrefix+name)
	}
	announced := h["Trailer"]
	if len(announced) == 0 {
		return
	}
	announced = slices.DeleteFunc(slices.Clone(announced), func(name string) bool { return slices.Contains(ofBytes, name) })
	if h["Trailer"] = announced; len(announced) == 0 {
		delete(h, "Trailer")
	}
}
