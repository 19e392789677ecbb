package translate

import (
	"math"
	"strconv"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Classify is a request to say what kind of text each input is.
type Classify struct {
	m      *Model
	origin Origin
	model  string
	texts  [][]byte
}

// NewClassify reads a request's body. Errors are those of NewEmbeddings.
func NewClassify(body []byte, m *Model, origin Origin) (*Classify, error) {
	r := &Classify{m: m, origin: origin}
	err := members(body, func(s *jsonscan.Scanner, key string) (_ bool, err error) {
		switch key {
		case "model":
			name, err := readText(s, key)
			r.model = string(name)
			return true, err
		case "input":
			r.texts, err = readTexts(s, key)
			return true, err
		}
		return some(s, key, "user")
	})
	switch {
	case err != nil:
		return nil, err
	case r.texts == nil:
		return nil, invalid(`the body has no "input"`)
	case m.text == "" || m.pair != "" || m.pairs:
		return nil, unsupported("the model doesn't take single texts: put a transformer that makes its inputs in front of it")
	}
	return r, m.classifies()
}

// Infer is the request for the model. All outputs are asked for: names of classes may be in one, and
// their probabilities in another.
func (r *Classify) Infer() (*oip.InferRequest, error) {
	return &oip.InferRequest{Inputs: []oip.Tensor{r.m.texts(r.m.text, r.texts)}}, nil
}

// Answer is the body for the client.
func (r *Classify) Answer(out *oip.InferResponse) ([]byte, error) {
	n := len(r.texts)
	named, err := r.named(out.Outputs, n)
	if err != nil {
		return nil, err
	}
	v := &vectors{rows: n}
	t, err := r.m.pick(out.Outputs, func(t *oip.Tensor) bool {
		return float(t.Datatype) && len(t.Shape) == 2 && t.Shape[0] == int64(n) && r.m.classes(t.Name)
	}, "probabilities", "probs", "scores", "logits")
	if err == nil && !r.m.classes(t.Name) {
		err = noClasses("output " + t.Name)
	}
	switch {
	case err != nil && named == nil:
		return nil, err
	case err == nil:
		values, err := floats(t)
		if err == nil && (len(t.Shape) != 2 || t.Shape[0] != int64(n) || int64(len(values)) != t.Shape[0]*t.Shape[1]) {
			err = invalid("output %q has the shape %v for %d texts", t.Name, t.Shape, n)
		}
		if err != nil {
			return nil, Broken(err)
		}
		v = &vectors{rows: n, width: int(t.Shape[1]), values: append([]float32(nil), values...)}
		if t.Name == "logits" {
			v.softmax()
		}
	}
	dst := r.origin.head("classify-", r.model)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, `{"index":`...), i)
		dst = append(dst, `,"label":`...)
		if named != nil {
			dst = jsonscan.AppendString(dst, named[i])
		} else {
			dst = jsonscan.AppendString(dst, []byte(r.label(best(v.row(i)))))
		}
		dst = append(dst, `,"probs":`...)
		dst = jsonscan.AppendFloats(dst, v.row(i))
		dst = append(appendInt(append(dst, `,"num_classes":`...), v.width), '}')
	}
	return append(appendUsage(append(dst, "],"...), 0), '}'), nil
}

// named are the classes where the model has an output of their names, else nil.
func (r *Classify) named(outputs []oip.Tensor, n int) ([][]byte, error) {
	for i := range outputs {
		t := &outputs[i]
		if t.Datatype != oip.Bytes {
			continue
		}
		values, err := t.Values()
		if err != nil {
			return nil, Broken(err)
		}
		if names, ok := values.([][]byte); ok && len(names) == n {
			return names, nil
		}
	}
	return nil, nil
}

// label is the name of a class; where none is declared, as Hugging Face's models have it.
func (r *Classify) label(class int) string {
	if class < len(r.m.Labels) {
		return r.m.Labels[class]
	}
	return "LABEL_" + strconv.Itoa(class)
}

func best(row []float32) int {
	at := 0
	for i, f := range row {
		if f > row[at] {
			at = i
		}
	}
	return at
}

// softmax makes probabilities of each row.
func (v *vectors) softmax() {
	for i := range v.rows {
		row := v.row(i)
		if len(row) == 0 {
			continue
		}
		top, sum := row[best(row)], 0.0
		for j, f := range row {
			e := math.Exp(float64(f - top))
			row[j] = float32(e)
			sum += e
		}
		for j := range row {
			row[j] = float32(float64(row[j]) / sum)
		}
	}
}
