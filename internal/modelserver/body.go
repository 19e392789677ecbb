package modelserver

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// readStep is how much of a body is read at once, and allocated before any of it came. What is
// no larger isn't counted: the queue bounds how many of those there are.
const readStep = 256 << 10

// body reads the request's body, unpacked, up to the limit. What it takes is added to s, which
// the caller must free when the request is answered.
func (h *rest) body(w http.ResponseWriter, r *http.Request, s *share) ([]byte, error) {
	limit := h.cfg.MaxBodyBytes
	tooLarge := errdef.New(errdef.ErrTooLarge, brief.Sprintf("the body is over %d bytes; send less at once, or raise --max_body", limit))
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	conn := http.NewResponseController(w)
	patience := func() {
		// Not every writer has deadlines; without one the client's own pace is taken.
		_ = conn.SetReadDeadline(time.Now().Add(h.cfg.Stall))
	}
	patience() // a packed body's first bytes are read at once
	in, packed, err := unpacked(strings.Join(r.Header.Values("Content-Encoding"), ", "), http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, err
	}
	// A body of known size waits for all that it needs at once: two that have a part each, and
	// wait for the rest, would wait for each other. It does so after its first step has come, as
	// announcing alone costs a client nothing.
	known := !packed && r.ContentLength >= 0
	var buf bytes.Buffer
	if known {
		buf.Grow(int(min(r.ContentLength, readStep)) + bytes.MinRead)
	}
	for {
		patience()
		_, err := io.CopyN(&buf, in, readStep)
		done := errors.Is(err, io.EOF)
		var maxBytes *http.MaxBytesError
		switch {
		case errors.As(err, &maxBytes) || int64(buf.Len()) > limit:
			return nil, tooLarge
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("the body comes too slowly: after %d bytes, the next %d didn't come within %v", buf.Len(), readStep, h.cfg.Stall))
		case err != nil && !done:
			return nil, errdef.New(errdef.ErrInvalid, brief.Sprintf("the body ends early, after %d bytes: %v", buf.Len(), err))
		}
		if done {
			// The connection is watched while the model runs, and may well be silent then.
			_ = conn.SetReadDeadline(time.Time{})
			return buf.Bytes(), nil
		}
		need := int64(buf.Len()) + readStep
		if known {
			need = r.ContentLength
		}
		if err := s.grow(r.Context(), min(need, limit)); err != nil {
			return nil, err
		}
	}
}

// unpacked undoes the Content-Encoding, and says whether there was one.
func unpacked(encoding string, in io.Reader) (io.Reader, bool, error) {
	switch strings.ToLower(encoding) {
	case "gzip", "x-gzip": // the same by RFC 9110, section 8.4.1.3
		zr, err := gzip.NewReader(in)
		if err != nil {
			return nil, true, errdef.New(errdef.ErrInvalid, "the body isn't gzip, as Content-Encoding says")
		}
		return zr, true, nil
	case "deflate":
		zr, err := zlib.NewReader(in)
		if err != nil {
			return nil, true, errdef.New(errdef.ErrInvalid, "the body isn't zlib, as Content-Encoding deflate says")
		}
		return zr, true, nil
	case "", "identity":
		return in, false, nil
	}
	return nil, false, errdef.New(errdef.ErrUnsupported, brief.Sprintf("Content-Encoding %q isn't supported; use gzip, deflate or none", encoding))
}
