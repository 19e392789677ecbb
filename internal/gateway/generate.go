package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
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

// openAIPathOf is where an engine answers a path of the OpenAI API.
func openAIPathOf(t *route.Target, path string) string {
	return strings.TrimSuffix(t.OpenAI, "/") + path
}

func jsonBody(content []byte) *convert.Body {
	return &convert.Body{Bytes: content, JSONLen: oip.WholeBody}
}

func (x *exchange) inferOverOpenAI(e *route.Endpoint) error {
	asked, err := x.readInfer()
	if err != nil || asked == nil {
		return err
	}
	to, err := translate.NewToOpenAI(asked, x.target.settings)
	if err != nil {
		return err
	}
	_, answer, err := x.fetch(e, http.MethodPost, func() string { return openAIPathOf(x.target.Target, to.Path()) },
		jsonBody(to.Body(x.engineName())))
	if err != nil {
		return err
	}
	out, err := to.Answer(answer)
	if err != nil {
		return err
	}
	countTokens(x.g, x.target, answer)
	return x.answerInfer(asked, out)
}

// countTokens counts what an answer in one piece tells of its usage.
func countTokens(g *Gateway, of *target, answer []byte) {
	if a, ok := openai.ReadAnswer(answer); ok && a.Told {
		t := tally{usage: a.Usage, told: true}
		t.count(g, of)
	}
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
	countTokens(x.g, x.target, made)
	x.answerBytes(http.StatusOK, "application/json", answer)
	return nil
}

// generateStream passes the engine's stream on, each frame as soon as it is whole.
func (x *exchange) generateStream(e *route.Endpoint, g *translate.Generate, path func() string) error {
	resp, head, err := x.send(e, http.MethodPost, path, jsonBody(g.Body(x.engineName())))
	if err != nil {
		return err
	}
	if kind := head.Get("Content-Type"); resp.Status != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		answer, err := x.readAnswer(resp)
		if err == nil {
			err = engineRefused(resp.Status, answer)
		}
		if err == nil {
			err = convert.Broken(fmt.Errorf("it is %.100q and no stream", kind))
		}
		return err
	}
	x.identify()
	h := x.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	x.status, x.started = http.StatusOK, true
	x.w.WriteHeader(http.StatusOK)
	x.relayGenerated(resp, g.Stream())
	return nil
}

func (x *exchange) relayGenerated(resp *upstream.Response, stream *translate.GenerateStream) {
	defer x.request.Release()
	defer x.closeResponse(resp)
	rc := http.NewResponseController(x.w)
	counted := tally{start: x.start}
	defer func() {
		prompt, completion, told := stream.Usage()
		counted.usage, counted.told = openai.Usage{Prompt: prompt, Completion: completion}, told
		counted.count(x.g, x.target)
	}()
	write := func(out []byte) {
		if len(out) == 0 {
			return
		}
		if _, err := x.w.Write(out); err != nil {
			x.status = statusClientGone
			panic(http.ErrAbortHandler)
		}
	}
	var frames openai.Frames
	var out []byte
	frame := func(frame []byte) error {
		if data, _ := openai.Data(frame); len(data) > 0 {
			before := len(out)
			if out = stream.Frame(out, data); len(out) > before && !stream.Ended() {
				counted.frame(x, time.Now())
			}
		}
		return nil
	}
	_ = rc.Flush()
	for !stream.Ended() {
		piece, err := resp.Next()
		out = out[:0]
		_ = frames.Feed(piece, frame) // frame never fails
		if frames.Pending() > maxFrame {
			out = stream.Fail(out, "a frame of the engine's stream is too large")
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = frame(frames.Rest())
			out = stream.End(out)
		case x.r.Context().Err() != nil:
			x.status = statusClientGone
			panic(http.ErrAbortHandler)
		default:
			x.upstreamFailed(err)
			x.status = http.StatusBadGateway
			out = stream.Fail(out, err.Error())
		}
		if len(out) > 0 {
			write(out)
			_ = rc.Flush()
		}
	}
}
