package upstream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Stage is where in an exchange an error happened.
type Stage string

// The stages. In StageLimit and StageDial nothing was sent.
const (
	StageLimit  Stage = "limit"
	StageDial   Stage = "dial"
	StageWrite  Stage = "write"
	StageHeader Stage = "header"
	StageBody   Stage = "body"
)

// Error is a failure on the engine's side. errors.Is finds errdef.ErrTimeout,
// errdef.ErrOverloaded or errdef.ErrUnavailable (StageDial) in it, else errdef.ErrInternal.
type Error struct {
	Stage Stage
	Addr  string
	Err   error
}

func (e *Error) Error() string {
	if errors.Is(e.Err, os.ErrDeadlineExceeded) {
		switch e.Stage {
		case StageHeader:
			return fmt.Sprintf("the engine at %s sent no response in time", e.Addr)
		case StageBody:
			return fmt.Sprintf("the engine at %s sent nothing more of its response in time", e.Addr)
		}
	}
	switch e.Stage {
	case StageLimit:
		return e.Err.Error()
	case StageDial:
		return fmt.Sprintf("connect to the engine: %v", e.Err)
	case StageWrite:
		return fmt.Sprintf("send the request to the engine at %s: %v", e.Addr, e.Err)
	case StageHeader:
		if errors.Is(e.Err, io.EOF) || errors.Is(e.Err, syscall.ECONNRESET) {
			return fmt.Sprintf("the engine at %s closed the connection before it answered", e.Addr)
		}
		return fmt.Sprintf("read the engine's response from %s: %v", e.Addr, e.Err)
	}
	if errors.Is(e.Err, io.ErrUnexpectedEOF) || errors.Is(e.Err, syscall.ECONNRESET) {
		return fmt.Sprintf("the engine at %s closed the connection within its response", e.Addr)
	}
	return fmt.Sprintf("read the engine's response body from %s: %v", e.Addr, e.Err)
}

func (e *Error) Unwrap() []error { return []error{e.Err, e.kind()} }

func (e *Error) kind() error {
	var ne net.Error
	switch {
	case errors.Is(e.Err, errdef.ErrOverloaded):
		return errdef.ErrOverloaded
	case errors.As(e.Err, &ne) && ne.Timeout() && e.Stage != StageDial:
		return errdef.ErrTimeout
	case e.Stage == StageDial:
		return errdef.ErrUnavailable
	}
	return errdef.ErrInternal
}

// BodyError is a failure to read the client's body; the engine isn't to blame.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "read the request body: " + e.Err.Error() }

func (e *BodyError) Unwrap() error { return e.Err }

// ErrProtocol marks a response that breaks HTTP/1.1's framing.
var ErrProtocol = errors.New("malformed HTTP response")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Died reports that a connection ended before an answer's head had come, so that nobody got
// anything of one.
func Died(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Stage == StageWrite || e.Stage == StageHeader) && gone(e.Err)
}

// gone reports whether err is what a connection that the engine had closed gives.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
