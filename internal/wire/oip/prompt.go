package oip

import (
	"strconv"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// Prompt is what the body of a generate request says of its prompt.
type Prompt struct {
	// From and To bound the value of text_input, as it is written; both are 0 where there is none.
	From, To int
	// MaxTokens is how many tokens the answer may have at most; 0 means that nothing is said.
	MaxTokens int64
}

// ReadPrompt finds the prompt of a generate request in its body, or in the beginning of it. What is
// wrong with the body is for its reader to say.
func ReadPrompt(text []byte) Prompt {
	var p Prompt
	s := jsonscan.New(text)
	limit := func(key, value []byte) {
		if n, err := strconv.ParseInt(string(value), 10, 64); string(key) == "max_tokens" && err == nil && n > 0 {
			p.MaxTokens = n
		}
	}
	_ = s.Object(func(key []byte) error {
		if c := s.Peek(); string(key) == "parameters" && c == '{' {
			return s.Object(func(key []byte) error {
				value, err := s.Skip()
				limit(key, value)
				return err
			})
		}
		from := s.Pos()
		value, err := s.Skip()
		if string(key) == "text_input" {
			p.From, p.To = from, s.Pos()
		}
		limit(key, value)
		return err
	})
	return p
}
