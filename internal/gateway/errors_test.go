package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func TestEveryKindHasAnEdge(t *testing.T) {
	seen := map[error]bool{}
	for _, e := range edges {
		if seen[e.kind] {
			t.Errorf("%v comes twice", e.kind)
		}
		seen[e.kind] = true
		// The same error must look the same whether an engine of ours or the gateway tells it.
		wantStatus, wantCode := oip.Status(e.kind)
		if e.status != wantStatus || e.code != wantCode {
			t.Errorf("%v: %d %v, want %d %v as in wire/oip", e.kind, e.status, e.code, wantStatus, wantCode)
		}
		if e.openAI == "" {
			t.Errorf("%v has no type in OpenAI's shape", e.kind)
		}
	}
	for _, kind := range errdef.Kinds() {
		if !seen[kind] {
			t.Errorf("%v has no edge", kind)
			continue
		}
		wrapped := fmt.Errorf("somewhere: %w", kind)
		if got := edgeOf(wrapped); got.kind != kind {
			t.Errorf("%v is mapped as %v", kind, got.kind)
		}
		if status.Code(statusOf(wrapped)) != edgeOf(kind).code {
			t.Errorf("%v as a gRPC status: %v", kind, statusOf(wrapped))
		}
	}
}

func TestEngineFailuresAreBadGateways(t *testing.T) {
	err := &upstream.Error{Stage: upstream.StageHeader, Addr: "127.0.0.1:1", Err: upstream.ErrProtocol}
	if e := edgeOf(err); e.status != http.StatusBadGateway || e.code != codes.Unavailable {
		t.Errorf("got %d %v", e.status, e.code)
	}
	if e := edgeOf(errdef.ErrInternal); e.status != http.StatusInternalServerError {
		t.Errorf("our own failure: %d", e.status)
	}
}

func TestErrorBodiesAreWholeJSON(t *testing.T) {
	for path, want := range map[string]string{
		"/v2/models/m/infer":           `{"error":"quote \" and <tag>"}`,
		"/v1/models/m:predict":         `{"error":"quote \" and <tag>"}`,
		"/v1/models":                   `{"error":"quote \" and <tag>"}`,
		"/v1/chat/completions":         `{"error":{"message":"quote \" and <tag>","type":"server_error","param":null,"code":null}}`,
		"/openai/v1/models":            `{"error":{"message":"quote \" and <tag>","type":"server_error","param":null,"code":null}}`,
		"/v1/embeddings":               `{"error":{"message":"quote \" and <tag>","type":"server_error","param":null,"code":null}}`,
		"/v1/timeseries/models/x/data": `{"error":"quote \" and <tag>"}`,
	} {
		body := errorBody(openAIPath(path, "/openai"), edgeOf(errdef.ErrInternal), `quote " and <tag>`)
		if got := strings.TrimSuffix(string(body), "\n"); got != want || !json.Valid(body) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
