package graph

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// maxDepth bounds how deep graphs may hold graphs.
const maxDepth = 8

// Read decodes the model at path. Tensors that are kept in files of their own are read from
// the same folder, never from outside it. Errors are of kind errdef.ErrInvalid for a file that
// is no ONNX model or is damaged, ErrUnsupported for a type that no tensor here can have.
func Read(path string) (*Model, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read model: %w", err)
	}
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("open the model's folder: %w", err)
	}
	defer folder.Close()
	m, err := Decode(raw, folder.FS())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return m, nil
}

// Decode decodes a model. External tensors are read from files, which may be nil where the
// model has none. raw isn't kept.
func Decode(raw []byte, files fs.FS) (*Model, error) {
	d := &decoder{files: files}
	m := &Model{Opsets: map[string]int64{}}
	err := d.fields(raw, func(num protowire.Number, v field) error {
		switch num {
		case 2:
			m.Producer = string(v.bytes)
		case 7:
			g, err := d.graph(v.bytes, 0)
			m.Graph = g
			return err
		case 8:
			return d.opset(v.bytes, m.Opsets)
		case 25:
			d.functions++
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("not a readable ONNX model: %w", err)
	}
	if m.Graph == nil || len(m.Opsets) == 0 {
		return nil, errdef.New(errdef.ErrInvalid, "not an ONNX model: it has no graph or names no operator set; check that the file is complete")
	}
	if d.functions > 0 {
		return nil, errdef.New(errdef.ErrUnsupported, "the model defines functions of its own; export it with functions inlined")
	}
	return m, nil
}

type decoder struct {
	files     fs.FS
	functions int
}

// field is one field of a message: bytes for length-delimited ones, number for the others.
type field struct {
	bytes  []byte
	number uint64
	typ    protowire.Type
}

func malformed(what string) error {
	return errdef.New(errdef.ErrInvalid, what+"; the file is damaged or incomplete")
}

// fields calls f for each field of a message.
func (d *decoder) fields(b []byte, f func(protowire.Number, field) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed("a field tag can't be read")
		}
		b = b[n:]
		v := field{typ: typ}
		switch typ {
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			v.number = uint64(x)
		case protowire.Fixed64Type:
			v.number, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		default:
			return malformed("a field has a type that ONNX doesn't use")
		}
		if n < 0 {
			return malformed(fmt.Sprintf("field %d is cut off", num))
		}
		b = b[n:]
		if err := f(num, v); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) opset(b []byte, into map[string]int64) error {
	domain, version := "", int64(1)
	err := d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1:
			domain = plainDomain(string(v.bytes))
		case 2:
			version = int64(v.number)
		}
		return nil
	})
	into[domain] = version
	return err
}

// plainDomain gives the standard domain its one name.
func plainDomain(s string) string {
	if s == "ai.onnx" {
		return ""
	}
	return s
}

func (d *decoder) graph(b []byte, depth int) (*Graph, error) {
	if depth > maxDepth {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("graphs are nested more than %d deep", maxDepth))
	}
	g := &Graph{Consts: map[string]*Tensor{}}
	err := d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1:
			n, err := d.node(v.bytes, depth)
			g.Nodes = append(g.Nodes, n)
			return err
		case 2:
			g.Name = string(v.bytes)
		case 5:
			t, err := d.tensor(v.bytes)
			if err != nil {
				return err
			}
			g.Consts[t.Name] = t
		case 11:
			in, err := d.value(v.bytes)
			g.Inputs = append(g.Inputs, in)
			return err
		case 12:
			out, err := d.value(v.bytes)
			g.Outputs = append(g.Outputs, out)
			return err
		case 15:
			return errdef.New(errdef.ErrUnsupported, "the graph has sparse constants; export it with dense ones")
		}
		return nil
	})
	return g, err
}

func (d *decoder) node(b []byte, depth int) (Node, error) {
	n := Node{Attrs: map[string]Attr{}}
	err := d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1:
			n.Inputs = append(n.Inputs, string(v.bytes))
		case 2:
			n.Outputs = append(n.Outputs, string(v.bytes))
		case 3:
			n.Name = string(v.bytes)
		case 4:
			n.Op = string(v.bytes)
		case 5:
			return d.attr(v.bytes, depth, n.Attrs)
		case 7:
			n.Domain = plainDomain(string(v.bytes))
		}
		return nil
	})
	return n, err
}

func (d *decoder) attr(b []byte, depth int, into map[string]Attr) error {
	var a Attr
	name := ""
	err := d.fields(b, func(num protowire.Number, v field) (err error) {
		switch num {
		case 1:
			name = string(v.bytes)
		case 2:
			a.F = math.Float32frombits(uint32(v.number))
		case 3:
			a.I = int64(v.number)
		case 4:
			a.S = string(v.bytes)
		case 5:
			a.T, err = d.tensor(v.bytes)
		case 6:
			a.G, err = d.graph(v.bytes, depth+1)
		case 7:
			a.Floats, err = appendFloats(a.Floats, v)
		case 8:
			a.Ints, err = appendInts(a.Ints, v)
		case 9:
			a.Strings = append(a.Strings, string(v.bytes))
		}
		return err
	})
	into[name] = a
	return err
}

