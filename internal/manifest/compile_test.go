package manifest_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// service decodes a manifest in short form, its spec alone, and defaults it.
func service(t testing.TB, specText string) *servingv1beta1.InferenceService {
	t.Helper()
	is := &servingv1beta1.InferenceService{Spec: fromYAML[servingv1beta1.InferenceServiceSpec](t, specText)}
	is.Name, is.Namespace, is.Generation = "iris", "default", 1
	manifest.Default(is, manifest.Defaults{})
	return is
}

// input selects the runtime from the shipped ones.
func input(t testing.TB, is *servingv1beta1.InferenceService, c spec.Component) manifest.Input {
	t.Helper()
	in := manifest.Input{Service: is, Component: c}
	r, ok := catalogue.RequestOf(&is.Spec.Predictor)
	if !ok || c != spec.Predictor {
		return in
	}
	shipped, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	var cluster []servingv1alpha1.ClusterServingRuntime
	for _, s := range shipped {
		cluster = append(cluster, *s)
	}
	sel, err := catalogue.Select(r, nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	in.Runtime, in.RuntimeName, in.RuntimeKind, in.RuntimeAnnotations = sel.Spec, sel.Name, sel.Kind, sel.Annotations
	return in
}

func compiled(t testing.TB, in manifest.Input) manifest.Compiled {
	t.Helper()
	c, err := manifest.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func envOf(c spec.Container) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		out[e.Name] = e.Value
	}
	return out
}

