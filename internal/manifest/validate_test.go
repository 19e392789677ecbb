package manifest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/enginetls"
)

// with returns a valid service after change.
func with(change func(*v1beta1.InferenceService)) *v1beta1.InferenceService {
	is := service(v1beta1.PredictorSpec{Model: model("onnx", "file:///m")})
	change(is)
	return is
}

func container(name string, env ...string) corev1.Container {
	c := corev1.Container{Name: name}
	for _, e := range env {
		c.Env = append(c.Env, corev1.EnvVar{Name: e, Value: "x"})
	}
	return c
}

func canary(name string, percent int32) v1beta1.CanarySpec {
	return v1beta1.CanarySpec{TrafficPercent: percent, Predictor: v1beta1.PredictorSpec{Name: name, Model: model("onnx", "file:///n")}}
}

func annotate(is *v1beta1.InferenceService, key, value string) {
	if is.Annotations == nil {
		is.Annotations = map[string]string{}
	}
	is.Annotations[key] = value
}

// checkErrors compares errors with fragments of them; none wanted means none may come.
func checkErrors(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	var got []string
	for _, err := range errs {
		got = append(got, err.Error())
	}
	text := strings.Join(got, "\n")
	if len(want) == 0 && text != "" {
		t.Errorf("refused:\n%s", text)
	}
	if len(got) > len(want) {
		t.Errorf("%d errors, want %d:\n%s", len(got), len(want), text)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("errors lack %q:\n%s", w, text)
		}
	}
}

