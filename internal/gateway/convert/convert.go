// Package convert turns infer requests and responses of the Open Inference Protocol from
// their REST form into their gRPC form and back. It is pure: bodies and messages in, bodies
// and messages out. Who sends them, and to whom, is the gateway's business.
package convert

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// Body is what REST carries: JSON, with binary tensors behind it where JSONLen isn't
// oip.WholeBody.
type Body struct {
	Bytes   []byte
	JSONLen int
}

// NewBody returns a body that came with a head. Errors are ErrInvalid: a length of the JSON
// part that isn't one, or two of them that differ.
func NewBody(head http.Header, bytes []byte) (Body, error) {
	b := Body{bytes, oip.WholeBody}
	err := CheckLengths(head)
	if err == nil {
		b.JSONLen, err = oip.ParseHeaderLength(head.Get(oip.HeaderLength))
	}
	return b, err
}

// CheckLengths refuses a head with several lengths of the JSON part: where two who pass a body
// on took different ones, they would see different requests.
func CheckLengths(head http.Header) error {
	lengths := head[oip.HeaderLength]
	for i := 1; i < len(lengths); i++ {
		if lengths[i] != lengths[0] {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the head has two fields %s, %.20q and %.20q: send one, with the length of the JSON part",
				oip.HeaderLength, lengths[0], lengths[i]))
		}
	}
	return nil
}

// Describe sets the fields of a head that say how to read the body.
func (b Body) Describe(head http.Header) {
	head["Content-Type"] = []string{"application/json"}
	if b.JSONLen != oip.WholeBody {
		head["Content-Type"] = []string{"application/octet-stream"}
		head[oip.HeaderLength] = []string{strconv.Itoa(b.JSONLen)}
	}
}

// Broken makes an engine's malformed message the engine's fault, not the client's: ErrInternal.
func Broken(err error) error {
	return fmt.Errorf("%w: the engine's answer breaks the Open Inference Protocol: %s", errdef.ErrInternal, err.Error())
}

// ToGRPC is an infer request that came over REST and goes on over gRPC.
type ToGRPC struct {
	asked   *oip.InferRequest
	message *pb.ModelInferRequest
}

// NewToGRPC reads a request's body; version is the one in its path. Errors are ErrInvalid.
func NewToGRPC(b Body, version string) (*ToGRPC, error) {
	asked, err := oip.DecodeRequest(b.Bytes, b.JSONLen)
	if err != nil {
		return nil, err
	}
	asked.ModelVersion = version
	raw := false
	for i := range asked.Inputs {
		raw = raw || asked.Inputs[i].Raw != nil
	}
	message, err := oip.RequestToProto(asked, raw)
	if err != nil {
		return nil, err
	}
	return &ToGRPC{asked, message}, nil
}

// Message is the request for an engine that knows the model by this name.
func (c *ToGRPC) Message(model string) proto.Message {
	c.message.ModelName = model
	return c.message
}

// Answer gives the engine's answer as the client asked for it. Errors are Broken ones, and
// ErrInvalid for an output that JSON can't hold, which the client has to ask for as binary.
func (c *ToGRPC) Answer(out *pb.ModelInferResponse) (Body, error) {
	response, err := oip.ResponseFromProto(out)
	if err != nil {
		return Body{}, Broken(err)
	}
	if response.ID == "" {
		response.ID = c.asked.ID
	}
	bytes, jsonLen, err := oip.AppendResponse(nil, response, c.asked.WantsBinary)
	return Body{bytes, jsonLen}, err
}

// ToREST is an infer request that came over gRPC and goes on over REST.
type ToREST struct {
	// Body is the engine's request, whatever its name for the model.
	Body Body
	// Path makes the request's path from that name.
	Path func(model string) string

	id  string
	raw bool
}

// NewToREST makes the REST form of a request. JSON is what every engine reads. Half floats, and
// bytes that are no text, need the binary extension; then the answer may need it too. Errors
// are ErrInvalid.
func NewToREST(in *pb.ModelInferRequest) (*ToREST, error) {
	request, err := oip.RequestFromProto(in)
	if err != nil {
		return nil, err
	}
	bytes, jsonLen, err := oip.AppendRequest(nil, request, nil)
	if err != nil {
		request.BinaryOutput = true
		bytes, jsonLen, err = oip.AppendRequest(nil, request, func(string) bool { return true })
	}
	if err != nil {
		return nil, err
	}
	return &ToREST{
		Body: Body{bytes, jsonLen}, Path: ModelPath(request.ModelVersion, "/infer"),
		id: request.ID, raw: len(in.GetRawInputContents()) > 0,
	}, nil
}

// Answer gives the engine's answer as a message, raw if the request's was; model is the
// engine's name for the model. Errors are Broken ones.
func (c *ToREST) Answer(head http.Header, bytes []byte, model string) (*pb.ModelInferResponse, error) {
	b, err := NewBody(head, bytes)
	if err != nil {
		return nil, Broken(err)
	}
	response, err := oip.DecodeResponse(b.Bytes, b.JSONLen)
	if err != nil {
		return nil, Broken(err)
	}
	if response.ID == "" {
		response.ID = c.id
	}
	if response.ModelName == "" {
		response.ModelName = model
	}
	out, err := oip.ResponseToProto(response, c.raw)
	if err != nil {
		return nil, Broken(err)
	}
	return out, nil
}

// ModelPath gives the path of a call for a model by an engine's name for it.
func ModelPath(version, call string) func(model string) string {
	if version != "" {
		call = "/versions/" + url.PathEscape(version) + call
	}
	return func(model string) string { return "/v2/models/" + url.PathEscape(model) + call }
}

// RepositoryPath gives the path of a call of the repository extension.
func RepositoryPath(call string) func(model string) string {
	return func(model string) string { return "/v2/repository/models/" + url.PathEscape(model) + call }
}
