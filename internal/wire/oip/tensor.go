// Package oip holds the Open Inference Protocol's messages as values, and their codecs: JSON,
// JSON with binary tensors (Triton's binary data extension), and gRPC.
//
// What it reads from bytes or from gRPC messages may share their memory: the source must not be
// changed while the value is in use. Functions are safe for concurrent use; values aren't while
// one goroutine changes them. Errors of decoding are of kind errdef.ErrInvalid and name the
// tensor and the place.
package oip

import (
	"fmt"
	"math"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// Datatype is a tensor's element type in the protocol's spelling.
type Datatype string

// The datatypes (OIP, "Tensor Data Types"; BF16 is named in the gRPC text only).
const (
	Bool   Datatype = "BOOL"
	Uint8  Datatype = "UINT8"
	Uint16 Datatype = "UINT16"
	Uint32 Datatype = "UINT32"
	Uint64 Datatype = "UINT64"
	Int8   Datatype = "INT8"
	Int16  Datatype = "INT16"
	Int32  Datatype = "INT32"
	Int64  Datatype = "INT64"
	FP16   Datatype = "FP16"
	BF16   Datatype = "BF16"
	FP32   Datatype = "FP32"
	FP64   Datatype = "FP64"
	Bytes  Datatype = "BYTES"
)

// Datatypes lists them all.
func Datatypes() []Datatype {
	return []Datatype{Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, FP16, BF16, FP32, FP64, Bytes}
}

// Size is an element's size in bytes in raw form; 0 for BYTES, whose elements vary, and -1 for
// what is no datatype.
func (d Datatype) Size() int {
	switch d {
	case Bool, Uint8, Int8:
		return 1
	case Uint16, Int16, FP16, BF16:
		return 2
	case Uint32, Int32, FP32:
		return 4
	case Uint64, Int64, FP64:
		return 8
	case Bytes:
		return 0
	}
	return -1
}

// halfFloat says whether the datatype has neither a JSON form nor a gRPC contents field.
func (d Datatype) halfFloat() bool { return d == FP16 || d == BF16 }

// Tensor is one input or output.
type Tensor struct {
	Name     string
	Datatype Datatype
	// Shape has no negative dimension in a request or a response; empty is a scalar.
	Shape      []int64
	Parameters Parameters

	// Data holds the elements, row-major: []bool, []uint8, []uint16, []uint32, []uint64,
	// []int8, []int16, []int32, []int64, []uint16 (the bits of FP16 and BF16), []float32,
	// []float64 or [][]byte, as Datatype says. It is nil when Raw is set.
	Data any
	// Raw holds the elements little-endian without padding, each of BYTES after its length in
	// four bytes. It is nil when Data is set.
	Raw []byte
}

// Parameters are named extra values. A value is a bool, int64, uint64, float64 or string.
type Parameters map[string]any

// RequestedOutput names an output that the client wants.
type RequestedOutput struct {
	Name       string
	Parameters Parameters
	// Binary is what the parameter binary_data says; nil when it isn't given.
	Binary *bool
}

// InferRequest asks for one inference.
type InferRequest struct {
	// ModelName and ModelVersion come from the path over REST.
	ModelName    string
	ModelVersion string
	ID           string
	Parameters   Parameters
	Inputs       []Tensor
	// Outputs is empty when all are wanted.
	Outputs []RequestedOutput
	// BinaryOutput is the parameter binary_data_output: all outputs in binary form, unless
	// the output's own setting says otherwise.
	BinaryOutput bool
}

// WantsBinary says whether the client asked for the output in binary form.
func (r *InferRequest) WantsBinary(output string) bool {
	for i := range r.Outputs {
		if r.Outputs[i].Name == output && r.Outputs[i].Binary != nil {
			return *r.Outputs[i].Binary
		}
	}
	return r.BinaryOutput
}

// InferResponse answers an InferRequest.
type InferResponse struct {
	ModelName string
	// ModelVersion is empty when the server has no versions.
	ModelVersion string
	ID           string
	Parameters   Parameters
	Outputs      []Tensor
}

// MaxRank is how many dimensions a tensor may have: as many as numpy's arrays, from which most
// clients make tensors (NPY_MAXDIMS is 64 since numpy 2).
const MaxRank = jsonscan.MaxRank

var errRank = invalid("the shape has more than %d dimensions", MaxRank)

// maxEmpty bounds the other dimensions of a tensor without elements. No bytes have to come for
// those, and a sum over each of a trillion empty rows would take as many numbers.
const maxEmpty = 1 << 20

// Count is how many elements a tensor of the shape has. A negative dimension, a product beyond
// int64, more than MaxRank dimensions, or a million of nothing are an error.
func Count(shape []int64) (int64, error) {
	if len(shape) > MaxRank {
		return 0, errRank
	}
	n, zero := int64(1), false
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, invalid("shape %v has the dimension %d; a request must say each size", shape, d)
		case d == 0:
			zero = true
		case n > math.MaxInt64/d:
			return 0, invalid("shape %v has more elements than can be counted", shape)
		default:
			n *= d
		}
	}
	if zero {
		if n > maxEmpty {
			return 0, invalid("shape %v has no elements, and more than %d rows or columns of none", shape, maxEmpty)
		}
		return 0, nil
	}
	return n, nil
}

// Check says what is wrong with the tensor: an unknown datatype, a bad shape, or elements that
// aren't as many, as long or of the type that shape and datatype say.
func (t *Tensor) Check() error {
	if t.Datatype.Size() < 0 {
		return t.errorf("datatype %q is unknown; use one of %s", t.Datatype, datatypeNames)
	}
	want, err := Count(t.Shape)
	if err != nil {
		return t.wrap(err)
	}
	if t.Data == nil {
		return t.wrap(checkRaw(t.Datatype, want, t.Raw))
	}
	n, ok := dataLen(t.Datatype, t.Data)
	if !ok {
		return t.errorf("datatype %s can't hold %s", t.Datatype, typeOf(t.Data))
	}
	if int64(n) != want {
		return t.errorf("shape %v has %d elements and the data %d", t.Shape, want, n)
	}
	return nil
}

// Values returns the elements in the typed form of Data, decoding Raw if that is what there is.
func (t *Tensor) Values() (any, error) {
	if t.Data != nil {
		return t.Data, nil
	}
	n, err := Count(t.Shape)
	if err != nil {
		return nil, t.wrap(err)
	}
	v, err := decodeRaw(t.Datatype, n, t.Raw)
	return v, t.wrap(err)
}

var datatypeNames = func() string {
	names := make([]string, 0, len(Datatypes()))
	for _, d := range Datatypes() {
		names = append(names, string(d))
	}
	return strings.Join(names, ", ")
}()

func typeOf(data any) string { return fmt.Sprintf("%T", data) }

func (t *Tensor) errorf(format string, args ...any) error {
	return t.wrap(invalid(format, args...))
}

func (t *Tensor) wrap(err error) error {
	if err == nil {
		return nil
	}
	return brief.Errorf("tensor %q: %w", t.Name, err)
}

func invalid(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, brief.Sprintf(format, args...))
}
