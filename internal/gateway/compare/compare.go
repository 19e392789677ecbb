// Package compare says how an answer differs from another to the same request: byte for byte, by its
// numbers within a tolerance, or by the classes that it names. It is pure.
package compare

import (
	"bytes"
	"net/http"
	"slices"
)

// Answer is an answer as far as it was kept.
type Answer struct {
	// Status is HTTP's; of a call 200 for OK, and otherwise what the caller gives to its code.
	Status int
	Header http.Header
	Body   []byte
	// Over says that the body was too long to be kept.
	Over bool
	// Message says that the body is a ModelInferResponse.
	Message bool
}

// Result is how an answer compares with another.
type Result string

// The results.
const (
	Equal  Result = "equal"
	Status Result = "status-differs"
	Output Result = "output-differs"
	// Uncompared is for equal statuses and bodies that can't be compared.
	Uncompared Result = "uncompared"
)

// Of says how an answer differs from the one that the client got.
func Of(want, got Answer) Result {
	switch {
	case want.Status != got.Status:
		return Status
	case want.Over || got.Over:
		return Uncompared
	case bytes.Equal(want.Body, got.Body):
		return Equal
	case want.Status/100 != 2:
		return Uncompared // errors in other words
	}
	a, aok := want.outputs()
	b, bok := got.outputs()
	switch {
	case !aok || !bok:
		return Uncompared
	case slices.EqualFunc(a, b, near):
		return Equal
	}
	return Output
}
