package gateway

import (
	"bytes"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

const (
	// maxFrame is the size from which on a frame of a stream passes as it comes.
	maxFrame = 16 << 20
	// maxKept is how much of an answer in one piece is kept to read its usage, and maxRenamed how
	// much is held back to change what it says of its model.
	maxKept    = 1 << 20
	maxChanged = 8 << 20
)

// relayMode is what becomes of an answer's body.
type relayMode uint8

const (
	// waiting: the answer's head isn't there yet.
	waiting relayMode = iota
	// plain: it passes as it comes.
	plain
	// watched: it passes as it comes, and is kept to be read in the end.
	watched
	// changed: it is held back, with the head, to be changed in the end.
	changed
	// events: it is a stream of frames.
	events
	// instead: it is something else than the stream that was begun; it becomes one frame.
	instead
)

// relay is the way of an answer of the OpenAI API to its client. It reads what the answer tells of
// its usage, takes back what a request was changed by, and keeps a silent stream alive. The
// exchange takes it for the client's writer.
//
//	waiting ──head──► plain, watched, changed or events
//	   └─silence─► the stream's head goes out ──head──► events or instead
type relay struct {
	x  *exchange
	a  *asked
	to http.ResponseWriter
	// header is the exchange's; the client's gets it with the head.
	header http.Header

	// mu guards what follows, and to, against the timer.
	mu    sync.Mutex
	mode  relayMode
	timer *time.Timer
	// last is when the client last got something.
	last time.Time
	// begun says that the head of a stream went out before the engine's answer.
	begun bool
	// own says that the body's bytes aren't the engine's.
	own    bool
	closed bool
	status int
	kept   []byte

	frames openai.Frames
	// loose says that a frame was too large, so that what comes isn't cut into frames any more.
	loose bool
	tally tally
}

func newRelay(x *exchange) *relay {
	r := &relay{x: x, a: x.ask, to: x.w, header: http.Header{}, last: x.start}
	r.tally.start = x.start
	if r.a.request.Stream && r.a.whole {
		r.mu.Lock()
		r.watchSilence()
		r.mu.Unlock()
	}
	return r
}

// Header, WriteHeader and Write are those of http.ResponseWriter.
func (r *relay) Header() http.Header { return r.header }

// WriteHeader decides what becomes of the body.
func (r *relay) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if status < http.StatusOK {
		if !r.begun {
			maps.Copy(r.to.Header(), r.header)
			r.to.WriteHeader(status)
			clear(r.to.Header())
		}
		return
	}
	if r.mode != waiting {
		return
	}
	r.status = status
	encoded := r.header.Get("Content-Encoding") != ""
	kind := r.header.Get("Content-Type")
	good := status == http.StatusOK && !encoded && r.x.target != nil
	switch {
	case good && strings.HasPrefix(kind, "text/event-stream"):
		r.mode = events
		delete(r.header, "Content-Length") // frames may go or change
		r.own = true
		if r.header.Get("Cache-Control") == "" {
			r.header["Cache-Control"] = []string{"no-cache"}
		}
		r.header["X-Accel-Buffering"] = []string{"no"}
		r.watchSilence()
	case r.begun:
		r.mode = instead
		return
	case good && strings.HasPrefix(kind, "application/json") && (r.a.dressed.model != "" || r.stamps()):
		r.mode = changed
		return
	case good && strings.HasPrefix(kind, "application/json"):
		r.mode = watched
	default:
		r.mode = plain
		if encoded && status == http.StatusOK {
			r.unread(unreadEncoding)
		}
	}
	r.head()
}

// head sends the answer's head.
func (r *relay) head() {
	if r.begun {
		return
	}
	if r.own {
		disown(r.header)
	}
	maps.Copy(r.to.Header(), r.header)
	r.to.WriteHeader(r.status)
}

// unread notes that what an answer says of its usage isn't known.
func (r *relay) unread(why string) {
	if r.x.target != nil {
		k := &r.x.target.metrics.key
		r.x.g.metrics.generated.unread.WithLabelValues(k.Service.Namespace, k.Service.Name, k.Revision, why).Inc()
	}
}

func (r *relay) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	var err error
	switch r.mode {
	case events:
		err = r.writeEvents(p)
	case changed:
		if r.kept = append(r.kept, p...); len(r.kept) > maxChanged {
			r.mode = plain
			r.unread(unreadSize)
			r.head()
			_, err = r.to.Write(r.kept)
			r.kept = nil
		}
	case instead:
		if len(r.kept)+len(p) <= maxKept {
			r.kept = append(r.kept, p...)
		}
	case watched:
		if len(r.kept)+len(p) > maxKept {
			r.mode, r.kept = plain, nil
			r.unread(unreadSize)
		} else {
			r.kept = append(r.kept, p...)
		}
		_, err = r.to.Write(p)
	default:
		_, err = r.to.Write(p)
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush sends what was written, but for what is held back.
func (r *relay) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.mode {
	case waiting, changed, instead:
	default:
		r.flush()
	}
}