func TestEnginesGetKServesDefaults(t *testing.T) {
	const uri = ", storageUri: file:///m"
	for name, tc := range map[string]struct {
		predictor    string
		wantImage    string
		wantEnv      map[string]string
		wantArgs     []string
		wantLabels   map[string]string
		wantProtocol spec.Protocol
		wantModel    string
	}{
		"MLServer with a model": {
			predictor: "{sklearn: {protocolVersion: v2" + uri + "}}", wantImage: "docker.io/seldonio/mlserver:1.7.1",
			wantEnv: map[string]string{
				"MLSERVER_MODEL_NAME": "iris", "MLSERVER_MODEL_URI": "/mnt/models", "MLSERVER_HTTP_PORT": "8080",
				"MLSERVER_MODEL_IMPLEMENTATION": "mlserver_sklearn.SKLearnModel", "INFERENCE_SERVICE_NAME": "iris",
			},
			wantLabels: map[string]string{"modelClass": "mlserver_sklearn.SKLearnModel"}, wantProtocol: spec.V2, wantModel: "iris",
		},
		"MLServer without a model": {
			predictor: "{model: {modelFormat: {name: mlflow}, protocolVersion: v2}}", wantImage: "docker.io/seldonio/mlserver:1.7.1",
			wantEnv:      map[string]string{"MLSERVER_LOAD_MODELS_AT_STARTUP": "false", "MLSERVER_MODEL_URI": "", "MLSERVER_MODEL_IMPLEMENTATION": "mlserver_mlflow.MLflowRuntime"},
			wantProtocol: spec.V2,
		},
		"the manifest's variables win": {
			predictor: "{sklearn: {protocolVersion: v2" + uri + ", env: [{name: MLSERVER_MODEL_NAME, value: own}, {name: MLSERVER_HTTP_PORT, value: '8085'}]}}", wantImage: "docker.io/seldonio/mlserver:1.7.1",
			wantEnv: map[string]string{"MLSERVER_MODEL_NAME": "own", "MLSERVER_HTTP_PORT": "8085"}, wantProtocol: spec.V2, wantModel: "own",
		},
		"TorchServe over v1": {
			predictor: "{pytorch: {}}", wantImage: "pytorch/torchserve-kfs:0.9.0", wantLabels: map[string]string{"serviceEnvelope": "kserve"},
			wantEnv: map[string]string{"TS_SERVICE_ENVELOPE": "kserve", "PROTOCOL_VERSION": "v1"}, wantProtocol: spec.V1,
		},
		"TorchServe over v2 on a GPU": {
			predictor: "{pytorch: {protocolVersion: v2, resources: {limits: {nvidia.com/gpu: '1'}}}}", wantImage: "pytorch/torchserve-kfs:0.9.0-gpu",
			wantEnv: map[string]string{"TS_SERVICE_ENVELOPE": "kservev2", "PROTOCOL_VERSION": "v2"}, wantProtocol: spec.V2,
		},
		"Triton without a model": {
			predictor: "{triton: {}}", wantImage: "nvcr.io/nvidia/tritonserver:23.05-py3", wantProtocol: spec.V2,
			wantArgs: []string{"tritonserver", "--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080", "--allow-grpc=true", "--allow-http=true", "--model-control-mode=explicit", "--strict-readiness=false"},
		},
		"Triton with a model and args": {
			predictor: "{triton: {runtimeVersion: 20.10-py3, args: [--log-verbose=1]" + uri + "}}", wantImage: "nvcr.io/nvidia/tritonserver:20.10-py3", wantProtocol: spec.V2,
			wantArgs: []string{"tritonserver", "--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080", "--allow-grpc=true", "--allow-http=true", "--log-verbose=1"},
		},
		"TensorFlow Serving on a MIG slice": {
			predictor: "{tensorflow: {resources: {limits: {nvidia.com/mig-1g.5gb: '1'}}}}", wantImage: "tensorflow/serving:2.6.2-gpu", wantProtocol: spec.V1, wantModel: "iris",
		},
		"a runtime version wins over the GPU's tag": {
			predictor: "{huggingface: {runtimeVersion: v9, resources: {limits: {nvidia.com/gpu: '1'}}}}", wantImage: "kserve/huggingfaceserver:v9", wantProtocol: spec.V2, wantModel: "iris",
		},
		"Hugging Face on a GPU": {
			predictor: "{huggingface: {resources: {limits: {amd.com/gpu: '1'}}}}", wantImage: "kserve/huggingfaceserver:latest-gpu", wantProtocol: spec.V2, wantModel: "iris",
		},
		"Hugging Face under a name of its own": {
			predictor: "{huggingface: {args: [--model_name=llama2]}}", wantImage: "kserve/huggingfaceserver:latest", wantProtocol: spec.V2, wantModel: "llama2",
		},
		"vLLM without a GPU": {
			predictor: "{model: {modelFormat: {name: vLLM}}}", wantImage: "vllm/vllm-openai-cpu:latest", wantProtocol: spec.V2, wantModel: "iris",
		},
		"vLLM with a GPU and a version": {
			predictor: "{model: {modelFormat: {name: vLLM}, runtimeVersion: v0.9, resources: {requests: {nvidia.com/gpu: '1'}}}}", wantImage: "vllm/vllm-openai:v0.9", wantProtocol: spec.V2, wantModel: "iris",
		},
		"vLLM in an image of one's own": {
			predictor: "{model: {modelFormat: {name: vLLM}, image: 'host:5000/mine'}}", wantImage: "host:5000/mine", wantProtocol: spec.V2, wantModel: "iris",
		},
		"a version behind a registry's port": {
			predictor: "{model: {modelFormat: {name: pmml}, image: 'host:5000/mine', runtimeVersion: v1}}", wantImage: "host:5000/mine:v1", wantProtocol: spec.V1, wantModel: "iris",
		},
		"a pinned image keeps its digest": {
			predictor: "{model: {modelFormat: {name: pmml}, image: 'a/b@sha256:00', runtimeVersion: v1}}", wantImage: "a/b@sha256:00", wantProtocol: spec.V1, wantModel: "iris",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := compiled(t, input(t, service(t, "predictor: "+tc.predictor), spec.Predictor))
			server := c.Workload.Containers[0]
			if server.Image != tc.wantImage {
				t.Errorf("image %s, want %s", server.Image, tc.wantImage)
			}
			env := envOf(server)
			for k, v := range tc.wantEnv {
				if env[k] != v {
					t.Errorf("%s=%q, want %q", k, env[k], v)
				}
			}
			if tc.wantArgs != nil {
				if d := cmp.Diff(tc.wantArgs, server.Args); d != "" {
					t.Errorf("args (-want +got):\n%s", d)
				}
			}
			for k, v := range tc.wantLabels {
				if c.PodTemplate.Labels[k] != v {
					t.Errorf("label %s=%q, want %q", k, c.PodTemplate.Labels[k], v)
				}
			}
			if c.Protocol != tc.wantProtocol || c.Workload.ModelName != tc.wantModel {
				t.Errorf("protocol %q and model name %q, want %q and %q", c.Protocol, c.Workload.ModelName, tc.wantProtocol, tc.wantModel)
			}
		})
	}
}

