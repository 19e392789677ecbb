package gateway

import (
	"fmt"
	"net/http"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// refusedError is what an engine refused a request with that was made of a client's: of the kind that its
// status means, with the engine's own words.
type refusedError struct {
	error
	status int
	// wait are the engine's fields that say when to try again.
	wait http.Header
}

func (e *refusedError) Unwrap() error { return e.error }

// edge gives what the kind alone can't tell: that the engine has too much to do for this client.
func (e *refusedError) edge(of edge) edge {
	if e.status == http.StatusTooManyRequests {
		of.status, of.code = engineBusy.status, engineBusy.code
		of.openAI, of.word = engineBusy.openAI, engineBusy.word
	}
	return of
}

// tell says when to try again as the engine does, or for it where it doesn't.
func (e *refusedError) tell(h http.Header) {
	for name, values := range e.wait {
		h[name] = values
	}
	backOff(h)
}

// engineRefused is an engine's answer as an error where it is one.
func engineRefused(status int, header http.Header, body []byte) error {
	kind := oip.KindOfStatus(status)
	if kind == nil {
		if status >= http.StatusMultipleChoices || status < http.StatusOK {
			return convert.Broken(fmt.Errorf("it came with the status %d", status))
		}
		return nil
	}
	err := &refusedError{error: errdef.New(kind, restError(status, body)), status: status, wait: http.Header{}}
	for _, name := range []string{"Retry-After", "Retry-After-Ms"} {
		if values := header[name]; len(values) > 0 {
			err.wait[name] = values
		}
	}
	return err
}
