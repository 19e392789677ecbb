package modelserver

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	v1 "stationmaster.dev/stationmaster/internal/wire/v1"
)

// rest answers over HTTP. Every answer that isn't a success is {"error": "…"}.
type rest struct {
	*Server
	metricsPage http.Handler
}

func (h *rest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
				panic(p)
			}
			h.log.Error("request panicked", "panic", p)
			h.fail(w, fmt.Errorf("%w: the server panicked", errdef.ErrInternal))
		}
	}()
	if r.URL.Path == "/metrics" && method(w, r, http.MethodGet) {
		h.metricsPage.ServeHTTP(w, r)
		return
	} else if r.URL.Path == "/metrics" {
		return
	}
	if f, many := h.serves.(*fleet); many && r.URL.Path == modellist.ReportPath {
		h.report(w, r, f)
		return
	}
	h.route(w, r)
}

// report answers with what there is to say of many models.
func (h *rest) report(w http.ResponseWriter, r *http.Request, f *fleet) {
	if !method(w, r, http.MethodGet) {
		return
	}
	report, err := f.report()
	if err != nil {
		h.fail(w, err)
		return
	}
	text, etag, err := report.Encode()
	if err != nil {
		h.fail(w, err)
		return
	}
	w.Header().Set("Etag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a client that went away needs none
}

// route finds what the path means. Segments are compared after unescaping, so that any name
// of a model can be written.
func (h *rest) route(w http.ResponseWriter, r *http.Request) {
	segments := strings.Split(strings.Trim(r.URL.EscapedPath(), "/"), "/")
	for i, s := range segments {
		u, err := url.PathUnescape(s)
		if err != nil {
			h.fail(w, errdef.New(errdef.ErrInvalid, "the path isn't escaped as a URL's should be"))
			return
		}
		segments[i] = u
	}
	get, post := http.MethodGet, http.MethodPost
	switch n := len(segments); {
	case n == 1 && segments[0] == "":
		h.serve(w, r, get, func() (any, error) { return map[string]string{"status": "alive"}, nil })
	case segments[0] == "v1" && n >= 2 && segments[1] == "models":
		h.v1(w, r, segments[2:])
	case segments[0] != "v2":
		h.unknown(w, r)
	case n == 1:
		h.serve(w, r, get, func() (any, error) { return h.metadata(), nil })
	case n == 3 && segments[1] == "health" && segments[2] == "live":
		h.serve(w, r, get, func() (any, error) { return map[string]bool{"live": true}, nil })
	case n == 3 && segments[1] == "health" && segments[2] == "ready":
		h.serve(w, r, get, func() (any, error) {
			return map[string]bool{"ready": true}, h.ready()
		})
	case n == 2 && segments[1] == "models":
		h.serve(w, r, get, func() (any, error) { return map[string][]string{"models": h.serves.names()}, nil })
	case n == 3 && segments[1] == "repository" && segments[2] == "index":
		h.index(w, r, post)
	case n == 5 && segments[1] == "repository" && segments[2] == "models" && (segments[4] == "load" || segments[4] == "unload"):
		h.repository(w, r, segments[3], segments[4] == "load")
	case n >= 3 && segments[1] == "models":
		name, version, rest := segments[2], "", segments[3:]
		if len(rest) >= 2 && rest[0] == "versions" && rest[1] != "" {
			version, rest = rest[1], rest[2:]
		}
		switch {
		case len(rest) == 0:
			h.serve(w, r, get, func() (any, error) { return h.serves.describe(r.Context(), name, version) })
		case len(rest) == 1 && rest[0] == "ready":
			h.serve(w, r, get, func() (any, error) {
				return oip.ModelReady{Name: name, Ready: true}, h.serves.checkReady(name, version)
			})
		case len(rest) == 1 && rest[0] == "infer":
			if method(w, r, post) {
				h.infer2(w, r, name, version)
			}
		default:
			h.unknown(w, r)
		}
	default:
		h.unknown(w, r)
	}
}

func (h *rest) v1(w http.ResponseWriter, r *http.Request, rest []string) {
	if len(rest) == 0 {
		h.serve(w, r, http.MethodGet, func() (any, error) { return map[string][]string{"models": h.serves.names()}, nil })
		return
	}
	if len(rest) > 1 {
		h.unknown(w, r)
		return
	}
	name, verb := rest[0], ""
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name, verb = name[:i], name[i+1:]
	}
	switch verb {
	case "":
		h.serve(w, r, http.MethodGet, func() (any, error) {
			return oip.ModelReady{Name: name, Ready: true}, h.serves.checkReady(name, "")
		})
	case "predict":
		if method(w, r, http.MethodPost) {
			h.predict(w, r, name)
		}
	case "explain":
		if !method(w, r, http.MethodPost) {
			return
		}
		err := h.serves.check(name, "")
		if err == nil {
			err = errdef.New(errdef.ErrUnsupported, "this server has no explainer; give the InferenceService an explainer")
		}
		h.fail(w, err)
	default:
		h.unknown(w, r)
	}
}

