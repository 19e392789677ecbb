package preview_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/control"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/preview"
)

// there is what exists in every case.
const there = `
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {namespace: team, name: mine}
spec:
  supportedModelFormats: [{name: onnx, autoSelect: true, priority: 1}]
  protocolVersions: [v2]
  containers: [{name: kserve-container, image: x}]
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {namespace: team, name: shelf}
spec:
  multiModel: true
  supportedModelFormats: [{name: many, autoSelect: true}]
  containers: [{name: kserve-container, image: x, args: [--models, /mnt/configs/models.json], resources: {limits: {memory: 1Gi}}}]
---
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: first}
spec: {supportedModelFormats: [{name: tie, autoSelect: true, priority: 2}], containers: [{name: kserve-container, image: x}]}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: second}
spec: {supportedModelFormats: [{name: tie, autoSelect: true, priority: 2}], containers: [{name: kserve-container, image: x}]}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {namespace: others, name: theirs}
spec: {supportedModelFormats: [{name: theirs, autoSelect: true}], containers: [{name: kserve-container, image: x}]}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {namespace: team, name: reader}
spec: {predictor: {model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'https://m/x'}}}
status: {servingRuntimeName: mine}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {namespace: team, name: still, annotations: {serving.kserve.io/disable-auto-update: "true"}}
spec: {predictor: {model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'https://m/x'}}}
status: {servingRuntimeName: mine}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {namespace: team, name: shelf}
spec: {predictor: {model: {modelFormat: {name: many}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: team, name: settings}
data: {colour: blue}
---
apiVersion: v1
kind: Secret
metadata: {namespace: team, name: storage-config}
data: {good: eyJ0eXBlIjoiczMiLCJidWNrZXQiOiJiIn0=, bad: bm8=, hadoop: eyJ0eXBlIjoiaGRmcyJ9}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {namespace: team, name: models}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: team, name: robot}
`

func objects(t *testing.T, text string) []client.Object {
	t.Helper()
	sch, err := control.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var kind struct{ Kind, APIVersion string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		for gvk := range sch.AllKnownTypes() {
			if gvk.Kind != kind.Kind || gvk.GroupVersion().String() != kind.APIVersion {
				continue
			}
			o, err := sch.New(gvk)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
			out = append(out, o.(client.Object))
		}
	}
	return out
}

