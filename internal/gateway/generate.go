package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/alive"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// v2OverOpenAI answers a call of V2 about a model from an engine that speaks OpenAI.
func (x *exchange) v2OverOpenAI(e *route.Endpoint) error {
	call := x.match.Call
	if call.Version != "" && call.Op != route.Generate && call.Op != route.GenerateStream {
		// The draft for text has the version in its path as a rule, so that there any one is taken.
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s has no versions: leave out /versions/%s, or ask one revision by its host", x.target.service, call.Version))
	}
	get := x.r.Method == http.MethodGet || x.r.Method == http.MethodHead
	switch call.Op {
	case route.ModelMetadata, route.ModelReady:
		switch {
		case !get:
			x.refuseMethod(http.MethodGet)
		case call.Op == route.ModelReady: // the replica is, or the request weren't here
			x.answerBytes(http.StatusOK, "application/json", oip.Encode(oip.ModelReady{Name: call.Model, Ready: true}))
		default:
			x.answerBytes(http.StatusOK, "application/json", oip.Encode(translate.LanguageMetadata(call.Model, x.target.settings)))
		}
		return nil
	case route.Infer:
		return x.inferOverOpenAI(e)
	}
	return x.generate(e)
}

// v2OverEither answers a call of V2 about a model of an engine that speaks OpenAI for those of which it tells
// no tensors. What it told nothing of is asked for again: the model may have come since.
func (x *exchange) v2OverEither(e *route.Endpoint) error {
	known, err := x.model(e)
	if err != nil {
		return err
	}
	meta := known.meta
	if meta == nil {
		if meta, err = x.metadata(e); err != nil && !tellsOfNone(err) {
			return err
		}
	}
	if translate.Tensors(meta) {
		return errPassed
	}
	return x.v2OverOpenAI(e)
}

// openAIPathOf is where an engine answers a path of the OpenAI API. A root with a version of its own takes
// the place of /v1.
func openAIPathOf(t *route.Target, path string) string {
	return openai.Under(t.OpenAI, path)
}

func jsonBody(content []byte) *convert.Body {
	return &convert.Body{Bytes: content, JSONLen: oip.WholeBody}
}

func (x *exchange) inferOverOpenAI(e *route.Endpoint) error {
	asked, err := x.readInfer()
	if err != nil || asked == nil {
		return err
	}
	out, err := x.askOpenAI(e, asked)
	if err != nil {
		return err
	}
	return x.answerInfer(asked, out)
}

// askOpenAI asks an engine that speaks OpenAI what was asked with tensors.
func (x *exchange) askOpenAI(e *route.Endpoint, asked *oip.InferRequest) (*oip.InferResponse, error) {
	to, err := translate.NewToOpenAI(asked, x.target.settings)
	if err != nil {
		return nil, err
	}
	return x.fetchOpenAI(e, to)
}

func (x *exchange) fetchOpenAI(e *route.Endpoint, to translate.ToOpenAI) (*oip.InferResponse, error) {
	_, answer, err := x.fetch(e, http.MethodPost, func() string { return openAIPathOf(x.target.Target, to.Path()) },
		jsonBody(to.Body(x.engineName())))
	if err != nil {
		return nil, err
	}
	out, err := to.Answer(answer)
	if err != nil {
		return nil, err
	}
	x.hold.picked.tokens = countTokens(x.g, x.target, answer)
	return out, nil
}

// openAIOverOwn answers rerank, score or classify from an engine that has them in paths and shapes of its own.
func (x *exchange) openAIOverOwn(e *route.Endpoint) error {
	body, err := x.readBody()
	if err != nil {
		return err
	}
	to, back, err := translate.NewByOwnPath(x.ask.call.Path, body, x.target.settings, translate.Origin{ID: x.id, Created: x.start.Unix()})
	if err != nil {
		return err
	}
	out, err := x.fetchOpenAI(e, to)
	if err != nil {
		return err
	}
	answer, err := back(out)
	if err != nil {
		return err
	}
	x.answerBytes(http.StatusOK, "application/json", answer)
	return nil
}

// countTokens counts what an answer in one piece tells of its usage, and returns how many tokens it
// has; 0 where it doesn't tell.
func countTokens(g *Gateway, of *target, answer []byte) int64 {
	a, ok := openai.ReadAnswer(answer)
	if !ok || !a.Told {
		return 0
	}
	t := tally{usage: a.Usage, told: true}
	t.count(g, of)
	return a.Usage.Completion
}

