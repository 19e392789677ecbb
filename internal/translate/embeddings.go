package translate

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Embeddings is a request of OpenAI's embeddings for a model of tensors.
type Embeddings struct {
	model      string
	texts      [][]byte
	tokens     [][]int64
	base64     bool
	dimensions int
	m          *Model
}

// NewEmbeddings reads a request's body. Errors are ErrInvalid, and ErrUnsupported for a model that
// does something else.
func NewEmbeddings(body []byte, m *Model) (*Embeddings, error) {
	r := &Embeddings{m: m}
	err := members(body, func(s *jsonscan.Scanner, key string) (bool, error) {
		switch key {
		case "model":
			name, err := readText(s, key)
			r.model = string(name)
			return true, err
		case "input":
			return true, r.readInput(s)
		case "encoding_format":
			format, err := readText(s, key)
			if r.base64 = string(format) == "base64"; err == nil && !r.base64 && string(format) != "float" {
				err = invalid("encoding_format is float or base64, not %q", format)
			}
			return true, err
		case "dimensions":
			n, err := s.Int(1, math.MaxInt32)
			r.dimensions = int(n)
			return true, err
		}
		return some(s, key, "user")
	})
	switch {
	case err != nil:
		return nil, err
	case r.texts == nil && r.tokens == nil:
		return nil, invalid(`the body has no "input"`)
	case r.dimensions > 0 && !m.Truncate:
		return nil, invalid("dimensions can't be asked for: the model makes vectors of one size; where their first parts may stand for them, declare dimensions=truncate in the annotation %s", Annotation)
	case r.texts != nil && m.text == "":
		return nil, invalid("the model takes token ids, not texts: send input as lists of ids, or put a transformer that tokenizes in front of it")
	case r.tokens != nil && m.text != "":
		return nil, invalid("the model takes texts, not token ids: send input as texts")
	case m.pair != "" || m.pairs:
		return nil, unsupported("the model takes pairs of texts: ask it for rerank or score")
	}
	return r, nil
}

func (r *Embeddings) readInput(s *jsonscan.Scanner) error {
	if s.Peek() != '[' {
		var err error
		r.texts, err = readTexts(s, "input")
		return err
	}
	var one []int64
	err := s.Array(func(int) error {
		switch c := s.Peek(); {
		case c == '"' && r.tokens == nil && one == nil:
			text, err := s.String()
			r.texts = append(r.texts, text)
			return err
		case c == '[' && r.texts == nil && one == nil:
			row := []int64{}
			err := s.Array(func(int) error {
				id, err := s.Int(0, math.MaxInt32)
				row = append(row, id)
				return err
			})
			r.tokens = append(r.tokens, row)
			return err
		case c >= '0' && c <= '9' && r.texts == nil && r.tokens == nil:
			id, err := s.Int(0, math.MaxInt32)
			one = append(one, id)
			return err
		}
		return invalid("input must be a text, a list of texts, token ids, or a list of lists of them")
	})
	if one != nil {
		r.tokens = [][]int64{one}
	}
	if err == nil && r.texts == nil && r.tokens == nil {
		err = invalid("input is empty")
	}
	return err
}

// Infer is the request for the model.
func (r *Embeddings) Infer() (*oip.InferRequest, error) {
	if r.texts != nil {
		return &oip.InferRequest{Inputs: []oip.Tensor{r.m.texts(r.m.text, r.texts)}, Outputs: r.m.wanted()}, nil
	}
	inputs, err := r.m.tokens(r.tokens)
	return &oip.InferRequest{Inputs: inputs, Outputs: r.m.wanted()}, err
}

// wanted asks for the declared output alone.
func (m *Model) wanted() []oip.RequestedOutput {
	if m.Output == "" {
		return nil
	}
	return []oip.RequestedOutput{{Name: m.Output}}
}

