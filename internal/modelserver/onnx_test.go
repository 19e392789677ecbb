package modelserver

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// mirror is an executor that gives back what it was given.
type mirror struct {
	onnx.Session
	spoil bool
}

func (mirror) Inputs() []onnx.TensorInfo {
	return []onnx.TensorInfo{{Name: "x", Type: onnx.String, Shape: []int64{-1}}, {Name: "y", Type: onnx.FP16}}
}
func (m mirror) Outputs() []onnx.TensorInfo { return m.Inputs() }
func (mirror) Close() error                 { return nil }
func (m mirror) Run(_ context.Context, in []onnx.Tensor, _ []string) ([]onnx.Tensor, error) {
	if m.spoil {
		in[0].Shape = []int64{99}
	}
	return in, nil
}

func TestTensorsPassToTheExecutorAndBack(t *testing.T) {
	g := newGraph(mirror{})
	want := []oip.TensorMetadata{{Name: "x", Datatype: oip.Bytes, Shape: []int64{-1}}, {Name: "y", Datatype: oip.FP16}}
	if diff := cmp.Diff(want, g.Inputs()); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	in := []oip.Tensor{
		{Name: "x", Datatype: oip.Bytes, Shape: []int64{2}, Data: [][]byte{[]byte("a"), {0xff}}},
		{Name: "y", Datatype: oip.FP16, Shape: []int64{1}, Raw: []byte{0, 0x3c}},
	}
	out, err := g.Run(t.Context(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	in[1].Data, in[1].Raw = []uint16{0x3c00}, nil
	if diff := cmp.Diff(in, out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := newGraph(mirror{spoil: true}).Run(t.Context(), in, nil); !errors.Is(err, errdef.ErrInternal) || !strings.Contains(err.Error(), "99") {
		t.Errorf("an output that isn't whole: %v", err)
	}
}

func TestEveryDatatypeOfTheProtocolIsTheExecutorsToo(t *testing.T) {
	for _, d := range oip.Datatypes() {
		if got := dataTypes[d]; got == onnx.Undefined || got.String() != string(d) {
			t.Errorf("%s is %v to the executor", d, got)
		}
	}
}