// serve answers a request without a body with the JSON of what get returns.
func (h *rest) serve(w http.ResponseWriter, r *http.Request, m string, get func() (any, error)) {
	if !method(w, r, m) {
		return
	}
	v, err := get()
	if err != nil {
		h.fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, oip.Encode(v))
}

func method(w http.ResponseWriter, r *http.Request, want string) bool {
	if r.Method == want || r.Method == http.MethodHead && want == http.MethodGet {
		return true
	}
	w.Header().Set("Allow", want)
	writeJSON(w, http.StatusMethodNotAllowed, oip.Encode(oip.ErrorBody{Error: brief.Sprintf("%s is not allowed here; use %s", r.Method, want)}))
	return false
}

func (h *rest) unknown(w http.ResponseWriter, r *http.Request) {
	name := h.cfg.Model
	if name == "" {
		name = "<name>"
	}
	h.fail(w, errdef.New(errdef.ErrNotFound, brief.Sprintf("there is nothing at %q; the paths of V1 (/v1/models/%[2]s:predict) and V2 (/v2/models/%[2]s/infer) are served", r.URL.Path, name)))
}

func (h *rest) fail(w http.ResponseWriter, err error) {
	code, _ := oip.Status(err)
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, code, oip.Encode(oip.ErrorBody{Error: told(err)}))
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that went away needs no answer
}

func (h *rest) index(w http.ResponseWriter, r *http.Request, m string) {
	if !method(w, r, m) {
		return
	}
	s := share{held: h.held}
	defer s.free()
	body, err := h.body(w, r, &s)
	var ask struct {
		Ready bool `json:"ready"`
	}
	if err == nil && len(bytes.TrimSpace(body)) > 0 {
		err = oip.Decode(body, &ask)
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, oip.Encode(h.serves.index(ask.Ready)))
}

func (h *rest) repository(w http.ResponseWriter, r *http.Request, name string, load bool) {
	if !method(w, r, http.MethodPost) {
		return
	}
	key, do := "unload", h.serves.unload
	if load {
		key, do = "load", h.serves.load
	}
	if err := do(r.Context(), name); err != nil {
		h.fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, oip.Encode(map[string]any{"name": name, key: true}))
}

func (h *rest) infer2(w http.ResponseWriter, r *http.Request, name, version string) {
	s := share{held: h.held}
	defer s.free()
	req, err := h.decode2(w, r, name, version, &s)
	if err != nil {
		h.metrics.observe("v2", &oip.InferRequest{}, err, 0)
		h.fail(w, err)
		return
	}
	res, err := h.infer(r.Context(), "v2", req)
	if err != nil {
		h.fail(w, err)
		return
	}
	out, jsonLen, err := oip.AppendResponse(nil, res, req.WantsBinary)
	if err != nil {
		h.fail(w, err)
		return
	}
	if jsonLen == oip.WholeBody {
		writeJSON(w, http.StatusOK, out)
		return
	}
	w.Header().Set(oip.HeaderLength, strconv.Itoa(jsonLen))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out) // a client that went away needs no answer
}

// decode2 looks at what can be wrong from the cheapest on: the model, the header, the body.
func (h *rest) decode2(w http.ResponseWriter, r *http.Request, name, version string, s *share) (*oip.InferRequest, error) {
	if err := h.serves.checkReady(name, version); err != nil {
		return nil, err
	}
	jsonLen, err := oip.ParseHeaderLength(r.Header.Values(oip.HeaderLength)...)
	if err != nil {
		return nil, err
	}
	body, err := h.body(w, r, s)
	if err != nil {
		return nil, err
	}
	req, err := oip.DecodeRequest(body, jsonLen)
	if err != nil {
		return nil, err
	}
	req.ModelName, req.ModelVersion = name, version
	return req, nil
}

func (h *rest) predict(w http.ResponseWriter, r *http.Request, name string) {
	s := share{held: h.held}
	defer s.free()
	inputs, err := h.decode1(w, r, name, &s)
	if err != nil {
		h.metrics.observe("v1", &oip.InferRequest{}, err, 0)
		h.fail(w, err)
		return
	}
	res, err := h.infer(r.Context(), "v1", &oip.InferRequest{ModelName: name, Inputs: inputs})
	if err != nil {
		h.fail(w, err)
		return
	}
	out, err := v1.AppendPredictions(nil, res.Outputs)
	if err != nil {
		h.fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

func (h *rest) decode1(w http.ResponseWriter, r *http.Request, name string, s *share) ([]oip.Tensor, error) {
	md, err := h.serves.describe(r.Context(), name, "")
	if err != nil {
		return nil, err
	}
	body, err := h.body(w, r, s)
	if err != nil {
		return nil, err
	}
	req, err := v1.DecodeRequest(body)
	if err != nil {
		return nil, err
	}
	return req.Tensors(md.Inputs)
}