func api(t *testing.T, broken func(client.ObjectKey) error) client.Client {
	t.Helper()
	sch, err := control.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(sch).WithObjects(objects(t, there)...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if broken != nil {
				if err := broken(key); err != nil {
					return err
				}
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
}

// service is one with annotations and a predictor.
func service(annotations, predictor string) string {
	return "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: iris, annotations: {" + annotations + "}}\nspec:\n  predictor:\n    {" + predictor + "}\n"
}

const sound = "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'https://m/x'}"

func model(name, storage, service string) string {
	return "apiVersion: serving.kserve.io/v1alpha1\nkind: TrainedModel\nmetadata: {name: m}\nspec: {inferenceService: " + service +
		", model: {framework: " + name + ", memory: 1Mi, storageUri: '" + storage + "'}}\n"
}

func graph(name, step string) string {
	return "apiVersion: serving.kserve.io/v1alpha1\nkind: InferenceGraph\nmetadata: {name: " + name + "}\nspec: {nodes: {root: {routerType: Sequence, steps: [{serviceName: " + step + "}]}}}\n"
}

func TestADryRunTellsWhatTheReconcilerWould(t *testing.T) {
	const here, cluster = "one machine", "a cluster"
	for name, tc := range map[string]struct {
		object string
		direct bool
		// want are the beginnings or parts of the warnings, by platform; both is for each.
		both, machine, cluster []string
	}{
		"a sound service":                    {object: service("", sound)},
		"a runtime that isn't there":         {object: service("", "model: {modelFormat: {name: onnx}, runtime: lost, storageUri: 'https://m/x'}"), both: []string{"spec.predictor.model has no runtime: waiting for runtime lost"}},
		"a runtime of another namespace":     {object: service("", "model: {modelFormat: {name: theirs}, runtime: theirs, storageUri: 'https://m/x'}"), both: []string{"spec.predictor.model has no runtime: waiting for runtime theirs"}},
		"a format that nobody serves":        {object: service("", "model: {modelFormat: {name: punchcard}, storageUri: 'https://m/x'}"), both: []string{"no runtime lists the format"}},
		"a protocol that the runtime hasn't": {object: service("", "model: {modelFormat: {name: onnx}, storageUri: 'https://m/x'}"), both: []string{"set protocolVersion: v2"}},
		"a runtime that breaks a rule since": {object: service("", "model: {modelFormat: {name: tie}, runtime: second, storageUri: 'https://m/x'}"), both: []string{"the runtime wouldn't be accepted today: ClusterServingRuntime second: spec.supportedModelFormats[0].priority"}},
		"what can't be compiled":             {object: service("", sound[:len(sound)-1]+", args: ['{{.Nothing}}']}"), both: []string{"spec.predictor can't run: "}},
		"a canary without a runtime":         {object: service("", sound) + "  canary: [{trafficPercent: 10, predictor: {name: b, model: {runtime: lost, modelFormat: {name: onnx}}}}]\n", both: []string{"spec.canary[0].predictor.model has no runtime"}},
		"a direct route, and no Gateway":     {object: service("stationmaster.dev/direct-route: 'true'", sound), both: []string{"metadata.annotations[stationmaster.dev/direct-route] has no effect here: the operator wasn't told"}},
		"a direct route past what the gateway does": {
			object: service("stationmaster.dev/direct-route: 'true', stationmaster.dev/mirror: '10'", sound+", containerConcurrency: 3, minReplicas: 1, maxReplicas: 3, batcher: {maxBatchSize: 3}, logger: {url: 'http://c'}"), direct: true,
			both: []string{
				"spec.predictor.maxReplicas has no effect here", "spec.predictor.logger has no effect here", "spec.predictor.batcher has no effect here",
				"spec.predictor.containerConcurrency has no effect here", "metadata.annotations[stationmaster.dev/mirror] has no effect here",
			},
		},
		"a direct route at zero":                   {object: service("stationmaster.dev/direct-route: 'true'", sound+", minReplicas: 0"), direct: true, both: []string{"minReplicas is 0, and past the gateway"}},
		"a rolling update of what scales":          {object: service("", sound+", minReplicas: 1, maxReplicas: 3, deploymentStrategy: {rollingUpdate: {maxSurge: 1}}"), both: []string{"spec.predictor.deploymentStrategy.rollingUpdate has no effect here"}},
		"a rolling update of what doesn't":         {object: service("", sound+", minReplicas: 3, maxReplicas: 3, deploymentStrategy: {rollingUpdate: {maxSurge: 1}}")},
		"scaling that can't be":                    {object: service("autoscaling.knative.dev/target: many", sound), both: []string{"spec.predictor can't be scaled: "}},
		"a reader of prompts that isn't there yet": {object: service("stationmaster.dev/prefill: later", sound), both: []string{"metadata.annotations[stationmaster.dev/prefill] has no effect here: there is no InferenceService later"}},
		"a reader of prompts that is":              {object: service("stationmaster.dev/prefill: reader", sound)},
		"environment of nowhere": {
			object:  service("", "containers: [{name: kserve-container, image: x, envFrom: [{configMapRef: {name: none}}, {secretRef: {name: none}}], env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: size}}}]}]"),
			both:    []string{"spec.predictor: the ConfigMap none isn't there", "spec.predictor: the ConfigMap settings has no key size"},
			machine: []string{"spec.predictor: the Secret none isn't there"},
		},
		"environment that is there or needn't be": {
			object: service("", "containers: [{name: kserve-container, image: x, envFrom: [{configMapRef: {name: none, optional: true}}], env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: colour}}}]}]"),
		},
		"volumes of nowhere": {
			object: service("", sound+", volumes: [{name: a, configMap: {name: none}}, {name: b, secret: {secretName: none}}, {name: c, persistentVolumeClaim: {claimName: none}},"+
				" {name: d, configMap: {name: settings, items: [{key: size, path: s}]}}, {name: e, projected: {sources: [{configMap: {name: third}}]}}]"),
			both:    []string{"the ConfigMap none isn't there", "the ConfigMap settings has no key size"},
			machine: []string{"the Secret none isn't there"},
			cluster: []string{"the PersistentVolumeClaim none isn't there", "the ConfigMap third isn't there"},
		},
		"a claim and an account that are there": {object: service("", "serviceAccountName: robot, model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'pvc://models/iris'}")},
		"a model in a claim of nowhere, and an account": {
			object:  service("", "serviceAccountName: nobody, model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'pvc://none/iris'}"),
			cluster: []string{"the ServiceAccount nobody isn't there", "the PersistentVolumeClaim none isn't there"},
		},
		"an entry of storage-config":                 {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storage: {key: good, path: a}}")},
		"an entry of storage-config that isn't":      {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storage: {key: none, path: a}}"), machine: []string{"the Secret storage-config has no key none"}},
		"an entry of storage-config that is no JSON": {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storage: {key: bad, path: a}}"), machine: []string{"the entry bad of the Secret storage-config is no JSON object"}},
		"an entry of a store that nobody reads":      {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storage: {key: hadoop, path: a}}"), machine: []string{`has the type "hdfs"`}},
		"certificates of a config map of nowhere":    {object: service("stationmaster.dev/engine-ca-configmap: roots", sound), both: []string{"spec.predictor can't run: stationmaster.dev/engine-ca-configmap: read config map roots"}},
		"certificates under a key that isn't there":  {object: service("stationmaster.dev/engine-ca-configmap: settings/ca", sound), both: []string{"the config map settings has no key ca"}},
		"certificates that are none":                 {object: service("stationmaster.dev/engine-ca-configmap: settings/colour", sound), both: []string{"must be certificates as PEM"}},
		"a model among a machine's files":            {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'file:///model'}"), cluster: []string{"the model file:///model is a path of one machine"}},
		"a relative path":                            {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: model}"), cluster: []string{"the model model is a path of one machine"}},
		"a scheme that nobody reads":                 {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'hdfs://a/b'}"), both: []string{"nobody reads models of hdfs://"}},
		"an image":                                   {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'oci://a/b'}")},
		"an image that runs beside the engine":       {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'oci+modelcar://a/b'}")},
		"an image that comes in a way of nobody":     {object: service("", "model: {modelFormat: {name: onnx}, protocolVersion: v2, storageUri: 'oci+train://a/b'}"), both: []string{"nobody reads models of oci+train://"}},
		"a transformer without its config":           {object: service("", sound) + "  transformer: {containers: [{name: t, image: x, envFrom: [{configMapRef: {name: none}}]}]}\n", both: []string{"spec.transformer: the ConfigMap none isn't there"}},
		"a trained model without a service":          {object: model("many", "https://m/a", "nobody"), both: []string{"spec.inferenceService names nobody"}},
		"a trained model of a single one's service":  {object: model("onnx", "https://m/a", "reader"), both: []string{`the model won't be served: Inference Service "reader" predictor is not configured`}},
		"a trained model of another framework":       {object: model("onnx", "https://m/a", "shelf"), both: []string{"the model won't be served: "}},
		"a trained model that fits":                  {object: model("many", "https://m/a", "shelf")},
		"a trained model that nobody fetches":        {object: model("many", "ftp://m/a", "shelf"), both: []string{"the model won't be served: "}},
		"an adapter from where engines can't get it": {object: model("lora", "https://m/a", "reader"), cluster: []string{"the model won't be served: on a cluster an engine gets a LoRA adapter"}},
		"an adapter without a service":               {object: model("lora", "hf://a/b", "nobody"), both: []string{"spec.inferenceService names nobody"}},
		"a graph without its service":                {object: graph("g", "nobody"), both: []string{"a step calls the InferenceService nobody"}},
		"a graph under a service's name":             {object: graph("reader", "shelf"), both: []string{"the InferenceService reader has the graph's name"}},
	} {
		t.Run(name, func(t *testing.T) {
			for platform, one := range map[string]bool{here: true, cluster: false} {
				c := api(t, nil)
				p := preview.Preview{OneMachine: one, Direct: tc.direct, Cached: c, Live: c}
				got, err := p.Warnings(t.Context(), "team", objects(t, tc.object)[0].(manifest.Object), nil)
				if err != nil {
					t.Fatal(err)
				}
				want := tc.both
				if one {
					want = append(want[:len(want):len(want)], tc.machine...)
				} else {
					want = append(want[:len(want):len(want)], tc.cluster...)
				}
				match(t, platform, got, want)
			}
		})
	}
}

// match wants each of some parts in a warning of its own, and no others.
func match(t *testing.T, where string, got, want []string) {
	t.Helper()
	left := append([]string(nil), got...)
	for _, w := range want {
		found := false
		for i, g := range left {
			if strings.Contains(g, w) {
				left, found = append(left[:i], left[i+1:]...), true
				break
			}
		}
		if !found {
			t.Errorf("on %s nothing says %q; told was %q", where, w, got)
		}
	}
	if len(left) > 0 {
		t.Errorf("on %s it says %q as well", where, left)
	}
}

func TestAChangedRuntimeNamesTheServicesThatItRolls(t *testing.T) {
	before := objects(t, there)[0].(manifest.Object)
	for name, tc := range map[string]struct {
		from, to string
		want     []string
	}{
		"another image":            {"image: x", "image: other", []string{"this rolls out a new revision of reader; the annotation"}},
		"nothing of a pod":         {"priority: 1", "priority: 5", nil},
		"a format that goes":       {"name: onnx,", "name: other,", []string{"this runtime serves reader and won't any longer"}},
		"one that is switched off": {"spec:", "spec:\n  disabled: true", []string{"this runtime serves reader and won't any longer"}},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(strings.Split(there, "\n---\n")[0], tc.from, tc.to, 1)
			c := api(t, nil)
			p := preview.Preview{Cached: c, Live: c}
			got, err := p.Warnings(t.Context(), "team", objects(t, changed)[0].(manifest.Object), before)
			if err != nil {
				t.Fatal(err)
			}
			match(t, "a cluster", got, tc.want)
		})
	}
	t.Run("a new one rolls nothing", func(t *testing.T) {
		c := api(t, nil)
		p := preview.Preview{Cached: c, Live: c}
		if got, err := p.Warnings(t.Context(), "team", before, nil); err != nil || len(got) > 0 {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestAnAPIThatIsAwayIsAnError(t *testing.T) {
	away := errors.New("etcd is away")
	c := api(t, func(key client.ObjectKey) error {
		if key.Name == "none" {
			return away
		}
		return nil
	})
	p := preview.Preview{Cached: c, Live: c}
	object := objects(t, service("stationmaster.dev/direct-route: 'true'", sound+", volumes: [{name: a, configMap: {name: none}}]"))[0].(manifest.Object)
	got, err := p.Warnings(t.Context(), "team", object, nil)
	if !errors.Is(err, away) || len(got) != 1 {
		t.Errorf("%q, %v: want what was found before, and why no more was", got, err)
	}
}

func TestAClusterIsAskedAboutWhatWouldRun(t *testing.T) {
	c := api(t, nil)
	asked := ""
	p := preview.Preview{Cached: c, Live: c, Try: func(ctx context.Context, is *v1beta1.InferenceService, rev *smv1alpha1.Revision, elsewhere bool) ([]string, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("it may take for ever")
		}
		asked = rev.Namespace + "/" + rev.Name
		if elsewhere {
			return nil, errors.New("too late")
		}
		return []string{"the cluster would refuse the Deployment"}, nil
	}}
	look := func(annotations string) []string {
		got, err := p.Warnings(t.Context(), "team", objects(t, service(annotations, sound))[0].(manifest.Object), nil)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	match(t, "a cluster", look(""), []string{"spec.predictor: the cluster would refuse the Deployment"})
	if want := "team/iris-predictor-99999"; asked != want {
		t.Errorf("asked about %s, not %s", asked, want)
	}
	// One that can't say is no fault of the service.
	match(t, "a cluster", look("serving.kserve.io/autoscalerClass: external"), nil)
	p.OneMachine, asked = true, ""
	if match(t, "one machine", look(""), nil); asked != "" {
		t.Errorf("one machine asked about %s", asked)
	}
}

func TestADirectRouteNeedsItsKind(t *testing.T) {
	lacking := true
	c := interceptor.NewClient(api(t, nil).(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if kind := list.GetObjectKind().GroupVersionKind(); kind.Kind == "HTTPRouteList" {
				if lacking {
					return &meta.NoKindMatchError{GroupKind: kind.GroupKind()}
				}
				return errors.New("etcd is away")
			}
			return w.List(ctx, list, opts...)
		},
	})
	p := preview.Preview{Direct: true, Cached: c, Live: c}
	for _, want := range [][]string{{"this cluster has no kind HTTPRoute"}, nil} {
		got, err := p.Warnings(t.Context(), "team", objects(t, service("stationmaster.dev/direct-route: 'true'", sound))[0].(manifest.Object), nil)
		if err != nil {
			t.Fatal(err)
		}
		match(t, "a cluster", got, want)
		lacking = false
	}
}
