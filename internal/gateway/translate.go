package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// way is a translation: from what a client speaks to what its engine does.
type way uint8

const (
	// direct: none, or that between the two forms of V2, which convert does.
	direct way = iota
	openAIOverV2
	v2OverOpenAI
	v1OverV2
	v2OverV1
	v1OverOpenAI
	// v2OverEither is for an engine of which the model's metadata tells whether it is one of V2.
	v2OverEither
	// openAIOverV1 has nothing to carry: the request passes, and what has no such path is told so.
	openAIOverV1
	// openAIOverOwn is for what an engine has in paths and shapes of its own.
	openAIOverOwn
)

// reaches reports whether there is a translation, and a replica has the port for it.
func (w way) reaches(t *route.Target, e *route.Endpoint) bool {
	overV2 := w == openAIOverV2 || w == v1OverV2
	return w != direct && (e.HTTP != "" || overV2 && speaks(t, spec.GRPCV2) && e.GRPC != "")
}

func speaks(t *route.Target, p spec.Protocol) bool { return slices.Contains(t.Protocols, p) }

// tensors reports whether an engine is declared to speak V2 in one of its forms.
func tensors(t *route.Target) bool { return speaks(t, spec.V2) || speaks(t, spec.GRPCV2) }

// wayTo says how the request gets to a target's engine.
func (x *exchange) wayTo(t *route.Target) way {
	if t.Translate == "off" {
		return direct
	}
	call := x.match.Call
	switch {
	case x.ask != nil && x.ask.relay != nil:
		return openAIOver(t, x.view.targets[t].settings, x.ask.call.Op)
	case call.Protocol == spec.V1:
		return v1Over(t, call.Op)
	case call.Protocol == spec.V2:
		generative := call.Op == route.ModelMetadata || call.Op == route.Generate || call.Op == route.GenerateStream
		if t.OpenAI != "" && tensors(t) && x.view.targets[t].settings.Either && (generative || call.Op == route.Infer) {
			return v2OverEither
		}
		return v2Over(t, call.Op == route.Infer || call.Op == route.ModelReady, generative)
	}
	return direct
}

// openAIOver says how a request of the OpenAI API gets to an engine that may not speak it.
func openAIOver(t *route.Target, s translate.Settings, op openai.Op) way {
	switch {
	case t.OpenAI != "" && s.Either && tensors(t):
		return openAIOverV2
	case t.OpenAI != "" && s.Dialect == translate.DialectTEI && (op == openai.Rerank || op == openai.Score || op == openai.Classify):
		return openAIOverOwn
	case t.OpenAI != "":
	case tensors(t):
		return openAIOverV2
	case speaks(t, spec.V1):
		return openAIOverV1
	}
	return direct
}

// v1Over says how a V1 call about a model gets to an engine that may not speak it. A model's status, and
// what V1 doesn't define, are paths of the OpenAI API, too.
func v1Over(t *route.Target, op route.Op) way {
	switch {
	case speaks(t, spec.V1) || op == route.ListV1 || op == route.Other:
	case t.OpenAI != "" && op != route.Predict && op != route.Explain:
	case tensors(t):
		return v1OverV2
	case t.OpenAI != "":
		return v1OverOpenAI
	}
	return direct
}

// v2Over says how a V2 call gets to an engine that may not speak it: every is one that all others
// have an answer to, generative one that only language engines have.
func v2Over(t *route.Target, every, generative bool) way {
	switch {
	case tensors(t):
	case t.OpenAI != "" && (every || generative):
		return v2OverOpenAI
	case every && speaks(t, spec.V1):
		return v2OverV1
	}
	return direct
}

// translate answers the request by way of the engine's own protocol. It reports false where the
// request had better pass as it is.
func (x *exchange) translate(e *route.Endpoint) bool {
	err := x.target.undeclared
	if err != nil {
		err = fmt.Errorf("%w: %s", errdef.ErrUnsupported, err.Error())
	} else {
		switch x.way {
		case openAIOverV2:
			err = x.openAIOverV2(e)
		case v1OverV2:
			err = x.v1OverV2(e)
		case v1OverOpenAI:
			err = x.predictOverOpenAI(e)
		case openAIOverV1:
			err = x.openAIOverV1()
		case openAIOverOwn:
			err = x.openAIOverOwn(e)
		case v2OverOpenAI:
			err = x.v2OverOpenAI(e)
		case v2OverEither:
			err = x.v2OverEither(e)
		case v2OverV1:
			err = x.v2OverV1(e)
		}
	}
	if errors.Is(err, errPassed) {
		x.toPath = nil // the way stays: only an engine that is asked the same way may take over
		return false
	}
	if err != nil {
		x.fail(err)
	}
	return true
}

