package kubernetes

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/oip"
)

const (
	irisModel   = "../../../examples/iris/model/model.onnx"
	irisExample = "../../../examples/iris/isvc.yaml"
)

// TestStationmasterServes is the suite of the installed system. Its parts share one
// installation; each alone works too. Those that let the system itself be run side by side, so
// that they also show that services don't disturb each other; those that break it come after
// them, one by one.
func TestStationmasterServes(t *testing.T) {
	s := install(t)
	t.Run("the manifest installs it without a restart, in a restricted namespace", s.testInstalled)
	t.Run("the iris example is served over REST and gRPC from outside and inside", s.testIris)
	t.Run("side by side", func(t *testing.T) {
		for name, part := range map[string]func(*testing.T){
			"a model reaches its engine by download, image or claim": s.testDelivery,
			"a model of a bucket comes with the namespace's keys":    s.testCredentials,
			"what can't run says why, and others go on":              s.testFailures,
			"an update and its rollback lose no request":             s.testUpdates,
			"the only pod is deleted and no request is lost":         s.testPodDeleted,
			"replicas run on both nodes and share the requests":      s.testTwoNodes,
			"a canary gets its ten percent of ten thousand requests": s.testCanary,
			"a guarded rollout goes on and back by itself":           s.testGuarded,
			"a service at zero is woken by REST and gRPC":            s.testZero,
			"many models share a pod, within their memory":           s.testDensity,
			"an agent keeps an engine's repository to the list":      s.testAgent,
			"adapters come to each replica, are asked for, and go":   s.testAdapters,
			"engines prove themselves to the gateway over TLS":       s.testEngineTLS,
			"each gateway leads a conversation to one replica":       s.testConversations,
			"engines die and who saw nothing yet is answered":        s.testEnginesDie,
			"a service grows by the load of all gateways":            s.testLoadOfAllGateways,
			"a policy keeps all but the system away from engines":    s.testPolicy,
			"payloads reach a bucket once the namespace lets them":   s.testPayloads,
			"a graph of two pods is answered by the gateway":         s.testGraph,
			"whoever sets replicas is let":                           s.testAutoscalers,
			"an HTTPRoute leads past the gateway by the shares":      s.testDirect,
			"a replica over several pods is a LeaderWorkerSet":       s.testSeveralPods,
			"deletion leaves nothing":                                s.testDeletion,
			"what somebody adds to a service's pods is taken back":   s.testAdditions,
			"a dry run tells what would be refused, or do nothing":   s.testAdmission,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				part(t)
			})
		}
	})
	t.Run("operators are killed: serving goes on, and what changed meanwhile is rolled out", s.testOperatorKilled)
	t.Run("a gateway is killed: whoever asks again is answered", s.testGatewayKilled)
	t.Run("operators and gateways are replaced without a lost request", s.testRestarted)
	t.Run("a newer version comes, and all of it goes: engines and what users made stay", s.testUpgraded)
	t.Run("the operators are away: manifests are stored and judged later, and others share the work", s.testOperatorsAway)
	t.Run("the API server is away: serving goes on", s.testOutage)
	t.Run("all of it is removed: nothing is left", s.testRemoved)
}

// iris is the example as a cluster can run it: its model's address there is no path of a
// checkout, and the nodes of a test have little room. change may do more to it.
func iris(t *testing.T, namespace, uri string, change ...func(predictor map[string]any)) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(irisExample)
	if err != nil {
		t.Fatal(err)
	}
	is := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &is.Object); err != nil {
		t.Fatal(err)
	}
	is.SetNamespace(namespace)
	predictor := is.Object["spec"].(map[string]any)["predictor"].(map[string]any)
	model := modelOf(predictor)
	model["storageUri"] = uri
	model["resources"] = map[string]any{
		"requests": map[string]any{"cpu": "20m", "memory": "64Mi"}, "limits": map[string]any{"cpu": "1", "memory": "512Mi"},
	}
	for _, c := range change {
		c(predictor)
	}
	return is
}

func modelOf(predictor map[string]any) map[string]any { return predictor["model"].(map[string]any) }

// shape sets a variable of the engine, which makes another revision that answers alike.
func shape(value string) func(map[string]any) {
	return func(predictor map[string]any) {
		modelOf(predictor)["env"] = []any{map[string]any{"name": "SHAPE", "value": value}}
	}
}

func replicas(n int64) func(map[string]any) {
	return func(predictor map[string]any) { predictor["minReplicas"] = n }
}

