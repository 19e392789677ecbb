// Package keeper asks the engines of language models which LoRA adapters they have, and has them load
// and unload the adapters that services list: over vLLM's calls or SGLang's, on each replica, and
// again when a replica was started anew.
package keeper

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

const (
	// maxAnswer bounds what is read of an engine's answer.
	maxAnswer = 4 << 20
	// askTime and loadTime bound a call; an adapter's bytes may have to be fetched and moved to an
	// accelerator.
	askTime  = 5 * time.Second
	loadTime = 5 * time.Minute
)

// errNoList says that an engine has no list of models.
var errNoList = errdef.New(errdef.ErrUnsupported, "the engine has no list of models")

// engine asks one engine. Its errors are short, for they stand in statuses.
type engine struct {
	client *http.Client
	// base is the engine's URL, root the path under which it speaks the API, without a last slash.
	base, root string
	// sglang says whose calls it takes; nil means that this isn't known yet.
	sglang *bool
}

func newClient(security enginetls.Security) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: askTime}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10, TLSClientConfig: security.Config(), TLSHandshakeTimeout: askTime,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// list returns the adapters that the engine reports, in order: those of its models that have a
// parent.
func (e *engine) list(ctx context.Context) ([]lora.Adapter, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	status, body, err := e.call(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	if status == http.StatusNotFound || status == http.StatusMethodNotAllowed {
		return nil, errNoList
	}
	if status != http.StatusOK {
		return nil, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("the engine answers %d to GET /v1/models", status))
	}
	return e.read(body)
}

func (e *engine) read(body []byte) ([]lora.Adapter, error) {
	var answer struct {
		Data []struct {
			ID      string  `json:"id"`
			OwnedBy string  `json:"owned_by"`
			Root    string  `json:"root"`
			Parent  *string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, errdef.New(errdef.ErrInvalid, "the engine's list of models can't be read")
	}
	var out []lora.Adapter
	for _, m := range answer.Data {
		if e.sglang == nil && (m.OwnedBy == "sglang" || m.OwnedBy == "vllm") {
			is := m.OwnedBy == "sglang"
			e.sglang = &is
		}
		if m.ID != "" && m.Parent != nil && *m.Parent != "" {
			out = append(out, lora.Adapter{Name: m.ID, Parent: *m.Parent, Root: m.Root})
		}
	}
	slices.SortFunc(out, func(a, b lora.Adapter) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(out, func(a, b lora.Adapter) bool { return a.Name == b.Name }), nil
}

// adapterCall is what both engines' calls take.
type adapterCall struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path,omitempty"`
}

func (e *engine) load(ctx context.Context, name, path string) error {
	return e.tell(ctx, "load", adapterCall{name, path})
}

func (e *engine) unload(ctx context.Context, name string) error {
	return e.tell(ctx, "unload", adapterCall{Name: name})
}

// tell has the engine load or unload: at vLLM's path, and at SGLang's where there is nothing there.
func (e *engine) tell(ctx context.Context, verb string, call adapterCall) error {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	body, err := json.Marshal(call)
	if err != nil {
		return fmt.Errorf("%s adapter: %w", verb, err)
	}
	ways := []bool{false, true}
	if e.sglang != nil {
		ways = []bool{*e.sglang}
	}
	for _, sglang := range ways {
		path := "/v1/" + verb + "_lora_adapter"
		if sglang {
			path = "/" + verb + "_lora_adapter"
		}
		status, answer, err := e.call(ctx, http.MethodPost, path, body)
		if err != nil {
			return err
		}
		said := message(answer)
		if said == "" && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed) {
			continue // nothing is there
		}
		e.sglang = &sglang
		if status == http.StatusOK {
			return nil
		}
		return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the engine answers %d: %s", status, cmp.Or(said, "without a reason")))
	}
	return errdef.New(errdef.ErrUnsupported, "the engine takes no adapters while it runs: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, SGLang with --enable-lora")
}

// message finds what an engine says is wrong, empty where it says nothing in its own shape.
func message(answer []byte) string {
	var said struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Message string `json:"message"`
		SGLang  string `json:"error_message"`
	}
	if json.Unmarshal(answer, &said) != nil {
		return ""
	}
	text, _, _ := strings.Cut(strings.TrimSpace(cmp.Or(said.Error.Message, said.Message, said.SGLang)), "\n")
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func (e *engine) call(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+openai.Under(e.root, path), bytes.NewReader(body))
	if err != nil {
		return 0, nil, errdef.New(errdef.ErrInvalid, "the engine's address can't be read")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, nil, errdef.New(errdef.ErrUnavailable, "the engine can't be reached")
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, nil, errdef.New(errdef.ErrUnavailable, "the engine's answer ended early")
	}
	return resp.StatusCode, answer, nil
}
