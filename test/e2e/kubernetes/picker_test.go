package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The Gateway API Inference Extension's module, whose definition of InferencePool is the one watched.
const (
	inferenceModule = "sigs.k8s.io/gateway-api-inference-extension@v1.5.0"
	inferenceSum    = "h1:w9Awt60cmI1vM7Y6N81h8wDCBP0WkmxpdI7GKY0v070="
)

const pickedEngines = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  replicas: 2
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: engine
          image: ` + llmImage + `
          args: [--host=0.0.0.0, --port=8000, --served-model-name=llama, --time-scale=0.1]
          readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
          securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
`

const pickedPool = `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: llama
  annotations: {stationmaster.dev/picking: "prefix=3, least-tokens"}
spec:
  selector: {matchLabels: {app: llama}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: llama-endpoint-picker, port: {number: 9002}}
`

// TestAnEndpointPickerPicksPods has what the shipped manifest brings for an InferencePool pick among
// real pods, on a cluster that learns of InferencePools only then.
func TestAnEndpointPickerPicksPods(t *testing.T) {
	s := build(t)
	ns := namespace(t, restricted)
	s.bringPicker(t, ns)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		out, err := s.try(context.WithoutCancel(t.Context()), nil, "-n", ns, "logs", "-l", "app=llama-endpoint-picker", "--tail=60")
		t.Logf("the picker's log (%v):\n%s", err, out)
	})
	create(t, ns, strings.TrimSpace(pickedEngines))
	eventually(t, "the picker says that it knows no InferencePools, and isn't ready", func() error {
		out, err := s.try(t.Context(), nil, "-n", ns, "logs", "-l", "app=llama-endpoint-picker")
		if err == nil && !strings.Contains(out, "doesn't know the kind InferencePool") {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	if pods, err := ready(t.Context(), ns, "llama-endpoint-picker"); err != nil || len(pods) != 0 {
		t.Errorf("%d pickers are ready without a pool (%v)", len(pods), err)
	}
	installKind(t, inferenceModule, inferenceSum, filepath.Join("config", "crd", "bases", "inference.networking.k8s.io_inferencepools.yaml"))
	eventually(t, "the pool is taken", func() error {
		pool := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(pickedPool), &pool.Object); err != nil {
			return err
		}
		pool.SetNamespace(ns)
		return client.IgnoreAlreadyExists(api.Create(t.Context(), pool))
	})
	eventually(t, "the picker is ready", func() error {
		pods, err := ready(t.Context(), ns, "llama-endpoint-picker")
		if err == nil && len(pods) != 1 {
			err = fmt.Errorf("%d pods", len(pods))
		}
		return err
	})
	p := pickerAt(t, ns, "llama-endpoint-picker")
	engines := func(want int) (addresses []string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d engines are ready", want), func() error {
			pods, err := ready(t.Context(), ns, "llama")
			if err == nil && len(pods) != want {
				err = fmt.Errorf("%d are", len(pods))
			}
			addresses = addresses[:0]
			for _, pod := range pods {
				addresses = append(addresses, pod.Status.PodIP+":8000")
			}
			return err
		})
		return addresses
	}
	two := engines(2)
	used := map[string]bool{}
	eventually(t, "both pods are picked", func() error {
		to, status, err := p.chat(t.Context(), fmt.Sprintf("conversation %d", len(used)))
		if err != nil || status != 0 {
			return fmt.Errorf("status %d, %w", status, err)
		}
		if !slices.Contains(two, to) {
			t.Fatalf("%s was picked, of %v", to, two)
		}
		if used[to] = true; len(used) < 2 {
			return fmt.Errorf("of %v only %v", two, used)
		}
		return nil
	})
	long := strings.Repeat("once upon a time ", 100)
	first, _, err := p.chat(t.Context(), long)
	if err != nil {
		t.Fatal(err)
	}
	for turn := range 4 {
		long += strings.Repeat(" and then", 20)
		if to, _, err := p.chat(t.Context(), long); err != nil || to != first {
			t.Errorf("turn %d went to %s, the first to %s (%v)", turn, to, first, err)
		}
	}
	scale := func(n int32) {
		t.Helper()
		s.kubectl(t, nil, "-n", ns, "scale", "deployment", "llama", fmt.Sprintf("--replicas=%d", n))
	}
	scale(3)
	three := engines(3)
	eventually(t, "the third pod is picked", func() error {
		to, _, err := p.chat(t.Context(), "something else")
		if err == nil && (slices.Contains(two, to) || !slices.Contains(three, to)) {
			err = fmt.Errorf("%s was", to)
		}
		return err
	})
	scale(0)
	eventually(t, "requests are refused without a pod", func() error {
		to, status, err := p.chat(t.Context(), "anybody?")
		if err == nil && status != http.StatusServiceUnavailable {
			err = fmt.Errorf("status %d, led to %q", status, to)
		}
		return err
	})
}

// bringPicker applies what the manifest has for a pool in a namespace.
func (s *installation) bringPicker(t *testing.T, ns string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), s.binary, "install", "--image", ownImage, "--crds=false", "--endpoint-picker", ns+"/llama").Output()
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for doc := range strings.SplitSeq(string(out), "---\n") {
		if strings.Contains(doc, "  namespace: "+ns+"\n") {
			own = append(own, doc)
		}
	}
	if len(own) != 5 {
		t.Fatalf("the manifest has %d objects in the pool's namespace", len(own))
	}
	s.kubectl(t, []byte(strings.Join(own, "---\n")), "apply", "--server-side", "-f", "-")
	var d appsv1.Deployment
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "llama-endpoint-picker"}, &d); err != nil {
		t.Fatal(err)
	}
}

// poolProxy asks an endpoint picker as a proxy does, and the engines that it picks.
type poolProxy struct {
	extprocv3.ExternalProcessorClient
}

func pickerAt(t *testing.T, ns, name string) poolProxy {
	t.Helper()
	var service corev1.Service
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, &service); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///%s:%d", service.Spec.ClusterIP, service.Spec.Ports[0].Port),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})), //nolint:gosec // as gateways do
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return shared.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return poolProxy{extprocv3.NewExternalProcessorClient(conn)}
}

// chat has a request picked, asks the engine, and passes its answer by the picker. It returns where
// the request went, or the status that it was refused with.
func (p poolProxy) chat(ctx context.Context, text string) (to string, refused int, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	stream, err := p.Process(ctx)
	if err != nil {
		return "", 0, err
	}
	body := fmt.Appendf(nil, `{"model":"llama","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, text)
	pass := func(m *extprocv3.ProcessingRequest) (*extprocv3.ProcessingResponse, error) {
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return stream.Recv()
	}
	field := func(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, RawValue: []byte(v)} }
	if err := stream.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			field(":method", "POST"), field(":path", "/v1/chat/completions"), field("content-type", "application/json"),
		}}}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED,
		},
	}); err != nil {
		return "", 0, err
	}
	head, err := pass(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}}})
	if err != nil {
		return "", 0, err
	}
	if r := head.GetImmediateResponse(); r != nil {
		return "", int(r.GetStatus().GetCode()), nil
	}
	to = string(head.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()[0].GetHeader().GetRawValue())
	if _, err := stream.Recv(); err != nil { // the body
		return "", 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := inside.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("%s answers %s: %s (%w)", to, resp.Status, answer, err)
	}
	if _, err := pass(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{field(":status", "200"), field("content-type", "application/json")}},
	}}}); err != nil {
		return "", 0, err
	}
	back, err := pass(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: answer, EndOfStream: true}}})
	if err != nil {
		return "", 0, err
	}
	if got := back.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody(); !bytes.Equal(got, answer) {
		return "", 0, fmt.Errorf("of an answer of %d bytes %d came back", len(answer), len(got))
	}
	return to, 0, stream.CloseSend()
}
