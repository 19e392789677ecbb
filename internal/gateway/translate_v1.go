package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// predict is a request of V1 on its way to an engine of V2.
type predict struct {
	body []byte
	meta *oip.ModelMetadata
}

func (p predict) Infer() (*oip.InferRequest, error)             { return translate.PredictToV2(p.body, p.meta) }
func (p predict) Answer(out *oip.InferResponse) ([]byte, error) { return translate.PredictFromV2(out) }

// v1OverV2 answers a call of V1 about a model from an engine that speaks V2.
func (x *exchange) v1OverV2(e *route.Endpoint) error {
	switch x.match.Call.Op {
	case route.StatusV1:
		return x.statusOverV2(e)
	case route.Predict:
	default:
		return x.notPredict("V2")
	}
	if x.r.Method != http.MethodPost {
		x.refuseMethod(http.MethodPost)
		return nil
	}
	known, err := x.model(e)
	switch {
	case err != nil:
		return err
	case known.meta == nil:
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s tells nothing of model %.100q, so that a V1 request can't be given as tensors: ask over /v2", x.target.service, x.match.Call.Model))
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	return x.infer(e, known.meta, predict{body, known.meta})
}

// notPredict refuses what V1 has beside :predict where the engine speaks something else.
func (x *exchange) notPredict(protocol string) error {
	what := "call of that path"
	if x.match.Call.Op == route.Explain {
		what = ":explain"
	}
	return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s speaks %s, which has no %s: ask :predict, or declare an explainer",
		x.target.service, protocol, what))
}

// statusOverV2 answers V1's question for a model's status, whose answer is that to V2's for readiness.
func (x *exchange) statusOverV2(e *route.Endpoint) error {
	if !speaks(x.target.Target, spec.GRPCV2) || e.GRPC == "" {
		return x.ready(e, func() string { return convert.ModelPath(x.match.Call.Version, "/ready")(x.engineName()) })
	}
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		x.refuseMethod(http.MethodGet)
		return nil
	}
	out := new(pb.ModelReadyResponse)
	err := x.invoke(x.r.Context(), e, "ModelReady", func(string) proto.Message { return &pb.ModelReadyRequest{Name: x.engineName()} }, out)
	if err == nil && !out.GetReady() {
		err = errdef.New(errdef.ErrUnavailable, fmt.Sprintf("model %s isn't ready", x.match.Call.Model))
	}
	if err == nil {
		x.answerBytes(http.StatusOK, "application/json", oip.Encode(oip.ModelReady{Name: x.match.Call.Model, Ready: true}))
	}
	return err
}

// predictOverOpenAI answers :predict from an engine that speaks OpenAI: as V2's infer would be.
func (x *exchange) predictOverOpenAI(e *route.Endpoint) error {
	call := x.match.Call
	switch {
	case call.Op != route.Predict:
		return x.notPredict("OpenAI")
	case call.Version != "":
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s has no versions: leave out /versions/%s, or ask one revision by its host", x.target.service, call.Version))
	case x.r.Method != http.MethodPost:
		x.refuseMethod(http.MethodPost)
		return nil
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	asked, err := translate.PredictToV2(body, translate.LanguageMetadata(call.Model, x.target.settings))
	if err != nil {
		return err
	}
	out, err := x.askOpenAI(e, asked)
	if err != nil {
		return err
	}
	answer, err := translate.PredictFromV2(out)
	if err != nil {
		return err
	}
	x.answerBytes(http.StatusOK, "application/json", answer)
	return nil
}

// openAIOverV1 passes a request of the OpenAI API to an engine that is declared to speak V1 alone: it may
// have such a path nonetheless.
func (x *exchange) openAIOverV1() error {
	x.otherwise = errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
		"the engine of %s speaks V1, which has nothing like %s: ask it over /v1/models/%s:predict", x.target.service, x.ask.call.Path, x.match.Service.Key.Name))
	return errPassed
}

// tellsNothing is why a request of the OpenAI API can't be answered by an engine that speaks V2, tells
// nothing of its model, and has no such path.
func (x *exchange) tellsNothing() error {
	return errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
		"the engine of %s has no %s, and its metadata tells nothing of model %.100q that it could be carried to: ask over /v2/models/%s/infer, or declare the model's inputs with the annotation %s",
		x.target.service, x.ask.call.Path, x.engineName(), x.match.Service.Key.Name, translate.Annotation))
}

// toldOtherwise tells the client why its request can't be answered where an engine, which was asked in
// case it could, has no such path. It reports false where the answer is one to pass on.
func (x *exchange) toldOtherwise(resp *upstream.Response) bool {
	if x.otherwise == nil || resp.Status != http.StatusNotFound && resp.Status != http.StatusMethodNotAllowed {
		return false
	}
	answer, err := readWhole(resp, maxErrorText)
	x.closeResponse(resp)
	switch {
	case err != nil && !errors.Is(err, errdef.ErrTooLarge):
		x.upstreamFailed(err)
		x.fail(err)
	case err == nil && saysOpenAI(answer):
		h := x.w.Header()
		kind := "application/json"
		if given := h["Content-Type"]; len(given) > 0 {
			kind = given[0]
		}
		x.answerBytes(resp.Status, kind, answer)
	default:
		x.fail(x.otherwise)
	}
	return true
}

// saysOpenAI reports whether an error is in a shape of engines that speak OpenAI, so that they have the path
// and mean something else, such as a model.
func saysOpenAI(answer []byte) bool {
	var e struct {
		Object string `json:"object"`
		Error  struct {
			Message *string `json:"message"`
		} `json:"error"`
	}
	return json.Unmarshal(answer, &e) == nil && (e.Object == "error" || e.Error.Message != nil)
}