// errPassed says that a request is better passed as it is.
var errPassed = errors.New("the request passes as it is")

// toV2 is a request of the OpenAI API that a model of tensors answers.
type toV2 interface {
	Infer() (*oip.InferRequest, error)
	Answer(*oip.InferResponse) ([]byte, error)
}

func (x *exchange) openAIOverV2(e *route.Endpoint) error {
	known, err := x.model(e)
	op := x.ask.call.Op
	switch {
	case err != nil:
		return err
	case x.target.settings.Either && !translate.Tensors(known.meta):
		return errPassed // it is one of those that speak OpenAI
	case known.meta == nil || op.Generates() && len(known.meta.Inputs) == 0:
		// An engine that doesn't tell of its model may speak the OpenAI API itself.
		x.otherwise = x.tellsNothing()
		return errPassed
	case op == openai.Chat && translate.Generates(known.meta):
		return translate.ErrChat
	case op == openai.Completions && translate.Generates(known.meta):
	case op.Generates():
		return translate.NotTensors(x.ask.call.Path, x.match.Service.Key.Name, known.meta, known.texts)
	case known.why != nil:
		return known.why
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	origin := translate.Origin{ID: x.id, Created: x.start.Unix()}
	var to toV2
	switch op {
	case openai.Completions:
		return x.completeOverV2(e, body, known.meta.Inputs, origin)
	case openai.Embeddings:
		to, err = translate.NewEmbeddings(body, known.texts)
	case openai.Rerank:
		to, err = translate.NewRerank(body, known.texts, origin)
	case openai.Score:
		to, err = translate.NewScore(body, known.texts, origin)
	default:
		to, err = translate.NewClassify(body, known.texts, origin)
	}
	if err != nil {
		return err
	}
	return x.infer(e, known.meta, to)
}

// infer asks the engine, which tells this of the model, and answers the client.
func (x *exchange) infer(e *route.Endpoint, meta *oip.ModelMetadata, to toV2) error {
	request, err := to.Infer()
	if err != nil {
		return err
	}
	out, err := x.inferV2(e, meta, request)
	if err != nil {
		return err
	}
	answer, err := to.Answer(out)
	if err != nil {
		return err
	}
	x.answerBytes(http.StatusOK, "application/json", answer)
	return nil
}

// engineName is the name by which the chosen engine knows the model that is asked for.
func (x *exchange) engineName() string {
	t := x.target.Target
	if a := x.ask; a != nil && a.relay != nil {
		switch {
		case a.dressed.model != "":
			return a.dressed.model
		case a.model != "" && !a.bare && !a.ours(x.match.Service, t):
			return a.model
		}
	} else if name, _ := engineModel(&x.match, t); name != "" && (name != x.match.Service.Key.Name || t.ModelName == "") {
		return name
	}
	return cmp.Or(t.ModelName, x.match.Service.Key.Name)
}

// model returns what the engine tells of the model, and asks for it the first time.
func (x *exchange) model(e *route.Endpoint) (*knownModel, error) {
	name := x.engineName()
	key := targetKey{Service: x.match.Service.Key, Revision: x.target.Revision}
	if k := x.g.models.get(key, name); k != nil {
		return k, nil
	}
	meta, err := x.metadata(e)
	k := &knownModel{meta: meta}
	switch {
	case tellsOfNone(err):
		if name != cmp.Or(x.target.ModelName, x.match.Service.Key.Name) {
			return k, nil // clients make up names without end
		}
	case err != nil:
		return nil, err
	default:
		k.texts, k.why = translate.NewModel(meta, x.target.settings)
	}
	x.g.models.put(targetKey{Service: x.match.Service.Key, Revision: x.target.Revision}, name, k)
	return k, nil
}

// tellsOfNone reports whether an engine refused to tell of a model, in the way of one that has none of that
// name or tells of none.
func tellsOfNone(err error) bool {
	return errors.Is(err, errdef.ErrNotFound) || errors.Is(err, errdef.ErrUnsupported) || errors.Is(err, errdef.ErrInvalid)
}

// metadata asks the engine what it tells of the model.
func (x *exchange) metadata(e *route.Endpoint) (*oip.ModelMetadata, error) {
	if speaks(x.target.Target, spec.GRPCV2) && e.GRPC != "" {
		out := new(pb.ModelMetadataResponse)
		err := x.invoke(x.r.Context(), e, "ModelMetadata", func(string) proto.Message { return &pb.ModelMetadataRequest{Name: x.engineName()} }, out)
		if err != nil {
			return nil, err
		}
		return oip.ModelMetadataFromProto(out), nil
	}
	_, body, err := x.fetch(e, http.MethodGet, func() string { return convert.ModelPath("", "")(x.engineName()) }, nil)
	if err != nil {
		return nil, err
	}
	meta := new(oip.ModelMetadata)
	if err := oip.Decode(body, meta); err != nil {
		return nil, convert.Broken(err)
	}
	return meta, nil
}

// inferV2 asks the engine in the form of V2 that it speaks: over gRPC if it can, where numbers needn't
// be written out.
func (x *exchange) inferV2(e *route.Endpoint, meta *oip.ModelMetadata, r *oip.InferRequest) (*oip.InferResponse, error) {
	if speaks(x.target.Target, spec.GRPCV2) && e.GRPC != "" {
		message, err := oip.RequestToProto(r, true)
		if err != nil {
			return nil, err
		}
		out := new(pb.ModelInferResponse)
		message.ModelVersion = x.match.Call.Version
		err = x.invoke(x.r.Context(), e, "ModelInfer", func(string) proto.Message { message.ModelName = x.engineName(); return message }, out)
		if err != nil {
			return nil, err
		}
		response, err := oip.ResponseFromProto(out)
		if err != nil {
			return nil, convert.Broken(err)
		}
		return response, nil
	}
	translate.AskForHalves(r, meta)
	content, jsonLen, err := oip.AppendRequest(nil, r, nil)
	if err != nil {
		return nil, err
	}
	head, answer, err := x.fetch(e, http.MethodPost, func() string { return convert.ModelPath(x.match.Call.Version, "/infer")(x.engineName()) },
		&convert.Body{Bytes: content, JSONLen: jsonLen})
	if err != nil {
		return nil, err
	}
	b, err := convert.NewBody(head, answer)
	if err != nil {
		return nil, convert.Broken(err)
	}
	response, err := oip.DecodeResponse(b.Bytes, b.JSONLen)
	if err != nil {
		return nil, convert.Broken(err)
	}
	return response, nil
}

// ofBody are the client's fields that belong to its body and to what it wants of the answer's, not to
// the request that takes its place.
var ofBody = []string{"Content-Type", "Content-Encoding", "Content-Length", "Accept", "Accept-Encoding", oip.HeaderLength, "Expect", "Trailer", "Range", "If-None-Match", "If-Match"}

// send sends the engine a request in the place of the client's, and returns its answer with its head.
// path is asked for again where another target takes the request. The caller closes the answer, and
// releases x.request then.
func (x *exchange) send(e *route.Endpoint, method string, path func() string, body *convert.Body) (*upstream.Response, http.Header, error) {
	header := maps.Clone(x.r.Header)
	for _, name := range ofBody {
		delete(header, name)
	}
	header["Accept"] = []string{"*/*"}
	var content []byte
	if body != nil {
		body.Describe(header)
		content = body.Bytes
	}
	x.toPath = path
	req := &x.request
	*req = upstream.Request{
		Method: method, Target: path(), Host: x.r.Host, Header: header, Drop: x.drops(x.target.Target),
		Body: bytes.NewReader(content), ContentLength: int64(len(content)),
		HeaderTimeout: x.timeout(), IdleTimeout: x.g.cfg.Timeouts.Idle,
	}
	req.Set = x.forwardedFields(x.fields[:0])
	req.Rewind = func() io.Reader { return bytes.NewReader(content) }
	resp, err := x.roundTrip(req, e)
	into := x.w.Header()
	head := maps.Clone(into)
	clear(into)
	if err != nil {
		req.Release()
		return nil, nil, err
	}
	return resp, head, nil
}

// fetch sends the engine a request and reads its answer whole. One that is an error comes back as
// one, with the kind that its status means and the engine's own words.
func (x *exchange) fetch(e *route.Endpoint, method string, path func() string, body *convert.Body) (http.Header, []byte, error) {
	resp, head, err := x.send(e, method, path, body)
	if err != nil {
		return nil, nil, err
	}
	answer, err := x.readAnswer(resp)
	if err != nil {
		return nil, nil, err
	}
	return head, answer, engineRefused(resp.Status, head, answer)
}

func (x *exchange) readAnswer(resp *upstream.Response) ([]byte, error) {
	defer x.request.Release()
	defer x.closeResponse(resp)
	answer, err := readWhole(resp, x.g.cfg.MaxMessage)
	if err != nil {
		x.upstreamFailed(err)
	}
	return answer, err
}

// readWhole reads an engine's answer of at most so many bytes.
func readWhole(resp *upstream.Response, most int) ([]byte, error) {
	var answer []byte
	for {
		piece, err := resp.Next()
		answer = append(answer, piece...)
		switch {
		case errors.Is(err, io.EOF):
			return answer, nil
		case err != nil:
			return nil, err
		case len(answer) > most:
			return nil, errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
				"the engine's answer is larger than this gateway's limit of %d bytes for a message", most))
		}
	}
}

// v2OverV1 answers a call of V2 from an engine that speaks V1.
func (x *exchange) v2OverV1(e *route.Endpoint) error {
	call := x.match.Call
	if call.Version != "" {
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s speaks V1, which has no versions: leave out /versions/%s", x.target.service, call.Version))
	}
	if call.Op == route.ModelReady {
		return x.ready(e, func() string { return "/v1/models/" + escape(x.engineName()) })
	}
	asked, err := x.readInfer()
	if err != nil || asked == nil {
		return err
	}
	content, err := translate.InferToV1(asked)
	if err != nil {
		return err
	}
	_, answer, err := x.fetch(e, http.MethodPost, func() string { return "/v1/models/" + escape(x.engineName()) + ":predict" },
		&convert.Body{Bytes: content, JSONLen: oip.WholeBody})
	if err != nil {
		return err
	}
	out, err := translate.InferFromV1(asked, answer)
	if err != nil {
		return err
	}
	return x.answerInfer(asked, out)
}

// ready answers whether a model is, as an engine's answer to GET tells by its status.
func (x *exchange) ready(e *route.Endpoint, path func() string) error {
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		x.refuseMethod(http.MethodGet)
		return nil
	}
	_, body, err := x.fetch(e, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if !toldReady(body) {
		return errdef.New(errdef.ErrUnavailable, fmt.Sprintf("model %s isn't ready", x.match.Call.Model))
	}
	x.answerBytes(http.StatusOK, "application/json", oip.Encode(oip.ModelReady{Name: x.match.Call.Model, Ready: true}))
	return nil
}