func TestALocalCommandHeedsTheManifest(t *testing.T) {
	in := input(t, service(t, `predictor: {model: {modelFormat: {name: gguf}, storageUri: "file:///m.gguf", args: ["-c", "4096"]}}`), spec.Predictor)
	server := compiled(t, in).Workload.Containers[0]
	l := server.Local
	if l == nil || l.Command[0] != "sh" || !slices.Equal(l.Requires, []string{"sh", "llama-server"}) {
		t.Fatalf("local command %+v", l)
	}
	if tail := l.Command[len(l.Command)-5:]; !slices.Equal(tail, []string{"--alias", "iris", "--metrics", "-c", "4096"}) {
		t.Errorf("the command ends in %q: name filled in and the manifest's args expected", tail)
	}
	if tail := l.Alternatives[0].Command[len(l.Alternatives[0].Command)-4:]; !slices.Equal(tail, []string{"--model_alias", "iris", "-c", "4096"}) {
		t.Errorf("the alternative ends in %q", tail)
	}
	if len(server.Ports) != 1 || server.Ports[0].Number != 8080 {
		t.Errorf("ports %v", server.Ports)
	}

	mlserver := func(extra string) manifest.Compiled {
		return compiled(t, input(t, service(t, "predictor: {sklearn: {protocolVersion: v2, storageUri: file:///m"+extra+"}}"), spec.Predictor))
	}
	c := mlserver(", env: [{name: MLSERVER_PARALLEL_WORKERS, value: '3'}]")
	if slices.ContainsFunc(c.Workload.Containers[0].Local.Env, func(e spec.EnvVar) bool { return e.Name == "MLSERVER_PARALLEL_WORKERS" }) {
		t.Error("the local command's variable hides the manifest's")
	}
	if c = mlserver(", command: [mine]"); c.Workload.Containers[0].Local != nil {
		t.Error("a command of the manifest's own must not be replaced by the local one")
	}
	if c = mlserver(", image: mine, runtimeVersion: v3"); !slices.Equal(c.Unsupported, []string{"spec.predictor.model.image", "spec.predictor.model.runtimeVersion"}) {
		t.Errorf("unsupported %v: an image that isn't used must be told", c.Unsupported)
	}
	w := mlserver("").Workload
	if !w.Speaks(spec.GRPCV2) || !w.Speaks(spec.V2) || w.Speaks(spec.V1) {
		t.Errorf("protocols %v", w.Protocols)
	}
	if p, ok := w.Server().GRPCPort(); !ok || p.Number != 9000 {
		t.Errorf("gRPC port %v", p)
	}
}

func TestPlaceholders(t *testing.T) {
	runtime := fromYAML[servingv1alpha1.ServingRuntimeSpec](t, `
containers:
- name: kserve-container
  args: ["--name={{.Name}}", "--ns={{ .Namespace }}", "--team={{.Labels.team}}", "--note={{.Annotations.note}}", '--f={{index .Annotations "a/b"}}']
  readinessProbe: {httpGet: {path: "/v2/models/{{.Name}}/ready", port: 8080}}
- name: side
  args: ["{{.Name}}"]
`)
	is := service(t, "predictor: {model: {modelFormat: {name: x}, args: ['{{.Name}}']}}")
	is.Labels = map[string]string{"team": `a"b<c>&'d'`}
	is.Annotations["a/b"] = "with {{braces}}"
	c := compiled(t, manifest.Input{Service: is, Component: spec.Predictor, Runtime: &runtime, RuntimeName: "own", RuntimeKind: "ServingRuntime"})
	want := []string{"--name=iris", "--ns=default", `--team=a"b<c>&'d'`, "--note=", "--f=with {{braces}}", "iris"}
	if d := cmp.Diff(want, c.Workload.Containers[0].Args); d != "" {
		t.Errorf("args (-want +got):\n%s", d)
	}
	if got := c.Workload.Containers[0].Readiness.Action.HTTP.Path; got != "/v2/models/iris/ready" {
		t.Errorf("probe path %s", got)
	}
	if got := c.Workload.Containers[1].Args[0]; got != "{{.Name}}" {
		t.Errorf("a sidecar's args were filled in: %s", got)
	}
	if d := cmp.Diff([]string{"kserve-container.args[3]"}, c.Unset); d != "" {
		t.Errorf("unset placeholders (-want +got):\n%s", d)
	}
}

// KServe's schema admits probes that name no port, and two of its samples have them; a cluster
// refuses port 0.
func TestProbesWithoutAPortGetTheContainers(t *testing.T) {
	for name, tc := range map[string]struct {
		ports           string
		wantGet, wantTo int32
	}{
		"the first":                      {"[{containerPort: 5000}, {containerPort: 6000}]", 5000, 5000},
		"for HTTP the first that has it": {"[{containerPort: 9000, name: h2c}, {containerPort: 5000}]", 5000, 9000},
		"8080 where none is declared":    {"[]", 8080, 8080},
		"8080 where none speaks HTTP":    {"[{containerPort: 9000, name: grpc}]", 8080, 9000},
	} {
		t.Run(name, func(t *testing.T) {
			is := service(t, "predictor: {containers: [{name: kserve-container, image: i, ports: "+tc.ports+
				", startupProbe: {httpGet: {path: /a}}, livenessProbe: {tcpSocket: {}}, readinessProbe: {httpGet: {path: /b, port: 77}}}]}")
			c, err := manifest.Compile(input(t, is, spec.Predictor))
			if err != nil {
				t.Fatal(err)
			}
			have := c.PodTemplate.Spec.Containers[0]
			if get, to := have.StartupProbe.HTTPGet.Port.IntVal, have.LivenessProbe.TCPSocket.Port.IntVal; get != tc.wantGet || to != tc.wantTo {
				t.Errorf("httpGet asks port %d and tcpSocket %d, want %d and %d", get, to, tc.wantGet, tc.wantTo)
			}
			if kept := have.ReadinessProbe.HTTPGet.Port.IntVal; kept != 77 {
				t.Errorf("a port that was named became %d", kept)
			}
			if w := c.Workload.Containers[0]; w.Startup.Action.HTTP.Port != int(tc.wantGet) || w.Liveness.Action.TCP.Port != int(tc.wantTo) {
				t.Errorf("on one machine the probes are %+v and %+v", w.Startup.Action, w.Liveness.Action)
			}
		})
	}
}

func TestFaultsNameThePlaceAndTheRemedy(t *testing.T) {
	custom := func(text string) manifest.Input {
		return manifest.Input{Service: service(t, text), Component: spec.Predictor}
	}
	withRuntime := func(runtime, predictor string) manifest.Input {
		r := fromYAML[servingv1alpha1.ServingRuntimeSpec](t, runtime)
		return manifest.Input{Service: service(t, "predictor: "+predictor), Component: spec.Predictor, Runtime: &r, RuntimeAnnotations: map[string]string{}}
	}
	model := "{model: {modelFormat: {name: x}}}"
	badLocal := withRuntime("{containers: [{name: kserve-container}]}", model)
	badLocal.RuntimeAnnotations[manifest.LocalAnnotation] = "{command: [a], comand: [b]}"
	for name, tc := range map[string]struct {
		in   manifest.Input
		want string
	}{
		"no kserve-container":        {withRuntime("{containers: [{name: a}]}", model), "kserve-container"},
		"a broken template":          {withRuntime("{containers: [{name: kserve-container, args: ['{{.Name']}]}", model), "isn't a valid template"},
		"a foreign template":         {withRuntime("{containers: [{name: kserve-container, args: ['{{ messages }}']}]}", model), `write {{"{{"}}`},
		"an unknown field":           {withRuntime("{containers: [{name: kserve-container, args: ['{{.Spec}}']}]}", model), "there are .Name, .Namespace"},
		"a misspelt local command":   {badLocal, "comand"},
		"no runtime":                 {custom("predictor: " + model), "no runtime was selected"},
		"no container":               {custom("predictor: {}"), "no container says what to run"},
		"an unknown port name":       {custom("predictor: {containers: [{name: kserve-container, readinessProbe: {httpGet: {port: web}}}]}"), `port "web" is none`},
		"a probe that does nothing":  {custom("predictor: {containers: [{name: kserve-container, livenessProbe: {periodSeconds: 1}}]}"), "livenessProbe: no action"},
		"a probe with two actions":   {custom("predictor: {containers: [{name: kserve-container, livenessProbe: {tcpSocket: {port: 1}, httpGet: {port: 1}}}]}"), "more than one action"},
		"a mount without its volume": {custom("predictor: {containers: [{name: kserve-container, volumeMounts: [{name: v, mountPath: /v}]}]}"), "mounts volume v, which isn't there"},
		"two models at one place":    {custom("predictor: {storageUris: [{uri: 'file:///a'}], containers: [{name: kserve-container, env: [{name: STORAGE_URI, value: 'file:///b'}]}]}"), "would hide another model"},
		"a model for a transformer in the predictor": {
			custom("predictor: {containers: [{name: kserve-container}, {name: transformer-container, env: [{name: STORAGE_URI, value: 'file:///b'}]}]}"), "STORAGE_URI isn't possible",
		},
		"a component that isn't there": {manifest.Input{Service: service(t, "predictor: {}"), Component: spec.Transformer}, "no spec.transformer"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := manifest.Compile(tc.in)
			var ce *manifest.CompileError
			if !errors.As(err, &ce) || !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a CompileError with %q", err, tc.want)
			}
		})
	}
}

