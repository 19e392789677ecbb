package openai

import (
	"bytes"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

const (
	transferName = "kv_transfer_params"
	// remoteDecode asks an engine to keep the cache of a prompt for another one, and to say where.
	remoteDecode = `"` + transferName + `":{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
)

// Prefill makes of the body of a request for chat or text the one by which another engine reads the
// prompt, as vLLM's connectors of its key-value cache take it: it asks for one token, not as a
// stream, and for what the engine that goes on has to know. model takes the place of the request's
// unless it is empty. It reports false where the request says itself what is to be transferred, and
// where it can't be read.
func Prefill(text []byte, model string) ([]byte, bool) {
	var edits []Edit
	own, bound := false, false
	s := jsonscan.New(text)
	err := s.Object(func(key []byte) error {
		with := ""
		switch string(key) {
		case transferName:
			own = true
		case "model":
			if model != "" {
				with = string(jsonscan.AppendString(nil, []byte(model)))
			}
		case "stream":
			with = "false"
		case "stream_options":
			with = "null"
		case "max_tokens", "max_completion_tokens":
			with, bound = "1", true
		case "min_tokens":
			with = "0"
		}
		s.Peek()
		from := s.Pos()
		_, err := s.Skip()
		if with != "" {
			edits = append(edits, Edit{Span{from, s.Pos()}, with})
		}
		return err
	})
	if err != nil || own || s.End() != nil {
		return nil, false
	}
	more := remoteDecode
	if !bound {
		more += `,"max_tokens":1`
	}
	first, ok := withFirst(text, more)
	return Apply(text, append([]Edit{first}, edits...)...), ok
}

// Transferred returns what an engine that read a prompt says of where its cache is; nil where it
// says nothing.
func Transferred(answer []byte) []byte {
	var params []byte
	s := jsonscan.New(answer)
	err := s.Object(func(key []byte) error {
		value, err := s.Skip()
		if string(key) == transferName {
			params = value
		}
		return err
	})
	if err != nil || s.End() != nil || len(params) == 0 || params[0] != '{' {
		return nil
	}
	return params
}

// Decode makes of a request's body, of which Prefill made another one, that by which an engine goes
// on from where params, as Transferred returned them, say that the prompt's cache is.
func Decode(text, params []byte) []byte {
	e, ok := withFirst(text, `"`+transferName+`":`+string(params))
	if !ok {
		return text
	}
	return Apply(text, e)
}

// withFirst is the edit by which an object that isn't empty gets another member, before all others.
func withFirst(text []byte, member string) (Edit, bool) {
	open := bytes.IndexByte(text, '{') + 1
	rest := bytes.TrimLeft(text[open:], " \t\r\n")
	return Edit{Span{open, open}, member + ","}, open > 0 && len(rest) > 0 && rest[0] == '"'
}
