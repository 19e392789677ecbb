package translate

import (
	"bytes"
	"strconv"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// Generates reports whether a V2 model makes text of text, as V2's generate asks for it.
func Generates(meta *oip.ModelMetadata) bool {
	in, out := output(meta.Inputs, textInput), output(meta.Outputs, textOutput)
	return in != nil && out != nil && in.Datatype == oip.Bytes && out.Datatype == oip.Bytes
}

// ErrChat refuses a chat where the engine makes text of text: it knows no roles.
var ErrChat = unsupported("the model's engine speaks V2's generate, which has one text and no messages: ask for completions with a prompt that is written as the model wants it")

// Completions is a request of OpenAI's completions for an engine that speaks V2's generate.
type Completions struct {
	origin     Origin
	model      string
	prompt     []byte
	parameters []member
	// inputs are the model's.
	inputs []oip.TensorMetadata
	// Stream is whether an answer in pieces is asked for, usage whether its tokens are.
	Stream bool
	usage  bool
}

// NewCompletions reads a request's body for a model with these inputs. Errors are ErrInvalid.
func NewCompletions(body []byte, inputs []oip.TensorMetadata, origin Origin) (*Completions, error) {
	c := &Completions{origin: origin, inputs: inputs}
	err := members(body, func(s *jsonscan.Scanner, key string) (_ bool, err error) {
		switch key {
		case "model":
			name, err := readText(s, key)
			c.model = string(name)
			return true, err
		case "prompt":
			if s.Peek() != '"' && s.Peek() != '[' {
				return true, invalid("prompt must be a text")
			}
			texts, err := readTexts(s, key)
			if err == nil && len(texts) != 1 {
				err = invalid("generate, which the model's engine speaks, takes one prompt at a time: %d came", len(texts))
			}
			if err == nil {
				c.prompt = texts[0]
			}
			return true, err
		case "stream":
			c.Stream, err = readBool(s, key)
			return true, err
		case "stream_options":
			return true, inner(s, map[string]func(*jsonscan.Scanner) error{"include_usage": func(s *jsonscan.Scanner) (err error) {
				c.usage, err = readBool(s, key)
				return err
			}})
		case "user":
			return some(s, key, "user")
		case "n", "best_of":
			n, err := s.Int(1, 1<<31)
			if err == nil && n != 1 {
				err = invalid("%s is %d, and generate, which the model's engine speaks, makes one text", key, n)
			}
			return true, err
		case "logprobs", "echo", "suffix", "logit_bias", "text_input", "details":
			value, err := s.Skip()
			if err == nil && string(value) != "false" && string(value) != "0" {
				err = invalid("%q has no counterpart in generate, which the model's engine speaks: leave it out", key)
			}
			return true, err
		}
		value, err := s.Skip()
		c.parameters = append(c.parameters, member{key, value})
		return true, err
	})
	if err == nil && c.prompt == nil {
		err = invalid(`the body has no "prompt"`)
	}
	return c, err
}

// Path is the last part of the engine's path.
func (c *Completions) Path() string {
	if c.Stream {
		return "/generate_stream"
	}
	return "/generate"
}

// The inputs that the Triton server's engines for language have beside the text: vLLM's takes
// parameters as one text of JSON, TensorRT-LLM's has an input for each.
const (
	samplingInput = "sampling_parameters"
	stopInput     = "stop_words"
	excludeInput  = "exclude_input_in_output"
	streamInput   = "stream"
)

// Body is the engine's request. What the model has an input for goes there, the rest where parameters
// go.
func (c *Completions) Body() []byte {
	has := func(name string) bool { return output(c.inputs, name) != nil }
	dst := jsonscan.AppendString([]byte(`{"text_input":`), c.prompt)
	var rest []byte
	for _, m := range c.parameters {
		switch {
		case has(m.key):
			dst = m.append(append(dst, ','))
		case m.key == "stop" && has(stopInput):
			dst = member{stopInput, m.json}.append(append(dst, ','))
		default:
			if len(rest) > 0 {
				rest = append(rest, ',')
			}
			rest = m.append(rest)
		}
	}
	if has(excludeInput) {
		dst = append(dst, `,"`+excludeInput+`":true`...)
	}
	if has(streamInput) {
		dst = strconv.AppendBool(append(dst, `,"`+streamInput+`":`...), c.Stream)
	}
	if has(samplingInput) {
		text := append(append([]byte{'{'}, rest...), '}')
		dst = jsonscan.AppendString(append(dst, `,"`+samplingInput+`":`...), text)
		return append(dst, '}')
	}
	dst = append(append(dst, `,"parameters":{`...), rest...)
	return append(dst, "}}"...)
}

func (m member) append(dst []byte) []byte {
	return append(append(jsonscan.AppendString(dst, []byte(m.key)), ':'), m.json...)
}

// generated is an answer of generate, or a frame of its stream.
type generated struct {
	text, finish, failed []byte
	used                 usage
	done                 bool
}

func readGenerated(body []byte) (generated, error) {
	var g generated
	text := func(to *[]byte) func(*jsonscan.Scanner) error {
		return func(s *jsonscan.Scanner) (err error) { *to, err = s.String(); return err }
	}
	count := func(to *int64) func(*jsonscan.Scanner) error {
		return func(s *jsonscan.Scanner) (err error) {
			g.used.told = true
			*to, err = s.Int(0, 1<<53)
			return err
		}
	}
	err := object(body, map[string]func(*jsonscan.Scanner) error{
		textOutput: text(&g.text),
		"error":    text(&g.failed),
		"done":     func(s *jsonscan.Scanner) (err error) { g.done, err = readBool(s, "done"); return err },
		"details": func(s *jsonscan.Scanner) error {
			return inner(s, map[string]func(*jsonscan.Scanner) error{
				finishReason: text(&g.finish), "prompt_tokens": count(&g.used.prompt), "generated_tokens": count(&g.used.completion),
			})
		},
	})
	return g, err
}

// Answer gives the engine's answer in one piece. Errors are Broken ones.
func (c *Completions) Answer(body []byte) ([]byte, error) {
	g, err := readGenerated(body)
	if err == nil && g.text == nil {
		err = invalid("it has no %s", textOutput)
	}
	if err != nil {
		return nil, Broken(err)
	}
	dst := c.choice(nil, g.text, g.finish)
	if g.used.told {
		dst = g.used.append(append(dst, ','))
	}
	return append(dst, '}'), nil
}

// head appends what each answer and each chunk begins with, up to its choices.
func (c *Completions) head(dst []byte) []byte {
	dst = jsonscan.AppendString(append(dst, `{"id":`...), []byte("cmpl-"+c.origin.ID))
	dst = strconv.AppendInt(append(dst, `,"object":"text_completion","created":`...), c.origin.Created, 10)
	dst = jsonscan.AppendString(append(dst, `,"model":`...), []byte(c.model))
	return append(dst, `,"choices":[`...)
}

// choice appends an answer or a chunk with one choice, but for the brace that closes it.
func (c *Completions) choice(dst, text, finish []byte) []byte {
	dst = jsonscan.AppendString(append(c.head(dst), `{"index":0,"text":`...), text)
	dst = append(dst, `,"logprobs":null,"finish_reason":`...)
	if finish == nil {
		dst = append(dst, "null"...)
	} else {
		dst = jsonscan.AppendString(dst, finish)
	}
	return append(dst, "}]"...)
}

// append appends the usage as a member.
func (u *usage) append(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, `"usage":{"prompt_tokens":`...), u.prompt, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), u.completion, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), u.prompt+u.completion, 10)
	return append(dst, '}')
}