func TestACustomPredictorIsTakenAsWritten(t *testing.T) {
	c := compiled(t, manifest.Input{Component: spec.Predictor, Service: service(t, `
predictor:
  terminationGracePeriodSeconds: 7
  volumes:
  - {name: work, emptyDir: {}}
  - {name: conf, configMap: {name: cm, optional: true, items: [{key: a, path: b}]}}
  - {name: data, persistentVolumeClaim: {claimName: big, readOnly: true}}
  - {name: token, projected: {sources: []}}
  initContainers:
  - {name: prepare, command: [prep]}
  - {name: proxy, command: [proxy], restartPolicy: Always}
  containers:
  - {name: side, command: [side]}
  - name: kserve-container
    command: [serve, "$(STORAGE_URI)"]
    args: ["{{.Name}}"]
    workingDir: /srv
    ports: [{containerPort: 5000, name: http}, {containerPort: 5001, name: grpc-infer}, {containerPort: 5353, protocol: UDP}]
    env:
    - {name: STORAGE_URI, value: "file:///models/m"}
    - {name: PROTOCOL, value: v2}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    envFrom: [{prefix: C_, configMapRef: {name: cm}}]
    resources: {limits: {cpu: 1500m, memory: 1Gi}}
    volumeMounts: [{name: work, mountPath: /work}, {name: data, mountPath: /data, subPath: x}, {name: token, mountPath: /t}, {name: work, mountPath: /dev/shm}]
    startupProbe: {httpGet: {path: /up, port: http, scheme: HTTPS, httpHeaders: [{name: A, value: b}]}, failureThreshold: 30, periodSeconds: 2}
    readinessProbe: {grpc: {port: 5001, service: s}, timeoutSeconds: 4}
    livenessProbe: {exec: {command: [check]}, initialDelaySeconds: 3}
    lifecycle: {preStop: {sleep: {seconds: 2}}, postStart: {exec: {command: [warm]}}}
`)})
	sec := func(n int) time.Duration { return time.Duration(n) * time.Second }
	name := spec.EnvVar{Name: "INFERENCE_SERVICE_NAME", Value: "iris"}
	want := spec.Workload{
		Service: spec.ServiceKey{Namespace: "default", Name: "iris"}, Component: spec.Predictor, Protocols: []spec.Protocol{spec.V2}, GracePeriod: sec(7),
		Models: []spec.Model{{URI: "file:///models/m", MountPath: "/mnt/models"}},
		Volumes: []spec.Volume{
			{Name: "work", Kind: spec.VolumeEmptyDir},
			{Name: "conf", Kind: spec.VolumeConfigMap, Source: "cm", Optional: true, Items: map[string]string{"a": "b"}},
			{Name: "data", Kind: spec.VolumeClaim, Source: "big"},
		},
		Init: []spec.Container{{Name: "prepare", Command: []string{"prep"}}},
		Containers: []spec.Container{
			{
				Name: "kserve-container", Command: []string{"serve", "$(STORAGE_URI)"}, Args: []string{"{{.Name}}"}, WorkingDir: "/srv",
				Ports: []spec.Port{{Name: "http", Number: 5000, Scheme: spec.HTTP}, {Name: "grpc-infer", Number: 5001, Scheme: spec.H2C}},
				Env: []spec.EnvVar{
					{Name: "C_", From: &spec.EnvSource{Kind: "configMap", Name: "cm"}},
					{Name: "STORAGE_URI", Value: "/mnt/models"},
					{Name: "PROTOCOL", Value: "v2"},
					{Name: "TOKEN", From: &spec.EnvSource{Kind: "secret", Name: "s", Key: "k", Optional: true}},
					{Name: "POD", From: &spec.EnvSource{Kind: "field", Key: "metadata.name"}},
					{Name: "CPUS", From: &spec.EnvSource{Kind: "resource", Key: "limits.cpu"}},
					name,
				},
				Resources: spec.Resources{MilliCPU: 1500, MemoryBytes: 1 << 30},
				Mounts:    []spec.Mount{{Volume: "work", Path: "/work"}, {Volume: "data", Path: "/data", SubPath: "x", ReadOnly: true}},
				Startup: &spec.Probe{
					Action: spec.Action{HTTP: &spec.HTTPAction{Port: 5000, Path: "/up", TLS: true, Headers: map[string]string{"A": "b"}}},
					Period: sec(2), Timeout: sec(1), SuccessThreshold: 1, FailureThreshold: 30,
				},
				Readiness: &spec.Probe{Action: spec.Action{GRPC: &spec.GRPCAction{Port: 5001, Service: "s"}}, Period: sec(10), Timeout: sec(4), SuccessThreshold: 1, FailureThreshold: 3},
				Liveness: &spec.Probe{
					Action: spec.Action{Exec: []string{"check"}}, InitialDelay: sec(3), Period: sec(10), Timeout: sec(1), SuccessThreshold: 1, FailureThreshold: 3,
				},
				PreStop: &spec.Action{Sleep: sec(2)}, PostStart: &spec.Action{Exec: []string{"warm"}},
			},
			{Name: "side", Command: []string{"side"}, Env: []spec.EnvVar{name}},
			{Name: "proxy", Command: []string{"proxy"}},
		},
		Hash: c.Workload.Hash,
	}
	if d := cmp.Diff(want, c.Workload); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if c.Runtime != nil || c.ModelFormat != nil || c.Protocol != spec.V2 {
		t.Errorf("runtime %v, format %v, protocol %s", c.Runtime, c.ModelFormat, c.Protocol)
	}
}

