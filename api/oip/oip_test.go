package oip_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"stationmaster.dev/stationmaster/api/oip"
)

// wantFields are the numbers and types that tritonclient 2.73.0 (all but properties and the two
// load responses), the protocol's own specification (properties) and the kserve SDK 0.21.0 (the
// load responses) put on the wire.
const wantFields = `
ServerLiveResponse.live=1 bool
ServerReadyResponse.ready=1 bool
ModelReadyRequest.name=1 string
ModelReadyRequest.version=2 string
ModelReadyResponse.ready=1 bool
ServerMetadataResponse.name=1 string
ServerMetadataResponse.version=2 string
ServerMetadataResponse.extensions=3 string
ModelMetadataRequest.name=1 string
ModelMetadataRequest.version=2 string
ModelMetadataResponse.name=1 string
ModelMetadataResponse.versions=2 string
ModelMetadataResponse.platform=3 string
ModelMetadataResponse.inputs=4 message
ModelMetadataResponse.outputs=5 message
ModelMetadataResponse.properties=6 message
ModelMetadataResponse.TensorMetadata.name=1 string
ModelMetadataResponse.TensorMetadata.datatype=2 string
ModelMetadataResponse.TensorMetadata.shape=3 int64
InferParameter.bool_param=1 bool
InferParameter.int64_param=2 int64
InferParameter.string_param=3 string
InferParameter.double_param=4 double
InferParameter.uint64_param=5 uint64
InferTensorContents.bool_contents=1 bool
InferTensorContents.int_contents=2 int32
InferTensorContents.int64_contents=3 int64
InferTensorContents.uint_contents=4 uint32
InferTensorContents.uint64_contents=5 uint64
InferTensorContents.fp32_contents=6 float
InferTensorContents.fp64_contents=7 double
InferTensorContents.bytes_contents=8 bytes
ModelInferRequest.model_name=1 string
ModelInferRequest.model_version=2 string
ModelInferRequest.id=3 string
ModelInferRequest.parameters=4 message
ModelInferRequest.inputs=5 message
ModelInferRequest.outputs=6 message
ModelInferRequest.raw_input_contents=7 bytes
ModelInferRequest.InferInputTensor.name=1 string
ModelInferRequest.InferInputTensor.datatype=2 string
ModelInferRequest.InferInputTensor.shape=3 int64
ModelInferRequest.InferInputTensor.parameters=4 message
ModelInferRequest.InferInputTensor.contents=5 message
ModelInferRequest.InferRequestedOutputTensor.name=1 string
ModelInferRequest.InferRequestedOutputTensor.parameters=2 message
ModelInferResponse.model_name=1 string
ModelInferResponse.model_version=2 string
ModelInferResponse.id=3 string
ModelInferResponse.parameters=4 message
ModelInferResponse.outputs=5 message
ModelInferResponse.raw_output_contents=6 bytes
ModelInferResponse.InferOutputTensor.name=1 string
ModelInferResponse.InferOutputTensor.datatype=2 string
ModelInferResponse.InferOutputTensor.shape=3 int64
ModelInferResponse.InferOutputTensor.parameters=4 message
ModelInferResponse.InferOutputTensor.contents=5 message
ModelRepositoryParameter.bool_param=1 bool
ModelRepositoryParameter.int64_param=2 int64
ModelRepositoryParameter.string_param=3 string
ModelRepositoryParameter.bytes_param=4 bytes
RepositoryIndexRequest.repository_name=1 string
RepositoryIndexRequest.ready=2 bool
RepositoryIndexResponse.models=1 message
RepositoryIndexResponse.ModelIndex.name=1 string
RepositoryIndexResponse.ModelIndex.version=2 string
RepositoryIndexResponse.ModelIndex.state=3 string
RepositoryIndexResponse.ModelIndex.reason=4 string
RepositoryModelLoadRequest.repository_name=1 string
RepositoryModelLoadRequest.model_name=2 string
RepositoryModelLoadRequest.parameters=3 message
RepositoryModelLoadResponse.model_name=1 string
RepositoryModelLoadResponse.isLoaded=2 bool
RepositoryModelUnloadRequest.repository_name=1 string
RepositoryModelUnloadRequest.model_name=2 string
RepositoryModelUnloadRequest.parameters=3 message
RepositoryModelUnloadResponse.model_name=1 string
RepositoryModelUnloadResponse.isUnloaded=2 bool
`

func TestFieldNumbersAreThoseOfTheClients(t *testing.T) {
	want := map[string]bool{}
	for line := range strings.Lines(strings.TrimSpace(wantFields)) {
		want[strings.TrimSpace(line)] = true
	}
	got := map[string]bool{}
	var walk func(protoreflect.MessageDescriptors)
	walk = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			m := ms.Get(i)
			if m.IsMapEntry() {
				continue
			}
			name := strings.TrimPrefix(string(m.FullName()), "inference.")
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				got[fmt.Sprintf("%s.%s=%d %s", name, f.Name(), f.Number(), f.Kind())] = true
			}
			walk(m.Messages())
		}
	}
	walk(oip.File_api_oip_oip_proto.Messages())
	for f := range want {
		if !got[f] {
			t.Errorf("clients send %s, oip.proto has no such field", f)
		}
	}
	for f := range got {
		if !want[f] {
			t.Errorf("oip.proto has %s, which no client knows", f)
		}
	}
}

// The kserve SDK's load request has the model's name in field 1, which is repository_name here.
func TestKServeLoadRequestArrivesAsRepositoryName(t *testing.T) {
	var req oip.RepositoryModelLoadRequest
	if err := proto.Unmarshal([]byte("\x0a\x04iris"), &req); err != nil {
		t.Fatal(err)
	}
	if req.GetRepositoryName() != "iris" || req.GetModelName() != "" {
		t.Errorf("got repository %q model %q", req.GetRepositoryName(), req.GetModelName())
	}
}
