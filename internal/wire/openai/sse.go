package openai

import (
	"bytes"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// Frames cuts a stream of server-sent events into frames: what stands up to an empty line, with
// it, every byte as it came. Lines end in LF, CRLF or CR. The zero Frames is at a beginning.
type Frames struct {
	// tail is the beginning of a frame that isn't whole yet; its lines up to at were seen, and
	// the one that starts at line isn't empty up to there.
	tail     []byte
	at, line int
}

// Feed takes the next piece and calls whole for each frame that it ends. Frames are valid during
// the call. It stops where whole returns an error, and returns it.
func (f *Frames) Feed(piece []byte, whole func(frame []byte) error) error {
	buf := piece
	if len(f.tail) > 0 {
		f.tail = append(f.tail, piece...)
		buf = f.tail
	}
	start := 0
	for {
		end := f.end(buf[start:])
		if end < 0 {
			break
		}
		f.at, f.line = 0, 0
		if err := whole(buf[start : start+end]); err != nil {
			return err
		}
		start += end
	}
	if start > 0 || len(f.tail) == 0 { // else the tail is what there is, already
		f.tail = append(f.tail[:0], buf[start:]...)
	}
	return nil
}

// end returns where the first frame of b ends, or -1, and notes how far it looked.
func (f *Frames) end(b []byte) int {
	for f.at < len(b) {
		i := bytes.IndexAny(b[f.at:], "\r\n")
		if i < 0 {
			f.at = len(b)
			return -1
		}
		i += f.at
		next := i + 1
		if b[i] == '\r' {
			switch {
			case next < len(b) && b[next] == '\n':
				next++
			case next == len(b) && i > f.line:
				f.at = i // the line may end in CRLF
				return -1
			}
		}
		if i == f.line {
			return next
		}
		f.at, f.line = next, next
	}
	return -1
}

// Pending is how many bytes of an unfinished frame there are.
func (f *Frames) Pending() int { return len(f.tail) }

// Rest returns the unfinished frame, if any, and forgets it.
func (f *Frames) Rest() []byte {
	rest := f.tail
	*f = Frames{}
	return rest
}

// Done is the data of the last frame of a stream.
const Done = "[DONE]"

// Data returns a frame's data and where it lies in the frame; a comment and an event without any
// have none. The data of several lines is joined and has no place of its own.
func Data(frame []byte) ([]byte, Span) {
	var data []byte
	var span Span
	lines := 0
	for at := 0; at < len(frame); {
		end := bytes.IndexAny(frame[at:], "\r\n")
		if end < 0 {
			end = len(frame)
		} else {
			end += at
		}
		if line, ok := bytes.CutPrefix(frame[at:end], []byte("data:")); ok {
			from := at + len("data:")
			if len(line) > 0 && line[0] == ' ' {
				line, from = line[1:], from+1
			}
			switch lines++; lines {
			case 1:
				data, span = line, Span{from, end}
			case 2:
				data, span = append([]byte(nil), data...), Span{}
				fallthrough
			default:
				data = append(append(data, '\n'), line...)
			}
		}
		at = end + 1
	}
	return data, span
}

// Frame returns data as a frame.
func Frame(data []byte) []byte {
	return append(append([]byte("data: "), bytes.TrimRight(data, "\r\n")...), "\n\n"...)
}

// KeepAlive is a frame that means nothing, for what takes a silent connection for dead.
const KeepAlive = ": keep-alive\n\n"

// Usage is how many tokens an answer says that it took and made.
type Usage struct{ Prompt, Completion int64 }

// Answer is what an answer, or a chunk of one, says to a gateway.
type Answer struct {
	// Usage is meaningful where Told.
	Usage Usage
	Told  bool
	// Empty is whether it has a list of choices, and that is empty.
	Empty bool

	model, usage Span
	// member is usage with its key and one comma.
	member Span
}

// ReadAnswer reads an object of the API; it reports false where text is none.
func ReadAnswer(text []byte) (Answer, bool) {
	var a Answer
	s := jsonscan.New(text)
	end := 0 // of the member before
	cut := false
	err := s.Object(func(key []byte) error {
		usage := string(key) == "usage"
		s.Peek()
		from := s.Pos()
		switch {
		case usage:
			if err := a.readUsage(s); err != nil {
				return err
			}
			a.usage = Span{from, s.Pos()}
			if cut = end == 0; !cut {
				a.member = Span{end, s.Pos()}
			}
		case string(key) == "response":
			// The chunks of the responses operation have the answer within.
			value, err := s.Skip()
			if err != nil {
				return err
			}
			if inner, ok := ReadAnswer(value); ok && inner.Told {
				a.Usage, a.Told = inner.Usage, true
			}
		default:
			value, err := s.Skip()
			if err != nil {
				return err
			}
			switch string(key) {
			case "model":
				if value[0] == '"' {
					a.model = Span{from, s.Pos()}
				}
			case "choices":
				a.Empty = value[0] == '[' && len(bytes.TrimSpace(value[1:len(value)-1])) == 0
			}
		}
		end = s.Pos()
		return nil
	})
	if cut && err == nil {
		// The first member goes with the comma behind it.
		from := bytes.IndexByte(text, '{') + 1
		to := a.usage.To
		if i := bytes.IndexByte(text[to:], ','); i >= 0 && len(bytes.TrimSpace(text[to:to+i])) == 0 {
			to += i + 1
		}
		a.member = Span{from, to}
	}
	return a, err == nil && s.End() == nil
}

func (a *Answer) readUsage(s *jsonscan.Scanner) error {
	if s.Peek() != '{' {
		_, err := s.Skip()
		return err
	}
	return s.Object(func(key []byte) error {
		to := &a.Usage.Prompt
		switch string(key) {
		case "completion_tokens", "output_tokens":
			to = &a.Usage.Completion
		case "prompt_tokens", "input_tokens":
		default:
			_, err := s.Skip()
			return err
		}
		if s.Literal("null") {
			return nil
		}
		n, err := s.Int(0, 1<<53)
		*to, a.Told = n, true
		return err
	})
}

// Renamed is the edit that gives the answer's model another name; it reports false where the
// answer names none.
func (a *Answer) Renamed(model string) (Edit, bool) {
	return Edit{a.model, string(jsonscan.AppendString(nil, []byte(model)))}, a.model.Found()
}

// Stamp is what answers tell of what made them. The zero Stamp tells nothing.
type Stamp struct{ value, member string }

// NewStamp returns the stamp with a fingerprint; an empty one makes the zero Stamp.
func NewStamp(fingerprint string) Stamp {
	if fingerprint == "" {
		return Stamp{}
	}
	value := string(jsonscan.AppendString(nil, []byte(fingerprint)))
	return Stamp{value, string(fingerprintKey) + ":" + value + ","}
}

// Empty reports whether the stamp tells nothing.
func (s Stamp) Empty() bool { return s.value == "" }

// On is the edit by which an answer with choices, or a chunk of one, tells what made it in
// "system_fingerprint". Where the engine has a fingerprint of its own that stands behind ours and a
// slash, so that the whole changes where either does. It reports false where text has no choices, has a
// fingerprint that is no text, or ours already. The stamp must not be empty.
func (s Stamp) On(text []byte) (Edit, bool) {
	open := len(text) - len(bytes.TrimLeft(text, " \t\r\n"))
	if open == len(text) || text[open] != '{' || !bytes.Contains(text, choicesKey) {
		return Edit{}, false
	}
	if bytes.Contains(text, fingerprintKey) {
		own := Span{}
		scan := jsonscan.New(text)
		err := scan.Object(func(key []byte) error {
			scan.Peek()
			from := scan.Pos()
			_, err := scan.Skip()
			if string(key) == fingerprintName {
				own = Span{from, scan.Pos()}
			}
			return err
		})
		switch {
		case err != nil:
			return Edit{}, false
		case own.Found():
			return s.before(text, own)
		}
	}
	return Edit{Span{open + 1, open + 1}, s.member}, true
}

// before is the edit by which ours stands before the engine's.
func (s Stamp) before(text []byte, own Span) (Edit, bool) {
	value := text[own.From:own.To]
	ours := s.value[:len(s.value)-1]
	switch {
	case string(value) == "null", string(value) == `""`:
		return Edit{own, s.value}, true
	case value[0] != '"', bytes.HasPrefix(value, []byte(ours)):
		return Edit{}, false
	}
	return Edit{Span{own.From, own.From + 1}, ours + "/"}, true
}

const fingerprintName = "system_fingerprint"

var (
	choicesKey     = []byte(`"choices"`)
	fingerprintKey = []byte(`"` + fingerprintName + `"`)
)

// WithoutUsage is the edit that takes the member "usage" out, and reports false where there is
// none.
func (a *Answer) WithoutUsage() (Edit, bool) {
	return Edit{a.member, ""}, a.usage.Found()
}
