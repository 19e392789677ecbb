package gateway_test

import (
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// tagged is a service with a canary at 0 % whose engines speak HTTP and gRPC.
func tagged(t *testing.T, sticky route.Sticky, percent int) route.Service {
	t.Helper()
	endpoint := func(name string) []route.Endpoint {
		return []route.Endpoint{{Replica: name, HTTP: engine(t, answering(200, "application/json", "{}")), GRPC: grpcEngine(t, &oipEngine{name: "iris"})}}
	}
	s := service("iris")
	s.Hosts = append(s.Hosts, route.Host{Name: "canary-iris-default.localhost", Tag: "latest"})
	s.Components[spec.Predictor] = route.Backend{
		Targets: []route.Target{
			{Revision: "new", Tag: "latest", Weight: percent, ModelName: "iris", Endpoints: endpoint("b")},
			{Revision: "old", Tag: "prev", Weight: 100 - percent, ModelName: "iris", Endpoints: endpoint("a")},
		},
		Rules:  []route.HeaderRule{{Header: "X-Stationmaster-Tag", Value: "canary", Tag: "latest"}},
		Sticky: sticky,
	}
	return s
}

func TestATagIsReachedByHostAndHeaderOverHTTPAndGRPC(t *testing.T) {
	g := start(t, nil, tagged(t, route.Sticky{}, 0))
	overHTTP := func(host, tag string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url("/v2/models/iris/infer"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if r.Host = host; tag != "" {
			r.Header.Set("X-Stationmaster-Tag", tag)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.Header.Get("X-Stationmaster-Revision")
	}
	overGRPC := func(authority, tag string) string {
		t.Helper()
		client := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC, grpc.WithAuthority(authority)))
		ctx := t.Context()
		if tag != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-stationmaster-tag", tag)
		}
		var header metadata.MD
		if _, err := client.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "iris"}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		return header.Get("x-stationmaster-revision")[0]
	}
	for _, over := range []func(host, tag string) string{overHTTP, overGRPC} {
		for _, tc := range []struct{ host, tag, want string }{
			{"iris-default.localhost", "", "old"},
			{"iris-default.localhost", "canary", "new"},
			{"localhost", "canary", "new"},
			{"iris-default.localhost", "nope", "old"},
			{"canary-iris-default.localhost", "", "new"},
		} {
			if got := over(tc.host, tc.tag); got != tc.want {
				t.Errorf("host %s with tag %q led to %s, want %s", tc.host, tc.tag, got, tc.want)
			}
		}
	}
}

func TestAStickyClientMeetsOneRevisionOverHTTPAndGRPC(t *testing.T) {
	g := start(t, nil, tagged(t, route.Sticky{Header: "X-User"}, 50))
	client := oip.NewGRPCInferenceServiceClient(connect(t, g.GRPC))
	met := map[string]bool{}
	for _, user := range []string{"ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ida", "jim"} {
		seen := map[string]bool{}
		for range 8 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url("/v2/models/iris/infer"), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-User", user)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			seen[resp.Header.Get("X-Stationmaster-Revision")] = true
			var header metadata.MD
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", user)
			if _, err := client.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "iris"}, grpc.Header(&header)); err != nil {
				t.Fatal(err)
			}
			seen[header.Get("x-stationmaster-revision")[0]] = true
		}
		if len(seen) != 1 {
			t.Errorf("%s met %v", user, seen)
		}
		for revision := range seen {
			met[revision] = true
		}
	}
	if len(met) != 2 {
		t.Errorf("ten clients all met %v", met)
	}
}
