package openai

import (
	"slices"
	"testing"
)

func TestThePartsOfAPromptAreFound(t *testing.T) {
	tests := map[string]struct {
		body  string
		whole bool
		parts []string
		max   int64
		salt  string
	}{
		"a chat with tools":     {`{"model":"m","messages":[{"role":"user"}],"tools":[{"type":"function"}],"max_tokens":5}`, true, []string{`[{"type":"function"}]`, `[{"role":"user"}]`}, 5, ""},
		"a completion":          {`{"prompt" : "a\"b" ,"model":"m","cache_salt":"s","max_tokens":null}`, true, []string{`"a\"b"`}, 0, `"s"`},
		"a response":            {`{"input":"x","instructions":"be brief","max_output_tokens":9}`, true, []string{`"be brief"`, `"x"`}, 9, ""},
		"the newer name":        {`{"messages":[],"max_completion_tokens":12}`, true, []string{`[]`}, 12, ""},
		"a beginning of one":    {`{"model":"m","messages":[{"role":"user","content":"hello wo`, false, []string{`[{"role":"user","content":"hello wo`}, 0, ""},
		"nothing of it":         {`{"model":"m"}`, true, nil, 0, ""},
		"a number that is none": {`{"prompt":"x","max_tokens":1.5}`, true, []string{`"x"`}, 0, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text := []byte(tc.body)
			r, err := ReadRequest(text, tc.whole)
			if err != nil {
				t.Fatal(err)
			}
			var parts []string
			r.Prompt(text, func(p []byte) { parts = append(parts, string(p)) })
			if !slices.Equal(parts, tc.parts) || r.MaxTokens != tc.max || string(r.Salt(text)) != tc.salt {
				t.Errorf("parts %q, at most %d, salt %q", parts, r.MaxTokens, r.Salt(text))
			}
		})
	}
}

func FuzzPrompt(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user"}],"tools":[],"cache_salt":"s","max_tokens":5}`), true)
	f.Add([]byte(`{"messages":[{"role":"us`), false)
	f.Fuzz(func(t *testing.T, text []byte, whole bool) {
		r, err := ReadRequest(text, whole)
		if err != nil {
			return
		}
		size := 0
		r.Prompt(text, func(p []byte) { size += len(p) })
		if size+len(r.Salt(text)) > len(text) && len(text) > 0 || r.MaxTokens < 0 {
			t.Errorf("%q: %d bytes of prompt, at most %d tokens", text, size, r.MaxTokens)
		}
	})
}