// Answer is the body for the client.
func (r *Embeddings) Answer(out *oip.InferResponse) ([]byte, error) {
	n, used := len(r.texts), 0
	var lengths []int
	if r.tokens != nil {
		n, lengths = len(r.tokens), make([]int, len(r.tokens))
		for i, t := range r.tokens {
			lengths[i] = len(t)
			used += len(t)
		}
	}
	v, err := r.m.embeddings(out.Outputs, n, lengths)
	if err != nil {
		return nil, err
	}
	width := v.width
	if r.dimensions > 0 {
		if r.dimensions > width {
			return nil, invalid("dimensions is %d, and the model's vectors have %d", r.dimensions, width)
		}
		width = r.dimensions
	}
	each := 13 * width // digits of a float32 with its comma
	if r.base64 {
		each = base64.StdEncoding.EncodedLen(4 * width)
	}
	dst := make([]byte, 0, 128+len(r.model)+n*(each+64))
	dst = append(dst, `{"object":"list","data":[`...)
	var raw []byte
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"object":"embedding","index":`...)
		dst = append(appendInt(dst, i), `,"embedding":`...)
		if r.base64 && width == v.width {
			raw = v.appendRaw(raw[:0], i)
			dst = append(base64.StdEncoding.AppendEncode(append(dst, '"'), raw), '"', '}')
			continue
		}
		row := v.row(i)[:width]
		if width < v.width {
			row = append([]float32(nil), row...)
			unit(row)
		}
		if r.base64 {
			raw = appendRaw(raw[:0], row)
			dst = append(base64.StdEncoding.AppendEncode(append(dst, '"'), raw), '"', '}')
			continue
		}
		dst = append(jsonscan.AppendFloats(dst, row), '}')
	}
	dst = jsonscan.AppendString(append(dst, `],"model":`...), []byte(r.model))
	return append(appendUsage(append(dst, ','), used), '}'), nil
}

func appendRaw(dst []byte, row []float32) []byte {
	for _, f := range row {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(f))
	}
	return dst
}

func appendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

// The tensors of a language engine as V2 shows it.
const (
	textInput       = "text_input"
	textOutput      = "text_output"
	finishReason    = "finish_reason"
	embeddingOutput = "embedding"
)

// embed is a V2 request of texts for OpenAI's embeddings.
type embed struct {
	texts [][]byte
}

func (embed) Path() string { return "/v1/embeddings" }

func (r embed) Body(model string) []byte {
	dst := jsonscan.AppendString([]byte(`{"model":`), []byte(model))
	dst = append(dst, `,"encoding_format":"float","input":[`...)
	for i, text := range r.texts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonscan.AppendString(dst, text)
	}
	return append(dst, "]}"...)
}

func (r embed) Answer(body []byte) (*oip.InferResponse, error) {
	rows := make([][]float32, len(r.texts))
	width, seen := -1, 0
	err := object(body, map[string]func(*jsonscan.Scanner) error{"data": func(s *jsonscan.Scanner) error {
		return s.Array(func(i int) error {
			index := int64(i)
			var row []float32
			err := inner(s, map[string]func(*jsonscan.Scanner) error{
				"index": func(s *jsonscan.Scanner) (err error) {
					index, err = s.Int(0, int64(len(rows))-1)
					return err
				},
				"embedding": func(s *jsonscan.Scanner) error {
					if s.Peek() == '"' {
						return readBase64(s, &row)
					}
					row = make([]float32, 0, max(width, 0))
					return s.Array(func(int) error {
						f, err := s.Float32()
						row = append(row, f)
						return err
					})
				},
			})
			switch {
			case err != nil:
				return err
			case index >= int64(len(rows)) || rows[index] != nil:
				return invalid("data[%d] has an index out of place", i)
			case row == nil || width >= 0 && len(row) != width:
				return invalid("data[%d] has no vector of %d numbers", i, width)
			}
			rows[index], width = row, len(row)
			seen++
			return nil
		})
	}})
	if err == nil && seen != len(rows) {
		err = invalid("there are %d vectors for %d texts", seen, len(rows))
	}
	if err != nil {
		return nil, Broken(err)
	}
	all := make([]float32, 0, len(rows)*width)
	for _, row := range rows {
		all = append(all, row...)
	}
	return &oip.InferResponse{Outputs: []oip.Tensor{{
		Name: embeddingOutput, Datatype: oip.FP32, Shape: []int64{int64(len(rows)), int64(width)}, Data: all,
	}}}, nil
}

func readBase64(s *jsonscan.Scanner, row *[]float32) error {
	text, err := s.String()
	if err != nil {
		return err
	}
	raw, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(raw)%4 != 0 {
		return invalid("the vector isn't base64 of float32")
	}
	*row = make([]float32, len(raw)/4)
	for i := range *row {
		(*row)[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return nil
}

// object reads those members of an engine's answer that are asked for, and passes over the rest.
func object(body []byte, fields map[string]func(*jsonscan.Scanner) error) error {
	s := jsonscan.New(body)
	if err := inner(s, fields); err != nil {
		return err
	}
	return s.End()
}

// inner is object within a text.
func inner(s *jsonscan.Scanner, fields map[string]func(*jsonscan.Scanner) error) error {
	return s.Object(func(key []byte) error {
		read := fields[string(key)]
		if read == nil || s.Peek() == 'n' {
			_, err := s.Skip()
			return err
		}
		return read(s)
	})
}
