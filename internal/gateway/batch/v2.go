package batch

import (
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// V2 is an infer request of the Open Inference Protocol whose inputs have the same number of rows,
// their first dimension. It shares the request's memory.
type V2 struct {
	*oip.InferRequest
	rows int
}

// NewV2 checks a request that was decoded. The error, of kind errdef.ErrInvalid, says why it can't
// be put together with others: it has no rows, or belongs to a sequence.
func NewV2(r *oip.InferRequest) (*V2, error) {
	if len(r.Inputs) == 0 {
		return nil, invalid("the request has no inputs")
	}
	for name := range r.Parameters {
		if strings.HasPrefix(name, "sequence_") { // Triton's sequences keep their order and place
			return nil, invalid("the request belongs to a sequence")
		}
	}
	v := &V2{InferRequest: r}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		switch {
		case len(t.Shape) == 0 || t.Shape[0] < 1 || t.Shape[0] > maxRows:
			return nil, invalid("input %q has the shape %v, which has no rows to put together with others", t.Name, t.Shape)
		case v.rows != 0 && int64(v.rows) != t.Shape[0]:
			return nil, invalid("input %q has %d rows, another one %d", t.Name, t.Shape[0], v.rows)
		}
		v.rows = int(t.Shape[0])
		if err := t.Check(); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// maxRows is far beyond what a batch can hold, so that sums of rows don't overflow.
const maxRows = 1 << 30

// Rows is how many rows the request has, 1 or more.
func (r *V2) Rows() int { return r.rows }

// Key is equal for requests that may go together: for the same version, with inputs of one form
// but for the number of rows, and nothing else that differs but the id.
func (r *V2) Key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %t %s", r.ModelVersion, r.BinaryOutput, parametersKey(r.Parameters))
	for i := range r.Inputs {
		t := &r.Inputs[i]
		fmt.Fprintf(&b, " %q %s %v %t %s", t.Name, t.Datatype, t.Shape[1:], t.Data == nil, parametersKey(t.Parameters))
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		want := "-"
		if o.Binary != nil {
			want = fmt.Sprint(*o.Binary)
		}
		fmt.Fprintf(&b, " >%q %s %s", o.Name, want, parametersKey(o.Parameters))
	}
	return b.String()
}

func parametersKey(p oip.Parameters) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%q=%T:%q;", name, p[name], fmt.Sprint(p[name]))
	}
	return b.String()
}

// MergeV2 makes one request of those with equal keys, their tensors one behind the other along the
// first dimension. It has the id that is given.
func MergeV2(requests []*V2, id string) *oip.InferRequest {
	first := requests[0]
	out := *first.InferRequest
	out.ID, out.Inputs = id, make([]oip.Tensor, len(first.Inputs))
	for i := range first.Inputs {
		t := first.Inputs[i]
		t.Shape = slices.Clone(t.Shape)
		t.Shape[0] = 0
		var raw []byte
		var data reflect.Value
		for j, r := range requests {
			in := &r.Inputs[i]
			t.Shape[0] += int64(r.rows)
			switch {
			case in.Data == nil:
				raw = append(raw, in.Raw...)
			case j == 0:
				data = reflect.ValueOf(in.Data)
				data = data.Slice3(0, data.Len(), data.Len()) // what is appended goes elsewhere
			default:
				data = reflect.AppendSlice(data, reflect.ValueOf(in.Data))
			}
		}
		t.Raw = raw
		if data.IsValid() {
			t.Data = data.Interface()
		}
		out.Inputs[i] = t
	}
	return &out
}

// SplitV2 gives each of the merged requests its rows of the answer, and its own id. An output whose
// first dimension isn't the number of all rows is an error of kind errdef.ErrInternal.
func SplitV2(answer *oip.InferResponse, requests []*V2) ([]*oip.InferResponse, error) {
	rows := 0
	for _, r := range requests {
		rows += r.rows
	}
	out := make([]*oip.InferResponse, len(requests))
	for i, r := range requests {
		part := *answer
		part.ID, part.Outputs = r.ID, make([]oip.Tensor, len(answer.Outputs))
		out[i] = &part
	}
	for i := range answer.Outputs {
		t := &answer.Outputs[i]
		if len(t.Shape) == 0 || t.Shape[0] != int64(rows) {
			return nil, broken("output %q has the shape %v for %d rows", t.Name, t.Shape, rows)
		}
		if err := t.Check(); err != nil {
			return nil, broken("the engine's answer isn't one: %s", err.Error())
		}
		each, err := oip.Count(t.Shape[1:])
		if err != nil {
			return nil, broken("output %q: %s", t.Name, err.Error())
		}
		cut := cutter{tensor: t, each: int(each)}
		for j, r := range requests {
			part := *t
			part.Shape = slices.Clone(t.Shape)
			part.Shape[0] = int64(r.rows)
			part.Data, part.Raw = cut.next(r.rows)
			out[j].Outputs[i] = part
		}
	}
	return out, nil
}

// cutter cuts a tensor's elements into pieces of rows.
type cutter struct {
	tensor *oip.Tensor
	// each is how many elements a row has.
	each int
	// at is where the next piece begins: an element of Data, or a byte of Raw.
	at int
}

func (c *cutter) next(rows int) (data any, raw []byte) {
	from, n := c.at, rows*c.each
	if c.tensor.Data != nil {
		c.at += n
		return reflect.ValueOf(c.tensor.Data).Slice3(from, c.at, c.at).Interface(), nil
	}
	if size := c.tensor.Datatype.Size(); size > 0 {
		c.at += n * size
	} else {
		for range n { // checked: each element has its length before it, and its bytes
			c.at += 4 + int(binary.LittleEndian.Uint32(c.tensor.Raw[c.at:]))
		}
	}
	return nil, c.tensor.Raw[from:c.at:c.at]
}