func TestValidate(t *testing.T) {
	type is = *v1beta1.InferenceService
	workers := func(change func(is)) is {
		return with(func(s is) {
			annotate(s, AutoscalerClassAnnotation, "none")
			s.Spec.Predictor.Model.StorageURI = ptr("pvc://claim/m")
			s.Spec.Predictor.WorkerSpec = &v1beta1.WorkerSpec{PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{container(WorkerContainer)}}}
			change(s)
		})
	}
	for name, tc := range map[string]struct {
		is   is
		want []string
	}{
		"a plain service": {is: with(func(is) {})},
		"a name that starts with a digit": {
			is: with(func(s is) { s.Name = "1iris" }), want: []string{"metadata.name: Invalid value: \"1iris\": must start with a lower-case letter"},
		},
		"a name as long as a label": {is: with(func(s is) { s.Name = strings.Repeat("a", 63) })},
		"a name too long for a label": {
			is: with(func(s is) { s.Name = strings.Repeat("a", 64) }), want: []string{"metadata.name: Too long: may not be more than 63"},
		},
		"a secret of another namespace": {
			is:   with(func(s is) { annotate(s, "serving.kserve.io/storageSecretName", "other/thing") }),
			want: []string{"metadata.annotations[serving.kserve.io/storageSecretName]: Invalid value: \"other/thing\": isn't the name of a Secret"},
		},
		"a secret of its own": {is: with(func(s is) { annotate(s, "serving.kserve.io/storageSecretName", "thing.one") })},
		"a name with a dot":   {is: with(func(s is) { s.Name = "iris.v1" }), want: []string{"metadata.name"}},

		"nothing to serve": {
			is: with(func(s is) { s.Spec.Predictor.Model = nil }), want: []string{"spec.predictor: Required value: name what to serve"},
		},
		"a framework field beside model": {
			is: with(func(s is) { s.Spec.Predictor.SKLearn = frameworkOf("file:///m") }), want: []string{"not model and sklearn; keep one"},
		},
		"two framework fields": {
			is: with(func(s is) {
				s.Spec.Predictor.Model, s.Spec.Predictor.SKLearn, s.Spec.Predictor.ONNX = nil, frameworkOf("a"), frameworkOf("b")
			}),
			want: []string{"not sklearn and onnx"},
		},
		"a server container beside model": {
			is: with(func(s is) { s.Spec.Predictor.Containers = []corev1.Container{container(ServerContainer)} }), want: []string{"not model and containers"},
		},
		"a sidecar beside model": {is: with(func(s is) { s.Spec.Predictor.Containers = []corev1.Container{container("sidecar")} })},
		"a custom container": {
			is: with(func(s is) {
				s.Spec.Predictor.Model, s.Spec.Predictor.Containers = nil, []corev1.Container{container("mine")}
			}),
		},
		"two containers of one name": {
			is: with(func(s is) {
				s.Spec.Predictor.Containers = []corev1.Container{container("a"), container("a")}
			}),
			want: []string{"spec.predictor.containers[1].name: Duplicate value"},
		},
		"model.name": {
			is: with(func(s is) { s.Spec.Predictor.Model.Container.Name = "x" }), want: []string{"spec.predictor.model.name: Forbidden: the container's name is the runtime's; remove it"},
		},
		"no format and no runtime": {
			is: with(func(s is) { s.Spec.Predictor.Model.ModelFormat.Name = "" }), want: []string{"spec.predictor.model.modelFormat.name: Required value"},
		},
		"no format but a runtime": {
			is: with(func(s is) { s.Spec.Predictor.Model.ModelFormat.Name, s.Spec.Predictor.Model.Runtime = "", ptr("mine") }),
		},
		"an unknown protocol": {
			is: with(func(s is) { s.Spec.Predictor.Model.ProtocolVersion = ptr(v1beta1.Protocol("v3")) }), want: []string{`protocolVersion: Unsupported value: "v3": supported values: "v1", "v2", "grpc-v1", "grpc-v2"`},
		},
		"PYTHONPATH in the model's container": {
			is: with(func(s is) { s.Spec.Predictor.Model.Env = container("", "A", "PYTHONPATH").Env }), want: []string{"spec.predictor.model.env[1].name: Forbidden: PYTHONPATH may not be set"},
		},
		"PYTHONPATH in an init container of the transformer": {
			is: with(func(s is) {
				s.Spec.Transformer = &v1beta1.TransformerSpec{PodSpec: v1beta1.PodSpec{
					Containers: []corev1.Container{container("t")}, InitContainers: []corev1.Container{container("i", "PYTHONPATH")},
				}}
			}),
			want: []string{"spec.transformer.initContainers[0].env[0].name"},
		},
		"a transformer without a container": {
			is: with(func(s is) { s.Spec.Transformer = &v1beta1.TransformerSpec{} }), want: []string{"spec.transformer.containers: Required value"},
		},
		"an explainer of nothing": {
			is: with(func(s is) { s.Spec.Explainer = &v1beta1.ExplainerSpec{} }), want: []string{"spec.explainer: Required value"},
		},
		"an explainer of two kinds": {
			is: with(func(s is) {
				s.Spec.Explainer = &v1beta1.ExplainerSpec{ART: &v1beta1.ARTExplainerSpec{}, PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{container(ServerContainer)}}}
			}),
			want: []string{"exactly one of art"},
		},
		"a collocated transformer with a model of its own": {
			is: with(func(s is) {
				s.Spec.Predictor.Containers = []corev1.Container{container(TransformerContainer, "STORAGE_URI")}
			}),
			want: []string{"spec.predictor.containers[0].env[0]: Forbidden: a transformer in the predictor's replicas"},
		},

		"storageUri and storageUris": {
			is: with(func(s is) { s.Spec.Predictor.StorageURIs = []v1beta1.StorageURI{{URI: "file:///a"}} }), want: []string{"storageUri: Forbidden: can't be combined with storageUris"},
		},
		"storageUri and storage": {
			is: with(func(s is) { s.Spec.Predictor.Model.Storage = &v1beta1.ModelStorageSpec{} }), want: []string{"storage: Forbidden: can't be combined with storageUri"},
		},
		"storageUris below one directory": {is: withURIs("https://a/m", "/mnt/models/a", "https://a/n", "/mnt/models/b")},
		"storageUris that share only the root": {
			is: withURIs("https://a/m", "/models", "https://a/n", "/data"), want: []string{"must share a directory below the root"},
		},
		"claims may be anywhere":              {is: withURIs("pvc://a", "/models", "https://a/n", "/data/x")},
		"a relative mount path":               {is: withURIs("https://a/m", "models"), want: []string{"storageUris[0].mountPath: Invalid value: \"models\": must be an absolute path"}},
		"a mount path that climbs":            {is: withURIs("https://a/m", "/mnt/../etc"), want: []string{"must not hold '..'"}},
		"a mount path that is the root":       {is: withURIs("https://a/m", "//"), want: []string{"must not be the root"}},
		"two sets of files in one place":      {is: withURIs("https://a/m", "/mnt/models", "https://a/n", ""), want: []string{"storageUris[1].mountPath: Duplicate value"}},
		"a set of files from nowhere":         {is: withURIs("", "/mnt/models"), want: []string{"storageUris[0].uri: Required value"}},
		"more replicas at least than at most": {is: with(func(s is) { s.Spec.Predictor.MinReplicas, s.Spec.Predictor.MaxReplicas = ptr[int32](3), 2 }), want: []string{"minReplicas: Invalid value: 3: must be no more than maxReplicas, 2"}},
		"fewer than no replicas":              {is: with(func(s is) { s.Spec.Predictor.MinReplicas, s.Spec.Predictor.MaxReplicas = ptr[int32](-1), -1 }), want: []string{"minReplicas: Invalid value: -1", "maxReplicas: Invalid value: -1"}},
		"no replicas":                         {is: with(func(s is) { s.Spec.Predictor.MinReplicas = ptr[int32](0) })},
		"a percentage over 100": {is: with(func(s is) {
			s.Spec.Predictor.ScaleMetric, s.Spec.Predictor.ScaleTarget = ptr(v1beta1.MetricCPU), ptr[int32](120)
		}), want: []string{"scaleTarget: Invalid value: 120: is a percentage"}},
		"120 concurrent requests": {is: with(func(s is) {
			s.Spec.Predictor.ScaleMetric, s.Spec.Predictor.ScaleTarget = ptr(v1beta1.MetricConcurrency), ptr[int32](120)
		})},
		"an unknown metric": {is: with(func(s is) { s.Spec.Predictor.ScaleMetric = ptr(v1beta1.ScaleMetric("luck")) }), want: []string{"scaleMetric: Unsupported value"}},
		"concurrency with hpa": {is: with(func(s is) {
			annotate(s, AutoscalerClassAnnotation, "hpa")
			s.Spec.Predictor.ScaleMetric = ptr(v1beta1.MetricConcurrency)
		}), want: []string{`scaleMetric: Unsupported value: "concurrency": supported values: "cpu", "memory"`}},
		"scaleMetric with keda": {is: with(func(s is) {
			annotate(s, AutoscalerClassAnnotation, "keda")
			s.Spec.Predictor.ScaleMetric = ptr(v1beta1.MetricCPU)
		}), want: []string{"scaleMetric: Forbidden: keda scales by autoScaling.metrics"}},
		"a translation": {is: with(func(s is) {
			annotate(s, TranslateAnnotation, "input=text, pooling=cls")
			s.Spec.Predictor.Annotations = map[string]string{TranslateAnnotation: "off"}
		})},
		"translations that can't be": {
			is: with(func(s is) {
				annotate(s, TranslateAnnotation, "colour=red")
				s.Spec.Predictor.Annotations = map[string]string{TranslateAnnotation: "on"}
			}),
			want: []string{`metadata.annotations[stationmaster.dev/translate]: Invalid value: "colour=red"`, "spec.predictor.annotations[stationmaster.dev/translate]"},
		},
		"a root of the API": {is: with(func(s is) { annotate(s, "stationmaster.dev/openai-root", "/openai") })},
		"a root without a slash": {
			is:   with(func(s is) { annotate(s, "stationmaster.dev/openai-root", "openai") }),
			want: []string{`metadata.annotations[stationmaster.dev/openai-root]: Invalid value: "openai": must be the path before /v1`},
		},
		"whose keys reach the engine": {is: with(func(s is) { annotate(s, CredentialsAnnotation, CredentialsForward) })},
		"keys in a way that isn't known": {
			is:   with(func(s is) { s.Spec.Predictor.Annotations = map[string]string{CredentialsAnnotation: "yes"} }),
			want: []string{`spec.predictor.annotations[stationmaster.dev/client-credentials]: Unsupported value: "yes": supported values: "forward", "withhold"`},
		},
		"an engine": {is: with(func(s is) {
			annotate(s, "stationmaster.dev/engine", "sglang")
			s.Spec.Predictor.Annotations = map[string]string{"stationmaster.dev/engine": "v2"}
		})},
		"engines that nobody knows": {
			is: with(func(s is) {
				annotate(s, "stationmaster.dev/engine", "steam")
				s.Spec.Predictor.Annotations = map[string]string{"stationmaster.dev/engine": ""}
			}),
			want: []string{`metadata.annotations[stationmaster.dev/engine]: Invalid value: "steam": isn't an engine that is known: huggingface, vllm`, "spec.predictor.annotations[stationmaster.dev/engine]"},
		},
		"a metric that all engines tell": {is: with(func(s is) {
			m := allMetrics()
			m[2].PodMetric.Metric.Query = "stationmaster_engine_requests_waiting"
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: m}
		})},
		"one that none tells": {is: with(func(s is) {
			m := allMetrics()
			m[2].PodMetric.Metric.Query, m[2].PodMetric.Metric.ServerAddress = "stationmaster_engine_steam", ""
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: m}
		}), want: []string{`metrics[2].podmetric.metric.query: Invalid value: "stationmaster_engine_steam"`}},
		"a policy for picking": {is: with(func(s is) {
			annotate(s, PickingAnnotation, "prefix=3, least-tokens, bound=1.1")
			s.Spec.Predictor.Annotations = map[string]string{PickingAnnotation: "session, header=X-User"}
		})},
		"policies for picking that can't be": {
			is: with(func(s is) {
				annotate(s, PickingAnnotation, "fastest")
				s.Spec.Predictor.Annotations = map[string]string{PickingAnnotation: "prefix=0"}
			}),
			want: []string{`metadata.annotations[stationmaster.dev/picking]: Invalid value: "fastest": there is no "fastest": the scorers are round-robin,`, "spec.predictor.annotations[stationmaster.dev/picking]"},
		},
		"another service that reads the prompts": {is: with(func(s is) { annotate(s, PrefillAnnotation, "iris-prefill, protocol=header, min-tokens=9") })},
		"who can't read the prompts": {
			is: with(func(s is) {
				annotate(s, PrefillAnnotation, s.Name)
				s.Spec.Predictor.Annotations = map[string]string{PrefillAnnotation: "p, protocol=nixl"}
				s.Spec.Transformer = &v1beta1.TransformerSpec{}
				s.Spec.Transformer.Annotations = map[string]string{PrefillAnnotation: "p"}
			}),
			want: []string{"metadata.annotations[stationmaster.dev/prefill]: Invalid value: \"iris\": is the service itself", "spec.predictor.annotations[stationmaster.dev/prefill]: Invalid value", "spec.transformer.annotations[stationmaster.dev/prefill]: Forbidden", "spec.transformer.containers"},
		},
		"TLS to engines": {is: with(func(s is) { annotate(s, enginetls.Annotation, "verify") })},
		"TLS to engines that can't be": {
			is: with(func(s is) {
				annotate(s, enginetls.Annotation, "yes")
				s.Spec.Predictor.Annotations = map[string]string{enginetls.RootsAnnotation: "my-ca"}
			}),
			want: []string{`metadata.annotations[stationmaster.dev/engine-tls]: Invalid value: "yes"`, "stationmaster.dev/engine-ca: it must be certificates as PEM"},
		},
		"an unknown autoscaler": {is: with(func(s is) { annotate(s, AutoscalerClassAnnotation, "magic") }), want: []string{"metadata.annotations[serving.kserve.io/autoscalerClass]: Unsupported value"}},
		"a metric without its source": {is: with(func(s is) {
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: []v1beta1.MetricsSpec{{Type: "External", Resource: &v1beta1.ResourceMetricSource{}}}}
		}), want: []string{"metrics[0].external: Required value", "metrics[0].resource: Forbidden"}},
		"metrics of every kind": {is: with(func(s is) { s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: allMetrics()} })},
		"metrics without what to ask, whom, and how much": {is: with(func(s is) {
			m := allMetrics()
			m[0].Resource.Target.AverageUtilization = ptr[int32](0)
			m[1].External.Metric.ServerAddress, m[1].External.Metric.Query, m[1].External.Target.Value = "prometheus:9090", "", nil
			m[2].PodMetric.Metric.Query, m[2].PodMetric.Target.Value = "", ptr(resource.MustParse("-1"))
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: m}
		}), want: []string{
			"metrics[0].resource.target.averageUtilization: Invalid value", `metrics[1].external.metric.serverAddress: Invalid value: "prometheus:9090": must be a URL`,
			"metrics[1].external.metric.query: Required", "metrics[1].external.target.value: Required", "metrics[2].podmetric.metric.query: Required",
			`metrics[2].podmetric.target.value: Invalid value: "-1"`,
		}},
		"a canary share over 100": {is: with(func(s is) { s.Spec.Predictor.CanaryTrafficPercent = ptr[int64](101) }), want: []string{"canaryTrafficPercent: Invalid value: 101"}},
		"a logger to half a storage": {
			is: with(func(s is) {
				s.Spec.Predictor.Logger = &v1beta1.LoggerSpec{Mode: "all", Storage: &v1beta1.LoggerStorageSpec{}}
			}),
			want: []string{"logger.storage: Required value: path, parameters and key"},
		},
		"a logger whose batches can't be": {
			is: with(func(s is) {
				s.Spec.Predictor.Logger = &v1beta1.LoggerSpec{Mode: "all", BatchSize: ptr(-1), BatchInterval: ptr("soon"), MarshallerURL: "marshal"}
			}),
			want: []string{"logger.batchSize: Invalid value: -1", `logger.batchInterval: Invalid value: "soon"`, `logger.marshallerUrl: Invalid value: "marshal"`},
		},
		"a logger without a mode": {is: with(func(s is) { s.Spec.Predictor.Logger = &v1beta1.LoggerSpec{} }), want: []string{`logger.mode: Unsupported value: "": supported values: "all", "request", "response"`}},
		"a negative limit and time": {is: with(func(s is) {
			s.Spec.Predictor.ContainerConcurrency, s.Spec.Predictor.TimeoutSeconds = ptr[int64](-1), ptr[int64](-1)
		}), want: []string{"containerConcurrency", "timeout"}},
		"a negative batch":                    {is: with(func(s is) { s.Spec.Predictor.Batcher = &v1beta1.Batcher{MaxBatchSize: ptr(-1)} }), want: []string{"batcher.maxBatchSize"}},
		"an unknown deployment mode":          {is: with(func(s is) { annotate(s, DeploymentModeAnnotation, "Fast") }), want: []string{"metadata.annotations[serving.kserve.io/deploymentMode]: Unsupported value"}},
		"workers":                             {is: workers(func(is) {})},
		"workers with a modelcar":             {is: workers(func(s is) { s.Spec.Predictor.Model.StorageURI = ptr("oci+modelcar://a/m") })},
		"workers with a model on the web":     {is: workers(func(s is) { s.Spec.Predictor.Model.StorageURI = ptr("https://a/m") }), want: []string{"workers share the model, so it must be on pvc:// or oci://"}},
		"workers that are scaled":             {is: workers(func(s is) { annotate(s, AutoscalerClassAnnotation, "hpa") }), want: []string{"set it to none"}},
		"workers of size 0":                   {is: workers(func(s is) { s.Spec.Predictor.WorkerSpec.TensorParallelSize = ptr(0) }), want: []string{"tensorParallelSize: Invalid value: 0"}},
		"workers with the size in a variable": {is: workers(func(s is) { s.Spec.Predictor.Model.Env = container("", "TENSOR_PARALLEL_SIZE").Env }), want: []string{"TENSOR_PARALLEL_SIZE is set from workerSpec"}},
		"a worker container of another name":  {is: workers(func(s is) { s.Spec.Predictor.WorkerSpec.Containers[0].Name = "w" }), want: []string{`workerSpec.containers[0].name: Unsupported value: "w": supported values: "worker-container"`}},
		"two worker containers": {is: workers(func(s is) {
			s.Spec.Predictor.WorkerSpec.Containers = append(s.Spec.Predictor.WorkerSpec.Containers, container("b"))
		}), want: []string{"workerSpec.containers: Too many"}},
		"two canaries":                      {is: withCanaries(canary("b", 10), canary("c", 90))},
		"a canary without a name":           {is: withCanaries(canary("", 10)), want: []string{"spec.canary[0].predictor.name: Required value"}},
		"a canary of the stable one's name": {is: withCanaries(canary("stable", 10)), want: []string{"spec.canary[0].predictor.name: Duplicate value"}},
		"canaries that take more than all":  {is: withCanaries(canary("b", 60), canary("c", 50)), want: []string{"at most 100 percent"}},
		"a canary that takes more than all": {is: withCanaries(canary("b", 101)), want: []string{"spec.canary[0].trafficPercent"}},
		"a canary in mode Knative": {is: func() is {
			s := withCanaries(canary("b", 1))
			annotate(s, DeploymentModeAnnotation, "Serverless")
			return s
		}(), want: []string{"canary needs deployment mode Standard, not Knative"}},
		"a canary that scales": {is: withCanaries(func() v1beta1.CanarySpec { c := canary("b", 1); c.Predictor.MaxReplicas = 2; return c }()), want: []string{"spec.canary[0].predictor.maxReplicas: Forbidden"}},
		"a canary of a canary": {is: withCanaries(func() v1beta1.CanarySpec {
			c := canary("b", 1)
			c.Predictor.CanaryTrafficPercent = ptr[int64](1)
			return c
		}()), want: []string{"spec.canary[0].predictor.canaryTrafficPercent: Forbidden"}},
		"a canary larger than the stable one": {is: withCanaries(func() v1beta1.CanarySpec { c := canary("b", 1); c.Predictor.MinReplicas = ptr[int32](2); return c }()), want: []string{"minReplicas: Invalid value: 2: must be no more than the stable predictor's, 1"}},
		"a canary and a canary percentage": {is: func() is {
			s := withCanaries(canary("b", 1))
			s.Spec.Predictor.CanaryTrafficPercent = ptr[int64](1)
			return s
		}(), want: []string{"can't be combined with spec.canary"}},
		"a canary that takes the stable model": {is: withCanaries(v1beta1.CanarySpec{TrafficPercent: 1, Predictor: v1beta1.PredictorSpec{Name: "b"}})},
	} {
		t.Run(name, func(t *testing.T) {
			checkErrors(t, Validate(tc.is, nil), tc.want)
			// Defaults must not change the verdict.
			defaulted := tc.is.DeepCopy()
			Default(defaulted, Defaults{})
			if len(tc.want) == 0 {
				checkErrors(t, Validate(defaulted, nil), nil)
			} else if len(Validate(defaulted, nil)) == 0 {
				t.Error("accepted once defaulted")
			}
		})
	}
}

func withCanaries(c ...v1beta1.CanarySpec) *v1beta1.InferenceService {
	return with(func(s *v1beta1.InferenceService) { s.Spec.Predictor.Name, s.Spec.Canary = "stable", c })
}

// withURIs returns a service with pairs of a URI and a mount path.
func withURIs(pairs ...string) *v1beta1.InferenceService {
	return with(func(s *v1beta1.InferenceService) {
		s.Spec.Predictor.Model.StorageURI = nil
		for i := 0; i < len(pairs); i += 2 {
			s.Spec.Predictor.StorageURIs = append(s.Spec.Predictor.StorageURIs, v1beta1.StorageURI{URI: pairs[i], MountPath: pairs[i+1]})
		}
	})
}

func TestValidateChanges(t *testing.T) {
	type is = *v1beta1.InferenceService
	for name, tc := range map[string]struct {
		old, is is
		want    []string
	}{
		"no change": {old: with(func(is) {}), is: with(func(is) {})},
		"another mode": {
			old:  with(func(s is) { s.Status.DeploymentMode = "Serverless" }),
			is:   with(func(s is) { annotate(s, DeploymentModeAnnotation, "RawDeployment") }),
			want: []string{"update rejected: deploymentMode cannot be changed from 'Knative' to 'Standard'"},
		},
		"the same mode by its old name": {
			old: with(func(s is) { s.Status.DeploymentMode = "Standard" }),
			is:  with(func(s is) { annotate(s, DeploymentModeAnnotation, "RawDeployment") }),
		},
		"another variant of the same model": {
			old:  with(func(s is) { s.Spec.Predictor.Name = "a" }),
			is:   with(func(s is) { s.Spec.Predictor.Name = "b" }),
			want: []string{`spec.predictor.name: Forbidden: changing the name from "a" to "b"`},
		},
		"another variant with another model": {
			old: with(func(s is) { s.Spec.Predictor.Name = "a" }),
			is:  with(func(s is) { s.Spec.Predictor.Name, s.Spec.Predictor.Model = "b", model("onnx", "file:///n") }),
		},
		"a canary that takes over": {
			old: withCanaries(canary("b", 50)),
			is:  with(func(s is) { s.Spec.Predictor.Name = "b" }),
		},
	} {
		t.Run(name, func(t *testing.T) { checkErrors(t, Validate(tc.is, tc.old), tc.want) })
	}
}

func TestValidateRevision(t *testing.T) {
	old := &smv1alpha1.Revision{Spec: smv1alpha1.RevisionSpec{Service: "iris"}}
	next := old.DeepCopy()
	next.Status.Replicas = 2
	checkErrors(t, ValidateRevision(next, old), nil)
	next.Spec.PodTemplate.Spec.Containers = []corev1.Container{container("a")}
	checkErrors(t, ValidateRevision(next, old), []string{"spec is immutable"})
	checkErrors(t, ValidateRevision(next, nil), nil)
}

func TestValidateRuntime(t *testing.T) {
	format := func(name, version string, priority int32) v1alpha1.SupportedModelFormat {
		f := v1alpha1.SupportedModelFormat{Name: name, AutoSelect: ptr(true)}
		if version != "" {
			f.Version = &version
		}
		if priority != 0 {
			f.Priority = &priority
		}
		return f
	}
	runtime := func(name string, protocols []v1alpha1.Protocol, formats ...v1alpha1.SupportedModelFormat) NamedRuntime {
		return NamedRuntime{Name: name, Spec: &v1alpha1.ServingRuntimeSpec{ProtocolVersions: protocols, SupportedModelFormats: formats}}
	}
	v1, v2 := []v1alpha1.Protocol{"v1"}, []v1alpha1.Protocol{"v2", "grpc-v2"}
	disabled := runtime("b", v1, format("onnx", "1", 1))
	disabled.Spec.Disabled = ptr(true)
	manual := runtime("b", v1, format("onnx", "1", 1))
	manual.Spec.SupportedModelFormats[0].AutoSelect = nil
	mesh := runtime("b", v1, format("onnx", "1", 1))
	mesh.Spec.MultiModel = ptr(true)
	poisoned := runtime("a", v1)
	poisoned.Spec.Containers = []corev1.Container{container(ServerContainer, "PYTHONPATH")}
	for name, tc := range map[string]struct {
		r      NamedRuntime
		others []NamedRuntime
		want   []string
	}{
		"alone":                    {r: runtime("a", v1, format("onnx", "1", 1), format("onnx", "2", 1), format("triton", "", 3))},
		"priorities that differ":   {r: runtime("a", v1, format("onnx", "1", 1), format("onnx", "2", 2)), want: []string{"spec.supportedModelFormats[1].priority: Invalid value: \"2\": the priority of format onnx must be the same"}},
		"one priority is unset":    {r: runtime("a", v1, format("onnx", "1", 1), format("onnx", "2", 0)), want: []string{"it is 1 in the first"}},
		"a tie":                    {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{runtime("b", v1, format("ONNX", "1", 1))}, want: []string{"the runtime b has the same priority for format onnx version 1"}},
		"a tie over no protocol":   {r: runtime("a", nil, format("onnx", "", 1)), others: []NamedRuntime{runtime("b", v2, format("onnx", "", 1))}, want: []string{"the runtime b"}},
		"its own stored version":   {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{runtime("a", v1, format("onnx", "1", 1))}},
		"other protocols":          {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{runtime("b", v2, format("onnx", "1", 1))}},
		"other versions":           {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{runtime("b", v1, format("onnx", "2", 1)), runtime("c", v1, format("onnx", "", 1))}},
		"other priorities":         {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{runtime("b", v1, format("onnx", "1", 2)), runtime("c", v1, format("onnx", "1", 0))}},
		"a disabled one":           {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{disabled}},
		"one that must be named":   {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{manual}},
		"one for many models":      {r: runtime("a", v1, format("onnx", "1", 1)), others: []NamedRuntime{mesh}},
		"PYTHONPATH":               {r: poisoned, want: []string{"spec.containers[0].env[0].name: Forbidden"}},
		"a priority below 1":       {r: runtime("a", v1, format("onnx", "1", -1)), want: []string{"must be 1 or more"}},
		"a format without a name":  {r: runtime("a", v1, format("", "1", 1)), want: []string{"spec.supportedModelFormats[0].name: Required value"}},
		"disabled itself, no ties": {r: func() NamedRuntime { d := disabled; d.Name = "a"; return d }(), others: []NamedRuntime{runtime("b", v1, format("onnx", "1", 1))}},
	} {
		t.Run(name, func(t *testing.T) { checkErrors(t, ValidateRuntime(tc.r, tc.others), tc.want) })
	}
}
