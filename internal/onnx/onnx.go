// Package onnx is the room that runs ONNX graphs: it picks what executes a model, checks what
// goes in and gives plain tensors back.
package onnx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/exec"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
	"stationmaster.dev/stationmaster/internal/onnx/ort"
)

// DataType is the element type of a tensor. Its String is the name that the Open Inference
// Protocol has for it.
type DataType = graph.DataType

// The element types. Undefined, the zero value, is no type.
const (
	Undefined = graph.Undefined
	Bool      = graph.Bool
	Uint8     = graph.Uint8
	Uint16    = graph.Uint16
	Uint32    = graph.Uint32
	Uint64    = graph.Uint64
	Int8      = graph.Int8
	Int16     = graph.Int16
	Int32     = graph.Int32
	Int64     = graph.Int64
	FP16      = graph.FP16
	BF16      = graph.BF16
	FP32      = graph.FP32
	FP64      = graph.FP64
	String    = graph.String
)

// TensorInfo describes an input or output; -1 in its shape is a dimension left open.
type TensorInfo = graph.TensorInfo

// Tensor is a value; Data is a slice of the Go type that fits Type, in row-major order.
type Tensor = graph.Tensor

// Session is a loaded model. All methods are safe for concurrent use, but Close must come
// after every Run has returned.
type Session interface {
	// Inputs and Outputs describe the graph. An output that the graph declares as a sequence of
	// maps (what ZipMap makes) is described and returned as a tensor of [rows, classes], the
	// values in the order of the map's keys as the model lists its classes.
	Inputs() []TensorInfo
	Outputs() []TensorInfo
	// Run computes the named outputs, all of them when none is named, in that order. It blocks
	// for the computation. inputs aren't changed, and may be shared with what is returned.
	// Errors are of kind errdef.ErrInvalid when an input is missing, unknown, or of another type
	// or shape than the model takes.
	Run(ctx context.Context, inputs []Tensor, outputs []string) ([]Tensor, error)
	// Backend names what executes the graph: BackendBuiltin, or "onnxruntime" and its version.
	Backend() string
	// Close frees what the session holds.
	Close() error
}

// The names for Options.Prefer. BackendBuiltin is also what Session.Backend returns.
const (
	BackendBuiltin = "stationmaster"
	BackendORT     = "onnxruntime"
)

// Options says how to open a model; the zero value is the usual choice.
type Options struct {
	// Library is the path of an onnxruntime shared library. Empty means the environment variable
	// STATIONMASTER_ONNXRUNTIME, and then the names under which systems install it.
	Library string
	// Prefer is what should execute the graph where it can: BackendBuiltin or BackendORT. Empty
	// means the built-in executor where it has all operators, and onnxruntime otherwise.
	Prefer string
}

// Open loads the model at path. Errors are of kind errdef.ErrInvalid for a damaged file or an
// unknown Options.Prefer, and errdef.ErrUnsupported when nothing at hand can execute the graph;
// the message names the operators.
func Open(path string, opts Options) (Session, error) {
	switch opts.Prefer {
	case "", BackendBuiltin, BackendORT:
	default:
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("backend %q is not known; use %s or %s", opts.Prefer, BackendBuiltin, BackendORT))
	}
	m, err := graph.Read(path)
	if err != nil && !errors.Is(err, errdef.ErrUnsupported) {
		return nil, err
	}
	if err == nil && opts.Prefer != BackendORT {
		var p *exec.Program
		if p, err = exec.Compile(m); err == nil {
			return newSession(m, builtin{p})
		}
		if !errors.Is(err, errdef.ErrUnsupported) {
			return nil, err
		}
	}
	s, ortErr := openORT(path, m, opts.Library)
	switch {
	case ortErr == nil:
		return s, nil
	case err != nil && errors.Is(ortErr, ort.ErrNoLibrary):
		return nil, fmt.Errorf("%w; an onnxruntime shared library would run it: %s", err, ortErr.Error())
	case err != nil:
		return nil, fmt.Errorf("%w; nor does onnxruntime load it: %w", err, ortErr)
	}
	return nil, ortErr
}

func openORT(path string, m *graph.Model, library string) (Session, error) {
	lib, err := ort.Load(library)
	if err != nil {
		return nil, err
	}
	// The library opens the files that tensors are kept in by itself, and parts of the model that
	// our decoder doesn't know may name some.
	if err := graph.CheckExternal(path); err != nil {
		return nil, err
	}
	s, err := lib.Open(path)
	if err != nil {
		return nil, err
	}
	if m == nil {
		// The file has something that our decoder doesn't, so the library describes the graph.
		in, out, err := s.Describe()
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		m = &graph.Model{Graph: &graph.Graph{Inputs: in, Outputs: out}}
	}
	return newSession(m, s)
}

