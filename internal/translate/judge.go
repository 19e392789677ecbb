package translate

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// The tensors of a model that compares or classifies texts, as V2 shows it.
const (
	scoresOutput        = "scores"
	labelsOutput        = "labels"
	probabilitiesOutput = "probabilities"
)

// The dialects of Settings: how an engine that speaks OpenAI is asked for rerank, score and classify, which
// OpenAI itself doesn't have. The zero one has them under /v1.
const (
	// DialectVLLM has classify as /classify.
	DialectVLLM = "vllm"
	// DialectTEI has rerank and predict, in shapes of its own and beside /v1.
	DialectTEI = "tei"
)

// Path is where an engine of these settings has a path of the OpenAI API, after its root.
func (s Settings) Path(path string) string {
	if s.Dialect == DialectVLLM && path == "/v1/classify" {
		return "/classify"
	}
	return path
}

// compare is a V2 request of pairs of texts for an engine that reranks or scores.
type compare struct {
	task, dialect string
	// one is the first text of all pairs, nil where they differ; a and b are the texts of each.
	one  []byte
	a, b [][]byte
}

// newCompare reads a request: two inputs of texts, or one of pairs. Errors are ErrInvalid.
func newCompare(r *oip.InferRequest, s Settings) (*compare, error) {
	c := &compare{task: s.Task, dialect: s.Dialect}
	err := noMore(r, scoresOutput)
	switch {
	case err != nil:
	case len(r.Inputs) == 1 && s.Pair == "":
		err = c.rows(&r.Inputs[0], s.Text)
	case len(r.Inputs) == 2:
		err = c.columns(&r.Inputs[0], &r.Inputs[1], s)
	default:
		err = invalid("the request has %d inputs: give two of texts (BYTES), %s, or one of pairs, as [n, 2]", len(r.Inputs), describe(pairInputs(s)))
	}
	if err != nil {
		return nil, err
	}
	c.one = c.a[0]
	for _, text := range c.a {
		if string(text) != string(c.one) {
			c.one = nil
			break
		}
	}
	if c.one == nil && (s.Task == TaskRerank || s.Dialect == DialectTEI) {
		return nil, invalid("the model's engine compares one text with others at a time: the first texts of the pairs must be the same")
	}
	return c, nil
}

func (c *compare) rows(t *oip.Tensor, declared string) error {
	if declared != "" && t.Name != declared {
		return invalid("there is no input %q: the model takes %s", t.Name, declared)
	}
	if len(t.Shape) != 2 || t.Shape[1] != 2 {
		return invalid("input %q has the shape %v: give pairs of texts as [n, 2], or two inputs", t.Name, t.Shape)
	}
	both, err := textsOf(t)
	if err != nil {
		return err
	}
	for i := 0; i < len(both); i += 2 {
		c.a, c.b = append(c.a, both[i]), append(c.b, both[i+1])
	}
	return nil
}

func (c *compare) columns(first, second *oip.Tensor, s Settings) (err error) {
	if s.Text != "" {
		if second.Name == s.Text {
			first, second = second, first
		}
		if first.Name != s.Text || s.Pair != "" && second.Name != s.Pair {
			return invalid("the model takes %s, not %s and %s", describe(pairInputs(s)), first.Name, second.Name)
		}
	} else if isFirst(second.Name) {
		first, second = second, first
	}
	if c.a, err = readTensor(first); err == nil {
		c.b, err = readTensor(second)
	}
	if err == nil && len(c.a) != len(c.b) {
		err = invalid("input %q has %d texts and input %q has %d: each pair needs both", first.Name, len(c.a), second.Name, len(c.b))
	}
	return err
}

// noMore refuses parameters, and outputs other than these.
func noMore(r *oip.InferRequest, outputs ...string) error {
	for _, o := range r.Outputs {
		if !slices.Contains(outputs, o.Name) {
			return invalid("there is no output %q: the model has %s", o.Name, strings.Join(outputs, " and "))
		}
	}
	if len(r.Parameters) > 0 {
		return invalid("the parameter %q has no counterpart in what the model's engine is asked", sorted(r.Parameters)[0])
	}
	return nil
}

