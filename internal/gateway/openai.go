package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// OpenAI bounds what the gateway does for requests of the OpenAI API. Zero fields mean the
// default given.
type OpenAI struct {
	// Root is what may stand before the API's own paths; "/openai", and "/" for nothing.
	Root string
	// MaxRead is how many bytes of a body are read ahead, at most, to find the model that it names;
	// 32 MiB.
	MaxRead int
	// Silence is how long a stream may say nothing until the client gets a comment; 15 s, negative
	// for never.
	Silence time.Duration
}

const (
	defaultMaxRead = 32 << 20
	defaultSilence = 15 * time.Second
	// maxForUsage is how much of a body that names its model is read ahead for what else it asks.
	maxForUsage = 1 << 20
)

// asked is what a request of the OpenAI API asks for. A nil one stands for any other request.
type asked struct {
	call openai.Call
	// bare says that neither host nor path lead to a service: the model does.
	bare  bool
	model string
	// adapter is the name by which engines know the LoRA adapter that the model is; empty for none.
	adapter string
	// request and form are what was read of a JSON body, or of a form; form is nil for JSON.
	request openai.Request
	form    *openai.Span
	// read is the beginning of the body, all of it if whole; rest is what follows.
	read  []byte
	whole bool
	rest  io.ReadCloser
	// length is what the client announced.
	length int64
	// dressed is what the body was last made for, and sent what it was made to be, nil where not all
	// of it was read.
	dressed dress
	sent    *memory
	relay   *relay
}

// dress is how a body is changed for an engine.
type dress struct {
	// model is the engine's name where it takes the place of the client's, else empty.
	model string
	// usage is whether the stream is made to tell its usage.
	usage bool
}

// apiError is an error with what only OpenAI's shape has.
type apiError struct {
	error
	param, code string
}

func (e *apiError) Unwrap() error { return e.error }

// serveOpenAI finds out whether the request is one of the OpenAI API, and then what it asks for.
// It reports true where that answered the request already.
func (x *exchange) serveOpenAI() bool {
	if !strings.Contains(x.path, "/v1/") {
		return false
	}
	_, _, err := x.find()
	missing := errors.Is(err, errdef.ErrNotFound)
	if (err == nil || missing) && x.modelV1(!missing) {
		return true
	}
	if x.match.Service != nil && x.match.Service.Graph != nil {
		return false // which answers whatever the path
	}
	if missing && x.match.Path == "" {
		x.match.Path = x.path
	}
	call, ok := x.openAICall()
	if !ok || err != nil && !missing {
		return false
	}
	a := &asked{call: call, bare: x.match.Service == nil}
	switch {
	case call.Root == "" && !call.Op.Asks():
		if missing && call.Op == openai.Model && x.asksOfNone(x.match.Path) {
			a.model, x.ask = call.Model, a // the error is the API's, then
		}
		return false
	case a.bare && !call.Op.Asks():
		x.answerModels(call)
		return true
	case a.bare && x.r.Method != http.MethodPost:
		x.refuseMethod(http.MethodPost)
		return true
	}
	x.ask = a
	if !call.Op.Asks() || x.r.Method != http.MethodPost {
		return false
	}
	if err := a.readBody(x); err != nil {
		x.fail(err)
		return true
	}
	a.relay = newRelay(x)
	x.w = a.relay
	return false
}

// openAICall reads the path, which may begin with the gateway's root, or with that under which the
// service's own engine speaks the API.
func (x *exchange) openAICall() (openai.Call, bool) {
	call, ok := openai.ParsePath(x.match.Path, x.g.cfg.OpenAI.Root)
	if ok || x.match.Backend == nil {
		return call, ok
	}
	for i := range x.match.Backend.Targets {
		if root := x.match.Backend.Targets[i].OpenAI; len(root) > 1 {
			if call, ok = openai.ParsePath(x.match.Path, root); ok {
				return call, true
			}
		}
	}
	return call, false
}

// readBody reads as much of the body as it takes to know what is asked for. Where host or path
// lead to a service, a body that can't be read is left to the engine to judge.
func (a *asked) readBody(x *exchange) error {
	a.length, a.rest = x.r.ContentLength, x.r.Body
	if x.r.Header.Get("Content-Encoding") != "" {
		if a.bare {
			return errdef.New(errdef.ErrInvalid, "the body is compressed, so that the model that it names can't be read: send it plain, or use the service's host or path prefix")
		}
		return nil
	}
	limit := x.g.cfg.MaxBody
	if limit <= 0 {
		limit = -1
	}
	rc := http.NewResponseController(x.w)
	body := &limitedBody{r: x.r.Body, left: limit, limit: limit, rc: rc, wait: x.g.cfg.Timeouts.Body}
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	var err error
	if kind, params, _ := mime.ParseMediaType(x.r.Header.Get("Content-Type")); kind == "multipart/form-data" {
		err = a.readForm(body, params["boundary"], x.g.cfg.OpenAI.MaxRead)
	} else {
		err = a.readJSON(body, x.g.cfg.OpenAI.MaxRead)
	}
	if err != nil {
		return err
	}
	// A copy: net/http reads its own when the relay sends a head meanwhile.
	x.r = x.r.WithContext(x.r.Context())
	x.r.Body = a.body(a.read)
	return nil
}

// body is what was read, or what takes its place, with the rest behind.
func (a *asked) body(read []byte) io.ReadCloser {
	if a.whole {
		return inMemory(read)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), a.rest), a.rest}
}

func (a *asked) readJSON(body io.Reader, most int) error {
	for size := upstream.WholeBody; ; size *= 2 {
		if a.length >= 0 && size > upstream.WholeBody {
			size = max(size, maxForUsage) // fill takes no more than was announced, and a first part came
		}
		size = min(size, most)
		if err := a.fill(body, size); err != nil {
			return err
		}
		if !a.whole && len(a.read) < min(maxForUsage, most) {
			continue // it will be read on in any case
		}
		r, err := openai.ReadRequest(a.read, a.whole)
		if err != nil && (r.Model == "" || errors.Is(err, openai.ErrTwice)) {
			if a.bare {
				return &apiError{errdef.New(errdef.ErrInvalid, "the body can't be read as a request of the OpenAI API: "+err.Error()), "", ""}
			}
			r = openai.Request{}
		}
		a.request, a.model = r, r.Model
		switch {
		case a.whole:
			if a.bare && a.model == "" {
				return &apiError{errdef.New(errdef.ErrInvalid, `the body has no "model": name one, as GET /v1/models lists them`), "model", ""}
			}
			return nil
		case len(a.read) >= maxForUsage && (a.model != "" || !a.bare):
			return nil
		case len(a.read) >= most:
			if a.bare && a.model == "" {
				return errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
					`"model" doesn't come within the first %d bytes of the body: put it first, or use the service's host or path prefix`, most))
			}
			return nil
		}
	}
}

// fill reads on until there are size bytes of the body, or all.
func (a *asked) fill(body io.Reader, size int) error {
	if a.length >= 0 && a.length < int64(size) {
		size = int(a.length)
	}
	if cap(a.read) < size {
		before := a.read
		a.read = append(bodyBuffer(size), before...)
		spareBody(before)
	}
	for len(a.read) < size {
		n, err := body.Read(a.read[len(a.read):size])
		a.read = a.read[:len(a.read)+n]
		if errors.Is(err, io.EOF) {
			a.whole = true
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
	}
	a.whole = a.whole || int64(len(a.read)) == a.length
	return nil
}

// find leads a request to the service that its model names where nothing else does, and to the
// revision that the model's name may tell.
func (a *asked) find(t *route.Table, m *route.Match, err error) error {
	if a == nil || a.model == "" || err != nil && (!a.bare || !errors.Is(err, errdef.ErrNotFound)) {
		return err
	}
	name := openai.ParseName(a.model)
	if err != nil {
		path := m.Path
		*m, err = t.Model(a.model, path)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errdef.ErrNotFound) && name.Namespace != "":
			if found, ok := t.Named(spec.ServiceKey{Namespace: name.Namespace, Name: name.Name}, path); ok && found.Service.Open() {
				*m, err = found, nil
			}
		case errors.Is(err, errdef.ErrNotFound) && name.Revision != "":
			if found, e := t.Model(name.Name, path); !errors.Is(e, errdef.ErrNotFound) {
				*m, err = found, e
			}
		}
		if err != nil {
			m.Path = path
			return modelNotFound(err)
		}
	}
	if name.Revision != "" && a.names(m.Service, name) && !t.Pin(m, name.Revision) && !(name.Colon && (!a.bare || serves(m.Backend, a.model))) {
		return modelNotFound(errdef.New(errdef.ErrNotFound, fmt.Sprintf(
			"service %s has no revision %.100q that is ready", m.Service.Key, name.Revision)))
	}
	return nil
}

// modelNotFound gives an error the code by which programs know that a model is missing.
func modelNotFound(err error) error {
	if errors.Is(err, errdef.ErrNotFound) {
		return &apiError{err, "", "model_not_found"}
	}
	return err
}

// names reports whether a model's name is one of the service's, not one that only its engine knows.
func (a *asked) names(s *route.Service, name openai.Name) bool {
	return name.Name == s.Key.Name && (name.Namespace == "" || name.Namespace == s.Key.Namespace)
}

// ours reports whether the model's name is one of the service's for a revision.
func (a *asked) ours(s *route.Service, t *route.Target) bool {
	name := openai.ParseName(a.model)
	return a.names(s, name) && (!name.Colon || name.Revision == t.Revision || name.Revision == t.Tag)
}

// serves reports whether an engine of a backend knows its model by this very name.
func serves(b *route.Backend, model string) bool {
	for i := range b.Targets {
		if b.Targets[i].ModelName == model {
			return true
		}
	}
	return false
}

// wants says how the body must be changed for a revision.
func (a *asked) wants(m *route.Match, t *route.Target) dress {
	var d dress
	switch {
	case a.adapter != "":
		if a.adapter != a.model {
			d.model = a.adapter
		}
	case a.model != "" && t.ModelName != "" && a.model != t.ModelName &&
		(a.bare || a.ours(m.Service, t)):
		d.model = t.ModelName
	}
	if t.OpenAI != "" && a.form == nil && a.call.Op.Usable() {
		_, d.usage = a.request.WithUsage()
	}
	return d
}

// suits reports whether the body, as it was made, is right for another revision.
func (a *asked) suits(m *route.Match, t *route.Target) bool {
	return a == nil || a.relay == nil || a.wants(m, t) == a.dressed
}

// dress changes the request's body to what the chosen engine has to get.
func (x *exchange) dress() {
	a := x.ask
	if a == nil || a.relay == nil || a.read == nil {
		return
	}
	d := a.wants(&x.match, x.target.Target)
	a.dressed = d
	var edits []openai.Edit
	if d.model != "" {
		if a.form != nil {
			edits = append(edits, openai.Edit{Span: *a.form, With: d.model})
		} else {
			edits = append(edits, a.request.Renamed(d.model))
		}
	}
	if d.usage {
		e, _ := a.request.WithUsage()
		edits = append(edits, e)
	}
	if a.whole {
		a.sent = inMemory(openai.Pieces(a.read, edits...)...)
		x.r.Body, x.r.ContentLength = a.sent, a.sent.size
		return
	}
	read := a.read
	if len(edits) > 0 {
		read = openai.Apply(read, edits...)
	}
	x.r.Body = a.body(read)
	if a.length >= 0 {
		x.r.ContentLength = a.length + int64(len(read)-len(a.read))
	}
}

// path is that under which an engine answers.
func (a *asked) path(path string, t *target) string {
	if a == nil || t.OpenAI == "" || a.call.Root == "" && !a.call.Op.Asks() {
		return path
	}
	return openAIPathOf(t.Target, t.settings.Path(a.call.Path))
}

// end ends what goes on for the answer.
func (a *asked) end(aborted bool) {
	if a != nil && a.relay != nil {
		a.relay.end(aborted)
	}
}

// broke tells the client of a stream what broke it, and reports whether it could.
func (a *asked) broke(err error) bool {
	return a != nil && a.relay != nil && a.relay.broke(err)
}
