// Package reading finds in the pieces of a request and of its answer, as they come through an
// external processor, what a replica is picked by: model, prompt, and how many tokens came back.
// It is pure.
package reading

import (
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// firstSize is what room is made for a body that didn't announce its size.
const firstSize = 64 << 10

// Body puts the pieces of a body together, up to as much as is read of it. The zero Body is empty.
type Body struct {
	text []byte
	// room is kept between bodies; text lies in it unless it is one piece that came whole.
	room  []byte
	whole bool
}

// Begin empties the body. size is what was announced, negative for nothing; no more than most is
// kept.
func (b *Body) Begin(size int64, most int) {
	b.text, b.whole = nil, false
	want := firstSize
	if size >= 0 {
		want = int(min(size, int64(most)))
	}
	if cap(b.room) < want {
		b.room = make([]byte, 0, want)
	}
	b.room = b.room[:0]
}

// Add takes the next piece; last says that none follows. It reports whether no more is needed: the
// body is whole, or most bytes of it came. A piece that is the whole body isn't copied, and must not
// be changed while Text is used.
func (b *Body) Add(piece []byte, last bool, most int) bool {
	if len(b.room) == 0 && (last || len(piece) >= most) {
		b.text, b.whole = piece, last
		return true
	}
	b.room = append(b.room, piece...)
	b.text, b.whole = b.room, last
	return last || len(b.room) >= most
}

// End says that no piece follows.
func (b *Body) End() { b.whole = true }

// Text is what came, and Whole whether that is all.
func (b *Body) Text() []byte { return b.text }

// Whole reports whether all of the body came.
func (b *Body) Whole() bool { return b.whole }

// Release forgets the text, and keeps no more room than most bytes.
func (b *Body) Release(most int) {
	b.text = nil
	if cap(b.room) > most {
		b.room = nil
	}
}

// Prompt is what a request's replica is picked by. It may be used again, but not copied.
type Prompt struct {
	// Ask is for package pick; its blocks are the Prompt's.
	Ask pick.Ask
	// Model is the one that the request names.
	Model  string
	blocks pick.Blocks
}

// Begin forgets the request before. size is what the body was announced with, negative for
// nothing: a prompt that isn't read is about as long.
func (p *Prompt) Begin(size int64) {
	p.Ask, p.Model = pick.Ask{Size: int(max(size, 0))}, ""
}

// Read reads a body of an operation that names a model. size is what was announced. hash says
// whether the hashes of the prompt's blocks are of use. An error is errdef.ErrInvalid, and says what
// is wrong with the body; Missing says that it names no model.
func (p *Prompt) Read(op openai.Op, body *Body, size int64, hash bool) error {
	text := body.Text()
	r, err := openai.ReadRequest(text, body.Whole())
	switch {
	case err != nil:
		return errdef.New(errdef.ErrInvalid, "the body can't be read as a request of the OpenAI API: "+err.Error())
	case r.Model == "" && !body.Whole():
		return errdef.New(errdef.ErrTooLarge, `"model" doesn't come within what is read of the body: put it first`)
	case r.Model == "":
		return ErrNoModel
	}
	p.Model, p.Ask.Size = r.Model, 0
	r.Prompt(text, func(part []byte) { p.Ask.Size += len(part) })
	if !body.Whole() && size > int64(len(text)) { // what isn't read is prompt, for the most part
		p.Ask.Size += int(size) - len(text)
	}
	switch op {
	case openai.Chat, openai.Completions, openai.Responses:
		p.Ask.Output = r.MaxTokens
	default:
		p.Ask.Output = 1 // nothing is generated
		return nil
	}
	if !hash {
		return nil
	}
	// Engines keep the caches of a model, of its adapters, and of what is salted apart.
	seed := r.Model
	if salt := r.Salt(text); len(salt) > 0 {
		seed += "\x00" + string(salt)
	}
	p.blocks.Begin(seed)
	r.Prompt(text, func(part []byte) { _, _ = p.blocks.Write(part) })
	p.Ask.Blocks = p.blocks.Hashes()
	return nil
}

// ErrNoModel refuses a body that names no model.
var ErrNoModel = errdef.New(errdef.ErrInvalid, `the body has no "model": name the one that is to answer`)
