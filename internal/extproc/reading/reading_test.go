package reading_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/extproc/reading"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

const most = 4096

// read reads a body that comes in pieces of a size.
func read(text string, size int, announced int64) (*reading.Prompt, error) {
	var body reading.Body
	var p reading.Prompt
	body.Begin(announced, most)
	p.Begin(announced)
	for at := 0; at < len(text); at += size {
		end := min(at+size, len(text))
		if body.Add([]byte(text[at:end]), end == len(text), most) {
			break
		}
	}
	return &p, p.Read(openai.Chat, &body, announced, true)
}

func TestAPromptIsTheSameHoweverItsBodyIsCut(t *testing.T) {
	text := fmt.Sprintf(`{"model":"m","max_tokens":7,"messages":[{"role":"user","content":%q}]}`, strings.Repeat("lorem ", 400))
	want, err := read(text, len(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	if want.Model != "m" || want.Ask.Output != 7 || len(want.Ask.Blocks) < 8 || want.Ask.Size < 2400 {
		t.Fatalf("read %q, %+v", want.Model, want.Ask)
	}
	for _, size := range []int{1, 7, 128, 1000, len(text) - 1} {
		for _, announced := range []int64{-1, int64(len(text))} {
			got, err := read(text, size, announced)
			if err != nil {
				t.Fatal(err)
			}
			if got.Model != want.Model || got.Ask.Size != want.Ask.Size || !slices.Equal(got.Ask.Blocks, want.Ask.Blocks) {
				t.Errorf("in pieces of %d: %q, %+v", size, got.Model, got.Ask)
			}
		}
	}
}

func TestALongPromptIsReadUpToABound(t *testing.T) {
	text := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("lorem ", 4000))
	p, err := read(text, 1000, int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Ask.Size; got < len(text)-100 || got > len(text) {
		t.Errorf("a prompt of about %d bytes counts as %d", len(text), got)
	}
}

func TestModelsAndSaltsKeepPromptsApart(t *testing.T) {
	seen := map[uint64]string{}
	for _, with := range []string{`"model":"a"`, `"model":"b"`, `"model":"a","cache_salt":"s"`} {
		text := fmt.Sprintf(`{%s,"messages":%q}`, with, strings.Repeat("x", 500))
		p, err := read(text, len(text), -1)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[p.Ask.Blocks[0]]; ok {
			t.Errorf("%s and %s have one hash", with, other)
		}
		seen[p.Ask.Blocks[0]] = with
	}
}

func TestABodyWithoutAModelSaysSo(t *testing.T) {
	for text, want := range map[string]error{
		`{"messages":[]}`: reading.ErrNoModel,
		`nonsense`:        errdef.ErrInvalid,
		`{"messages":"` + strings.Repeat("x", 2*most) + `","model":"m"}`: errdef.ErrTooLarge,
	} {
		if _, err := read(text, 1000, -1); !errors.Is(err, want) {
			t.Errorf("%.30s: %v, want %v", text, err, want)
		}
	}
}

func TestAnAnswersTokensAreCounted(t *testing.T) {
	events := "data: {\"choices\":[{}]}\n\n: ping\n\ndata: {\"choices\":[{}]}\r\n\r\ndata: [DONE]\n\n"
	usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}}\n\n"
	for name, tc := range map[string]struct {
		status         int
		kind, encoding string
		text           string
		prompt, made   int64
		seen           int64
	}{
		"a stream without usage":      {200, "text/event-stream; charset=utf-8", "", events, 0, 2, 2},
		"a stream with usage":         {200, "text/event-stream", "", events + usage, 9, 5, 3},
		"a stream without a last end": {200, "text/event-stream", "", strings.TrimRight(events+usage, "\n"), 9, 5, 2},
		"a whole answer":              {200, "application/json", "", `{"usage":{"prompt_tokens":9,"completion_tokens":5}}`, 9, 5, 0},
		"one without usage":           {200, "application/json", "identity", `{"data":[]}`, 0, 0, 0},
		"an error":                    {400, "application/json", "", `{"usage":{"completion_tokens":5}}`, 0, 0, 0},
		"a compressed answer":         {200, "application/json", "gzip", `{"usage":{"completion_tokens":5}}`, 0, 0, 0},
		"a page":                      {200, "text/html", "", "<p>", 0, 0, 0},
	} {
		for _, size := range []int{1, 5, 1 << 20} {
			var a reading.Answer
			a.Begin(tc.status, tc.kind, tc.encoding)
			seen := int64(0)
			for at := 0; at < len(tc.text); at += size {
				seen += a.Add([]byte(tc.text[at:min(at+size, len(tc.text))]))
			}
			if prompt, made := a.End(); prompt != tc.prompt || made != tc.made || seen != tc.seen {
				t.Errorf("%s in pieces of %d: %d, %d and %d on the way; want %d, %d and %d", name, size, prompt, made, seen, tc.prompt, tc.made, tc.seen)
			}
		}
	}
}

func FuzzAnAnswerIsReadAsItComes(f *testing.F) {
	f.Add("data: {\"usage\":{\"completion_tokens\":5}}\n\n", 3)
	f.Add("data: x\r\rdata: y", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = max(1, size%64)
		var whole, cut reading.Answer
		whole.Begin(200, "text/event-stream", "")
		cut.Begin(200, "text/event-stream", "")
		whole.Add([]byte(text))
		for at := 0; at < len(text); at += size {
			cut.Add([]byte(text[at:min(at+size, len(text))]))
		}
		p1, c1 := whole.End()
		p2, c2 := cut.End()
		if p1 != p2 || c1 != c2 {
			t.Errorf("whole %d, %d; in pieces of %d %d, %d", p1, c1, size, p2, c2)
		}
	})
}
