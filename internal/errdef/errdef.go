// Package errdef names the kinds of error that cross rooms. A room wraps a kind with %w and
// its own words; each edge (HTTP, gRPC, CLI, condition) maps kinds to its codes in one table.
package errdef

import "errors"

// The kinds. An error is of a kind when errors.Is says so.
var (
	ErrInvalid         = errors.New("invalid")
	ErrNotFound        = errors.New("not found")
	ErrConflict        = errors.New("conflict")
	ErrUnauthenticated = errors.New("unauthenticated")
	ErrDenied          = errors.New("denied")
	ErrTooLarge        = errors.New("too large")
	ErrOverloaded      = errors.New("overloaded")
	ErrUnavailable     = errors.New("unavailable")
	ErrTimeout         = errors.New("timed out")
	ErrUnsupported     = errors.New("unsupported")
	ErrUnverified      = errors.New("unverified")
	ErrNoSpace         = errors.New("no space left")
	// ErrInternal is an engine or a part of ours failing in its own work.
	ErrInternal = errors.New("internal")
)

// Kinds lists every kind, so that edge tables can be tested for completeness.
func Kinds() []error {
	return []error{
		ErrInvalid, ErrNotFound, ErrConflict, ErrUnauthenticated, ErrDenied, ErrTooLarge,
		ErrOverloaded, ErrUnavailable, ErrTimeout, ErrUnsupported, ErrUnverified, ErrNoSpace,
		ErrInternal,
	}
}

// kindError carries a public message of its own and a kind, without the kind's text in it.
type kindError struct {
	kind error
	msg  string
}

func (e *kindError) Error() string { return e.msg }
func (e *kindError) Unwrap() error { return e.kind }

// New returns an error of the kind whose text is msg alone, for messages that a user reads.
func New(kind error, msg string) error { return &kindError{kind: kind, msg: msg} }

// KindOf returns the first kind that err is of, or ErrInternal; nil for nil.
func KindOf(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range Kinds() {
		if errors.Is(err, k) {
			return k
		}
	}
	return ErrInternal
}

// Terminal marks err as one that trying again can't mend. Terminal(nil) is nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{err}
}

// IsTerminal reports whether Terminal marked err or one that it wraps.
func IsTerminal(err error) bool {
	var t *terminalError
	return errors.As(err, &t)
}

type terminalError struct{ err error }

func (e *terminalError) Error() string { return e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }
