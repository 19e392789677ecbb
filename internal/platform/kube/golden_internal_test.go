package kube

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/spec"
)

var update = flag.Bool("update", false, "write the objects that manifests come to into testdata")

const ownImage = "registry.example/stationmaster:v1"

// tryRevision compiles a component as the reconciler does, with the shipped runtimes, and
// returns the revision that it would store.
func tryRevision(is *servingv1beta1.InferenceService, c spec.Component) (*smv1alpha1.Revision, error) {
	in := manifest.Input{Service: is, Component: c}
	if request, ok := catalogue.RequestOf(&is.Spec.Predictor); ok && c == spec.Predictor {
		shipped, err := catalogue.Runtimes()
		if err != nil {
			return nil, err
		}
		var cluster []servingv1alpha1.ClusterServingRuntime
		for _, s := range shipped {
			cluster = append(cluster, *s)
		}
		chosen, err := catalogue.Select(request, nil, cluster)
		if err != nil {
			return nil, err
		}
		in.Runtime, in.RuntimeName, in.RuntimeKind, in.RuntimeAnnotations = chosen.Spec, chosen.Name, chosen.Kind, chosen.Annotations
	}
	compiled, err := manifest.Compile(in)
	if err != nil {
		return nil, err
	}
	controller := true
	return &smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: is.Namespace, Name: manifest.RevisionName(is.Name, c, 1), UID: "00000000-0000-0000-0000-000000000002",
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: servingv1beta1.GroupVersion.String(), Kind: "InferenceService", Name: is.Name,
				UID: "00000000-0000-0000-0000-000000000001", Controller: &controller, BlockOwnerDeletion: &controller,
			}},
		},
		Spec: compiled.RevisionSpec(),
	}, nil
}

