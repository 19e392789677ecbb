package gateway

import (
	"bytes"
	"context"
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
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// convertToREST answers a gRPC call of the Open Inference Protocol from an engine that
// speaks it over REST only.
func (c *call) convertToREST(e *route.Endpoint) error {
	ctx, cancel := c.timed()
	defer cancel()
	answer, err := c.askREST(ctx, e)
	c.identify(nil)
	if err != nil {
		return err
	}
	return c.stream.SendMsg(answer)
}

// modelName is the name by which the chosen engine knows the call's model.
func (c *call) modelName() string {
	if model, _ := engineModel(&c.match, c.target.Target); model != "" {
		return model
	}
	if c.target.ModelName != "" {
		return c.target.ModelName
	}
	return c.match.Service.Key.Name
}

func (c *call) askREST(ctx context.Context, e *route.Endpoint) (proto.Message, error) {
	message := c.first.Take()
	c.first = nil
	switch c.oip {
	case "ModelInfer":
		in := new(pb.ModelInferRequest)
		if err := c.decode(message, in); err != nil {
			return nil, err
		}
		return c.inferOverREST(ctx, e, in)
	case "ModelReady":
		in := new(pb.ModelReadyRequest)
		if err := c.decode(message, in); err != nil {
			return nil, err
		}
		reply, err := c.fetch(ctx, e, http.MethodGet, convert.ModelPath(in.GetVersion(), "/ready"), nil)
		switch {
		case err != nil && errdef.KindOf(err) == errdef.ErrUnavailable:
			return &pb.ModelReadyResponse{}, nil
		case err != nil:
			return nil, err
		}
		// Some engines answer with the status alone.
		ready := oip.ModelReady{Ready: true}
		if len(bytes.TrimSpace(reply.body)) > 0 && oip.Decode(reply.body, &ready) != nil {
			ready.Ready = true
		}
		return &pb.ModelReadyResponse{Ready: ready.Ready}, nil
	case "ModelMetadata":
		in := new(pb.ModelMetadataRequest)
		if err := c.decode(message, in); err != nil {
			return nil, err
		}
		reply, err := c.fetch(ctx, e, http.MethodGet, convert.ModelPath(in.GetVersion(), ""), nil)
		if err != nil {
			return nil, err
		}
		var m oip.ModelMetadata
		if err := oip.Decode(reply.body, &m); err != nil {
			return nil, convert.Broken(err)
		}
		return m.ToProto(), nil
	case "RepositoryModelLoad":
		if err := c.decode(message, new(pb.RepositoryModelLoadRequest)); err != nil {
			return nil, err
		}
		_, err := c.fetch(ctx, e, http.MethodPost, convert.RepositoryPath("/load"), nil)
		return &pb.RepositoryModelLoadResponse{ModelName: c.modelName(), IsLoaded: true}, err
	case "RepositoryModelUnload":
		if err := c.decode(message, new(pb.RepositoryModelUnloadRequest)); err != nil {
			return nil, err
		}
		_, err := c.fetch(ctx, e, http.MethodPost, convert.RepositoryPath("/unload"), nil)
		return &pb.RepositoryModelUnloadResponse{ModelName: c.modelName(), IsUnloaded: true}, err
	}
	panic("BUG: no conversion for " + c.method)
}

func (c *call) inferOverREST(ctx context.Context, e *route.Endpoint, in *pb.ModelInferRequest) (proto.Message, error) {
	infer, err := convert.NewToREST(in)
	if err != nil {
		return nil, err
	}
	reply, err := c.fetch(ctx, e, http.MethodPost, infer.Path, &infer.Body)
	if err != nil {
		return nil, err
	}
	return infer.Answer(reply.header, reply.body, c.modelName())
}

// restReply is an engine's good answer, read whole.
type restReply struct {
	header http.Header
	body   []byte
}

// fetch asks an engine over HTTP, and again where a replica can't be reached: another one, or
// what takes its place. path is that for the engine's name of the model; a nil body means none.
// An answer that is an error comes back as one, with the kind that its status means.
func (c *call) fetch(ctx context.Context, e *route.Endpoint, method string, path func(model string) string, body *convert.Body) (*restReply, error) {
	header := http.Header{"Accept": {"application/json"}}
	var content []byte
	if body != nil {
		body.Describe(header)
		content = body.Bytes
	}
	timeout := c.g.cfg.Timeouts.Response
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(deadline.Sub(c.start), 1)
	}
	request := upstream.Request{
		Method: method, Target: path(c.modelName()), Host: e.HTTP, Header: header,
		Set: []upstream.Field{
			{Name: "X-Request-Id", Value: c.id},
			{Name: "Kserve-Isvc-Name", Value: c.match.Service.Key.Name},
			{Name: "Kserve-Isvc-Namespace", Value: c.match.Service.Key.Namespace},
		},
		Body: bytes.NewReader(content), ContentLength: int64(len(content)),
		HeaderTimeout: timeout, IdleTimeout: timeout,
	}
	defer request.Release()
	into := http.Header{}
	resp, err := c.roundTrip(ctx, &request, e, path, into)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Close() }()
	reply := &restReply{header: into}
	if reply.body, err = readWhole(resp, c.g.cfg.MaxMessage); err != nil {
		if !errors.Is(err, errdef.ErrTooLarge) {
			c.metric.upstreamError(string(upstream.StageBody))
		}
		return nil, err
	}
	if oip.KindOfStatus(resp.Status) != nil {
		return nil, engineRefused(resp.Status, into, reply.body)
	}
	return reply, nil
}

func (c *call) roundTrip(ctx context.Context, r *upstream.Request, e *route.Endpoint, path func(model string) string, into http.Header) (*upstream.Response, error) {
	for first := true; ; first = false {
		resp, err := c.view.endpoints[e].http.RoundTrip(ctx, r, into)
		c.hold.picked.answered(ctx, resp, err)
		if err == nil {
			return resp, nil
		}
		var up *upstream.Error
		if first && errors.As(err, &up) {
			c.metric.upstreamError(string(up.Stage))
		}
		if ctx.Err() != nil || !r.Repeatable() {
			return nil, err
		}
		t, other := c.hold.instead(ctx, attempt{err, e, first, c.oip == "ModelInfer"}, &c.match, c.view, c.find)
		if other == nil || other.HTTP == "" || c.wayTo(t) != c.way {
			return nil, err
		}
		clear(into)
		c.choose(t)
		r.Host = other.HTTP
		if !r.Retarget(path(c.modelName()), r.Set) {
			return nil, err
		}
		e = other
	}
}

// maxErrorText bounds what of an engine's error is passed on.
const maxErrorText = 4 << 10

// restError finds an engine's own words in an answer that is an error, of V2, V1 or the OpenAI API.
func restError(status int, body []byte) string {
	var e oip.ErrorBody
	if oip.Decode(body, &e) == nil && e.Error != "" {
		return e.Error
	}
	var api struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &api) == nil && api.Error.Message != "" {
		return api.Error.Message
	}
	if len(body) > maxErrorText {
		body = body[:maxErrorText]
	}
	return fmt.Sprintf("the engine answered %d %s: %s", status, http.StatusText(status), bytes.ToValidUTF8(body, []byte("?")))
}
