package app_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"stationmaster.dev/stationmaster/internal/app"
)

func TestAnEndpointPickerServesEachPoolAtItsAddress(t *testing.T) {
	out, said := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		err := app.EndpointPicker(ctx, app.PickerConfig{
			Pickers: app.Pickers{Endpoints: []string{"10.0.0.1:80=127.0.0.1:0", "10.0.0.2:80=127.0.0.1:0"}},
			Admin:   "127.0.0.1:0", Out: said, Logger: slog.New(slog.DiscardHandler),
		})
		said.CloseWithError(io.EOF)
		done <- err
	}()
	lines := bufio.NewReader(out)
	ready, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	pools := regexp.MustCompile(`pool=(\S+)@(\S+)`).FindAllStringSubmatch(ready, -1)
	if len(pools) != 2 {
		t.Fatalf("it says %q", ready)
	}
	for _, p := range pools {
		if to := headLedTo(t, p[2]); to != p[1] {
			t.Errorf("the picker of %s leads to %q", p[1], to)
		}
	}
	admin := regexp.MustCompile(`admin=(\S+)`).FindStringSubmatch(ready)[1]
	for path, want := range map[string]string{"/readyz": "", "/metrics": `stationmaster_endpoint_picker_requests_total{code="200",namespace="static",pool="10.0.0.2:80"} 1`} {
		resp, err := http.Get("http://" + admin + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, without %q", path, resp.Status, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// headLedTo asks a picker about a request without a body, over TLS that isn't checked.
func headLedTo(t *testing.T, address string) string {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))) //nolint:gosec // as proxies do
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers:     &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":method", RawValue: []byte("GET")}, {Key: ":path", RawValue: []byte("/v1/models")}}},
		EndOfStream: true,
	}}}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	set := m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
	if len(set) != 1 {
		return fmt.Sprint(m)
	}
	return string(set[0].GetHeader().GetRawValue())
}

func TestWhatIsNoPoolIsRefusedByItsFlag(t *testing.T) {
	for text, cfg := range map[string]app.Pickers{
		"no pool is named":              {},
		`--pool "llama=:9002"`:          {Pools: []string{"llama=:9002"}},
		`--pool "a/b": want`:            {Pools: []string{"a/b"}},
		"is no ip:port":                 {Endpoints: []string{"engine:80=127.0.0.1:0"}},
		"want host:port":                {Endpoints: []string{"10.0.0.1:80=9002"}},
		`there is no "fastest"`:         {Endpoints: []string{"10.0.0.1:80=127.0.0.1:0"}, Picking: "fastest"},
		"read --tls-cert and --tls-key": {Endpoints: []string{"10.0.0.1:80=127.0.0.1:0"}, TLSCert: "/nowhere", TLSKey: "/nowhere"},
	} {
		err := app.EndpointPicker(t.Context(), app.PickerConfig{Pickers: cfg, Admin: "127.0.0.1:0", Out: io.Discard, Logger: slog.New(slog.DiscardHandler), Kubeconfig: "/nowhere"})
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", cfg, err, text)
		}
	}
}