func TestACustomPredictorWithoutPortsListensOn8080(t *testing.T) {
	c := compiled(t, manifest.Input{Component: spec.Predictor, Service: service(t, "predictor: {containers: [{image: x}]}")})
	server := c.Workload.Containers[0]
	if server.Name != "kserve-container" || len(server.Ports) != 1 || server.Ports[0] != (spec.Port{Name: "http", Number: 8080, Scheme: spec.HTTP}) {
		t.Errorf("%s listens on %v", server.Name, server.Ports)
	}
	if r := server.Readiness; r == nil || r.Action.TCP == nil || r.Action.TCP.Port != 8080 || r.Period != 10*time.Second {
		t.Errorf("readiness %+v, want KServe's TCP default", r)
	}
}

func TestATransformerIsWiredToItsPredictor(t *testing.T) {
	const predictor = "predictor: {model: {modelFormat: {name: onnx}}}\n"
	for name, tc := range map[string]struct {
		spec string
		kind spec.Component
		host string
		want []string
	}{
		"everything is appended": {
			"transformer: {containerConcurrency: 4, containers: [{image: t, args: [--x]}]}", spec.Transformer, "",
			[]string{"--x", "--model_name", "iris", "--predictor_host", "iris-predictor.default", "--http_port", "8080", "--workers", "4"},
		},
		"what is there stays": {
			"transformer: {containers: [{image: t, command: [t, --http_port=8081], args: [--model_name, m]}]}", spec.Transformer, "iris-predictor-default.localhost:8080",
			[]string{"--model_name", "m", "--predictor_host", "iris-predictor-default.localhost:8080"},
		},
		"an explainer of one's own": {
			"explainer: {containers: [{image: t}]}", spec.Explainer, "h",
			[]string{"--model_name", "iris", "--predictor_host", "h", "--http_port", "8080"},
		},
		"the built-in explainer": {
			"explainer: {art: {type: SquareAttack, storageUri: 'file:///e', config: {nb_classes: '10', eps: '1'}, args: [--own]}}", spec.Explainer, "h",
			[]string{"--model_name", "iris", "--http_port", "8080", "--predictor_host", "h", "--storage_uri", "/mnt/models", "--adversary_type", "SquareAttack", "--eps", "1", "--nb_classes", "10", "--own"},
		},
		"the built-in explainer, told where to go": {
			"explainer: {containerConcurrency: 4, art: {type: SquareAttack, args: [--predictor_host, mine, --workers=2]}}", spec.Explainer, "h",
			[]string{"--model_name", "iris", "--http_port", "8080", "--adversary_type", "SquareAttack", "--predictor_host", "mine", "--workers=2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := compiled(t, manifest.Input{Service: service(t, predictor+tc.spec), Component: tc.kind, PredictorHost: tc.host})
			if d := cmp.Diff(tc.want, c.Workload.Containers[0].Args); d != "" {
				t.Errorf("args (-want +got):\n%s", d)
			}
			if got := c.PodTemplate.Labels["component"]; got != string(tc.kind) {
				t.Errorf("component label %q", got)
			}
		})
	}
}

func TestTheBuiltInExplainersImage(t *testing.T) {
	for art, want := range map[string]string{
		"":                          "kserve/art-explainer:latest",
		", runtimeVersion: v0.20.0": "kserve/art-explainer:v0.20.0",
		", image: 'mine:1'":         "mine:1",
	} {
		is := service(t, "predictor: {model: {modelFormat: {name: onnx}}}\nexplainer: {art: {type: SquareAttack"+art+"}}")
		c := compiled(t, manifest.Input{Service: is, Component: spec.Explainer, PredictorHost: "h"})
		if got := c.PodTemplate.Spec.Containers[0]; got.Image != want || got.Name != "kserve-container" {
			t.Errorf("%q: %s is %s, want %s", art, got.Name, got.Image, want)
		}
	}
}