func appendFloats(to []float32, v field) ([]float32, error) {
	if v.typ != protowire.BytesType {
		return append(to, math.Float32frombits(uint32(v.number))), nil
	}
	if len(v.bytes)%4 != 0 {
		return nil, malformed("a list of floats is cut off")
	}
	for b := v.bytes; len(b) > 0; b = b[4:] {
		to = append(to, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return to, nil
}

func appendInts(to []int64, v field) ([]int64, error) {
	if v.typ != protowire.BytesType {
		return append(to, int64(v.number)), nil
	}
	for b := v.bytes; len(b) > 0; {
		x, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return nil, malformed("a list of integers is cut off")
		}
		to = append(to, int64(x))
		b = b[n:]
	}
	return to, nil
}

func (d *decoder) value(b []byte) (Value, error) {
	var out Value
	err := d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1:
			out.Name = string(v.bytes)
		case 2:
			return d.valueType(v.bytes, &out)
		}
		return nil
	})
	return out, err
}

func (d *decoder) valueType(b []byte, out *Value) error {
	return d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1: // tensor
			return d.tensorType(v.bytes, out)
		case 4: // sequence of …
			return d.fields(v.bytes, func(num protowire.Number, v field) error {
				if num == 1 {
					return d.valueType(v.bytes, out)
				}
				return nil
			})
		case 5: // map
			return d.fields(v.bytes, func(num protowire.Number, v field) error {
				switch num {
				case 1:
					out.MapKey = FromONNX(int64(v.number))
				case 2:
					return d.valueType(v.bytes, out)
				}
				return nil
			})
		}
		return nil
	})
}

func (d *decoder) tensorType(b []byte, out *Value) error {
	return d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1:
			out.Type = FromONNX(int64(v.number))
			if out.Type == Undefined {
				return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("%s has the ONNX element type %d, which no inference protocol carries", out.Name, v.number))
			}
		case 2:
			out.Shape, out.DimNames = []int64{}, []string{}
			return d.fields(v.bytes, func(num protowire.Number, v field) error {
				if num != 1 {
					return nil
				}
				dim, name := int64(-1), ""
				err := d.fields(v.bytes, func(num protowire.Number, v field) error {
					switch num {
					case 1:
						dim = int64(v.number)
					case 2:
						name = string(v.bytes)
					}
					return nil
				})
				if dim < 0 || (dim == 0 && name == "") {
					dim = -1 // some exporters write 0 for "any"
				}
				out.Shape, out.DimNames = append(out.Shape, dim), append(out.DimNames, name)
				return err
			})
		}
		return nil
	})
}

// rawTensor is a TensorProto before its data is put into one slice.
type rawTensor struct {
	name     string
	dims     []int64
	typ      int64
	raw      []byte
	hasRaw   bool
	floats   []float32
	ints     []int64
	doubles  []float64
	strings  []string
	external map[string]string
	isExt    bool
}

func (d *decoder) tensor(b []byte) (*Tensor, error) {
	var r rawTensor
	err := d.fields(b, func(num protowire.Number, v field) (err error) {
		switch num {
		case 1:
			r.dims, err = appendInts(r.dims, v)
		case 2:
			r.typ = int64(v.number)
		case 4:
			r.floats, err = appendFloats(r.floats, v)
		case 5, 7, 11:
			r.ints, err = appendInts(r.ints, v)
		case 6:
			r.strings = append(r.strings, string(v.bytes))
		case 8:
			r.name = string(v.bytes)
		case 9:
			r.raw, r.hasRaw = v.bytes, true
		case 10:
			r.doubles, err = appendDoubles(r.doubles, v)
		case 13:
			err = d.externalEntry(v.bytes, &r)
		case 14:
			r.isExt = v.number == 1
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.isExt {
		if r.raw, err = d.external(&r); err != nil {
			return nil, err
		}
		r.hasRaw = true
	}
	return r.tensor()
}

func appendDoubles(to []float64, v field) ([]float64, error) {
	if v.typ != protowire.BytesType {
		return append(to, math.Float64frombits(v.number)), nil
	}
	if len(v.bytes)%8 != 0 {
		return nil, malformed("a list of doubles is cut off")
	}
	for b := v.bytes; len(b) > 0; b = b[8:] {
		to = append(to, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return to, nil
}

func (d *decoder) externalEntry(b []byte, r *rawTensor) error {
	key, value := "", ""
	err := d.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 1:
			key = string(v.bytes)
		case 2:
			value = string(v.bytes)
		}
		return nil
	})
	if r.external == nil {
		r.external = map[string]string{}
	}
	r.external[key] = value
	return err
}
