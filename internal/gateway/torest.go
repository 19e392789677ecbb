package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// convertToREST answers a gRPC call of the Open Inference Protocol from an engine that
// speaks it over REST only.
func (c *call) convertToREST(e *route.Endpoint) error {
	c.identify(nil)
	ctx, cancel := c.timed()
	defer cancel()
	model, _ := engineModel(&c.match, c.target.Target)
	if model == "" {
		if model = c.target.ModelName; model == "" {
			model = c.match.Service.Key.Name
		}
	}
	answer, err := c.askREST(ctx, e, model)
	if err != nil {
		return err
	}
	return c.stream.SendMsg(answer)
}

func (c *call) askREST(ctx context.Context, e *route.Endpoint, model string) (proto.Message, error) {
	message := c.first.data.Materialize()
	c.first.data.Free()
	decode := func(m proto.Message) error {
		if err := proto.Unmarshal(message, m); err != nil {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the request of %s: %v", c.method, err))
		}
		return nil
	}
	switch c.oip {
	case "ModelInfer":
		in := new(pb.ModelInferRequest)
		if err := decode(in); err != nil {
			return nil, err
		}
		return c.inferOverREST(ctx, e, model, in)
	case "ModelReady":
		in := new(pb.ModelReadyRequest)
		if err := decode(in); err != nil {
			return nil, err
		}
		reply, err := c.fetch(ctx, e, http.MethodGet, modelPath(model, in.GetVersion())+"/ready", nil, 0)
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
		if err := decode(in); err != nil {
			return nil, err
		}
		reply, err := c.fetch(ctx, e, http.MethodGet, modelPath(model, in.GetVersion()), nil, 0)
		if err != nil {
			return nil, err
		}
		var m oip.ModelMetadata
		if err := oip.Decode(reply.body, &m); err != nil {
			return nil, brokenAnswer(err)
		}
		return m.ToProto(), nil
	case "RepositoryModelLoad":
		_, err := c.fetch(ctx, e, http.MethodPost, "/v2/repository/models/"+url.PathEscape(model)+"/load", nil, 0)
		return &pb.RepositoryModelLoadResponse{ModelName: model, IsLoaded: true}, err
	case "RepositoryModelUnload":
		_, err := c.fetch(ctx, e, http.MethodPost, "/v2/repository/models/"+url.PathEscape(model)+"/unload", nil, 0)
		return &pb.RepositoryModelUnloadResponse{ModelName: model, IsUnloaded: true}, err
	}
	panic("BUG: no conversion for " + c.method)
}

func modelPath(model, version string) string {
	path := "/v2/models/" + url.PathEscape(model)
	if version != "" {
		path += "/versions/" + url.PathEscape(version)
	}
	return path
}

func (c *call) inferOverREST(ctx context.Context, e *route.Endpoint, model string, in *pb.ModelInferRequest) (proto.Message, error) {
	request, err := oip.RequestFromProto(in)
	if err != nil {
		return nil, err
	}
	// JSON is what every engine reads. Half floats, and bytes that are no text, need the
	// binary extension; then the answer may need it too.
	body, jsonLen, err := oip.AppendRequest(nil, request, nil)
	if err != nil {
		request.BinaryOutput = true
		body, jsonLen, err = oip.AppendRequest(nil, request, func(string) bool { return true })
	}
	if err != nil {
		return nil, err
	}
	reply, err := c.fetch(ctx, e, http.MethodPost, modelPath(model, request.ModelVersion)+"/infer", body, jsonLen)
	if err != nil {
		return nil, err
	}
	if err := oneHeaderLength(reply.header); err != nil {
		return nil, brokenAnswer(err)
	}
	jsonLen = oip.WholeBody
	if v := reply.header.Get(oip.HeaderLength); v != "" {
		if jsonLen, err = oip.ParseHeaderLength(v); err != nil {
			return nil, brokenAnswer(err)
		}
	}
	response, err := oip.DecodeResponse(reply.body, jsonLen)
	if err != nil {
		return nil, brokenAnswer(err)
	}
	if response.ID == "" {
		response.ID = request.ID
	}
	if response.ModelName == "" {
		response.ModelName = model
	}
	out, err := oip.ResponseToProto(response, len(in.GetRawInputContents()) > 0)
	if err != nil {
		return nil, brokenAnswer(err)
	}
	return out, nil
}

// restReply is an engine's good answer, read whole.
type restReply struct {
	header http.Header
	body   []byte
}

// fetch asks an engine over HTTP, another replica where the first can't be reached. jsonLen
// is the length of a body's JSON part, or oip.WholeBody. An answer that is an error comes
// back as one, with the kind that its status means.
func (c *call) fetch(ctx context.Context, e *route.Endpoint, method, path string, body []byte, jsonLen int) (*restReply, error) {
	header := http.Header{"Accept": {"application/json"}}
	if body != nil {
		header["Content-Type"] = []string{"application/json"}
		if jsonLen != oip.WholeBody {
			header["Content-Type"] = []string{"application/octet-stream"}
			header[oip.HeaderLength] = []string{strconv.Itoa(jsonLen)}
		}
	}
	timeout := c.g.cfg.Timeouts.Response
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(deadline.Sub(c.start), 1)
	}
	request := upstream.Request{
		Method: method, Target: path, Host: e.HTTP, Header: header,
		Set: []upstream.Field{
			{Name: "X-Request-Id", Value: c.id},
			{Name: "Kserve-Isvc-Name", Value: c.match.Service.Key.Name},
			{Name: "Kserve-Isvc-Namespace", Value: c.match.Service.Key.Namespace},
		},
		Body: bytes.NewReader(body), ContentLength: int64(len(body)),
		HeaderTimeout: timeout, IdleTimeout: timeout,
	}
	defer request.Release()
	into := http.Header{}
	resp, err := c.view.endpoints[e].http.RoundTrip(ctx, &request, into)
	if err != nil && unreached(err) && ctx.Err() == nil && request.Repeatable() {
		c.metric.upstreamError(string(upstream.StageDial))
		if t, other := c.match.Backend.PickExcept(rand.Uint64(), c.view.load, e); other != nil && other.HTTP != "" && t == c.target.Target {
			resp, err = c.view.endpoints[other].http.RoundTrip(ctx, &request, into)
		}
	}
	if err != nil {
		var up *upstream.Error
		if errors.As(err, &up) {
			c.metric.upstreamError(string(up.Stage))
		}
		return nil, err
	}
	defer func() { _ = resp.Close() }()
	reply := &restReply{header: into}
	for {
		piece, err := resp.Next()
		reply.body = append(reply.body, piece...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.metric.upstreamError(string(upstream.StageBody))
			return nil, err
		}
		if len(reply.body) > c.g.cfg.MaxMessage {
			return nil, errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
				"the engine's answer is larger than this gateway's limit of %d bytes for a message", c.g.cfg.MaxMessage))
		}
	}
	if kind := oip.KindOfStatus(resp.Status); kind != nil {
		return nil, errdef.New(kind, restError(resp.Status, reply.body))
	}
	return reply, nil
}

// maxErrorText bounds what of an engine's error is passed on.
const maxErrorText = 4 << 10

// restError finds an engine's own words in an answer that is an error.
func restError(status int, body []byte) string {
	var e oip.ErrorBody
	if oip.Decode(body, &e) == nil && e.Error != "" {
		return e.Error
	}
	if len(body) > maxErrorText {
		body = body[:maxErrorText]
	}
	return fmt.Sprintf("the engine answered %d %s: %s", status, http.StatusText(status), bytes.ToValidUTF8(body, []byte("?")))
}
