package payloads

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/objectstore"
)

// file is what some events become in a bucket. It is made once, for all tries.
type file struct {
	events []*Event
	// made, with data, its type and the name's extension, says that it is there.
	made                   bool
	data                   []byte
	contentType, extension string
}

// put stores a file; again says whether another try may have more luck.
func (e *Emitter) put(f *file) (again bool, _ error) {
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.Timeout)
	defer cancel()
	first := f.events[0]
	store := first.Store
	if e.cfg.Objects == nil {
		return false, errors.New("this gateway stores nothing")
	}
	at, err := objectstore.ParsePlace(first.URL)
	if err != nil {
		return false, err
	}
	if !f.made {
		if again, err := e.make(ctx, f); err != nil {
			return again, err
		}
	}
	err = e.cfg.Objects.Put(ctx, at, objectstore.Source{
		Namespace: first.Service.Namespace, Secret: store.Secret, Key: store.Key, ServiceAccount: store.ServiceAccount,
		Region: store.Region, Endpoint: store.Endpoint,
	}, objectKey(at.Prefix, first, f.extension), f.contentType, f.data)
	// Credentials that don't do today may have been changed by the next try.
	return errors.Is(err, errdef.ErrUnavailable) || errors.Is(err, errdef.ErrDenied), err
}

// objectKey names a file as KServe does (pkg/logger/store.go), after its first event.
func objectKey(prefix string, ev *Event, extension string) string {
	kind := types[ev.Kind]
	name := safeName(ev.ID) + "-" + kind[strings.LastIndexByte(kind, '.')+1:] + "." + extension
	return strings.TrimPrefix(path.Join(prefix, ev.Service.Namespace, ev.Service.Name, string(ev.Component), ev.Store.Path, name), "/")
}

// safeName is an id as a file's name: clients choose ids, and don't choose folders.
func safeName(id string) string {
	const longest = 200
	id = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("-_.~:=+@,", r):
			return r
		}
		return '_'
	}, id)
	return id[:min(len(id), longest)]
}

// make turns a file's events into its data.
func (e *Emitter) make(ctx context.Context, f *file) (again bool, err error) {
	store := f.events[0].Store
	if store.Marshaller == "" {
		f.data, f.contentType, f.extension = encode(store.Format, f.events)
		f.made = true
		return false, nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, store.Marshaller, bytes.NewReader(records(f.events)))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(r)
	if err != nil {
		return true, fmt.Errorf("the marshaller: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxFile+1))
	switch {
	case resp.StatusCode/100 != 2:
		return retryable(resp.StatusCode), errors.New("the marshaller answered " + resp.Status)
	case err != nil:
		return true, fmt.Errorf("read the marshaller's answer: %w", err)
	case len(data) > maxFile:
		return false, fmt.Errorf("the marshaller's answer is longer than %d bytes", maxFile)
	}
	f.data, f.contentType, f.extension = data, resp.Header.Get("Content-Type"), resp.Header.Get(extensionField)
	if f.contentType == "" {
		f.contentType = "application/octet-stream"
	}
	if f.extension == "" {
		f.extension = "json"
	}
	f.extension = safeName(f.extension)
	f.made = true
	return false, nil
}

// extensionField is where a marshaller says what its file's name ends with
// (KServe, pkg/logger/marshaller_http.go).
const extensionField = "X-Log-Marshal-Extension"

// maxFile bounds what a marshaller makes of some events.
const maxFile = 64 << 20

func retryable(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}
