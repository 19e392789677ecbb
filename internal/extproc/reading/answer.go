package reading

import (
	"bytes"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

const (
	// maxKept is how much of an answer in one piece is kept to read its usage, and maxFrame the size
	// from which on a stream isn't cut into frames any more.
	maxKept  = 1 << 20
	maxFrame = 1 << 20
)

var usageKey = []byte(`"usage"`)

// Answer counts the tokens of an answer as it passes. The zero Answer reads nothing until Begin.
type Answer struct {
	frames openai.Frames
	kept   []byte
	mode   answerMode
	// pieces are the frames with data, of which engines send one for each token.
	pieces int64
	told   bool
	usage  openai.Usage
}

type answerMode uint8

const (
	ignored answerMode = iota
	stream
	whole
)

// Begin takes the answer's head. Only what succeeded and isn't compressed is read.
func (a *Answer) Begin(status int, contentType, encoding string) {
	*a = Answer{kept: a.kept[:0]}
	switch {
	case status != 200 || encoding != "" && encoding != "identity":
	case strings.HasPrefix(contentType, "text/event-stream"):
		a.mode = stream
	case strings.HasPrefix(contentType, "application/json"):
		a.mode = whole
	}
}

// Add takes the next piece and returns how many tokens it has, as far as that can be seen before the
// answer's end.
func (a *Answer) Add(piece []byte) int64 {
	switch a.mode {
	case stream:
		before := a.pieces
		_ = a.frames.Feed(piece, a.frame) // frame returns no error
		if a.frames.Pending() > maxFrame {
			a.mode = ignored
			a.frames.Rest()
		}
		return a.pieces - before
	case whole:
		if len(a.kept)+len(piece) > maxKept {
			a.mode, a.kept = ignored, nil
		} else {
			a.kept = append(a.kept, piece...)
		}
	}
	return 0
}

func (a *Answer) frame(frame []byte) error {
	data, _ := openai.Data(frame)
	if len(data) == 0 || string(data) == openai.Done {
		return nil
	}
	a.pieces++
	if bytes.Contains(data, usageKey) {
		if got, ok := openai.ReadAnswer(data); ok && got.Told {
			a.usage, a.told = got.Usage, true
		}
	}
	return nil
}

// End takes the answer's end, and returns how many tokens its prompt had and how many were produced:
// as the engine says, else as many as there were frames; 0 where that isn't known.
func (a *Answer) End() (prompt, produced int64) {
	switch a.mode {
	case stream:
		if a.frames.Pending() > 0 { // an engine may leave out the last line's end
			_ = a.frame(a.frames.Rest())
		}
	case whole:
		if got, ok := openai.ReadAnswer(a.kept); ok && got.Told {
			a.usage, a.told = got.Usage, true
		}
	}
	a.mode = ignored
	if !a.told {
		return 0, a.pieces
	}
	return a.usage.Prompt, a.usage.Completion
}
