package translate

import (
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Model says how texts go into a model of tensors, and which of its outputs answers.
type Model struct {
	Settings
	// text and pair take texts; text is empty for a model that takes token ids.
	text, pair string
	// column says that texts are rows of one column, pairs that they are rows of two.
	column, pairs bool
	// ids, mask and types take token ids, where the model wants them, in the datatype of each.
	ids, mask, types *oip.TensorMetadata
	outputs          []oip.TensorMetadata
}

// NewModel finds out from a model's metadata, and what was declared, how to ask it about texts.
// Errors are ErrUnsupported, with what the model takes instead.
func NewModel(meta *oip.ModelMetadata, declared Settings) (*Model, error) {
	m := &Model{Settings: declared, outputs: meta.Outputs}
	if err := m.findInputs(meta.Inputs); err != nil {
		return nil, err
	}
	if declared.Output != "" && output(meta.Outputs, declared.Output) == nil && len(meta.Outputs) > 0 {
		return nil, unsupported("the model has no output %q, which %s declares; it has %s", declared.Output, Annotation, describe(meta.Outputs))
	}
	return m, nil
}

func (m *Model) findInputs(inputs []oip.TensorMetadata) error {
	if m.Text != "" {
		in := output(inputs, m.Text)
		if in == nil && len(inputs) > 0 {
			return unsupported("the model has no input %q, which %s declares; it has %s", m.Text, Annotation, describe(inputs))
		}
		m.text, m.pair = m.Text, m.Pair
		if in != nil {
			m.shape(in.Shape)
		}
		return nil
	}
	var texts []*oip.TensorMetadata
	var others []*oip.TensorMetadata
	for i := range inputs {
		in := &inputs[i]
		switch {
		case in.Datatype == oip.Bytes:
			texts = append(texts, in)
		case integer(in.Datatype) && in.Name == "input_ids":
			m.ids = in
		case integer(in.Datatype) && in.Name == "attention_mask":
			m.mask = in
		case integer(in.Datatype) && in.Name == "token_type_ids":
			m.types = in
		default:
			others = append(others, in)
		}
	}
	switch {
	case len(others) > 0 || len(inputs) == 0 || len(texts) > 2 || m.ids != nil && len(texts) > 0:
		return m.noTexts(inputs)
	case len(texts) == 0 && (m.ids == nil || len(m.ids.Shape) != 2):
		return m.noTexts(inputs)
	case len(texts) == 0:
		return nil
	}
	m.text = texts[0].Name
	m.shape(texts[0].Shape)
	if len(texts) == 2 {
		m.pair = texts[1].Name
		if isFirst(texts[1].Name) {
			m.text, m.pair = m.pair, m.text
		}
	}
	return nil
}

// isFirst reports whether an input goes by a name of the first text of a pair.
func isFirst(name string) bool { return slices.Contains([]string{"query", "text_1", "question"}, name) }

func (m *Model) shape(shape []int64) {
	m.column = len(shape) == 2 && shape[1] != 2
	m.pairs = len(shape) == 2 && shape[1] == 2
}

func (m *Model) noTexts(inputs []oip.TensorMetadata) error {
	return unsupported("the model takes %s: a translation needs one or two inputs of texts (BYTES), or input_ids, attention_mask and token_type_ids; ask with tensors over /v2, declare the input with the annotation %s, or say with stationmaster.dev/openai-root that the engine speaks the OpenAI API itself",
		describe(inputs), Annotation)
}

func integer(d oip.Datatype) bool { return d == oip.Int64 || d == oip.Int32 }

func float(d oip.Datatype) bool {
	return d == oip.FP32 || d == oip.FP64 || d == oip.FP16 || d == oip.BF16
}

func output(of []oip.TensorMetadata, name string) *oip.TensorMetadata {
	for i := range of {
		if of[i].Name == name {
			return &of[i]
		}
	}
	return nil
}

func describe(of []oip.TensorMetadata) string {
	if len(of) == 0 {
		return "nothing that its metadata tells"
	}
	words := make([]string, 0, len(of))
	for _, t := range of {
		words = append(words, t.Name+" "+string(t.Datatype))
	}
	return strings.Join(words, ", ")
}

// texts is the tensor of texts for an input.
func (m *Model) texts(name string, texts [][]byte) oip.Tensor {
	t := oip.Tensor{Name: name, Datatype: oip.Bytes, Shape: []int64{int64(len(texts))}, Data: texts}
	if m.column {
		t.Shape = append(t.Shape, 1)
	}
	return t
}

// tokens are the tensors of token ids, the shorter rows filled up with zeros that the mask leaves
// out. Errors are ErrInvalid: rows of different lengths for a model without a mask, ids out of range.
func (m *Model) tokens(rows [][]int64) ([]oip.Tensor, error) {
	longest := 0
	for _, r := range rows {
		longest = max(longest, len(r))
	}
	if n := m.ids.Shape[1]; n > 0 {
		if int64(longest) > n {
			return nil, invalid("an input has %d tokens, and the model takes %d", longest, n)
		}
		longest = int(n)
	}
	ids, mask := make([]int64, len(rows)*longest), make([]int64, len(rows)*longest)
	for i, r := range rows {
		if m.mask == nil && len(r) != longest {
			return nil, invalid("the inputs have different numbers of tokens, and the model has no attention_mask: ask for one at a time")
		}
		copy(ids[i*longest:], r)
		for j := range r {
			mask[i*longest+j] = 1
		}
	}
	var out []oip.Tensor
	for _, in := range []struct {
		meta *oip.TensorMetadata
		data []int64
	}{{m.ids, ids}, {m.mask, mask}, {m.types, make([]int64, len(ids))}} {
		if in.meta == nil {
			continue
		}
		t := oip.Tensor{Name: in.meta.Name, Datatype: in.meta.Datatype, Shape: []int64{int64(len(rows)), int64(longest)}, Data: in.data}
		if in.meta.Datatype == oip.Int32 {
			small := make([]int32, len(in.data))
			for i, v := range in.data {
				small[i] = int32(v) //nolint:gosec // readTokens bounds it
			}
			t.Data = small
		}
		out = append(out, t)
	}
	return out, nil
}

// pick finds the output that answers: the declared one, one of the names that engines use, or the
// only one of its kind.
func (m *Model) pick(outputs []oip.Tensor, of func(*oip.Tensor) bool, names ...string) (*oip.Tensor, error) {
	var fit []*oip.Tensor
	for i := range outputs {
		switch {
		case m.Output == outputs[i].Name:
			return &outputs[i], nil
		case m.Output == "" && of(&outputs[i]):
			fit = append(fit, &outputs[i])
		}
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	for _, name := range names {
		for _, t := range fit {
			if t.Name == name {
				return t, nil
			}
		}
	}
	words := make([]string, 0, len(outputs))
	for i := range outputs {
		words = append(words, tell(outputs[i].Name, outputs[i].Datatype, outputs[i].Shape))
	}
	return nil, unsupported("the model's outputs (%s) don't tell which one answers: declare it with output=<name> in the annotation %s", strings.Join(words, ", "), Annotation)
}
