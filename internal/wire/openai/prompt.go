package openai

import "strconv"

// promptSpans are the parts of a request that an engine makes its prompt of.
type promptSpans struct{ before, text, salt Span }

// readPrompt notes a field that is a part of the prompt, or says how long the answer may be. text is
// the value as far as it was read, at its place: all of it unless failed is an error.
func (r *Request) readPrompt(key, text []byte, at Span, failed error) {
	switch string(key) {
	case "tools", "instructions":
		r.prompt.before = at
	case "messages", "prompt", "input":
		r.prompt.text = at
	case "cache_salt":
		r.prompt.salt = at
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		if n, err := strconv.ParseInt(string(text), 10, 64); failed == nil && err == nil && n > 0 {
			r.MaxTokens = n
		}
	}
}

// Prompt calls part with the parts of the prompt within the text that was read, in the order in
// which engines put them together: tools or instructions, then messages, prompt or input, all as
// they are written. Of a text that wasn't read to its end the last part may be cut off.
func (r *Request) Prompt(text []byte, part func([]byte)) {
	for _, s := range [...]Span{r.prompt.before, r.prompt.text} {
		if s.Found() {
			part(text[s.From:s.To])
		}
	}
}

// Salt is what the client keeps its cached prompts apart by ("cache_salt"), as it is written; empty
// for nothing.
func (r *Request) Salt(text []byte) []byte {
	return text[r.prompt.salt.From:r.prompt.salt.To]
}