// runner is what executes a graph, with inputs that fit it.
type runner interface {
	Run(ctx context.Context, inputs map[string]*Tensor, outputs []string) ([]*Tensor, error)
	Backend() string
	Close() error
}

type builtin struct{ *exec.Program }

func (builtin) Backend() string { return BackendBuiltin }
func (builtin) Close() error    { return nil }

// session checks and orders what goes into and comes out of a runner.
type session struct {
	runner
	inputs, outputs []TensorInfo
	names           []string
}

func newSession(m *graph.Model, r runner) (Session, error) {
	s := &session{runner: r}
	for _, in := range m.Graph.Inputs {
		if _, isConst := m.Graph.Consts[in.Name]; !isConst {
			s.inputs = append(s.inputs, in.TensorInfo)
		}
	}
	for _, out := range m.Graph.Outputs {
		info := out.TensorInfo
		if out.MapKey != Undefined {
			info.Shape, info.DimNames = []int64{-1, -1}, []string{"", ""}
		}
		s.outputs = append(s.outputs, info)
		s.names = append(s.names, out.Name)
	}
	return s, nil
}

func (s *session) Inputs() []TensorInfo  { return slices.Clone(s.inputs) }
func (s *session) Outputs() []TensorInfo { return slices.Clone(s.outputs) }

func (s *session) Run(ctx context.Context, inputs []Tensor, outputs []string) ([]Tensor, error) {
	in, err := s.arrange(inputs)
	if err != nil {
		return nil, err
	}
	if len(outputs) == 0 {
		outputs = s.names
	}
	for _, name := range outputs {
		if !slices.Contains(s.names, name) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the model has no output %q; it has %q", name, s.names))
		}
	}
	values, err := s.runner.Run(ctx, in, outputs)
	if err != nil {
		return nil, err
	}
	out := make([]Tensor, len(values))
	for i, v := range values {
		out[i] = *v
		out[i].Name = outputs[i]
	}
	return out, nil
}

// arrange checks the inputs against the graph and files them by name.
func (s *session) arrange(inputs []Tensor) (map[string]*Tensor, error) {
	in := make(map[string]*Tensor, len(inputs))
	for i := range inputs {
		t := &inputs[i]
		at := slices.IndexFunc(s.inputs, func(want TensorInfo) bool { return want.Name == t.Name })
		if at < 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the model has no input %q; it takes %s", t.Name, describe(s.inputs)))
		}
		if in[t.Name] != nil {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %q is given twice", t.Name))
		}
		if err := check(t, &s.inputs[at]); err != nil {
			return nil, err
		}
		in[t.Name] = t
	}
	for _, want := range s.inputs {
		if in[want.Name] == nil {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %q is missing; the model takes %s", want.Name, describe(s.inputs)))
		}
	}
	return in, nil
}

func check(t *Tensor, want *TensorInfo) error {
	if want.Type != Undefined && t.Type != want.Type {
		return errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %q is %s; the model takes %s", t.Name, t.Type, want.Type))
	}
	fits := want.Shape == nil || len(t.Shape) == len(want.Shape)
	for i := range want.Shape {
		fits = fits && (want.Shape[i] < 0 || want.Shape[i] == t.Shape[i])
	}
	if !fits {
		return errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %q has the shape %v; the model takes %v, where -1 is any", t.Name, t.Shape, want.Shape))
	}
	n, ok := graph.Count(t.Shape)
	if have := length(t.Data); !ok || have != n {
		return errdef.New(errdef.ErrInvalid, fmt.Sprintf("input %q has the shape %v and data of %d elements of type %T, which don't fit %s", t.Name, t.Shape, have, t.Data, t.Type))
	}
	return nil
}

// length is the number of elements of a slice of one of the element types, -1 for others.
func length(data any) int {
	switch d := data.(type) {
	case []bool:
		return len(d)
	case []uint8:
		return len(d)
	case []uint16:
		return len(d)
	case []uint32:
		return len(d)
	case []uint64:
		return len(d)
	case []int8:
		return len(d)
	case []int16:
		return len(d)
	case []int32:
		return len(d)
	case []int64:
		return len(d)
	case []float32:
		return len(d)
	case []float64:
		return len(d)
	case []string:
		return len(d)
	}
	return -1
}

func describe(infos []TensorInfo) string {
	parts := make([]string, len(infos))
	for i, in := range infos {
		parts[i] = fmt.Sprintf("%q %s %v", in.Name, in.Type, in.Shape)
	}
	return strings.Join(parts, ", ")
}
