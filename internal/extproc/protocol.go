package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The names of the endpoint picker protocol
// (https://github.com/kubernetes-sigs/gateway-api-inference-extension, proposal 004).
const (
	// destination is the header, and the key of the metadata, that name the endpoints to use.
	destination          = "x-gateway-destination-endpoint"
	destinationNamespace = "envoy.lb"
	// served is the key by which the proxy tells which of them answered.
	served = "x-gateway-destination-endpoint-served"
	// subset is the key by which the proxy tells which endpoints may be picked.
	subset          = "x-gateway-destination-endpoint-subset"
	subsetNamespace = "envoy.lb.subset_hint"
)

// headers are a message's, whose names a proxy has in lower case.
type headers []*corev3.HeaderValue

// get returns the first value of a name; "" for none.
func (h headers) get(name string) string {
	for _, f := range h {
		if strings.EqualFold(f.GetKey(), name) {
			if raw := f.GetRawValue(); len(raw) > 0 {
				return string(raw)
			}
			return f.GetValue()
		}
	}
	return ""
}

// length is what the message was announced with; -1 for nothing.
func (h headers) length() int64 {
	n, err := strconv.ParseInt(h.get("content-length"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// metadata returns a value of a message's metadata, nil for none.
func metadata(req *extprocv3.ProcessingRequest, namespace, key string) *structpb.Value {
	return req.GetMetadataContext().GetFilterMetadata()[namespace].GetFields()[key]
}

// addresses are those that a value names: a list, or a text with commas.
func addresses(v *structpb.Value) []string {
	if l := v.GetListValue(); l != nil {
		out := make([]string, 0, len(l.GetValues()))
		for _, e := range l.GetValues() {
			out = append(out, strings.TrimSpace(e.GetStringValue()))
		}
		return out
	}
	var out []string
	for a := range strings.SplitSeq(v.GetStringValue(), ",") {
		if a = strings.TrimSpace(a); a != "" {
			out = append(out, a)
		}
	}
	return out
}

// leading is what leads a request to endpoints ("ip:port,ip:port", the best first): in the header
// and in the metadata, of which a proxy may read either.
func leading(to string) (*extprocv3.CommonResponse, *structpb.Struct) {
	common := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{
		Header:       &corev3.HeaderValue{Key: destination, RawValue: []byte(to)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}}}}
	inner := &structpb.Struct{Fields: map[string]*structpb.Value{destination: structpb.NewStringValue(to)}}
	return common, &structpb.Struct{Fields: map[string]*structpb.Value{destinationNamespace: structpb.NewStructValue(inner)}}
}

// Answers that change nothing. They are shared and never changed.
var (
	passRequestHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{}},
	}}
	passRequestBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{}},
	}}
	passRequestTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{},
	}}
	passResponseHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{}},
	}}
	passResponseBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{}},
	}}
	passResponseTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{},
	}}
)

// echo gives a piece of a body back, as a proxy that streams both ways needs it.
type echo struct {
	streamed extprocv3.StreamedBodyResponse
	common   extprocv3.CommonResponse
	request  extprocv3.ProcessingResponse
	response extprocv3.ProcessingResponse
}

func newEcho() *echo {
	e := &echo{}
	e.common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &e.streamed}}
	body := &extprocv3.BodyResponse{Response: &e.common}
	e.request.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: body}
	e.response.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: body}
	return e
}

func (e *echo) of(piece []byte, last bool) {
	e.streamed.Body, e.streamed.EndOfStream = piece, last
}

// immediate is an answer in the engines' stead.
func immediate(status int, body []byte, retry bool) *extprocv3.ProcessingResponse {
	set := []*corev3.HeaderValueOption{{
		Header:       &corev3.HeaderValue{Key: "content-type", RawValue: []byte("application/json")},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}}
	if retry {
		set = append(set, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: "retry-after", RawValue: []byte("1")},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)}, //nolint:gosec // a status is three digits
			Headers: &extprocv3.HeaderMutation{SetHeaders: set}, Body: body, Details: "endpoint_picker_refused",
		},
	}}
}