// Chunks returns what carries the engine's stream to the client.
func (c *Completions) Chunks() *CompletionStream { return &CompletionStream{c: c} }

// CompletionStream carries a stream of generate's frames to one of OpenAI's chunks.
//
//	open ──frame──► open ──done, or the end──► done
//	  └──error───────────────────────────────► broken
//
// The Triton server's streams have no word for done, so that there the end is it.
type CompletionStream struct {
	c     *Completions
	last  generated
	ended bool
}

// Ended reports whether the last frame was appended; nothing comes behind it.
func (s *CompletionStream) Ended() bool { return s.ended }

// Frame takes the data of a frame from the engine and appends what the client gets for it. What comes
// behind the end is passed over.
func (s *CompletionStream) Frame(dst, data []byte) []byte {
	if s.ended || len(data) == 0 {
		return dst
	}
	g, err := readGenerated(data)
	switch {
	case err != nil:
		return s.Fail(dst, Broken(err).Error())
	case g.failed != nil:
		return s.Fail(dst, string(g.failed))
	}
	if len(g.text) > 0 {
		dst = append(s.c.choice(append(dst, "data: "...), g.text, nil), "}\n\n"...)
	}
	if g.finish != nil {
		s.last.finish = append([]byte(nil), g.finish...)
	}
	if g.used.told {
		s.last.used = g.used
	}
	if g.done {
		return s.End(dst)
	}
	return dst
}

// End appends the last chunks when the engine's stream has ended.
func (s *CompletionStream) End(dst []byte) []byte {
	if s.ended {
		return dst
	}
	s.ended = true
	dst = append(s.c.choice(append(dst, "data: "...), nil, s.last.finish), "}\n\n"...)
	if s.c.usage && s.last.used.told {
		dst = append(s.c.head(append(dst, "data: "...)), "],"...)
		dst = append(s.last.used.append(dst), "}\n\n"...)
	}
	return append(dst, "data: "+openai.Done+"\n\n"...)
}

// Fail appends an error as the last frame, unless there was one.
func (s *CompletionStream) Fail(dst []byte, message string) []byte {
	if s.ended {
		return dst
	}
	s.ended = true
	e := openai.Error{Message: message, Type: "server_error", Code: "stream_broken"}
	return append(dst, openai.Frame(bytes.TrimSpace(e.JSON()))...)
}
