package oip

import "testing"

func TestThePromptOfAGenerateRequestIsFound(t *testing.T) {
	for body, want := range map[string]struct {
		text string
		max  int64
	}{
		`{"text_input":"Grüße \"du\"","parameters":{"max_tokens":7,"stop":["a"]}}`: {`"Grüße \"du\""`, 7},
		`{"parameters":{"seed":1}, "max_tokens": 3 ,"text_input" : "x" }`:          {`"x"`, 3},
		`{"text_input":"cut o`:                         {`"cut o`, 0},
		`{"text_input":5,"max_tokens":-3}`:             {`5`, 0},
		`{"id":"a","parameters":[1],"max_tokens":"4"}`: {``, 0},
		`[]`: {``, 0},
		``:   {``, 0},
	} {
		p := ReadPrompt([]byte(body))
		if got := body[p.From:p.To]; got != want.text || p.MaxTokens != want.max {
			t.Errorf("%s: %s and %d, want %s and %d", body, got, p.MaxTokens, want.text, want.max)
		}
	}
}

func FuzzReadPrompt(f *testing.F) {
	f.Add([]byte(`{"text_input":"x","parameters":{"max_tokens":7}}`))
	f.Add([]byte(`{"text_input":"x`))
	f.Fuzz(func(t *testing.T, body []byte) {
		p := ReadPrompt(body)
		if p.From < 0 || p.To < p.From || p.To > len(body) || p.MaxTokens < 0 {
			t.Errorf("%q: %+v", body, p)
		}
	})
}
