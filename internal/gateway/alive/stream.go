package alive

import (
	"net/http"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// Stream writes frames to the client of a stream that has begun, and a comment after each silence. It is
// safe for use by several goroutines; each Write is of whole frames.
type Stream struct {
	silence time.Duration
	// to is the client's writer.
	to http.ResponseWriter

	// mu guards what follows, and to, against the timer.
	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

// Keep begins to keep a client alive; with a silence of 0 or less it gets no comments. The caller Ends it.
func Keep(w http.ResponseWriter, silence time.Duration) *Stream {
	s := &Stream{to: w, silence: silence}
	s.mu.Lock()
	defer s.mu.Unlock()
	if silence > 0 {
		s.timer = time.AfterFunc(silence, s.comment)
	}
	return s
}

// Write sends frames at once.
func (s *Stream) Write(frames []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.to.Write(frames)
	_ = http.NewResponseController(s.to).Flush()
	if s.timer != nil && !s.ended {
		s.timer.Reset(s.silence)
	}
	return n, err
}

func (s *Stream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	_, _ = s.to.Write([]byte(openai.KeepAlive))
	_ = http.NewResponseController(s.to).Flush()
	s.timer.Reset(s.silence)
}

// End ends the comments: nothing is written from then on but by the caller.
func (s *Stream) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Unheard is a writer for what comes of a request meanwhile, while a Watch has the client's: its fields can
// be read, and all else is left out.
type Unheard struct{ header http.Header }

// NewUnheard returns one without fields.
func NewUnheard() *Unheard { return &Unheard{http.Header{}} }

// Header is http.ResponseWriter's, as are WriteHeader and Write.
func (u *Unheard) Header() http.Header { return u.header }

// WriteHeader does nothing.
func (*Unheard) WriteHeader(int) {}

func (*Unheard) Write(p []byte) (int, error) { return len(p), nil }
