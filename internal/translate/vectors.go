package translate

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func tell(name string, d oip.Datatype, shape []int64) string {
	return fmt.Sprintf("%.60s %s %v", name, d, shape)
}

// vectors are rows of numbers, as values or, until they are needed so, as raw FP32.
type vectors struct {
	rows, width int
	values      []float32
	raw         []byte
}

func (v *vectors) row(i int) []float32 {
	if v.raw != nil {
		v.values, v.raw = decode(v.raw), nil
	}
	return v.values[i*v.width : (i+1)*v.width]
}

// appendRaw appends a row as FP32, little-endian.
func (v *vectors) appendRaw(dst []byte, i int) []byte {
	if v.raw != nil {
		return append(dst, v.raw[4*i*v.width:4*(i+1)*v.width]...)
	}
	return appendRaw(dst, v.row(i))
}

func decode(raw []byte) []float32 {
	out := make([]float32, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out
}

// floats gives a tensor's numbers as float32.
func floats(t *oip.Tensor) ([]float32, error) {
	if t.Data == nil && t.Datatype == oip.FP32 {
		if err := t.Check(); err != nil {
			return nil, err
		}
		return decode(t.Raw), nil
	}
	values, err := t.Values()
	if err != nil {
		return nil, err
	}
	switch v := values.(type) {
	case []float32:
		return v, nil
	case []float64:
		out := make([]float32, len(v))
		for i, f := range v {
			out[i] = float32(f)
		}
		return out, nil
	case []uint16:
		out := make([]float32, len(v))
		for i, bits := range v {
			if t.Datatype == oip.BF16 {
				out[i] = math.Float32frombits(uint32(bits) << 16)
			} else {
				out[i] = half(bits)
			}
		}
		if t.Datatype == oip.FP16 || t.Datatype == oip.BF16 {
			return out, nil
		}
	}
	return nil, invalid("output %q has the datatype %s, and a number with a fraction is needed", t.Name, t.Datatype)
}

// half is the value of a half float (IEEE 754 binary16).
func half(bits uint16) float32 {
	sign, exponent, fraction := uint32(bits>>15)<<31, int(bits>>10)&31, float64(bits&1023)
	var v float64
	switch exponent {
	case 0:
		v = math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return float32(math.NaN())
		}
		v = math.Inf(1)
	default:
		v = math.Ldexp(1024+fraction, exponent-25)
	}
	return math.Float32frombits(math.Float32bits(float32(v)) | sign)
}

// embeddings reads one vector for each of n inputs. lengths are their numbers of tokens where
// those are known, else nil.
func (m *Model) embeddings(outputs []oip.Tensor, n int, lengths []int) (*vectors, error) {
	t, err := m.pick(outputs, func(t *oip.Tensor) bool { return float(t.Datatype) && (len(t.Shape) == 2 || len(t.Shape) == 3) },
		vectorNames...)
	if err != nil {
		return nil, err
	}
	if t.Name != m.Output && slices.Contains(scoreNames, t.Name) {
		return nil, unsupported("output %q tells classes or scores, not vectors: ask for classify, or declare it with output=%s in the annotation %s", t.Name, t.Name, Annotation)
	}
	if err := t.Check(); err != nil {
		return nil, Broken(err)
	}
	switch {
	case len(t.Shape) == 1 && n == 1:
		t.Shape = []int64{1, t.Shape[0]}
	case len(t.Shape) == 3 && t.Shape[1] == 1 && t.Shape[0] == int64(n):
		t.Shape = []int64{t.Shape[0], t.Shape[2]}
	}
	switch {
	case len(t.Shape) < 2 || t.Shape[0] != int64(n):
		return nil, Broken(invalid("output %q has the shape %v for %d inputs", t.Name, t.Shape, n))
	case len(t.Shape) > 3:
		return nil, unsupported("output %q has the shape %v, and a vector for each input is needed", t.Name, t.Shape)
	case len(t.Shape) == 3 && lengths == nil:
		return nil, unsupported("output %q has a vector for each token, %v, and how many of them belong to a text isn't known: let the engine pool them, or send token ids", t.Name, t.Shape)
	}
	normalize := len(t.Shape) == 3
	if m.Normalize != nil {
		normalize = *m.Normalize
	}
	v := &vectors{rows: n, width: int(t.Shape[1])}
	if len(t.Shape) == 2 && t.Data == nil && t.Datatype == oip.FP32 {
		v.raw = t.Raw
	} else {
		values, err := floats(t)
		if err != nil {
			return nil, Broken(err)
		}
		if v.values = values; len(t.Shape) == 3 {
			v = m.pool(values, int(t.Shape[1]), int(t.Shape[2]), lengths)
		}
	}
	if normalize {
		v.normalize()
	}
	return v, nil
}

// pool makes one vector of those of each text's tokens.
func (m *Model) pool(values []float32, tokens, width int, lengths []int) *vectors {
	v := &vectors{rows: len(lengths), width: width, values: make([]float32, len(lengths)*width)}
	sums := make([]float64, width)
	for i, length := range lengths {
		length = min(length, tokens)
		from := values[i*tokens*width:]
		switch {
		case length == 0:
		case m.Pooling == "cls":
			copy(v.row(i), from[:width])
		case m.Pooling == "last":
			copy(v.row(i), from[(length-1)*width:][:width])
		default:
			clear(sums)
			for j := range length {
				for k, f := range from[j*width:][:width] {
					sums[k] += float64(f)
				}
			}
			for k, sum := range sums {
				v.values[i*width+k] = float32(sum / float64(length))
			}
		}
	}
	return v
}

// normalize gives each vector the length 1, but for those of length 0.
func (v *vectors) normalize() {
	for i := range v.rows {
		unit(v.row(i))
	}
}

func unit(row []float32) {
	sum := 0.0
	for _, f := range row {
		sum += float64(f) * float64(f)
	}
	if sum == 0 {
		return
	}
	by := 1 / math.Sqrt(sum)
	for i, f := range row {
		row[i] = float32(float64(f) * by)
	}
}

// cosine is how alike two vectors are, from -1 to 1; 0 where one has no direction.
func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return ab / math.Sqrt(aa*bb)
}
