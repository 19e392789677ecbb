package translate

import (
	"cmp"
	"math"
	"slices"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Origin is what an answer says of itself: its identifier, and when it was made in Unix seconds.
type Origin struct {
	ID      string
	Created int64
}

// pairs are texts to be compared, a[i] with b[i], or a[0] with each.
type pairs struct {
	m     *Model
	model string
	a, b  [][]byte
}

func (p *pairs) first(i int) []byte {
	if len(p.a) == 1 {
		return p.a[0]
	}
	return p.a[i]
}

func (p *pairs) check() error {
	switch {
	case p.m.text == "":
		return unsupported("the model takes token ids, not texts: put a transformer that tokenizes in front of it")
	case len(p.a) != 1 && len(p.a) != len(p.b):
		return invalid("%d texts can't be compared with %d: give one, or as many", len(p.a), len(p.b))
	}
	return nil
}

// Infer asks a model of pairs for their scores, and any other for vectors.
func (p *pairs) Infer() (*oip.InferRequest, error) {
	r := &oip.InferRequest{Outputs: p.m.wanted()}
	switch {
	case p.m.pair != "":
		firsts := make([][]byte, len(p.b))
		for i := range firsts {
			firsts[i] = p.first(i)
		}
		r.Inputs = []oip.Tensor{p.m.texts(p.m.text, firsts), p.m.texts(p.m.pair, p.b)}
	case p.m.pairs:
		both := make([][]byte, 0, 2*len(p.b))
		for i, b := range p.b {
			both = append(both, p.first(i), b)
		}
		r.Inputs = []oip.Tensor{{Name: p.m.text, Datatype: oip.Bytes, Shape: []int64{int64(len(p.b)), 2}, Data: both}}
	default:
		r.Inputs = []oip.Tensor{p.m.texts(p.m.text, append(slices.Clone(p.a), p.b...))}
	}
	return r, nil
}

// scores are those of the pairs: the model's, or how alike their vectors are.
func (p *pairs) scores(out *oip.InferResponse) ([]float64, error) {
	scores := make([]float64, len(p.b))
	if p.m.pair == "" && !p.m.pairs {
		v, err := p.m.embeddings(out.Outputs, len(p.a)+len(p.b), nil)
		if err != nil {
			return nil, err
		}
		for i := range scores {
			a := 0
			if len(p.a) > 1 {
				a = i
			}
			scores[i] = cosine(v.row(a), v.row(len(p.a)+i))
		}
		return scores, nil
	}
	t, err := p.m.pick(out.Outputs, func(t *oip.Tensor) bool { return float(t.Datatype) }, "scores", "score", "relevance_score", "logits")
	if err != nil {
		return nil, err
	}
	values, err := floats(t)
	if err == nil && len(values) != len(scores) {
		err = invalid("output %q has the shape %v for %d pairs", t.Name, t.Shape, len(scores))
	}
	if err != nil {
		return nil, Broken(err)
	}
	for i, f := range values {
		scores[i] = float64(f)
	}
	return scores, nil
}

// Rerank is a request to sort documents by how well they answer a query.
type Rerank struct {
	pairs
	origin  Origin
	top     int
	without bool
}

// NewRerank reads a request's body. Errors are those of NewEmbeddings.
func NewRerank(body []byte, m *Model, origin Origin) (*Rerank, error) {
	r := &Rerank{pairs: pairs{m: m}, origin: origin, top: math.MaxInt32}
	err := members(body, func(s *jsonscan.Scanner, key string) (bool, error) {
		switch key {
		case "model":
			name, err := readText(s, key)
			r.model = string(name)
			return true, err
		case "query":
			query, err := readText(s, key)
			r.a = [][]byte{query}
			return true, err
		case "documents":
			return true, s.Array(func(int) error {
				if s.Peek() != '{' {
					text, err := readText(s, key)
					r.b = append(r.b, text)
					return err
				}
				var text []byte
				err := s.Object(func(k []byte) (err error) {
					if string(k) != "text" {
						return invalid("documents are texts, or objects with nothing but a text")
					}
					text, err = readText(s, "documents")
					return err
				})
				r.b = append(r.b, text)
				return err
			})
		case "top_n":
			n, err := s.Int(0, math.MaxInt32)
			if n > 0 {
				r.top = int(n)
			}
			return true, err
		case "return_documents":
			with, err := readBool(s, key)
			r.without = !with
			return true, err
		}
		return some(s, key, "user")
	})
	switch {
	case err != nil:
		return nil, err
	case r.a == nil || len(r.b) == 0:
		return nil, invalid(`the body needs a "query" and at least one of "documents"`)
	}
	return r, r.check()
}

// Answer is the body for the client.
func (r *Rerank) Answer(out *oip.InferResponse) ([]byte, error) {
	scores, err := r.scores(out)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	dst := jsonscan.AppendString([]byte(`{"id":`), []byte("rerank-"+r.origin.ID))
	dst = jsonscan.AppendString(append(dst, `,"model":`...), []byte(r.model))
	dst = append(dst, `,"results":[`...)
	for n, i := range order[:min(r.top, len(order))] {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, `{"index":`...), i)
		if !r.without {
			dst = jsonscan.AppendString(append(dst, `,"document":{"text":`...), r.b[i])
			dst = append(dst, '}')
		}
		dst = jsonscan.AppendFloat(append(dst, `,"relevance_score":`...), scores[i], 64)
		dst = append(dst, '}')
	}
	return append(appendUsage(append(dst, "],"...), 0), '}'), nil
}

// Score is a request to compare texts.
type Score struct {
	pairs
	origin Origin
}

// NewScore reads a request's body. Errors are those of NewEmbeddings.
func NewScore(body []byte, m *Model, origin Origin) (*Score, error) {
	r := &Score{pairs: pairs{m: m}, origin: origin}
	err := members(body, func(s *jsonscan.Scanner, key string) (_ bool, err error) {
		switch key {
		case "model":
			name, err := readText(s, key)
			r.model = string(name)
			return true, err
		case "text_1", "queries":
			if r.a != nil {
				return true, invalid("text_1 and queries are the same: give one")
			}
			r.a, err = readTexts(s, key)
			return true, err
		case "text_2", "documents":
			if r.b != nil {
				return true, invalid("text_2 and documents are the same: give one")
			}
			r.b, err = readTexts(s, key)
			return true, err
		}
		return some(s, key, "user")
	})
	switch {
	case err != nil:
		return nil, err
	case r.a == nil || r.b == nil:
		return nil, invalid(`the body needs "text_1" and "text_2"`)
	}
	return r, r.check()
}

// Answer is the body for the client.
func (r *Score) Answer(out *oip.InferResponse) ([]byte, error) {
	scores, err := r.scores(out)
	if err != nil {
		return nil, err
	}
	dst := r.origin.head("score-", r.model)
	for i, score := range scores {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, `{"index":`...), i)
		dst = jsonscan.AppendFloat(append(dst, `,"object":"score","score":`...), score, 64)
		dst = append(dst, '}')
	}
	return append(appendUsage(append(dst, "],"...), 0), '}'), nil
}

// head is the beginning of a list up to its data.
func (o Origin) head(prefix, model string) []byte {
	dst := jsonscan.AppendString([]byte(`{"id":`), []byte(prefix+o.ID))
	dst = appendInt(append(dst, `,"object":"list","created":`...), int(o.Created))
	dst = jsonscan.AppendString(append(dst, `,"model":`...), []byte(model))
	return append(dst, `,"data":[`...)
}
