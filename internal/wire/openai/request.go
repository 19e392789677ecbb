package openai

import (
	"cmp"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// Span bounds a value within a text: [From, To). The zero Span means that there is none.
type Span struct{ From, To int }

// Found reports whether there is a value.
func (s Span) Found() bool { return s.To > 0 }

// Request is what a request's body says to a gateway.
type Request struct {
	// Model is the value of "model", decoded; empty where there is none.
	Model string
	// Stream is whether an answer in pieces is asked for.
	Stream bool
	// Usage is whether the client itself asks for the usage at the end of a stream.
	Usage bool
	// Whole says that the text was read to its end: what isn't here, isn't in the request.
	Whole bool

	// MaxTokens is how many tokens the answer may have at most, by whichever of the API's names for
	// it; 0 means that nothing is said.
	MaxTokens int64

	prompt                        promptSpans
	model, stream, options, usage Span
	open                          int // behind the brace that opens stream_options
	bare                          bool
}

// ErrTwice refuses a body with two models: what one reader would take for this model and another for that.
var ErrTwice = errdef.New(errdef.ErrInvalid, `the body has "model" twice: give it once`)

// ReadRequest reads a body. Where whole is false text is only its beginning, and what it ends
// within is left out; a text that is wrong then looks like one that ends early. Errors are of
// kind errdef.ErrInvalid.
func ReadRequest(text []byte, whole bool) (Request, error) {
	var r Request
	s := jsonscan.New(text)
	err := s.Object(func(key []byte) error {
		s.Peek()
		from := s.Pos()
		switch string(key) {
		case "model":
			if s.Peek() != '"' {
				return s.Errorf("model must be a string")
			}
			name, err := s.String()
			if err != nil {
				return err
			}
			if r.model.Found() {
				return ErrTwice
			}
			r.Model, r.model = string(name), Span{from, s.Pos()}
			return nil
		case "stream":
			text, err := s.Skip()
			r.Stream, r.stream = string(text) == "true", Span{from, s.Pos()}
			return err
		case "stream_options":
			return r.readOptions(s, from)
		}
		text, err := s.Skip()
		r.readPrompt(key, text, Span{from, s.Pos()}, err)
		return err
	})
	if err == nil && whole {
		err = s.End()
	}
	switch {
	case err == nil:
		r.Whole = true
	case !whole && err != ErrTwice: //nolint:errorlint // it isn't wrapped
		return r, nil
	}
	return r, err
}

func (r *Request) readOptions(s *jsonscan.Scanner, from int) error {
	if s.Peek() != '{' {
		_, err := s.Skip()
		r.options, r.open = Span{from, s.Pos()}, 0
		return err
	}
	r.bare, r.usage, r.Usage = true, Span{}, false
	err := s.Object(func(key []byte) error {
		r.bare = false
		s.Peek()
		at := s.Pos()
		value, err := s.Skip()
		if string(key) == "include_usage" {
			r.usage, r.Usage = Span{at, s.Pos()}, string(value) == "true"
		}
		return err
	})
	r.options, r.open = Span{from, s.Pos()}, from+1
	return err
}

// Edit replaces a part of a text.
type Edit struct {
	Span
	With string
}

// Renamed is the edit that asks for another model. It must not be asked of a request without one.
func (r *Request) Renamed(model string) Edit {
	return Edit{r.model, string(jsonscan.AppendString(nil, []byte(model)))}
}

const includeUsage = `"include_usage":true`

// WithUsage is the edit by which a streaming request asks for its usage. It reports false where
// there is nothing to do: the request doesn't stream, asks itself, or wasn't read to its end.
func (r *Request) WithUsage() (Edit, bool) {
	switch {
	case !r.Whole || !r.Stream || r.Usage:
		return Edit{}, false
	case r.usage.Found():
		return Edit{r.usage, "true"}, true
	case r.open > 0 && r.bare:
		return Edit{Span{r.open, r.open}, includeUsage}, true
	case r.open > 0:
		return Edit{Span{r.open, r.open}, includeUsage + ","}, true
	case r.options.Found():
		return Edit{r.options, "{" + includeUsage + "}"}, true
	}
	return Edit{Span{r.stream.To, r.stream.To}, `,"stream_options":{` + includeUsage + "}"}, true
}

// Apply returns text with the edits made, which must not overlap; it leaves text itself alone. Of two
// at one place the one that takes nothing out comes first.
func Apply(text []byte, edits ...Edit) []byte {
	edits = ordered(edits)
	size := len(text)
	for _, e := range edits {
		size += len(e.With) - (e.To - e.From)
	}
	return AppendApplied(make([]byte, 0, size), text, edits...)
}

// AppendApplied appends what Apply returns.
func AppendApplied(out, text []byte, edits ...Edit) []byte {
	at := 0
	for _, e := range ordered(edits) {
		out = append(append(out, text[at:e.From]...), e.With...)
		at = e.To
	}
	return append(out, text[at:]...)
}

// Pieces returns what Apply does, in pieces that are text's own where nothing is changed.
func Pieces(text []byte, edits ...Edit) [][]byte {
	out := make([][]byte, 0, 2*len(edits)+1)
	at := 0
	for _, e := range ordered(edits) {
		out = append(out, text[at:e.From], []byte(e.With))
		at = e.To
	}
	return append(out, text[at:])
}

func ordered(edits []Edit) []Edit {
	before := func(a, b Edit) int { return cmp.Or(a.From-b.From, a.To-b.To) }
	if len(edits) > 1 && !slices.IsSortedFunc(edits, before) {
		return slices.SortedFunc(slices.Values(edits), before)
	}
	return edits
}

// Name is a model's name in its parts, as clients write it: name, namespace/name, and either
// with @revision or :tag behind.
type Name struct {
	Namespace, Name, Revision string
	// Colon says that a colon told the revision. Engines have names with one of their own
	// ("llama3:8b"), so that it means a revision only where there is such a one.
	Colon bool
}

// ParseName takes a model's name apart. A text with more slashes is a name of its own.
func ParseName(model string) Name {
	var n Name
	n.Name = model
	i := strings.LastIndexByte(model, '@')
	if i < 0 {
		i = strings.LastIndexByte(model, ':')
		n.Colon = i > 0 && i < len(model)-1
	}
	if i > 0 && i < len(model)-1 {
		n.Name, n.Revision = model[:i], model[i+1:]
	}
	if ns, name, ok := strings.Cut(n.Name, "/"); ok && ns != "" && name != "" && !strings.Contains(name, "/") {
		n.Namespace, n.Name = ns, name
	}
	return n
}
