package translate

import (
	"strconv"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// defaultMaxTokens is what generate makes where nothing is asked for (OIP, generate_rest.yaml).
const defaultMaxTokens = 20

// Generate is a request of V2's generate and generate_stream (the protocol's draft for text) for an
// engine that speaks OpenAI.
type Generate struct {
	prompt
	model, version string
	stream         bool
	// details says that the client wants to know why the text ended, and the tokens.
	details bool
}

// NewGenerate reads a request's body; model and version are those of its path. Errors are ErrInvalid.
func NewGenerate(body []byte, model, version string, stream bool, settings Settings) (*Generate, error) {
	g := &Generate{prompt: prompt{chat: settings.Task == TaskChat}, model: model, version: version, stream: stream}
	switch settings.Task {
	case TaskEmbeddings, TaskRerank, TaskScore, TaskClassify:
		return nil, unsupported("model %s is declared for %s, not for making texts: ask it over /v2/models/%s/infer or /v1/%s", model, settings.Task, model, settings.Task)
	}
	err := members(body, func(s *jsonscan.Scanner, key string) (bool, error) {
		switch key {
		case textInput:
			text, err := readText(s, key)
			g.texts = [][]byte{text}
			return true, err
		case "stream": // the Triton server's clients send it to both paths
			on, err := readBool(s, key)
			if err == nil && on != stream {
				err = invalid("stream is %v, and the path says otherwise: generate answers in one piece, generate_stream in many", on)
			}
			return true, err
		case "parameters":
			return true, s.Object(func(k []byte) error { return g.parameter(s, string(k)) })
		case "id":
			_, err := readText(s, key)
			return true, err
		}
		return false, nil
	})
	switch {
	case err != nil:
		return nil, err
	case g.texts == nil:
		return nil, invalid(`the body has no "text_input"`)
	}
	if !g.has("max_tokens") && !g.has("max_completion_tokens") {
		g.members = append(g.members, member{"max_tokens", strconv.AppendInt(nil, defaultMaxTokens, 10)})
	}
	return g, nil
}

func (g *Generate) parameter(s *jsonscan.Scanner, key string) (err error) {
	if key == "details" {
		g.details, err = readBool(s, key)
		return err
	}
	value, err := s.Skip()
	if err != nil || string(value) == "null" {
		return err
	}
	return g.add(key, value)
}

// Body is the request for an engine that knows the model by this name.
func (g *Generate) Body(model string) []byte { return g.body(model, g.stream) }

// Answer gives the engine's answer in one piece as generate's. Errors are Broken ones.
func (g *Generate) Answer(body []byte) ([]byte, error) {
	made, used, err := readCompletions(body, 1)
	if err != nil {
		return nil, Broken(err)
	}
	dst := g.open(nil, made[0].text)
	return append(g.close(dst, made[0].finish, used), '}'), nil
}

// open appends the beginning of an answer.
func (g *Generate) open(dst, text []byte) []byte {
	dst = jsonscan.AppendString(append(dst, `{"model_name":`...), []byte(g.model))
	if g.version != "" {
		dst = jsonscan.AppendString(append(dst, `,"model_version":`...), []byte(g.version))
	}
	return jsonscan.AppendString(append(dst, `,"text_output":`...), text)
}

// close appends the details, if they are wanted.
func (g *Generate) close(dst, finish []byte, used usage) []byte {
	if !g.details {
		return dst
	}
	dst = append(dst, `,"details":{"finish_reason":`...)
	if finish == nil {
		dst = append(dst, "null"...)
	} else {
		dst = jsonscan.AppendString(dst, finish)
	}
	if used.told {
		dst = strconv.AppendInt(append(dst, `,"prompt_tokens":`...), used.prompt, 10)
		dst = strconv.AppendInt(append(dst, `,"generated_tokens":`...), used.completion, 10)
	}
	return append(dst, '}')
}

// Stream returns what carries the engine's stream to the client.
func (g *Generate) Stream() *GenerateStream { return &GenerateStream{g: g} }

// GenerateStream carries a stream of OpenAI's chunks to one of generate_stream's frames.
//
//	open ──chunk──► open ──[DONE], or the end after a finish_reason──► done
//	  └──error, or the end before─────────────────────────────────────► broken
//
// Frames in, frames out: a character that was cut between two pieces of the network is whole again
// before it gets here, since openai.Frames keeps a piece until its frame is.
type GenerateStream struct {
	g      *Generate
	used   usage
	finish []byte
	ended  bool
}

// Usage is how many tokens the engine told, and whether it did.
func (s *GenerateStream) Usage() (prompt, completion int64, told bool) {
	return s.used.prompt, s.used.completion, s.used.told
}

// Ended reports whether the last frame was appended; nothing comes behind it.
func (s *GenerateStream) Ended() bool { return s.ended }

// Frame takes the data of a frame from the engine and appends what the client gets for it, which may
// be nothing. What comes behind the end is passed over.
func (s *GenerateStream) Frame(dst, data []byte) []byte {
	switch {
	case s.ended || len(data) == 0:
		return dst
	case string(data) == openai.Done:
		return s.done(dst)
	}
	before := len(dst)
	failed, err := readChoices(data, &s.used, func(_ int64, c completion) error {
		if c.finish != nil {
			s.finish = append([]byte(nil), c.finish...)
		}
		if len(c.text) > 0 {
			dst = s.g.open(append(dst, "data: "...), c.text)
			dst = append(dst, `,"done":false}`+"\n\n"...)
		}
		return nil
	})
	switch {
	case err != nil:
		return s.Fail(dst[:before], Broken(err).Error())
	case failed != nil:
		return s.Fail(dst[:before], string(failed))
	}
	return dst
}

func (s *GenerateStream) done(dst []byte) []byte {
	s.ended = true
	dst = append(s.g.open(append(dst, "data: "...), nil), `,"done":true`...)
	return append(s.g.close(dst, s.finish, s.used), "}\n\n"...)
}

// End appends the last frame when the engine's stream has ended: an error where it ended early.
func (s *GenerateStream) End(dst []byte) []byte {
	switch {
	case s.ended:
		return dst
	case s.finish != nil:
		return s.done(dst)
	}
	return s.Fail(dst, "the engine's stream ended before the text did")
}

// Fail appends an error as the last frame, unless there was one.
func (s *GenerateStream) Fail(dst []byte, message string) []byte {
	if s.ended {
		return dst
	}
	s.ended = true
	dst = jsonscan.AppendString(append(dst, `data: {"error":`...), []byte(message))
	return append(dst, "}\n\n"...)
}
