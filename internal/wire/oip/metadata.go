package oip

import (
	"bytes"
	"encoding/json"
	"errors"

	pb "stationmaster.dev/stationmaster/api/oip"
)

// The extensions that a server's metadata may list (Triton's names).
const (
	ExtensionBinaryData = "binary_tensor_data"
	ExtensionRepository = "model_repository"
)

// The states of a model in a repository index (Triton, extension_model_repository.md).
const (
	StateReady       = "READY"
	StateLoading     = "LOADING"
	StateUnloading   = "UNLOADING"
	StateUnavailable = "UNAVAILABLE"
)

// ServerMetadata answers GET /v2.
type ServerMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

// TensorMetadata describes an input or output of a model; -1 is a dimension of any size.
type TensorMetadata struct {
	Name     string   `json:"name"`
	Datatype Datatype `json:"datatype"`
	Shape    []int64  `json:"shape"`
}

// ModelMetadata answers GET /v2/models/NAME.
type ModelMetadata struct {
	Name string `json:"name"`
	// Versions is empty when the server has none.
	Versions   []string          `json:"versions,omitempty"`
	Platform   string            `json:"platform"`
	Inputs     []TensorMetadata  `json:"inputs"`
	Outputs    []TensorMetadata  `json:"outputs"`
	Properties map[string]string `json:"properties,omitempty"`
}

// ModelReady answers GET /v2/models/NAME/ready.
type ModelReady struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// IndexedModel is a line of a repository's index.
type IndexedModel struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
}

// ErrorBody is the body of every answer that isn't a success.
type ErrorBody struct {
	Error string `json:"error"`
}

// Encode makes the JSON of one of this file's types, or of a list of them. It panics on what
// JSON can't hold, which they never do.
// It leaves < > & as they are: what it makes is no part of a page.
func Encode(v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("BUG: " + err.Error())
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// Decode reads the JSON of one of this file's types into v. Unknown fields are passed over.
func Decode(body []byte, v any) error {
	err := json.Unmarshal(body, v)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType) && wrongType.Field == "":
		return invalid("the body's JSON is of another kind, %s, than is expected here", wrongType.Value)
	case errors.As(err, &wrongType):
		return invalid("%s can't be of the kind %s", wrongType.Field, wrongType.Value)
	case err != nil:
		return invalid("the body isn't JSON: %v", err)
	}
	return nil
}

// ToProto makes the gRPC message.
func (m *ServerMetadata) ToProto() *pb.ServerMetadataResponse {
	return &pb.ServerMetadataResponse{Name: m.Name, Version: m.Version, Extensions: m.Extensions}
}

// ServerMetadataFromProto reads the gRPC message.
func ServerMetadataFromProto(m *pb.ServerMetadataResponse) *ServerMetadata {
	return &ServerMetadata{Name: m.GetName(), Version: m.GetVersion(), Extensions: notNil(m.GetExtensions())}
}

// ToProto makes the gRPC message.
func (m *ModelMetadata) ToProto() *pb.ModelMetadataResponse {
	return &pb.ModelMetadataResponse{
		Name: m.Name, Versions: m.Versions, Platform: m.Platform, Properties: m.Properties,
		Inputs: tensorMetadataToProto(m.Inputs), Outputs: tensorMetadataToProto(m.Outputs),
	}
}

// ModelMetadataFromProto reads the gRPC message.
func ModelMetadataFromProto(m *pb.ModelMetadataResponse) *ModelMetadata {
	return &ModelMetadata{
		Name: m.GetName(), Versions: m.GetVersions(), Platform: m.GetPlatform(), Properties: m.GetProperties(),
		Inputs: tensorMetadataFromProto(m.GetInputs()), Outputs: tensorMetadataFromProto(m.GetOutputs()),
	}
}

func tensorMetadataToProto(in []TensorMetadata) []*pb.ModelMetadataResponse_TensorMetadata {
	out := make([]*pb.ModelMetadataResponse_TensorMetadata, 0, len(in))
	for _, t := range in {
		out = append(out, &pb.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: string(t.Datatype), Shape: t.Shape})
	}
	return out
}

func tensorMetadataFromProto(in []*pb.ModelMetadataResponse_TensorMetadata) []TensorMetadata {
	out := make([]TensorMetadata, 0, len(in))
	for _, t := range in {
		out = append(out, TensorMetadata{Name: t.GetName(), Datatype: Datatype(t.GetDatatype()), Shape: notNil(t.GetShape())})
	}
	return out
}

// IndexToProto makes the gRPC message of a repository's index.
func IndexToProto(models []IndexedModel) *pb.RepositoryIndexResponse {
	out := &pb.RepositoryIndexResponse{}
	for _, m := range models {
		out.Models = append(out.Models, &pb.RepositoryIndexResponse_ModelIndex{Name: m.Name, Version: m.Version, State: m.State, Reason: m.Reason})
	}
	return out
}

// IndexFromProto reads the gRPC message of a repository's index.
func IndexFromProto(m *pb.RepositoryIndexResponse) []IndexedModel {
	out := make([]IndexedModel, 0, len(m.GetModels()))
	for _, i := range m.GetModels() {
		out = append(out, IndexedModel{Name: i.GetName(), Version: i.GetVersion(), State: i.GetState(), Reason: i.GetReason()})
	}
	return out
}

// RepositoryModel is the model that a load or unload request names: Triton's clients use
// model_name, KServe's put it in the field that Triton calls repository_name.
func RepositoryModel(r interface {
	GetModelName() string
	GetRepositoryName() string
}) string {
	if name := r.GetModelName(); name != "" {
		return name
	}
	return r.GetRepositoryName()
}