// apply applies an object as `kubectl apply --server-side` does.
func apply(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	if err := api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner("e2e"), client.ForceOwnership); err != nil {
		t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// remove deletes an object when the test ends, and waits until it is gone.
func remove(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := api.Delete(ctx, object.DeepCopy()); client.IgnoreNotFound(err) != nil {
		t.Errorf("delete %s: %v", object.GetName(), err)
		return
	}
	eventually(t, object.GetName()+" is gone", func() error {
		err := api.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopy())
		if client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it isn't: %w", err)
		}
		return nil
	})
}

// current reads an object anew.
func current(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(object.GroupVersionKind())
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), now); err != nil {
		t.Fatal(err)
	}
	return now
}

// isReady returns nil where a service is ready in the shape that was asked for last.
func isReady(t *testing.T, service *unstructured.Unstructured) error {
	t.Helper()
	now := current(t, service)
	seen, _, _ := unstructured.NestedInt64(now.Object, "status", "observedGeneration")
	if seen != now.GetGeneration() {
		return fmt.Errorf("generation %d of %d was seen", seen, now.GetGeneration())
	}
	conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("conditions %v", conditions)
}

// infer is one inference as the README asks for it.
type infer struct {
	// url is where the model is; host replaces the URL's own where it isn't empty.
	url, host string
}

var setosa = []byte(`{"id":"req-4711","inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`)

// probabilities is what the README says of that input.
var probabilities = []float64{0.9847032, 0.015296769, 6.203781e-08}

// answerWithin bounds the wait for one answer: as long as a busy machine may take to start a pod, which
// a request to a service at zero waits for.
const answerWithin = time.Minute

// rest asks once, and fails unless the answer is right.
func (i infer) rest(ctx context.Context) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.url+"/infer", bytes.NewReader(setosa))
	if err != nil {
		return nil, err
	}
	req.Host = i.host
	req.Header.Set("Content-Type", "application/json")
	resp, err := inside.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return resp.Header, rightAnswer(body)
}

func rightAnswer(body []byte) error {
	var answer struct {
		ID      string
		Outputs []struct {
			Name string
			Data []float64
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.ID != "req-4711" || len(answer.Outputs) != 2 || len(answer.Outputs[0].Data) != 1 {
		return fmt.Errorf("the answer is %s", body)
	}
	if label := answer.Outputs[0].Data[0]; label != 0 {
		return fmt.Errorf("the label is %v, want 0", label)
	}
	return rightProbabilities(answer.Outputs[1].Data)
}

func rightProbabilities(got []float64) error {
	if len(got) != len(probabilities) {
		return fmt.Errorf("there are %d probabilities, want %d", len(got), len(probabilities))
	}
	for i, want := range probabilities {
		if math.Abs(got[i]-want) > 1e-6 {
			return fmt.Errorf("probabilities %v, want %v", got, probabilities)
		}
	}
	return nil
}

// inside is a client in the cluster's network.
var inside = &http.Client{Transport: &http.Transport{
	DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return shared.DialContext(ctx, network, address)
	},
	MaxIdleConnsPerHost: 32,
}}

// overGRPC returns a client of the gateway over gRPC.
func (s *installation) overGRPC(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.address+":8081",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return shared.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// inferGRPC asks once, and fails unless the answer is right. service is "namespace/name", or
// empty for the one that owns the model's name.
func inferGRPC(ctx context.Context, conn *grpc.ClientConn, service string) (metadata.MD, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if service != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "stationmaster-service", service)
	}
	var header metadata.MD
	answer, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, &oip.ModelInferRequest{
		ModelName: "iris", Id: "req-4711",
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{
			Name: "input", Datatype: "FP32", Shape: []int64{1, 4},
			Contents: &oip.InferTensorContents{Fp32Contents: []float32{5.1, 3.5, 1.4, 0.2}},
		}},
	}, grpc.Header(&header))
	if err != nil {
		return header, err
	}
	if answer.GetId() != "req-4711" || len(answer.GetOutputs()) != 2 {
		return header, fmt.Errorf("the answer is %v", answer)
	}
	var got []float64
	for _, p := range answer.GetOutputs()[1].GetContents().GetFp32Contents() {
		got = append(got, float64(p))
	}
	if raw := answer.GetRawOutputContents(); len(raw) == 2 {
		for p := raw[1]; len(p) >= 4; p = p[4:] {
			got = append(got, float64(math.Float32frombits(binary.LittleEndian.Uint32(p))))
		}
	}
	return header, rightProbabilities(got)
}

