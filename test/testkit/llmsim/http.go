package llmsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

func (e *Engine) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.chat)
	mux.HandleFunc("POST /v1/completions", e.completions)
	mux.HandleFunc("GET /v1/models", e.models)
	load, unload := "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"
	if e.cfg.LoRA.SGLang {
		load, unload = "POST /load_lora_adapter", "POST /unload_lora_adapter"
	}
	mux.HandleFunc(load, e.loadAdapter)
	mux.HandleFunc(unload, e.unloadAdapter)
	mux.Handle("GET /metrics", e.metrics.handler())
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if e.isDead() {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusOK)
	})
	mux.HandleFunc("PUT /sim/fault", e.putFault)
	return mux
}

// request is what the engine reads of a body; it passes over everything else.
type request struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Prompt              string `json:"prompt"`
	Stream              bool   `json:"stream"`
	MaxTokens           int    `json:"max_tokens"`
	MaxCompletionTokens int    `json:"max_completion_tokens"`
	IgnoreEOS           bool   `json:"ignore_eos"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// render is the prompt that a chat template makes. What one turn's prompt and answer are, the next
// turn's prompt begins with.
func (r *request) render() ([]byte, error) {
	var out []byte
	for _, m := range r.Messages {
		out = append(out, "<|"+m.Role+"|>\n"...)
		var text string
		var parts []struct {
			Text string `json:"text"`
		}
		switch {
		case len(m.Content) == 0 || string(m.Content) == "null":
		case json.Unmarshal(m.Content, &text) == nil:
			out = append(out, text...)
		case json.Unmarshal(m.Content, &parts) == nil:
			for _, p := range parts {
				out = append(out, p.Text...)
			}
		default:
			return nil, errors.New("content is neither a string nor a list of parts")
		}
		out = append(out, '\n')
	}
	return append(out, "<|assistant|>\n"...), nil
}

func (e *Engine) chat(w http.ResponseWriter, r *http.Request) {
	e.serve(w, r, "chatcmpl-", func(req *request) ([]byte, error) {
		if len(req.Messages) == 0 {
			return nil, errors.New("messages is empty")
		}
		return req.render()
	})
}

func (e *Engine) completions(w http.ResponseWriter, r *http.Request) {
	e.serve(w, r, "cmpl-", func(req *request) ([]byte, error) {
		if req.Prompt == "" {
			return nil, errors.New("prompt is empty")
		}
		return []byte(req.Prompt), nil
	})
}

func (e *Engine) serve(w http.ResponseWriter, r *http.Request, kind string, prompt func(*request) ([]byte, error)) {
	fault, ok := e.strike(w)
	if !ok {
		return
	}
	var req request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		refuse(w, http.StatusBadRequest, "BadRequestError", err.Error())
		return
	}
	text, err := prompt(&req)
	if err != nil {
		refuse(w, http.StatusBadRequest, "BadRequestError", err.Error())
		return
	}
	q, id, status, err := e.submit(&req, text)
	if err != nil {
		refuse(w, status, http.StatusText(status), err.Error())
		return
	}
	defer e.leave(q)
	a := &answer{engine: e, w: w, q: q, req: &req, id: fmt.Sprint(kind, id), chat: kind == "chatcmpl-", cut: fault.CutAfter}
	if req.Stream {
		a.stream(r.Context())
	} else {
		a.whole(r.Context())
	}
}

// submit queues a request, or says with which status it is refused.
func (e *Engine) submit(req *request, text []byte) (q *sequence, id int64, status int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	adapter := ""
	if req.Model != e.cfg.Model {
		if _, ok := e.adapters[req.Model]; !ok {
			return nil, 0, http.StatusNotFound, fmt.Errorf("the model `%s` does not exist", req.Model)
		}
		adapter = req.Model
	}
	seed := fnv.New64a()
	_, _ = seed.Write(text)
	words := rand.New(rand.NewPCG(e.cfg.Seed, seed.Sum64())) //nolint:gosec // made to be repeatable
	most := max(req.MaxTokens, req.MaxCompletionTokens)
	stop := false
	if own := 32 + words.IntN(225); most <= 0 || most > own && !req.IgnoreEOS {
		most, stop = own, true
	}
	prompt := tokens(len(text))
	if all := prompt + most; all > e.cfg.MaxLen || all >= e.cfg.Blocks*e.cfg.BlockSize {
		return nil, 0, http.StatusBadRequest, fmt.Errorf("this model's maximum context length is %d tokens, and %d are asked for",
			min(e.cfg.MaxLen, e.cfg.Blocks*e.cfg.BlockSize-1), all)
	}
	if e.cfg.MaxWaiting > 0 && len(e.sched.waiting) >= e.cfg.MaxWaiting {
		return nil, 0, http.StatusServiceUnavailable, errors.New("too many requests wait")
	}
	now := time.Now()
	e.ids++
	q = &sequence{
		adapter: adapter, text: text, prompt: prompt, most: most, stop: stop, answer: func() string { return word(words) },
		arrived: now, eligible: now.Add(e.scaled(e.cfg.Timing.Overhead)), out: make(chan string, most),
	}
	e.sched.waiting = append(e.sched.waiting, q)
	e.stats.Requests++
	e.nudge()
	return q, e.ids, 0, nil
}

// leave says that nobody waits for a sequence any more.
func (e *Engine) leave(q *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q.cancelled = true
	e.nudge()
}

// word is a token's text.
func word(rnd *rand.Rand) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	n := rnd.Uint32()
	return string([]byte{letters[n%26], letters[n>>8%26], letters[n>>16%26], ' '})
}

// answer is one response under way.
type answer struct {
	engine *Engine
	w      http.ResponseWriter
	q      *sequence
	req    *request
	id     string
	chat   bool
	// cut is after how many tokens the connection breaks; 0 means never.
	cut int
}

// next waits for a token; false means that it was the last.
func (a *answer) next(ctx context.Context) (string, bool) {
	select {
	case word, ok := <-a.q.out:
		if ok && a.cut > 0 {
			if a.cut--; a.cut == 0 {
				panic(http.ErrAbortHandler)
			}
		}
		return word, ok
	case <-ctx.Done():
	case <-a.engine.crashed:
	}
	panic(http.ErrAbortHandler)
}

func (a *answer) reason() string {
	if a.q.stop {
		return "stop"
	}
	return "length"
}

func (a *answer) usage() map[string]any {
	return map[string]any{
		"prompt_tokens": a.q.prompt, "completion_tokens": a.q.most, "total_tokens": a.q.prompt + a.q.most,
		"prompt_tokens_details": map[string]int{"cached_tokens": a.q.cached},
	}
}

func (a *answer) whole(ctx context.Context) {
	var text strings.Builder
	for {
		word, ok := a.next(ctx)
		if !ok {
			break
		}
		text.WriteString(word)
	}
	object, choice := "text_completion", map[string]any{"index": 0, "text": text.String(), "finish_reason": a.reason()}
	if a.chat {
		object = "chat.completion"
		choice = map[string]any{"index": 0, "message": map[string]string{"role": "assistant", "content": text.String()}, "finish_reason": a.reason()}
	}
	reply(a.w, http.StatusOK, map[string]any{
		"id": a.id, "object": object, "created": time.Now().Unix(), "model": a.req.Model, "choices": []any{choice}, "usage": a.usage(),
	})
}

func (a *answer) stream(ctx context.Context) {
	a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flusher := http.NewResponseController(a.w)
	_ = flusher.Flush()
	object := "text_completion"
	if a.chat {
		object = "chat.completion.chunk"
	}
	model, err := json.Marshal(a.req.Model)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	head := fmt.Sprintf(`data: {"id":%q,"object":%q,"created":%d,"model":%s,`, a.id, object, time.Now().Unix(), model)
	frame := func(choices, rest string) { _, _ = fmt.Fprint(a.w, head, `"choices":[`, choices, `]`, rest, "}\n\n") }
	null := ""
	if a.req.StreamOptions.IncludeUsage {
		null = `,"usage":null`
	}
	piece := func(text, reason string) {
		if a.chat {
			frame(fmt.Sprintf(`{"index":0,"delta":{"content":%q},"finish_reason":%s}`, text, reason), null)
		} else {
			frame(fmt.Sprintf(`{"index":0,"text":%q,"finish_reason":%s}`, text, reason), null)
		}
	}
	pending := make([]byte, 0, bytesPerToken*a.engine.cfg.StreamInterval)
	for n := 0; ; n++ {
		word, ok := a.next(ctx)
		if !ok {
			break
		}
		if n == 0 && a.chat {
			frame(`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`, null)
		}
		pending = append(pending, word...)
		if n == 0 || len(pending) >= bytesPerToken*a.engine.cfg.StreamInterval {
			piece(string(pending), "null")
			pending = pending[:0]
			_ = flusher.Flush()
		}
	}
	piece(string(pending), `"`+a.reason()+`"`)
	if a.req.StreamOptions.IncludeUsage {
		usage, err := json.Marshal(a.usage())
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		frame("", `,"usage":`+string(usage))
	}
	_, _ = fmt.Fprint(a.w, "data: [DONE]\n\n")
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	type card struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		Root        string `json:"root"`
		Parent      any    `json:"parent"`
		MaxModelLen int    `json:"max_model_len,omitempty"`
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	data := []card{{e.cfg.Model, "model", e.created, "llmsim", e.cfg.Model, nil, e.cfg.MaxLen}}
	for _, name := range e.loaded() {
		data = append(data, card{ID: name, Object: "model", Created: e.created, OwnedBy: "llmsim", Root: e.adapters[name], Parent: e.cfg.Model})
	}
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

func reply(w http.ResponseWriter, status int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(what)
}

// refuse answers with an error in vLLM's shape.
func refuse(w http.ResponseWriter, status int, kind, message string) {
	reply(w, status, map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": status}})
}
