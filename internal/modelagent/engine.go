package modelagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// engine speaks the repository API of the Open Inference Protocol.
type engine struct {
	base   string
	client *http.Client
}

const (
	// indexWait, loadWait and unloadWait are how long the engine has for each.
	indexWait, loadWait, unloadWait = 5 * time.Second, 15 * time.Minute, 2 * time.Minute
	maxAnswer                       = 4 << 20
	// maxTold is how much of the engine's own words is kept.
	maxTold = 1000
)

func newEngine(at string) *engine {
	return &engine{base: "http://" + at, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers + 1, IdleConnTimeout: 30 * time.Second}}}
}

func (e *engine) close() { e.client.CloseIdleConnections() }

// index returns which models the engine has ready.
func (e *engine) index(ctx context.Context) (map[string]bool, error) {
	raw, err := e.post(ctx, indexWait, "index")
	if err != nil {
		return nil, err
	}
	var lines []struct{ Name, State string }
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, fmt.Errorf("%w: the engine's index of models: %w", errdef.ErrUnavailable, err)
	}
	ready := make(map[string]bool, len(lines))
	for _, l := range lines {
		if l.State == "READY" {
			ready[l.Name] = true // of any version
		}
	}
	return ready, nil
}

// load has the engine load a model, or load it anew. It blocks until that is done.
func (e *engine) load(ctx context.Context, name string) error {
	_, err := e.post(ctx, loadWait, "models", name, "load")
	return err
}

// unload has the engine unload a model. One that it doesn't have is no error.
func (e *engine) unload(ctx context.Context, name string) error {
	_, err := e.post(ctx, unloadWait, "models", name, "unload")
	if errors.Is(err, errdef.ErrNotFound) {
		return nil
	}
	return err
}

func (e *engine) post(ctx context.Context, patience time.Duration, path ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at := e.base + "/v2/repository"
	for _, p := range path {
		at += "/" + url.PathEscape(p)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader("{}"))
	if err != nil {
		return nil, fmt.Errorf("%w: ask the engine: %w", errdef.ErrInvalid, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: ask the engine: %w", errdef.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%w: read the engine's answer: %w", errdef.ErrUnavailable, err)
	}
	switch {
	case resp.StatusCode/100 == 2:
		return raw, nil
	case resp.StatusCode == http.StatusNotFound:
		return nil, errdef.New(errdef.ErrNotFound, said(resp.StatusCode, raw))
	}
	return nil, errdef.New(errdef.ErrUnavailable, said(resp.StatusCode, raw))
}

// said is what the engine gives as its reason.
func said(status int, raw []byte) string {
	var body struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(raw, &body) == nil && body.Error != "" {
		return strings.ToValidUTF8(body.Error[:min(len(body.Error), maxTold)], "")
	}
	return fmt.Sprintf("it answers with status %d and no reason; its log may have one", status)
}