// testIris takes the example from apply to prediction.
func (s *installation) testIris(t *testing.T) {
	service := iris(t, "default", "oci://"+irisImage)
	text, err := yaml.Marshal(service.Object)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.kubectl(t, text, "apply", "-f", "-")
	t.Cleanup(func() { remove(t, service) })
	gateway := "http://" + s.address
	eventually(t, "the model answers", func() error {
		_, err := infer{url: gateway + "/v2/models/iris"}.rest(t.Context())
		return err
	})
	t.Logf("from apply to the first answer %.1f s", time.Since(began).Seconds())
	eventually(t, "the service is ready", func() error { return isReady(t, service) })
	t.Logf("from apply to Ready %.1f s", time.Since(began).Seconds())

	for how, ask := range map[string]infer{
		"host":                    {gateway + "/v2/models/iris", "iris-default.example.com"},
		"the predictor's host":    {gateway + "/v2/models/iris", "iris-predictor-default.example.com"},
		"path prefix":             {gateway + "/serving/default/iris/v2/models/iris", ""},
		"the model's name alone":  {gateway + "/v2/models/iris", ""},
		"the component's Service": {"http://iris-predictor.default.svc.cluster.local/v2/models/iris", ""},
	} {
		header, err := ask.rest(t.Context())
		if err != nil {
			t.Errorf("by %s: %v", how, err)
			continue
		}
		if header.Get("X-Request-Id") == "" || header.Get("X-Stationmaster-Revision") != "iris-predictor-00001" {
			t.Errorf("by %s the answer's headers are %v", how, header)
		}
	}
	conn := s.overGRPC(t)
	if live, err := oip.NewGRPCInferenceServiceClient(conn).ServerLive(t.Context(), &oip.ServerLiveRequest{}); err != nil || !live.GetLive() {
		t.Errorf("ServerLive answers %v, %v", live, err)
	}
	for _, name := range []string{"", "default/iris"} {
		header, err := inferGRPC(t.Context(), conn, name)
		if err != nil || len(header["x-stationmaster-revision"]) != 1 {
			t.Errorf("gRPC for %q answers %v with %v", name, err, header)
		}
	}
	s.testFromAPod(t)
	// The columns are KServe's.
	header, row, _ := strings.Cut(s.kubectl(t, nil, "get", "isvc", "iris"), "\n")
	if got := strings.Join(strings.Fields(header), " "); got != "NAME URL READY PREV LATEST PREVROLLEDOUTREVISION LATESTREADYREVISION AGE" {
		t.Errorf("the columns of kubectl get isvc are %s", got)
	}
	if got := strings.Join(strings.Fields(row), " "); !strings.HasPrefix(got, "iris http://iris-default.example.com True 100 iris-predictor-00001 ") {
		t.Errorf("kubectl get isvc prints %s", row)
	}
	happened(t, service, "RevisionCreated", "InferenceServiceReady")
}

// happened waits until there are events of a service with each of the reasons.
func happened(t *testing.T, service *unstructured.Unstructured, reasons ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("events tell of %v", reasons), func() error {
		var events corev1.EventList
		if err := api.List(t.Context(), &events, client.InNamespace(service.GetNamespace())); err != nil {
			return err
		}
		told := map[string]bool{}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == service.GetKind() && e.InvolvedObject.Name == service.GetName() {
				told[e.Reason] = true
			}
		}
		for _, reason := range reasons {
			if !told[reason] {
				return fmt.Errorf("the events are %v", told)
			}
		}
		return nil
	})
}

// testFromAPod asks by the short name that another pod of the cluster would use.
func (s *installation) testFromAPod(t *testing.T) {
	ns := namespace(t, nil)
	create(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: echo, image: "localhost:5000/echo:1", readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}]
`)
	eventually(t, "a pod is answered by the Service's short name", func() error {
		pods, err := ready(t.Context(), ns, "client")
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("%d pods are ready: %w", len(pods), err)
		}
		body, err := get(t.Context(), "http://"+pods[0].Status.PodIP+":8080/get?url="+url.QueryEscape("http://iris-predictor.default/v2/models/iris"))
		if err == nil && !strings.Contains(body, `"probabilities"`) {
			err = fmt.Errorf("it reads %s", body)
		}
		return err
	})
}