func TestATransformerInThePredictorsPodTakesTheTraffic(t *testing.T) {
	is := service(t, `predictor: {model: {modelFormat: {name: onnx}, args: [--http_port=8085], ports: [{containerPort: 8085}]}, containers: [{name: transformer-container, command: [t, "{{.Name}}"], ports: [{containerPort: 8080}]}]}`)
	c := compiled(t, input(t, is, spec.Predictor))
	if got := c.PodTemplate.Spec.Containers; got[0].Name != "kserve-container" || got[1].Name != "transformer-container" {
		t.Errorf("the pod's order is %s, %s", got[0].Name, got[1].Name)
	}
	server := c.Workload.Server()
	if server.Name != "transformer-container" || !slices.Equal(server.Command, []string{"t", "iris"}) || server.Local != nil {
		t.Errorf("the server is %s with %q", server.Name, server.Command)
	}
	if engine := c.Workload.Containers[1]; engine.Local == nil || engine.Ports[0].Number != 8085 {
		t.Errorf("the engine is %+v", engine)
	}
}

func TestLabelsAndAnnotationsArePassedOnInKServesOrder(t *testing.T) {
	runtime := fromYAML[servingv1alpha1.ServingRuntimeSpec](t, `{containers: [{name: kserve-container}], labels: {a: r, b: r, c: r}, annotations: {a: r, b: r, c: r}}`)
	is := service(t, "predictor: {labels: {a: c, component: mine}, annotations: {a: c}, model: {modelFormat: {name: x}}}")
	is.Labels = map[string]string{"a": "i", "b": "i", "app": "mine"}
	is.Annotations = map[string]string{"a": "i", "b": "i", "kubectl.kubernetes.io/last-applied-configuration": "{}", "autoscaling.knative.dev/min-scale": "1"}
	c := compiled(t, manifest.Input{Service: is, Component: spec.Predictor, Runtime: &runtime})
	wantLabels := map[string]string{
		"a": "c", "b": "i", "c": "r", "serving.kserve.io/inferenceservice": "iris", "component": "predictor", "app": "isvc.iris-predictor",
	}
	if d := cmp.Diff(wantLabels, c.PodTemplate.Labels); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"a": "c", "b": "i", "c": "r"}, c.PodTemplate.Annotations); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
}