func (r *relay) flush() {
	if f, ok := r.to.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController find what the writer below can do.
func (r *relay) Unwrap() http.ResponseWriter { return r.to }

// writeEvents passes on the frames that p ends.
func (r *relay) writeEvents(p []byte) error {
	if r.loose {
		_, err := r.to.Write(p)
		return err
	}
	if err := r.frames.Feed(p, r.frame); err != nil {
		return err
	}
	if r.frames.Pending() > maxFrame {
		r.loose = true
		_, err := r.to.Write(r.frames.Rest())
		return err
	}
	return nil
}

// stamps says whether answers tell the revision that made them.
func (r *relay) stamps() bool {
	return r.a.call.Op.Usable() && r.x.target != nil && !r.x.target.stamp.Empty()
}

var usageKey = []byte(`"usage"`)

// frame passes on one frame.
func (r *relay) frame(frame []byte) error {
	data, at := openai.Data(frame)
	if len(data) == 0 || string(data) == openai.Done {
		_, err := r.to.Write(frame)
		return err
	}
	r.tally.frame(r.x, r.last)
	var few [3]openai.Edit
	edits := few[:0]
	if r.stamps() {
		if e, ok := r.x.target.stamp.On(data); ok {
			edits = append(edits, e)
		}
	}
	if r.a.dressed.model != "" || bytes.Contains(data, usageKey) {
		answer, ok := openai.ReadAnswer(data)
		if !ok {
			_, err := r.to.Write(frame)
			return err
		}
		if answer.Told {
			r.tally.usage, r.tally.told = answer.Usage, true
		}
		if r.a.dressed.usage {
			cut, ok := answer.WithoutUsage()
			switch {
			case ok && answer.Empty:
				return nil // it came because the gateway asked
			case ok:
				edits = append(edits, cut)
			}
		}
		if r.a.dressed.model != "" {
			if e, ok := answer.Renamed(r.a.model); ok {
				edits = append(edits, e)
			}
		}
	}
	if len(edits) == 0 || !at.Found() {
		_, err := r.to.Write(frame)
		return err
	}
	for i := range edits { // from places in the data to places in the frame
		edits[i].From, edits[i].To = edits[i].From+at.From, edits[i].To+at.From
	}
	room := framesMade.Get().(*[]byte)
	*room = openai.AppendApplied((*room)[:0], frame, edits...)
	_, err := r.to.Write(*room)
	if err == nil && cap(*room) <= maxFrameMade { // a server of HTTP/2 may read on in what it couldn't write
		framesMade.Put(room)
	}
	return err
}

// framesMade are buffers for frames that are changed, which would else be garbage, each of them.
var framesMade = sync.Pool{New: func() any { return new([]byte) }}

// maxFrameMade bounds what is kept for the next one.
const maxFrameMade = 64 << 10

// watchSilence begins to look for silence; the caller holds mu.
func (r *relay) watchSilence() {
	if r.timer == nil && r.x.g.cfg.OpenAI.Silence > 0 && !r.closed {
		r.timer = time.AfterFunc(r.x.g.cfg.OpenAI.Silence, r.keepAlive)
	}
}

// keepAlive sends a comment when there was nothing for long enough. Frames are passed on whole, so
// that none is under way.
func (r *relay) keepAlive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	silence := r.x.g.cfg.OpenAI.Silence
	if left := silence - time.Since(r.last); left > 0 && !r.closed {
		r.timer.Reset(left)
		return
	}
	switch {
	case r.closed || r.loose:
		return
	case r.mode == waiting && !r.begun:
		r.begun = true
		h := r.to.Header()
		h["X-Request-Id"] = []string{r.x.id}
		h["Content-Type"] = []string{"text/event-stream"}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
		r.to.WriteHeader(http.StatusOK)
	case r.mode != waiting && r.mode != events && r.mode != instead:
		return
	}
	_, _ = r.to.Write([]byte(openai.KeepAlive))
	r.flush()
	r.last = time.Now()
	r.timer.Reset(silence)
}

// broke ends a stream that an engine broke off: with an error in the form that the API's clients
// raise. It reports false where there is no stream, or nothing can be said within it.
func (r *relay) broke(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mode != events && r.mode != instead || r.loose {
		return false
	}
	r.frames.Rest() // half a frame would only confuse
	r.mode = events
	e := openai.Error{Message: err.Error(), Type: edgeOf(err).openAI, Code: "stream_broken"}
	_, _ = r.to.Write(openai.Frame(e.JSON()))
	r.flush()
	return true
}

// end sends what was held back, and counts. Afterwards nothing is written any more but by the
// exchange itself.
func (r *relay) end(aborted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	if !aborted {
		r.finish()
	}
	if r.x.target != nil {
		r.tally.count(r.x.g, r.x.target)
		r.x.hold.picked.tokens = r.tally.usage.Completion
	}
}

func (r *relay) finish() {
	switch r.mode {
	case events:
		_, _ = r.to.Write(r.frames.Rest()) // an engine may leave out the last line's end
	case watched:
		if answer, ok := openai.ReadAnswer(r.kept); ok {
			r.tally.usage, r.tally.told = answer.Usage, answer.Told
		}
	case changed:
		body := r.kept
		if answer, ok := openai.ReadAnswer(body); ok {
			r.tally.usage, r.tally.told = answer.Usage, answer.Told
			var edits []openai.Edit
			if e, ok := answer.Renamed(r.a.model); ok && r.a.dressed.model != "" {
				edits = append(edits, e)
			}
			if r.stamps() {
				if e, ok := r.x.target.stamp.On(body); ok {
					edits = append(edits, e)
				}
			}
			if r.own = r.own || len(edits) > 0; r.own {
				body = openai.Apply(body, edits...)
			}
		}
		r.header["Content-Length"] = []string{strconv.Itoa(len(body))}
		r.head()
		_, _ = r.to.Write(body)
	case instead:
		otherwise := openai.Error{Message: "the engine answered with something else than a stream", Type: "server_error"}
		_, _ = r.to.Write(openai.Frame(openai.InStream(r.kept, otherwise)))
		r.flush()
	}
	if r.own {
		disown(r.header)
	}
	maps.Copy(r.to.Header(), r.header) // trailers
}