func (c *compare) Path() string {
	switch {
	case c.dialect == DialectTEI:
		return "/rerank"
	case c.task == TaskRerank:
		return "/v1/rerank"
	}
	return "/v1/score"
}

func (c *compare) Body(model string) []byte {
	if c.dialect == DialectTEI {
		dst := jsonscan.AppendString([]byte(`{"query":`), c.one)
		return append(appendTexts(append(dst, `,"texts":`...), c.b), '}')
	}
	dst := jsonscan.AppendString([]byte(`{"model":`), []byte(model))
	first, second := `,"text_1":`, `,"text_2":`
	if c.task == TaskRerank {
		first, second = `,"query":`, `,"documents":`
	}
	if dst = append(dst, first...); c.one != nil {
		dst = jsonscan.AppendString(dst, c.one)
	} else {
		dst = appendTexts(dst, c.a)
	}
	return append(appendTexts(append(dst, second...), c.b), '}')
}

// Answer puts scores in the order of the pairs, in whichever order the engine tells them.
func (c *compare) Answer(body []byte) (*oip.InferResponse, error) {
	scores, found := make([]float32, len(c.b)), make([]bool, len(c.b))
	err := list(body, []string{"results", "data"}, func(s *jsonscan.Scanner, i int) error {
		index, told := int64(i), false
		var score float32
		read := func(s *jsonscan.Scanner) (err error) {
			score, err = s.Float32()
			told = true
			return err
		}
		err := inner(s, map[string]func(*jsonscan.Scanner) error{
			"index": func(s *jsonscan.Scanner) (err error) {
				index, err = s.Int(0, int64(len(scores))-1)
				return err
			},
			"score": read, "relevance_score": read,
		})
		switch {
		case err != nil:
			return err
		case !told:
			return invalid("entry %d has no score", i)
		case index >= int64(len(scores)) || found[index]:
			return invalid("entry %d has an index out of place", i)
		}
		scores[index], found[index] = score, true
		return nil
	})
	if err == nil {
		if i := slices.Index(found, false); i >= 0 {
			err = invalid("there is no score for the pair %d", i)
		}
	}
	if err != nil {
		return nil, Broken(err)
	}
	return &oip.InferResponse{Outputs: []oip.Tensor{{
		Name: scoresOutput, Datatype: oip.FP32, Shape: []int64{int64(len(scores))}, Data: scores,
	}}}, nil
}

// list reads the entries of a list, or of the first of an object's members that is there.
func list(body []byte, members []string, entry func(s *jsonscan.Scanner, i int) error) error {
	s := jsonscan.New(body)
	read := func(s *jsonscan.Scanner) error {
		return s.Array(func(i int) error { return entry(s, i) })
	}
	var err error
	if s.Peek() == '[' {
		err = read(s)
	} else {
		fields := map[string]func(*jsonscan.Scanner) error{}
		for _, m := range members {
			fields[m] = read
		}
		err = inner(s, fields)
	}
	if err != nil {
		return err
	}
	return s.End()
}

// classify is a V2 request of texts for an engine that says what kind each is of.
type classify struct {
	texts   [][]byte
	dialect string
	labels  []string
	asked   *oip.InferRequest
}

func newClassify(r *oip.InferRequest, s Settings) (*classify, error) {
	c := &classify{dialect: s.Dialect, labels: s.Labels, asked: r}
	err := noMore(r, labelsOutput, probabilitiesOutput)
	if err == nil {
		c.texts, err = oneInput(r, s.Text)
	}
	return c, err
}

// oneInput reads the one input of texts, text_input or as it is declared.
func oneInput(r *oip.InferRequest, declared string) ([][]byte, error) {
	if len(r.Inputs) != 1 || r.Inputs[0].Name != textInput && r.Inputs[0].Name != declared {
		return nil, invalid("the model takes one input, %s", textInput)
	}
	return readTensor(&r.Inputs[0])
}