func TestSeveralModelsGetTheirOwnPlaces(t *testing.T) {
	c := compiled(t, input(t, service(t, "predictor: {storageUris: [{uri: 'file:///a', mountPath: /mnt/models/a}, {uri: 'pvc://b/c'}], model: {modelFormat: {name: onnx}}}"), spec.Predictor))
	want := []spec.Model{{URI: "file:///a", MountPath: "/mnt/models/a"}, {URI: "pvc://b/c", MountPath: "/mnt/models"}}
	if d := cmp.Diff(want, c.Workload.Models); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTheHashChangesWithTheProcessAndWithNothingElse(t *testing.T) {
	base := "predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a'}}"
	hash := func(text string, change func(*servingv1beta1.InferenceService)) string {
		is := service(t, text)
		if change != nil {
			change(is)
		}
		return compiled(t, input(t, is, spec.Predictor)).Workload.Hash
	}
	before := hash(base, nil)
	for name, tc := range map[string]struct {
		text   string
		change func(*servingv1beta1.InferenceService)
		same   bool
	}{
		"a label":           {base, func(is *servingv1beta1.InferenceService) { is.Labels = map[string]string{"a": "b"} }, true},
		"an annotation":     {base, func(is *servingv1beta1.InferenceService) { is.Annotations["a"] = "b" }, true},
		"TLS to the engine": {base, func(is *servingv1beta1.InferenceService) { is.Annotations["stationmaster.dev/engine-tls"] = "verify" }, false},
		"the engine's name": {base, func(is *servingv1beta1.InferenceService) { is.Annotations["stationmaster.dev/engine"] = "vllm" }, false},
		"an OpenAI root":    {base, func(is *servingv1beta1.InferenceService) { is.Annotations["stationmaster.dev/openai-root"] = "/" }, false},
		"a translation":     {base, func(is *servingv1beta1.InferenceService) { is.Annotations["stationmaster.dev/translate"] = "off" }, false},
		"credentials": {base, func(is *servingv1beta1.InferenceService) {
			is.Annotations["stationmaster.dev/client-credentials"] = "forward"
		}, false},
		"the generation":    {base, func(is *servingv1beta1.InferenceService) { is.Generation = 9 }, true},
		"replicas":          {"predictor: {minReplicas: 3, model: {modelFormat: {name: onnx}, storageUri: 'file:///a'}}", nil, true},
		"a request timeout": {"predictor: {timeout: 3, model: {modelFormat: {name: onnx}, storageUri: 'file:///a'}}", nil, true},
		"the model":         {"predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///b'}}", nil, false},
		"an arg":            {"predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a', args: [-v]}}", nil, false},
		"a variable":        {"predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a', env: [{name: A, value: b}]}}", nil, false},
		"a limit":           {"predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a', resources: {limits: {cpu: '2'}}}}", nil, false},
		"a node":            {"predictor: {nodeSelector: {a: b}, model: {modelFormat: {name: onnx}, storageUri: 'file:///a'}}", nil, false},
		"the grace period":  {"predictor: {terminationGracePeriodSeconds: 3, model: {modelFormat: {name: onnx}, storageUri: 'file:///a'}}", nil, false},
	} {
		if got := hash(tc.text, tc.change); (got == before) != tc.same {
			t.Errorf("%s: hash %s, before %s; same: want %v", name, got, before, tc.same)
		}
	}
}

// An upgraded operator may reckon hashes otherwise than the one that made a revision.
func TestARevisionIsKnownByItsShapeWhateverItsHash(t *testing.T) {
	base := "predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a', resources: {limits: {cpu: 1000m}}}}"
	spoken := func(tls string) *manifest.Compiled {
		is := service(t, base)
		is.Annotations["stationmaster.dev/engine-tls"] = tls
		c := compiled(t, input(t, is, spec.Predictor))
		return &c
	}
	made := spoken("verify").RevisionSpec()
	made.Hash = "of another version"
	text, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	var stored smv1alpha1.RevisionSpec
	if err := json.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	if !spoken("verify").Is(&stored) {
		t.Error("a revision of an operator before isn't known again")
	}
	if spoken("skip-verify").Is(&stored) {
		t.Error("a revision is taken for one whose engine is spoken to otherwise")
	}
}

func TestARevisionGivesTheSameWorkloadBack(t *testing.T) {
	for _, text := range []string{
		"predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a', args: [-v]}}",
		"predictor: {sklearn: {protocolVersion: v2, storageUri: 'file:///a'}}",
		"predictor: {timeout: 7, containerConcurrency: 2, model: {modelFormat: {name: gguf}, storageUri: 'file:///a'}}",
		"predictor: {containers: [{name: a, command: [x], env: [{name: STORAGE_URI, value: 'file:///a'}]}]}",
	} {
		is := service(t, text)
		c := compiled(t, input(t, is, spec.Predictor))
		rev := c.RevisionSpec()
		got, err := manifest.WorkloadOf("default", "iris-predictor-00001", &rev)
		if err != nil {
			t.Fatal(err)
		}
		want := c.Workload
		want.Revision = spec.RevisionKey{Namespace: "default", Name: "iris-predictor-00001"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-compiled +from the revision):\n%s", text, d)
		}
		if p := is.Spec.Predictor; p.TimeoutSeconds != nil && (rev.TimeoutSeconds != 7 || rev.ContainerConcurrency != 2) {
			t.Errorf("timeout %d and concurrency %d", rev.TimeoutSeconds, rev.ContainerConcurrency)
		}
	}
}

func TestCompilingChangesNothingAndGivesTheSameAgain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		word := rapid.StringMatching(`[a-z{}.]{0,4}`)
		is := service(t, "predictor: {model: {modelFormat: {name: onnx}, storageUri: 'file:///a'}}")
		is.Labels = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "team"}), word, 0, 3).Draw(rt, "labels")
		m := is.Spec.Predictor.Model
		m.ModelFormat.Name = rapid.SampledFrom([]string{"onnx", "gguf", "pmml", "pytorch", "vLLM", "huggingface"}).Draw(rt, "format")
		m.Args = rapid.SliceOfN(rapid.StringMatching(`-[a-z]{1,3}`), 0, 3).Draw(rt, "args")
		in := input(t, is, spec.Predictor)
		service, runtime := is.DeepCopy(), in.Runtime.DeepCopy()
		a, b := compiled(t, in), compiled(t, in)
		if d := cmp.Diff(a.Workload, b.Workload); d != "" {
			rt.Fatalf("compiled twice:\n%s", d)
		}
		if d := cmp.Diff(a.PodTemplate, b.PodTemplate); d != "" {
			rt.Fatalf("compiled twice:\n%s", d)
		}
		if cmp.Diff(service, is) != "" || cmp.Diff(runtime, in.Runtime) != "" {
			rt.Fatal("compiling changed its input")
		}
	})
}