func revisionOf(t *testing.T, is *servingv1beta1.InferenceService, c spec.Component) *smv1alpha1.Revision {
	t.Helper()
	rev, err := tryRevision(is, c)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func memberOf(t *testing.T, rev *smv1alpha1.Revision, replicas int) member {
	t.Helper()
	w, err := manifest.WorkloadOf(rev.Namespace, rev.Name, &rev.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return member{revision: rev, workload: w, replicas: replicas, digests: map[string]string{}}
}

// childrenOf returns all objects that a service's manifest comes to, in the order in which
// they are applied.
func childrenOf(t *testing.T, cfg Config, is *servingv1beta1.InferenceService, replicas int) []client.Object {
	t.Helper()
	is.Namespace = "default"
	manifest.Default(is, manifest.Defaults{})
	components := []spec.Component{spec.Predictor}
	if is.Spec.Transformer != nil {
		components = append(components, spec.Transformer)
	}
	var members []member
	var out []client.Object
	for _, c := range components {
		m := memberOf(t, revisionOf(t, is, c), replicas)
		m.credentials = credentialsFrom(&m.revision.Spec.PodTemplate, &reader)
		made, err := cfg.revisionObjects(m)
		if err != nil {
			t.Fatal(err)
		}
		members, out = append(members, m), append(out, made...)
	}
	out = append(out, cfg.serviceObjects(spec.ServiceKey{Namespace: is.Namespace, Name: is.Name}, members)...)
	slices.SortStableFunc(out, func(a, b client.Object) int { return order(a) - order(b) })
	return out
}

func serviceFrom(t *testing.T, text string) *servingv1beta1.InferenceService {
	t.Helper()
	is := &servingv1beta1.InferenceService{}
	if err := yaml.UnmarshalStrict([]byte(text), is); err != nil {
		t.Fatal(err)
	}
	return is
}

// reader is the service account of all pods here.
var reader = corev1.ServiceAccount{
	ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "reader", Annotations: map[string]string{"serving.kserve.io/s3-region": "eu-central-1"}},
	Secrets:    []corev1.ObjectReference{{Name: "reader-token-x7x7x"}, {Name: "shelf-key"}, {Name: "other-key"}, {Namespace: "elsewhere", Name: "theirs"}},
}

// gatewayed is how an operator is usually set up.
var gatewayed = Config{
	Image: ownImage, GatewayHost: "stationmaster-gateway.stationmaster-system.svc.cluster.local", GatewayGRPCPort: 8081,
	GatewayPods: []PodSelector{
		{Namespace: "stationmaster-system", Labels: map[string]string{"app.kubernetes.io/name": "stationmaster-gateway"}},
		{Namespace: "stationmaster-system", Labels: map[string]string{"app.kubernetes.io/name": "stationmaster-operator"}},
	},
}

// delivered is such an operator that was told how models in images come.
func delivered(how oci.Delivery) Config {
	cfg := gatewayed
	cfg.Images = how
	return cfg
}

// TestChildrenOfManifests records the objects of our own manifests and of samples of KServe's
// repository.
func TestChildrenOfManifests(t *testing.T) {
	samples := os.Getenv("STATIONMASTER_SHARED")
	if samples == "" {
		samples = filepath.Join("..", "..", "..", "..", "shared")
	}
	samples = filepath.Join(samples, "corpus", "kserve", "docs", "samples")
	for name, tc := range map[string]struct {
		text string
		// file is a sample's path, where there is no text.
		file     string
		cfg      Config
		replicas int
	}{
		"built-in-runtime": {cfg: gatewayed, replicas: 2, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    model: {modelFormat: {name: onnx}, storageUri: "https://models.example/iris.onnx"}
`},
		"many-models": {cfg: Config{Image: ownImage}, replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: many
  annotations: {storage.kserve.io/readonly: "false"}
spec:
  predictor:
    storageUris:
      - {uri: "s3://bucket/base", mountPath: /mnt/models/base}
      - {uri: "hf://org/adapter", mountPath: /mnt/models/adapter}
      - {uri: "pvc://shelf/a/b", mountPath: /mnt/shelf}
      - {uri: "oci://registry.example/extra@sha256:0000000000000000000000000000000000000000000000000000000000000000", mountPath: /mnt/extra}
    terminationGracePeriodSeconds: 1
    serviceAccountName: reader
    initContainers:
      - {name: check, image: "registry.example/check:1"}
    containers:
      - name: kserve-container
        image: registry.example/engine:1
        ports: [{containerPort: 9000, name: grpc}, {containerPort: 8080, name: http}]
        securityContext: {privileged: true}
        lifecycle: {preStop: {exec: {command: [stop]}}}
      - {name: sidecar, image: "registry.example/sidecar:1"}
`},
		"several-nodes": {cfg: gatewayed, replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: llama
  annotations: {serving.kserve.io/autoscalerClass: none}
spec:
  predictor:
    model: {modelFormat: {name: huggingface}, storageUri: "pvc://weights/llama"}
    workerSpec: {pipelineParallelSize: 2, tensorParallelSize: 4, tolerations: [{key: gpu, operator: Exists}]}
`},
		"bucket": {cfg: gatewayed, replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {serving.kserve.io/s3-endpoint: "store.storage:9000", serving.kserve.io/s3-usehttps: "0"}
spec:
  predictor:
    serviceAccountName: reader
    model: {modelFormat: {name: onnx}, storageUri: "s3://shelf/iris"}
`},
		"storage-entry": {cfg: gatewayed, replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {serving.kserve.io/storageSecretName: mine}
spec:
  predictor:
    model: {modelFormat: {name: onnx}, storage: {key: shelf, path: iris, parameters: {region: eu-west-1}}}
`},
		"sklearn": {cfg: gatewayed, replicas: 1, file: "storage/uri/sklearn.yaml"},
		"custom":  {cfg: Config{}, replicas: 1, file: "v1beta1/custom/prebuilt-image/custom.yaml"},
		"image-volume": {cfg: gatewayed, replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: sklearn-oci}
spec:
  predictor:
    imagePullSecrets: [{name: registry}]
    model: {modelFormat: {name: sklearn}, storageUri: "oci+native://registry.example/sklearn:v1"}
`},
		"modelcar": {cfg: delivered(oci.Modelcar), replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    model: {modelFormat: {name: onnx}, storageUri: "oci://registry.example/iris:v1"}
`},
		"modelcars-beside-others": {cfg: delivered(oci.Fetch), replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: many}
spec:
  predictor:
    storageUris:
      - {uri: "hf://org/base", mountPath: /mnt/models/base}
      - {uri: "oci+modelcar://registry.example/adapter:1", mountPath: /mnt/models/adapter}
      - {uri: "oci+modelcar://registry.example/words:1", mountPath: /mnt/words}
      - {uri: "oci+native://registry.example/extra:1", mountPath: /mnt/extra}
    containers:
      - name: kserve-container
        image: registry.example/engine:1
        ports: [{containerPort: 8080}]
`},
		"image-fetched": {cfg: delivered(oci.Fetch), replicas: 1, text: `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    imagePullSecrets: [{name: registry}]
    model: {modelFormat: {name: onnx}, storageUri: "oci://registry.example/iris:v1"}
`},
		"triton-transformer": {cfg: gatewayed, replicas: 1, file: "v1beta1/triton/torchscript/torch_grpc_transformer.yaml"},
		"huggingface-gpu":    {cfg: gatewayed, replicas: 1, file: "storage/hf/hf_isvc.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.text == "" {
				raw, err := os.ReadFile(filepath.Join(samples, filepath.FromSlash(tc.file)))
				if err != nil {
					t.Skipf("no samples of KServe: %v", err)
				}
				tc.text = string(raw)
			}
			var have strings.Builder
			for _, o := range childrenOf(t, tc.cfg, serviceFrom(t, tc.text), tc.replicas) {
				content, _, err := wanted(o)
				if err != nil {
					t.Fatal(err)
				}
				text, err := yaml.Marshal(content)
				if err != nil {
					t.Fatal(err)
				}
				have.WriteString("---\n" + string(text))
			}
			compare(t, filepath.Join("testdata", name+".yaml"), have.String())
		})
	}
}