func (c *classify) Path() string {
	if c.dialect == DialectTEI {
		return "/predict"
	}
	return Settings{Dialect: c.dialect}.Path("/v1/classify")
}

func (c *classify) Body(model string) []byte {
	if c.dialect == DialectTEI { // each input is a list of one text; of two it were a pair
		dst := []byte(`{"inputs":[`)
		for i, text := range c.texts {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(jsonscan.AppendString(append(dst, '['), text), ']')
		}
		return append(dst, "]}"...)
	}
	dst := jsonscan.AppendString([]byte(`{"model":`), []byte(model))
	return append(appendTexts(append(dst, `,"input":`...), c.texts), '}')
}

// class is what an engine says of one text: the label of the best class, nil where it has none, and the
// probabilities of all, whose names are of the same length, or nil.
type class struct {
	label []byte
	probs []float32
	names []string
	found bool
}

func (c *classify) Answer(body []byte) (*oip.InferResponse, error) {
	rows := make([]class, len(c.texts))
	err := list(body, []string{"data"}, func(s *jsonscan.Scanner, i int) error {
		index, row, err := readClass(s, int64(i))
		switch {
		case err != nil:
			return err
		case index >= int64(len(rows)) || rows[index].found:
			return invalid("entry %d has an index out of place", i)
		}
		rows[index] = row
		return nil
	})
	for i := range rows {
		if err == nil && (!rows[i].found || len(rows[i].probs) != len(rows[0].probs)) {
			err = invalid("there are no %d probabilities for the text %d", len(rows[0].probs), i)
		}
	}
	if err == nil && rows[0].names != nil {
		err = c.inOrder(rows)
	}
	if err != nil {
		return nil, Broken(err)
	}
	return c.tensors(rows)
}

// readClass reads what is said of one text: an object as vLLM has it, or a list of classes with their
// scores, the best first or not.
func readClass(s *jsonscan.Scanner, at int64) (int64, class, error) {
	row := class{found: true}
	if s.Peek() != '[' {
		err := inner(s, map[string]func(*jsonscan.Scanner) error{
			"index": func(s *jsonscan.Scanner) (err error) { at, err = s.Int(0, math.MaxInt32); return err },
			"label": func(s *jsonscan.Scanner) (err error) { row.label, err = s.String(); return err },
			"probs": func(s *jsonscan.Scanner) error {
				return s.Array(func(int) error {
					p, err := s.Float32()
					row.probs = append(row.probs, p)
					return err
				})
			},
		})
		return at, row, err
	}
	row.names = []string{}
	err := s.Array(func(int) error {
		var name []byte
		score := float32(math.NaN())
		err := inner(s, map[string]func(*jsonscan.Scanner) error{
			"label": func(s *jsonscan.Scanner) (err error) { name, err = s.String(); return err },
			"score": func(s *jsonscan.Scanner) (err error) { score, err = s.Float32(); return err },
		})
		if err == nil && (name == nil || score != score) {
			err = invalid("a class has no label or no score")
		}
		row.names, row.probs = append(row.names, string(name)), append(row.probs, score)
		return err
	})
	if len(row.probs) > 0 {
		row.label = []byte(row.names[best(row.probs)])
	}
	return at, row, err
}

// inOrder gives each row's probabilities one order: of the labels that are declared, else of their names,
// in which LABEL_2 comes before LABEL_10.
func (c *classify) inOrder(rows []class) error {
	order := c.labels
	if order == nil {
		order = slices.Clone(rows[0].names)
		slices.SortFunc(order, byNumber)
	}
	for i := range rows {
		row := &rows[i]
		probs := make([]float32, 0, len(order))
		for _, name := range order {
			at := slices.Index(row.names, name)
			if at < 0 {
				return invalid("there is no class %q for the text %d", name, i)
			}
			probs = append(probs, row.probs[at])
		}
		if len(probs) != len(row.probs) {
			return invalid("there are %d classes for the text %d, and %d were expected", len(row.probs), i, len(probs))
		}
		row.probs = probs
	}
	return nil
}

