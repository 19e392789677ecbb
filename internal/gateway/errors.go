package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// edge is how one kind of error looks from outside.
type edge struct {
	kind   error
	status int
	code   codes.Code
	// openAI is the error type in OpenAI's shape.
	openAI string
	// param and word are what OpenAI's shape has beside, if anything.
	param, word string
}

// edges is the one mapping of kinds to HTTP and gRPC.
var edges = []edge{
	{kind: errdef.ErrInvalid, status: http.StatusBadRequest, code: codes.InvalidArgument, openAI: "invalid_request_error"},
	{kind: errdef.ErrNotFound, status: http.StatusNotFound, code: codes.NotFound, openAI: "invalid_request_error"},
	{kind: errdef.ErrConflict, status: http.StatusConflict, code: codes.FailedPrecondition, openAI: "invalid_request_error"},
	{kind: errdef.ErrUnauthenticated, status: http.StatusUnauthorized, code: codes.Unauthenticated, openAI: "authentication_error"},
	{kind: errdef.ErrDenied, status: http.StatusForbidden, code: codes.PermissionDenied, openAI: "permission_error"},
	{kind: errdef.ErrTooLarge, status: http.StatusRequestEntityTooLarge, code: codes.ResourceExhausted, openAI: "invalid_request_error"},
	{kind: errdef.ErrOverloaded, status: http.StatusServiceUnavailable, code: codes.Unavailable, openAI: "server_error"},
	{kind: errdef.ErrUnavailable, status: http.StatusServiceUnavailable, code: codes.Unavailable, openAI: "server_error"},
	{kind: errdef.ErrTimeout, status: http.StatusGatewayTimeout, code: codes.DeadlineExceeded, openAI: "server_error"},
	{kind: errdef.ErrUnsupported, status: http.StatusNotImplemented, code: codes.Unimplemented, openAI: "invalid_request_error"},
	{kind: errdef.ErrUnverified, status: http.StatusForbidden, code: codes.PermissionDenied, openAI: "permission_error"},
	{kind: errdef.ErrNoSpace, status: http.StatusInsufficientStorage, code: codes.ResourceExhausted, openAI: "server_error"},
	{kind: errdef.ErrInternal, status: http.StatusInternalServerError, code: codes.Internal, openAI: "server_error"},
}

// engineBusy is how an engine's own 429 looks, whose kind has the edge of what this gateway can't take.
var engineBusy = edge{status: http.StatusTooManyRequests, code: codes.ResourceExhausted, openAI: "rate_limit_error", word: "rate_limit_exceeded"}

// edgeOf maps any error. What broke on the engine's side and has no kind of its own is a bad
// gateway over HTTP, and unavailable over gRPC: the call may be tried again.
func edgeOf(err error) edge {
	kind := errdef.KindOf(err)
	for _, e := range edges {
		if e.kind == kind {
			var up *upstream.Error
			if kind == errdef.ErrInternal && errors.As(err, &up) {
				e.status, e.code = http.StatusBadGateway, codes.Unavailable
			}
			if errors.Is(err, errHead) {
				e.status = http.StatusRequestHeaderFieldsTooLarge
			}
			var api *apiError
			if errors.As(err, &api) {
				e.param, e.word = api.param, api.code
			}
			var refused *refusedError
			if errors.As(err, &refused) {
				e = refused.edge(e)
			}
			return e
		}
	}
	panic("BUG: kind " + kind.Error() + " has no edge")
}

// errHead is told to clients whose head, or metadata, is larger than maxHead.
var errHead = errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
	"the request's head is larger than %d KiB: send less in header fields and the path", maxHead>>10))

// fieldCost is what a field counts beyond its name and value, as in HTTP/2 (RFC 9113, section
// 6.5.2).
const fieldCost = 32

// size is how much fields count towards maxHead.
func size(fields map[string][]string) int {
	n := 0
	for name, values := range fields {
		for _, v := range values {
			n += len(name) + len(v) + fieldCost
		}
	}
	return n
}

// statusOf gives an error as a gRPC status; a status that came from an engine stays as it is.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	if errors.Is(err, context.Canceled) {
		return status.Error(codes.Canceled, errClientGone.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, "the call's deadline passed")
	}
	return status.Error(edgeOf(err).code, err.Error())
}

// retryAfterSeconds is told with a 503 where nothing is known of how long a start takes.
const retryAfterSeconds = 2

