package modelserver

import (
	"context"
	"fmt"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// opener returns what opens ONNX files: library is the path of an onnxruntime shared library
// and backend the name of what should run the graph, both empty for the package's own choice.
func opener(library, backend string) func(context.Context, string) (Session, error) {
	return func(_ context.Context, path string) (Session, error) {
		s, err := onnx.Open(path, onnx.Options{Library: library, Prefer: backend})
		if err != nil {
			return nil, err
		}
		return newGraph(s), nil
	}
}

// graph is an onnx.Session that speaks in the protocol's tensors.
type graph struct {
	onnx.Session
	inputs, outputs []oip.TensorMetadata
}

func newGraph(s onnx.Session) *graph {
	return &graph{Session: s, inputs: toMetadata(s.Inputs()), outputs: toMetadata(s.Outputs())}
}

func (g *graph) Inputs() []oip.TensorMetadata  { return g.inputs }
func (g *graph) Outputs() []oip.TensorMetadata { return g.outputs }

func toMetadata(in []onnx.TensorInfo) []oip.TensorMetadata {
	out := make([]oip.TensorMetadata, 0, len(in))
	for _, t := range in {
		out = append(out, oip.TensorMetadata{Name: t.Name, Datatype: oip.Datatype(t.Type.String()), Shape: t.Shape})
	}
	return out
}

func (g *graph) Run(ctx context.Context, inputs []oip.Tensor, outputs []string) ([]oip.Tensor, error) {
	in := make([]onnx.Tensor, 0, len(inputs))
	for i := range inputs {
		t, err := toONNX(&inputs[i])
		if err != nil {
			return nil, err
		}
		in = append(in, t)
	}
	res, err := g.Session.Run(ctx, in, outputs)
	if err != nil {
		return nil, err
	}
	out := make([]oip.Tensor, 0, len(res))
	for i := range res {
		t := fromONNX(&res[i])
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("%w: the model's output: %s", errdef.ErrInternal, err.Error())
		}
		out = append(out, t)
	}
	return out, nil
}

// dataTypes maps the protocol's names to the executor's.
var dataTypes = func() map[oip.Datatype]onnx.DataType {
	m := map[oip.Datatype]onnx.DataType{}
	for t := onnx.Bool; t <= onnx.String; t++ {
		m[oip.Datatype(t.String())] = t
	}
	return m
}()

// toONNX shares the elements, but for strings, which the two hold differently.
func toONNX(t *oip.Tensor) (onnx.Tensor, error) {
	data, err := t.Values()
	if err != nil {
		return onnx.Tensor{}, err
	}
	if texts, ok := data.([][]byte); ok {
		s := make([]string, len(texts))
		for i, b := range texts {
			s[i] = string(b)
		}
		data = s
	}
	return onnx.Tensor{Name: t.Name, Type: dataTypes[t.Datatype], Shape: t.Shape, Data: data}, nil
}

func fromONNX(t *onnx.Tensor) oip.Tensor {
	data := t.Data
	if s, ok := data.([]string); ok {
		texts := make([][]byte, len(s))
		for i, e := range s {
			texts[i] = []byte(e)
		}
		data = texts
	}
	return oip.Tensor{Name: t.Name, Datatype: oip.Datatype(t.Type.String()), Shape: t.Shape, Data: data}
}
