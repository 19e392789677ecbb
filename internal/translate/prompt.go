package translate

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// prompt is what a V2 client asks of a language engine: one text or more, and how to go on from them.
type prompt struct {
	texts [][]byte
	chat  bool
	// members are the request's members beside the prompt, as JSON.
	members []member
}

type member struct {
	key  string
	json []byte
}

// notCarried are members whose answers a text can't hold, or that belong to the translation.
var notCarried = []string{"model", "prompt", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs", "tools", "tool_choice", "functions", "function_call", "modalities", "audio"}

func (p *prompt) add(key string, json []byte) error {
	if slices.Contains(notCarried, key) {
		return invalid("the parameter %q has no place in V2's answers: leave it out, or ask over the OpenAI API", key)
	}
	if slices.ContainsFunc(p.members, func(m member) bool { return m.key == key }) {
		return invalid("the parameter %q comes twice", key)
	}
	p.members = append(p.members, member{key, json})
	return nil
}

func (p *prompt) has(key string) bool {
	return slices.ContainsFunc(p.members, func(m member) bool { return m.key == key })
}

// Path is where the engine is asked, after its root.
func (p *prompt) Path() string {
	if p.chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// body is the engine's request; several prompts are one batch.
func (p *prompt) body(model string, stream bool) []byte {
	dst := jsonscan.AppendString([]byte(`{"model":`), []byte(model))
	switch {
	case p.chat:
		dst = jsonscan.AppendString(append(dst, `,"messages":[{"role":"user","content":`...), p.texts[0])
		dst = append(dst, "}]"...)
	case len(p.texts) == 1:
		dst = jsonscan.AppendString(append(dst, `,"prompt":`...), p.texts[0])
	default:
		dst = append(dst, `,"prompt":[`...)
		for i, text := range p.texts {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = jsonscan.AppendString(dst, text)
		}
		dst = append(dst, ']')
	}
	for _, m := range p.members {
		dst = m.append(append(dst, ','))
	}
	if stream {
		dst = append(dst, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	return append(dst, '}')
}

// completion is what an engine made of a prompt.
type completion struct {
	text, finish []byte
	found        bool
}

// usage is how many tokens an engine told; meaningful where told.
type usage struct {
	prompt, completion int64
	told               bool
}

// readCompletions reads an answer for n prompts. llama.cpp answers a batch with a list of answers, the
// other engines with one answer of several choices.
func readCompletions(body []byte, n int) ([]completion, usage, error) {
	out := make([]completion, n)
	var used usage
	if first := bytes.TrimLeft(body, " \t\r\n"); len(first) == 0 || first[0] != '[' {
		_, err := readChoices(body, &used, func(index int64, c completion) error { return place(out, index, c) })
		return out, used, whole(out, err)
	}
	s := jsonscan.New(body)
	err := s.Array(func(i int) error {
		one, err := s.Skip()
		if err == nil {
			_, err = readChoices(one, &used, func(_ int64, c completion) error { return place(out, int64(i), c) })
		}
		return err
	})
	if err == nil {
		err = s.End()
	}
	return out, used, whole(out, err)
}

func place(out []completion, index int64, c completion) error {
	if index >= int64(len(out)) || out[index].found {
		return invalid("there is a choice %d more than was asked for", index)
	}
	out[index] = c
	return nil
}

func whole(out []completion, err error) error {
	for i := range out {
		if err == nil && !out[i].found {
			err = invalid("there is no choice for the prompt %d", i)
		}
	}
	return err
}

// readChoices reads one answer or one chunk: of text completions, of chat, or of a chat's stream. It
// returns an error's message where it is one.
func readChoices(body []byte, used *usage, choice func(index int64, c completion) error) (failed []byte, err error) {
	s := jsonscan.New(body)
	err = s.Object(func(key []byte) (err error) {
		switch c := s.Peek(); {
		case c == 'n':
		case string(key) == "error":
			if c != '{' {
				failed, err = s.Skip()
				return err
			}
			failed = []byte("the engine failed")
			return inner(s, map[string]func(*jsonscan.Scanner) error{"message": func(s *jsonscan.Scanner) (err error) {
				failed, err = s.String()
				return err
			}})
		case string(key) == "usage":
			return used.read(s)
		case string(key) == "choices":
			return s.Array(func(int) error {
				c := completion{found: true}
				index, err := c.read(s)
				if err != nil {
					return err
				}
				return choice(index, c)
			})
		}
		_, err = s.Skip()
		return err
	})
	if err != nil {
		return failed, err
	}
	return failed, s.End()
}

// read reads a choice and its index.
func (c *completion) read(s *jsonscan.Scanner) (index int64, err error) {
	err = s.Object(func(key []byte) (err error) {
		switch s.Peek() {
		case 'n':
		case '"':
			switch string(key) {
			case "text":
				c.text, err = s.String()
				return err
			case "finish_reason":
				c.finish, err = s.String()
				return err
			}
		case '{':
			if string(key) == "message" || string(key) == "delta" {
				return s.Object(func(key []byte) (err error) {
					if string(key) == "content" && s.Peek() != 'n' {
						c.text, err = s.String()
						return err
					}
					_, err = s.Skip()
					return err
				})
			}
		default:
			switch string(key) {
			case "index":
				index, err = s.Int(0, math.MaxInt32)
				return err
			case "text", "finish_reason":
				return invalid("a choice's %s is no text", key)
			}
		}
		_, err = s.Skip()
		return err
	})
	return index, err
}

// read adds what an answer tells.
func (u *usage) read(s *jsonscan.Scanner) error {
	return s.Object(func(key []byte) error {
		to := &u.prompt
		switch {
		case s.Peek() == 'n':
			to = nil
		case string(key) == "completion_tokens":
			to = &u.completion
		case string(key) != "prompt_tokens":
			to = nil
		}
		if to == nil {
			_, err := s.Skip()
			return err
		}
		n, err := s.Int(0, 1<<53)
		*to, u.told = *to+n, true
		return err
	})
}

// Prompts are a V2 infer request of texts for an engine that speaks OpenAI.
type Prompts struct {
	prompt
	asked *oip.InferRequest
}

// NewPrompts reads a request. Errors are ErrInvalid.
func NewPrompts(r *oip.InferRequest, s Settings) (*Prompts, error) {
	p := &Prompts{prompt: prompt{chat: s.Task == TaskChat}, asked: r}
	for _, o := range r.Outputs {
		if o.Name != textOutput && o.Name != finishReason {
			return nil, invalid("there is no output %q: a language model has %s and %s", o.Name, textOutput, finishReason)
		}
	}
	for i := range r.Inputs {
		if err := p.input(&r.Inputs[i], s.Text); err != nil {
			return nil, err
		}
	}
	for _, key := range sorted(r.Parameters) {
		value, err := parameter(key, r.Parameters[key])
		if err == nil {
			err = p.add(key, value)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case p.texts == nil:
		return nil, invalid("the request has no input %s of texts (BYTES)", textInput)
	case p.chat && len(p.texts) > 1:
		return nil, invalid("the model is asked as a chat, which takes one prompt at a time: %d came", len(p.texts))
	}
	return p, nil
}

// readTensor reads a tensor of texts; they are in a row, or in a column.
func readTensor(t *oip.Tensor) ([][]byte, error) {
	if len(t.Shape) > 2 || len(t.Shape) == 2 && t.Shape[1] != 1 {
		return nil, invalid("input %q has the shape %v: give texts as [n] or [n, 1]", t.Name, t.Shape)
	}
	return textsOf(t)
}

// textsOf reads a tensor of texts of any shape; there is one at least.
func textsOf(t *oip.Tensor) ([][]byte, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	values, err := t.Values()
	if err != nil {
		return nil, err
	}
	texts, ok := values.([][]byte)
	switch {
	case !ok:
		return nil, invalid("input %q has the datatype %s: texts are BYTES", t.Name, t.Datatype)
	case len(texts) == 0:
		return nil, invalid("input %q is empty", t.Name)
	}
	for i, text := range texts {
		if !utf8.Valid(text) {
			return nil, invalid("element %d of input %q isn't UTF-8, so that it is no text", i, t.Name)
		}
	}
	return texts, nil
}

func (p *Prompts) input(t *oip.Tensor, declared string) (err error) {
	switch t.Name {
	case textInput, "prompt", declared:
		if p.texts != nil {
			return invalid("the request has two inputs of prompts")
		}
		p.texts, err = readTensor(t)
		return err
	case "stop":
		stops, err := readTensor(t)
		if err != nil {
			return err
		}
		return p.add(t.Name, appendTexts(nil, stops))
	case "sampling_parameters": // as the Triton server's vLLM engine takes them
		texts, err := readTensor(t)
		if err != nil {
			return err
		}
		s := jsonscan.New(texts[0])
		err = s.Object(func(key []byte) error {
			value, err := s.Skip()
			if err != nil {
				return err
			}
			return p.add(string(key), value)
		})
		if err == nil {
			err = s.End()
		}
		if err != nil {
			return brief.Errorf("sampling_parameters: %w", err)
		}
		return nil
	}
	if err := t.Check(); err != nil {
		return err
	}
	n, one, err := t.Elements()
	switch {
	case err != nil:
		return err
	case n != 1:
		return invalid("input %q has %d elements: beside %s a language model takes parameters of one each", t.Name, n, textInput)
	}
	value := one(nil, 0)
	switch {
	case t.Name == "stream" && string(value) == "false",
		t.Name == "exclude_input_in_output" && string(value) == "true":
		return nil // so it is
	}
	return p.add(t.Name, value)
}

// Body is the request for an engine that knows the model by this name.
func (p *Prompts) Body(model string) []byte { return p.body(model, false) }

// Answer gives the engine's answer as tensors: text_output, and finish_reason where it was asked for.
// What the engine tells of tokens is in the parameters prompt_tokens and completion_tokens.
func (p *Prompts) Answer(body []byte) (*oip.InferResponse, error) {
	made, used, err := readCompletions(body, len(p.texts))
	if err != nil {
		return nil, Broken(err)
	}
	out := &oip.InferResponse{ID: p.asked.ID}
	if used.told {
		out.Parameters = oip.Parameters{"prompt_tokens": used.prompt, "completion_tokens": used.completion}
	}
	texts, reasons := make([][]byte, len(made)), make([][]byte, len(made))
	for i, c := range made {
		texts[i], reasons[i] = c.text, c.finish
	}
	wanted := p.asked.Outputs
	if len(wanted) == 0 {
		wanted = []oip.RequestedOutput{{Name: textOutput}}
	}
	for _, o := range wanted {
		t := oip.Tensor{Name: o.Name, Datatype: oip.Bytes, Shape: []int64{int64(len(made))}, Data: texts}
		if o.Name == finishReason {
			t.Data = reasons
		}
		out.Outputs = append(out.Outputs, t)
	}
	return out, nil
}

// newEmbed reads a V2 infer request for an engine that makes embeddings over OpenAI.
func newEmbed(r *oip.InferRequest, s Settings) (*embed, error) {
	if err := noMore(r, embeddingOutput); err != nil {
		return nil, err
	}
	texts, err := oneInput(r, s.Text)
	return &embed{texts: texts}, err
}

// ToOpenAI is a V2 infer request on its way to an engine that speaks OpenAI.
type ToOpenAI interface {
	// Path is where the engine is asked, after its root.
	Path() string
	// Body is the request for an engine that knows the model by this name.
	Body(model string) []byte
	// Answer reads the engine's answer. Errors are Broken ones.
	Answer(body []byte) (*oip.InferResponse, error)
}

// NewToOpenAI reads a V2 infer request of texts; the task that is declared says what is asked. Errors
// are ErrInvalid.
func NewToOpenAI(r *oip.InferRequest, s Settings) (ToOpenAI, error) {
	switch s.Task {
	case TaskEmbeddings:
		return newEmbed(r, s)
	case TaskRerank, TaskScore:
		return newCompare(r, s)
	case TaskClassify:
		return newClassify(r, s)
	}
	return NewPrompts(r, s)
}

// LanguageMetadata is what V2 clients are told of a model whose engine speaks OpenAI.
func LanguageMetadata(name string, s Settings) *oip.ModelMetadata {
	in := textInput
	if s.Text != "" {
		in = s.Text
	}
	m := &oip.ModelMetadata{
		Name: name, Platform: "openai",
		Inputs:  []oip.TensorMetadata{{Name: in, Datatype: oip.Bytes, Shape: []int64{-1}}},
		Outputs: []oip.TensorMetadata{{Name: textOutput, Datatype: oip.Bytes, Shape: []int64{-1}}, {Name: finishReason, Datatype: oip.Bytes, Shape: []int64{-1}}},
	}
	switch s.Task {
	case TaskChat:
		m.Inputs[0].Shape[0], m.Outputs[0].Shape[0], m.Outputs[1].Shape[0] = 1, 1, 1
	case TaskEmbeddings:
		m.Outputs = []oip.TensorMetadata{{Name: embeddingOutput, Datatype: oip.FP32, Shape: []int64{-1, -1}}}
	case TaskRerank, TaskScore:
		m.Inputs = pairInputs(s)
		m.Outputs = []oip.TensorMetadata{{Name: scoresOutput, Datatype: oip.FP32, Shape: []int64{-1}}}
	case TaskClassify:
		m.Outputs = []oip.TensorMetadata{{Name: labelsOutput, Datatype: oip.Bytes, Shape: []int64{-1}}, {Name: probabilitiesOutput, Datatype: oip.FP32, Shape: []int64{-1, -1}}}
	}
	return m
}

func appendTexts(dst []byte, texts [][]byte) []byte {
	dst = append(dst, '[')
	for i, text := range texts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonscan.AppendString(dst, text)
	}
	return append(dst, ']')
}

func sorted(p oip.Parameters) []string {
	keys := make([]string, 0, len(p))
	for k := range p {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, strings.Compare)
	return keys
}

// parameter is a parameter's value as JSON.
func parameter(key string, v any) ([]byte, error) {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(nil, v), nil
	case int64:
		return strconv.AppendInt(nil, v, 10), nil
	case uint64:
		return strconv.AppendUint(nil, v, 10), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, invalid("the parameter %q is no number that JSON has", key)
		}
		return jsonscan.AppendFloat(nil, v, 64), nil
	case string:
		return jsonscan.AppendString(nil, []byte(v)), nil
	}
	return nil, invalid("the parameter %q is of no kind that JSON has", key)
}