// laterError is one that may be gone after a time; a negative one stands for one that won't be
// by itself.
type laterError struct {
	error
	after time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

// later says when to try again; zero means that it isn't known.
func later(err error, after time.Duration) error {
	if after <= 0 {
		return err
	}
	return &laterError{err, after}
}

// notByItself says that trying again is of no use until a person does something.
func notByItself(err error) error { return &laterError{err, -1} }

// retryAfter is the number of seconds after which a client had better try again; 0 means that
// nothing can be said.
func retryAfter(err error) int {
	var l *laterError
	switch {
	case !errors.As(err, &l):
		return retryAfterSeconds
	case l.after < 0:
		return 0
	}
	return int(min((l.after+time.Second-1)/time.Second, 3600))
}

// engineBackOff is what a client of the OpenAI API is told to wait where an engine refuses it for now
// and doesn't say for how long: as a rule the next place is free with the next answer.
const engineBackOff = time.Second

// busy reports the statuses that refuse a request for now.
func busy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// backOff says when to try again where an engine's own refusal for now, of which h are the fields, doesn't.
// What the engine says stays: OpenAI's clients read Retry-After-Ms first, all others Retry-After.
func backOff(h http.Header) {
	if len(h["Retry-After"]) > 0 {
		return
	}
	wait := engineBackOff
	if own := h["Retry-After-Ms"]; len(own) == 0 {
		h["Retry-After-Ms"] = []string{strconv.FormatInt(wait.Milliseconds(), 10)}
	} else if ms, err := strconv.ParseFloat(own[0], 64); err == nil && ms >= 0 && ms < 1e9 {
		wait = time.Duration(ms * float64(time.Millisecond))
	}
	h["Retry-After"] = []string{strconv.Itoa(max(1, int((wait+time.Second-1)/time.Second)))}
}

// whenBack is how long a backend without a ready replica takes to have one again: as long as a
// start took, or until what failed is tried again, if that is longer. Zero means not known.
func whenBack(b *route.Backend, now time.Time) time.Duration {
	return max(b.Startup, b.NextTry.Sub(now))
}

// writeError answers with an error in the shape of the OpenAI API or of the other protocols. It
// sets no header that identifies the response; those are set before.
func writeError(w http.ResponseWriter, api bool, err error) int {
	e := edgeOf(err)
	h := w.Header()
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	h.Del("Trailer")
	h["Content-Type"] = []string{"application/json"}
	hopeless := e.status == http.StatusNotImplemented
	var refused *refusedError
	switch {
	case errors.As(err, &refused) && busy(e.status):
		refused.tell(h)
	case e.status == http.StatusServiceUnavailable:
		after := retryAfter(err)
		hopeless = after == 0
		if !hopeless {
			h["Retry-After"] = []string{strconv.Itoa(after)}
		}
		if !hopeless && api {
			h["Retry-After-Ms"] = []string{strconv.Itoa(1000 * after)} // which OpenAI's clients read first
		}
	}
	if hopeless && api {
		h["X-Should-Retry"] = []string{"false"} // OpenAI's clients ask again after any 5xx
	}
	if e.status == http.StatusRequestEntityTooLarge {
		h["Connection"] = []string{"close"}
	}
	body := errorBody(api, e, err.Error())
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(e.status)
	_, _ = w.Write(body)
	return e.status
}

func errorBody(api bool, e edge, message string) []byte {
	var v any = struct {
		Error string `json:"error"`
	}{message}
	if api {
		return openai.Error{Message: message, Type: e.openAI, Param: e.param, Code: e.word}.JSON()
	}
	return encode(v)
}

// encode gives a value of the gateway's own as a line of JSON. Characters that matter in HTML
// only stay as they are: these answers are read by people and programs, not by browsers.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("BUG: an answer can't be encoded: " + err.Error())
	}
	return b.Bytes()
}

// openAIPath reports paths of the OpenAI API, under root or bare, whose clients expect an error object.
func openAIPath(path, root string) bool {
	path, ok := strings.CutPrefix(path, root)
	rest, v1 := strings.CutPrefix(path, "/v1/")
	if !v1 {
		return false
	}
	if ok && root != "" {
		return true
	}
	first, _, _ := strings.Cut(rest, "/")
	switch first {
	case "chat", "completions", "embeddings", "responses", "rerank", "score", "classify", "images", "audio", "moderations":
		return true
	}
	return false
}

// refusal is a whole response that ends the connection, with the words for a head that is too large
// where it is given none.
func refusal(code int, message string) []byte {
	message = cmp.Or(message, errHead.Error())
	body := errorBody(false, edge{}, message)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s",
		code, http.StatusText(code), requestID(nil), len(body), body)
}