// readInfer reads an infer request of V2. It returns nil where it answered the client already.
func (x *exchange) readInfer() (*oip.InferRequest, error) {
	if x.r.Method != http.MethodPost {
		x.refuseMethod(http.MethodPost)
		return nil, nil
	}
	if err := convert.CheckLengths(x.r.Header); err != nil {
		return nil, err
	}
	content, err := x.readBody()
	if err != nil {
		return nil, err
	}
	body, err := convert.NewBody(x.r.Header, content)
	if err != nil {
		return nil, err
	}
	return oip.DecodeRequest(body.Bytes, body.JSONLen)
}

// answerInfer answers an infer request of V2 as its client wants it.
func (x *exchange) answerInfer(asked *oip.InferRequest, out *oip.InferResponse) error {
	out.ModelName, out.ModelVersion = x.match.Call.Model, x.match.Call.Version
	out.ID = cmp.Or(out.ID, asked.ID)
	content, jsonLen, err := oip.AppendResponse(nil, out, asked.WantsBinary)
	if err != nil {
		return err
	}
	body := convert.Body{Bytes: content, JSONLen: jsonLen}
	body.Describe(x.w.Header())
	x.answerBytes(http.StatusOK, x.w.Header().Get("Content-Type"), body.Bytes)
	return nil
}

func escape(name string) string {
	return strings.TrimPrefix(convert.ModelPath("", "")(name), "/v2/models/")
}