func (x *exchange) generate(e *route.Endpoint) error {
	if x.r.Method != http.MethodPost {
		x.refuseMethod(http.MethodPost)
		return nil
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	call := x.match.Call
	g, err := translate.NewGenerate(body, call.Model, call.Version, call.Op == route.GenerateStream, x.target.settings)
	if err != nil {
		return err
	}
	path := func() string { return openAIPathOf(x.target.Target, g.Path()) }
	if call.Op == route.GenerateStream {
		return x.generateStream(e, g, path)
	}
	_, made, err := x.fetch(e, http.MethodPost, path, jsonBody(g.Body(x.engineName())))
	if err != nil {
		return err
	}
	answer, err := g.Answer(made)
	if err != nil {
		return err
	}
	x.hold.picked.tokens = countTokens(x.g, x.target, made)
	x.answerBytes(http.StatusOK, "application/json", answer)
	return nil
}

// completeOverV2 answers OpenAI's completions from an engine that speaks V2's generate.
func (x *exchange) completeOverV2(e *route.Endpoint, body []byte, inputs []oip.TensorMetadata, origin translate.Origin) error {
	if e.HTTP == "" {
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s answers only over gRPC, which has no call for generate", x.target.service))
	}
	c, err := translate.NewCompletions(body, inputs, origin)
	if err != nil {
		return err
	}
	path := func() string { return convert.ModelPath("", c.Path())(x.engineName()) }
	if c.Stream {
		return x.relayTranslated(e, c.Body(), path, c.Chunks(), func() {})
	}
	_, made, err := x.fetch(e, http.MethodPost, path, jsonBody(c.Body()))
	if err != nil {
		return err
	}
	answer, err := c.Answer(made)
	if err != nil {
		return err
	}
	x.answerBytes(http.StatusOK, "application/json", answer)
	return nil
}

// generateStream answers generate_stream from an engine's stream of completions.
func (x *exchange) generateStream(e *route.Endpoint, g *translate.Generate, path func() string) error {
	stream := g.Stream()
	counted := tally{start: x.start}
	defer func() {
		if prompt, completion, told := stream.Usage(); told || counted.frames > 0 {
			counted.usage, counted.told = openai.Usage{Prompt: prompt, Completion: completion}, told
			counted.count(x.g, x.target)
			x.hold.picked.tokens = counted.usage.Completion
		}
	}()
	return x.relayTranslated(e, g.Body(x.engineName()), path, stream, func() { counted.frame(x, time.Now()) })
}

// carrier is a stream's way from one protocol to another: data of a frame in, frames out.
type carrier interface {
	Frame(dst, data []byte) []byte
	End(dst []byte) []byte
	Fail(dst []byte, message string) []byte
	Ended() bool
}

// relayTranslated asks the engine for a stream and passes it on, each frame as soon as it is whole.
// passed is called for each of the engine's frames that the client gets something for.
func (x *exchange) relayTranslated(e *route.Endpoint, body []byte, path func() string, to carrier, passed func()) error {
	resp, head, err := x.sendKept(e, path, body)
	if err != nil {
		return err
	}
	if kind := head.Get("Content-Type"); resp.Status != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		answer, err := x.readAnswer(resp)
		if err == nil {
			err = engineRefused(resp.Status, head, answer)
		}
		if err == nil {
			err = convert.Broken(fmt.Errorf("it is %.100q and no stream", kind))
		}
		return err
	}
	defer x.request.Release()
	defer x.closeResponse(resp)
	x.identify()
	h := x.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	x.status, x.started = http.StatusOK, true
	x.w.WriteHeader(http.StatusOK)
	x.relayFrames(resp, to, passed)
	return nil
}

// sendKept asks the engine for a stream, and keeps the client alive until the engine's head is there.
func (x *exchange) sendKept(e *route.Endpoint, path func() string, body []byte) (*upstream.Response, http.Header, error) {
	silence := x.g.cfg.OpenAI.Silence
	if silence <= 0 || !x.r.ProtoAtLeast(1, 1) {
		return x.send(e, http.MethodPost, path, jsonBody(body))
	}
	client := x.w
	kept := alive.Watch(client, x.id, x.match.Call.Op == route.GenerateStream, silence)
	x.w = alive.NewUnheard() // the client's fields are kept's
	defer func() {
		x.w = client
		if _, begun := kept.GoesOn(); begun {
			x.alive, x.w = kept, kept
		}
	}()
	return x.send(e, http.MethodPost, path, jsonBody(body))
}

func (x *exchange) relayFrames(resp *upstream.Response, to carrier, passed func()) {
	_ = http.NewResponseController(x.w).Flush()
	client := alive.Keep(x.w, x.g.cfg.OpenAI.Silence)
	defer client.End()
	var frames openai.Frames
	var out []byte
	frame := func(frame []byte) error {
		if data, _ := openai.Data(frame); len(data) > 0 {
			before := len(out)
			if out = to.Frame(out, data); len(out) > before && !to.Ended() {
				passed()
			}
		}
		return nil
	}
	for !to.Ended() {
		piece, err := resp.Next()
		out = out[:0]
		_ = frames.Feed(piece, frame) // frame never fails
		if frames.Pending() > maxFrame {
			out = to.Fail(out, "a frame of the engine's stream is too large")
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = frame(frames.Rest())
			out = to.End(out)
		case x.r.Context().Err() != nil:
			x.status = statusClientGone
			panic(http.ErrAbortHandler)
		default:
			x.upstreamFailed(err)
			x.status = http.StatusBadGateway
			out = to.Fail(out, err.Error())
		}
		if len(out) == 0 {
			continue
		}
		if _, err := client.Write(out); err != nil {
			x.status = statusClientGone
			panic(http.ErrAbortHandler)
		}
	}
}
