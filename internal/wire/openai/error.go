package openai

import (
	"bytes"
	"encoding/json"
)

// Error is what goes wrong, in the shape that the API's clients read.
type Error struct {
	Message string
	// Type is e.g. invalid_request_error or server_error.
	Type string
	// Param is the field that is wrong, Code a word for programs; empty means null.
	Param, Code string
}

// JSON returns the error as an object with the one member "error", and a newline behind.
func (e Error) JSON() []byte {
	word := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	err := enc.Encode(struct {
		Error inner `json:"error"`
	}{inner{e.Message, e.Type, word(e.Param), word(e.Code)}})
	if err != nil {
		panic("BUG: an error can't be encoded: " + err.Error())
	}
	return b.Bytes()
}

// InStream returns what an engine answered instead of a stream as the data of one frame, in the
// shape of an error: as it is where it has that already.
func InStream(body []byte, otherwise Error) []byte {
	var v struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &v) == nil && len(v.Error) > 0 && v.Error[0] == '{' {
		var line bytes.Buffer
		if json.Compact(&line, body) == nil {
			return line.Bytes()
		}
	}
	return otherwise.JSON()
}