func byNumber(a, b string) int {
	const prefix = "LABEL_"
	i, err := strconv.Atoi(strings.TrimPrefix(a, prefix))
	j, err2 := strconv.Atoi(strings.TrimPrefix(b, prefix))
	if err == nil && err2 == nil {
		return i - j
	}
	return strings.Compare(a, b)
}

// tensors are those that were asked for, or all that there are.
func (c *classify) tensors(rows []class) (*oip.InferResponse, error) {
	n, width := int64(len(rows)), len(rows[0].probs)
	labels, probs := make([][]byte, 0, n), make([]float32, 0, len(rows)*width)
	for i := range rows {
		if rows[i].label != nil {
			labels = append(labels, rows[i].label)
		}
		probs = append(probs, rows[i].probs...)
	}
	there := []oip.Tensor{}
	if int64(len(labels)) == n {
		there = append(there, oip.Tensor{Name: labelsOutput, Datatype: oip.Bytes, Shape: []int64{n}, Data: labels})
	}
	if width > 0 {
		there = append(there, oip.Tensor{Name: probabilitiesOutput, Datatype: oip.FP32, Shape: []int64{n, int64(width)}, Data: probs})
	}
	out := &oip.InferResponse{Outputs: there}
	if len(c.asked.Outputs) == 0 && len(there) > 0 {
		return out, nil
	}
	out.Outputs = nil
	for _, o := range c.asked.Outputs {
		i := slices.IndexFunc(there, func(t oip.Tensor) bool { return t.Name == o.Name })
		if i < 0 {
			return nil, Broken(invalid("it tells no %s", o.Name))
		}
		out.Outputs = append(out.Outputs, there[i])
	}
	if len(out.Outputs) == 0 {
		return nil, Broken(invalid("it tells no classes"))
	}
	return out, nil
}

// pairInputs are the inputs of a model that compares texts.
func pairInputs(s Settings) []oip.TensorMetadata {
	first, second := "query", "document"
	if s.Task == TaskScore {
		first, second = "text_1", "text_2"
	}
	text := func(name string, shape ...int64) oip.TensorMetadata {
		return oip.TensorMetadata{Name: name, Datatype: oip.Bytes, Shape: shape}
	}
	switch {
	case s.Text != "" && s.Pair == "":
		return []oip.TensorMetadata{text(s.Text, -1, 2)}
	case s.Text != "":
		first, second = s.Text, s.Pair
	}
	return []oip.TensorMetadata{text(first, -1), text(second, -1)}
}

// NewByOwnPath reads a request of OpenAI's extensions (path is /v1/rerank, /v1/score or /v1/classify) for an
// engine that has them in a dialect. It returns nil for any other path, and for a dialect of the same shapes.
// What makes the client's answer of the engine's is the second value. Errors are those of NewEmbeddings.
func NewByOwnPath(path string, body []byte, s Settings, origin Origin) (ToOpenAI, func(*oip.InferResponse) ([]byte, error), error) {
	task := strings.TrimPrefix(path, "/v1/")
	if s.Dialect != DialectTEI || !slices.Contains([]string{TaskRerank, TaskScore, TaskClassify}, task) {
		return nil, nil, nil
	}
	own := Settings{Task: task, Dialect: s.Dialect, Labels: s.Labels}
	m, err := NewModel(LanguageMetadata("", own), Settings{Labels: s.Labels})
	if err != nil {
		return nil, nil, err
	}
	var r interface {
		Infer() (*oip.InferRequest, error)
		Answer(*oip.InferResponse) ([]byte, error)
	}
	switch task {
	case TaskRerank:
		r, err = NewRerank(body, m, origin)
	case TaskScore:
		r, err = NewScore(body, m, origin)
	default:
		r, err = NewClassify(body, m, origin)
	}
	if err != nil {
		return nil, nil, err
	}
	infer, err := r.Infer()
	if err != nil {
		return nil, nil, err
	}
	to, err := NewToOpenAI(infer, own)
	return to, r.Answer, err
}
