package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// wayTo says how the call gets to a target's engine.
func (c *call) wayTo(t *route.Target) way {
	if t.Translate == "off" {
		return direct
	}
	return v2Over(t, c.oip == "ModelInfer" || c.oip == "ModelReady", c.oip == "ModelMetadata")
}

// translate answers a call of V2 about a model from an engine that speaks OpenAI or V1.
func (c *call) translate(e *route.Endpoint) error {
	ctx, cancel := c.timed()
	defer cancel()
	c.way = c.wayTo(c.target.Target)
	answer, err := c.askTranslated(ctx, e)
	c.identify(nil)
	if err != nil {
		return err
	}
	return c.stream.SendMsg(answer)
}

func (c *call) askTranslated(ctx context.Context, e *route.Endpoint) (proto.Message, error) {
	if err := c.target.undeclared; err != nil {
		return nil, errdef.New(errdef.ErrUnsupported, err.Error())
	}
	message := c.first.Take()
	c.first = nil
	switch c.oip {
	case "ModelInfer":
		in := new(pb.ModelInferRequest)
		if err := cmp.Or(c.decode(message, in), c.noVersion(in.GetModelVersion())); err != nil {
			return nil, err
		}
		return c.inferTranslated(ctx, e, in)
	case "ModelMetadata":
		in := new(pb.ModelMetadataRequest)
		if err := cmp.Or(c.decode(message, in), c.noVersion(in.GetVersion())); err != nil {
			return nil, err
		}
		return translate.LanguageMetadata(c.model, c.target.settings).ToProto(), nil
	}
	in := new(pb.ModelReadyRequest)
	if err := cmp.Or(c.decode(message, in), c.noVersion(in.GetVersion())); err != nil {
		return nil, err
	}
	if c.way == v2OverOpenAI { // the replica is ready, or the call weren't here
		return &pb.ModelReadyResponse{Ready: true}, nil
	}
	reply, err := c.fetch(ctx, e, http.MethodGet, func(model string) string { return "/v1/models/" + escape(model) }, nil)
	switch {
	case err != nil && errdef.KindOf(err) == errdef.ErrUnavailable:
		return &pb.ModelReadyResponse{}, nil
	case err != nil:
		return nil, err
	}
	return &pb.ModelReadyResponse{Ready: toldReady(reply.body)}, nil
}

// toldReady is what V1's status of a model says; some engines say it by the answer's status alone, and
// some in a text.
func toldReady(body []byte) bool {
	var told struct {
		Ready json.RawMessage `json:"ready"`
	}
	if json.Unmarshal(body, &told) != nil {
		return true
	}
	return !strings.EqualFold(string(bytes.Trim(told.Ready, `"`)), "false")
}

// noVersion refuses a model's version where the engine has none.
func (c *call) noVersion(version string) error {
	if version == "" {
		return nil
	}
	return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the engine of %s has no versions: leave out the model's version %.100q", c.target.service, version))
}

func (c *call) inferTranslated(ctx context.Context, e *route.Endpoint, in *pb.ModelInferRequest) (proto.Message, error) {
	asked, err := oip.RequestFromProto(in)
	if err != nil {
		return nil, err
	}
	var body []byte
	var path func(model string) string
	var answer func([]byte) (*oip.InferResponse, error)
	if c.way == v2OverOpenAI {
		to, err := translate.NewToOpenAI(asked, c.target.settings)
		if err != nil {
			return nil, err
		}
		body, answer = to.Body(c.modelName()), to.Answer
		path = func(string) string { return openAIPathOf(c.target.Target, to.Path()) }
	} else {
		if body, err = translate.InferToV1(asked); err != nil {
			return nil, err
		}
		path = func(model string) string { return "/v1/models/" + escape(model) + ":predict" }
		answer = func(b []byte) (*oip.InferResponse, error) { return translate.InferFromV1(asked, b) }
	}
	reply, err := c.fetch(ctx, e, http.MethodPost, path, &convert.Body{Bytes: body, JSONLen: oip.WholeBody})
	if err != nil {
		return nil, err
	}
	out, err := answer(reply.body)
	if err != nil {
		return nil, err
	}
	c.hold.picked.tokens = countTokens(c.g, c.target, reply.body)
	out.ModelName, out.ID = c.model, cmp.Or(out.ID, asked.ID)
	m, err := oip.ResponseToProto(out, len(in.GetRawInputContents()) > 0)
	if err != nil {
		return nil, translate.Broken(err)
	}
	return m, nil
}
