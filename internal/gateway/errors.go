package gateway

import (
	"bytes"
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
)

// edge is how one kind of error looks from outside.
type edge struct {
	kind   error
	status int
	code   codes.Code
	// openAI is the error type in OpenAI's shape.
	openAI string
}

// edges is the one mapping of kinds to HTTP and gRPC.
var edges = []edge{
	{errdef.ErrInvalid, http.StatusBadRequest, codes.InvalidArgument, "invalid_request_error"},
	{errdef.ErrNotFound, http.StatusNotFound, codes.NotFound, "invalid_request_error"},
	{errdef.ErrConflict, http.StatusConflict, codes.FailedPrecondition, "invalid_request_error"},
	{errdef.ErrUnauthenticated, http.StatusUnauthorized, codes.Unauthenticated, "authentication_error"},
	{errdef.ErrDenied, http.StatusForbidden, codes.PermissionDenied, "permission_error"},
	{errdef.ErrTooLarge, http.StatusRequestEntityTooLarge, codes.ResourceExhausted, "invalid_request_error"},
	{errdef.ErrOverloaded, http.StatusServiceUnavailable, codes.Unavailable, "server_error"},
	{errdef.ErrUnavailable, http.StatusServiceUnavailable, codes.Unavailable, "server_error"},
	{errdef.ErrTimeout, http.StatusGatewayTimeout, codes.DeadlineExceeded, "server_error"},
	{errdef.ErrUnsupported, http.StatusNotImplemented, codes.Unimplemented, "invalid_request_error"},
	{errdef.ErrUnverified, http.StatusForbidden, codes.PermissionDenied, "permission_error"},
	{errdef.ErrNoSpace, http.StatusInsufficientStorage, codes.ResourceExhausted, "server_error"},
	{errdef.ErrInternal, http.StatusInternalServerError, codes.Internal, "server_error"},
}

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

// laterError is one that may be gone after a time.
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

// retryAfter is the number of seconds after which a client had better try again.
func retryAfter(err error) int {
	var l *laterError
	if errors.As(err, &l) {
		return int(min((l.after+time.Second-1)/time.Second, 3600))
	}
	return retryAfterSeconds
}

// writeError answers with an error in the shape of the protocol that path belongs to. It
// sets no header that identifies the response; those are set before.
func writeError(w http.ResponseWriter, path string, err error) int {
	e := edgeOf(err)
	h := w.Header()
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	h.Del("Trailer")
	h["Content-Type"] = []string{"application/json"}
	if e.status == http.StatusServiceUnavailable {
		h["Retry-After"] = []string{strconv.Itoa(retryAfter(err))}
	}
	if e.status == http.StatusRequestEntityTooLarge {
		h["Connection"] = []string{"close"}
	}
	body := errorBody(path, e, err.Error())
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(e.status)
	_, _ = w.Write(body)
	return e.status
}

func errorBody(path string, e edge, message string) []byte {
	var v any = struct {
		Error string `json:"error"`
	}{message}
	if openAIPath(path) {
		type inner struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		}
		v = struct {
			Error inner `json:"error"`
		}{inner{Message: message, Type: e.openAI}}
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

// openAIPath reports paths of the OpenAI API, whose clients expect an error object.
func openAIPath(path string) bool {
	path, ok := strings.CutPrefix(path, "/openai")
	rest, v1 := strings.CutPrefix(path, "/v1/")
	if !v1 {
		return false
	}
	if ok {
		return true
	}
	first, _, _ := strings.Cut(rest, "/")
	switch first {
	case "chat", "completions", "embeddings", "responses", "rerank", "images", "audio", "moderations":
		return true
	}
	return false
}
