package manifest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/enginetls"
)

// TestEveryFieldIsClassified walks every type that a manifest can hold down to where a table
// says what becomes of a field, and demands that each field stands in its table.
func TestEveryFieldIsClassified(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type, string)
	walk = func(typ reflect.Type, path string) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ == reflect.TypeFor[corev1.ResourceList]() || seen[typ] {
			return
		}
		seen[typ] = true
		table, ok := effects[typ]
		if !ok {
			t.Errorf("%s: no table for %v", path, typ)
			return
		}
		left := map[string]bool{}
		for name := range table {
			left[name] = true
		}
		eachField(typ, func(f reflect.StructField, name string) {
			delete(left, name)
			e, ok := table[name]
			switch {
			case !ok:
				t.Errorf("%s.%s: nothing says whether it is in effect", path, name)
			case (e.kind == later || e.kind == clusterOnly) == (e.reason == ""):
				t.Errorf("%s.%s: a field without effect, and no other, needs a reason", path, name)
			case strings.HasSuffix(e.reason, "."):
				t.Errorf("%s.%s: the reason ends in a stop: %q", path, name, e.reason)
			case e.kind == into:
				walk(f.Type, path+"."+name)
			}
		})
		for name := range left {
			t.Errorf("%s: the table of %v has %s, the type hasn't", path, typ, name)
		}
	}
	walk(reflect.TypeFor[v1beta1.InferenceServiceSpec](), "spec")
	walk(reflect.TypeFor[v1alpha1.ServingRuntimeSpec](), "runtime.spec")
	walk(reflect.TypeFor[v1alpha1.InferenceGraphSpec](), "graph.spec")
	for typ := range effects {
		if !seen[typ] {
			t.Errorf("the table of %v is reached from nowhere", typ)
		}
	}
}

// allMetrics has one of each kind that our own autoscaler follows.
func allMetrics() []v1beta1.MetricsSpec {
	value := v1beta1.MetricTarget{Type: v1beta1.ValueMetricType, Value: ptr(resource.MustParse("4"))}
	return []v1beta1.MetricsSpec{
		{Type: v1beta1.ResourceMetricSourceType, Resource: &v1beta1.ResourceMetricSource{Name: "cpu", Target: v1beta1.MetricTarget{Type: v1beta1.UtilizationMetricType, AverageUtilization: ptr[int32](50)}}},
		{Type: v1beta1.ExternalMetricSourceType, External: &v1beta1.ExternalMetricSource{
			Metric: v1beta1.ExternalMetrics{Backend: "prometheus", ServerAddress: "http://prometheus:9090", Query: "sum(queue)"}, Target: value,
		}},
		{Type: v1beta1.PodMetricMetricSourceType, PodMetric: &v1beta1.PodMetricSource{
			Metric: v1beta1.PodMetrics{Backend: "opentelemetry", Query: "queue", OperationOverTime: "avg"}, Target: value,
		}},
	}
}

func TestNotInEffect(t *testing.T) {
	type is = *v1beta1.InferenceService
	for name, tc := range map[string]struct {
		is   is
		want []string
	}{
		"a plain service":     {is: with(func(is) {})},
		"replicas":            {is: with(func(s is) { s.Spec.Predictor.MinReplicas = ptr[int32](3) })},
		"one number of them":  {is: with(func(s is) { s.Spec.Predictor.MinReplicas, s.Spec.Predictor.MaxReplicas = ptr[int32](3), 3 })},
		"one replica at most": {is: with(func(s is) { s.Spec.Predictor.MaxReplicas = 1 })},
		"scaling":             {is: with(func(s is) { s.Spec.Predictor.MaxReplicas = 3 })},
		"scaling to zero":     {is: with(func(s is) { s.Spec.Predictor.MinReplicas = ptr[int32](0) })},
		"scaling on requests a second": {is: with(func(s is) {
			s.Spec.Predictor.ScaleMetric, s.Spec.Predictor.ScaleTarget, s.Spec.Predictor.MaxReplicas = ptr(v1beta1.MetricRPS), ptr[int32](50), 3
			annotate(s, "autoscaling.knative.dev/window", "30s")
		})},
		"scaling on the processor by annotation": {is: with(func(s is) {
			annotate(s, "autoscaling.knative.dev/metric", "cpu")
		})},
		"scaling on the processor": {is: with(func(s is) {
			s.Spec.Predictor.ScaleMetric, s.Spec.Predictor.ScaleTarget, s.Spec.Predictor.MaxReplicas = ptr(v1beta1.MetricCPU), ptr[int32](50), 3
			s.Spec.Predictor.ScaleMetricType = ptr(v1beta1.UtilizationMetricType)
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{}}
			annotate(s, AutoscalerClassAnnotation, "hpa")
		})},
		"scaling on memory without a target, to zero": {is: with(func(s is) {
			s.Spec.Predictor.ScaleMetric, s.Spec.Predictor.MinReplicas = ptr(v1beta1.MetricMemory), ptr[int32](0)
		}), want: []string{"spec.predictor.minReplicas", "spec.predictor.scaleMetric"}},
		"a pace for requests": {is: with(func(s is) {
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{}}
			s.Spec.Predictor.ScaleMetric, s.Spec.Predictor.ScaleMetricType = ptr(v1beta1.MetricRPS), ptr(v1beta1.ValueMetricType)
		}), want: []string{"spec.predictor.autoScaling.behavior", "spec.predictor.scaleMetricType"}},
		"metrics of our own autoscaler": {is: with(func(s is) {
			s.Spec.Predictor.MinReplicas, s.Spec.Predictor.MaxReplicas = ptr[int32](0), 3
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: allMetrics(), Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{}}
		})},
		"metrics beside other fields, and what only KEDA can": {is: with(func(s is) {
			p := &s.Spec.Predictor
			p.ScaleMetric, p.ScaleTarget = ptr(v1beta1.MetricRPS), ptr[int32](9)
			m := allMetrics()
			m[1].External.Metric.Backend, m[1].External.AuthenticationRef = "graphite", &v1beta1.ExtMetricAuthentication{}
			m[2].PodMetric.Metric.OperationOverTime, m[2].PodMetric.Metric.MetricNames = "median", []string{"queue"}
			p.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: m}
		}), want: []string{
			"spec.predictor.autoScaling.metrics[1].external.authenticationRef", "spec.predictor.autoScaling.metrics[1].external.metric.backend",
			"spec.predictor.autoScaling.metrics[2].podmetric.metric.metricNames", "spec.predictor.autoScaling.metrics[2].podmetric.metric.operationOverTime",
			"spec.predictor.scaleMetric", "spec.predictor.scaleTarget",
		}},
		"metrics that nobody follows": {is: with(func(s is) {
			s.Spec.Predictor.AutoScaling = &v1beta1.AutoScalingSpec{Metrics: allMetrics()}
			annotate(s, AutoscalerClassAnnotation, "external")
		}), want: []string{"metadata.annotations[serving.kserve.io/autoscalerClass]", "spec.predictor.autoScaling"}},
		"no concurrency limit": {is: with(func(s is) { s.Spec.Predictor.ContainerConcurrency = ptr[int64](0) })},
		"all requests to one":  {is: with(func(s is) { s.Spec.Predictor.CanaryTrafficPercent = ptr[int64](100) })},
		"a canary":             {is: withCanaries(canary("b", 1))},
		"the framework's field": {is: with(func(s is) {
			s.Spec.Predictor = v1beta1.PredictorSpec{ONNX: &v1beta1.FrameworkSpec{PredictorExtensionSpec: v1beta1.PredictorExtensionSpec{Storage: &v1beta1.ModelStorageSpec{
				SchemaPath: ptr("a"), StorageSpec: v1beta1.StorageSpec{StorageKey: ptr("k"), Path: ptr("p"), Parameters: &map[string]string{"type": "s3", "bucket": "b", "verify_ssl": "0"}},
			}}}}
		}), want: []string{"spec.predictor.onnx.storage.parameters[verify_ssl]", "spec.predictor.onnx.storage.schemaPath"}},
		"much of what comes later": {
			is: with(func(s is) {
				p := &s.Spec.Predictor
				p.CanaryTrafficPercent, p.ContainerConcurrency = ptr[int64](10), ptr[int64](4)
				p.Logger, p.Batcher = &v1beta1.LoggerSpec{Mode: "all"}, &v1beta1.Batcher{}
				p.ScaleMetric, p.ScaleTarget, p.ScaleMetricType = ptr(v1beta1.MetricCPU), ptr[int32](80), ptr(v1beta1.UtilizationMetricType)
				p.AutoScaling, p.DeploymentStrategy = &v1beta1.AutoScalingSpec{}, &appsv1.DeploymentStrategy{Type: "Recreate"}
				p.WorkerSpec, p.StorageContainerName = &v1beta1.WorkerSpec{}, ptr("mine")
				s.Spec.Explainer = &v1beta1.ExplainerSpec{ART: &v1beta1.ARTExplainerSpec{}}
			}),
			want: []string{
				"spec.explainer.art", "spec.predictor.logger",
				"spec.predictor.storageContainerName", "spec.predictor.workerSpec",
			},
		},
		"a built-in explainer with a command": {is: with(func(s is) {
			s.Spec.Explainer = &v1beta1.ExplainerSpec{ART: &v1beta1.ARTExplainerSpec{Type: v1beta1.ARTSquareAttackExplainer, ExplainerExtensionSpec: v1beta1.ExplainerExtensionSpec{
				Container: corev1.Container{Command: []string{"artserver"}}, StorageURI: "file:///e", RuntimeVersion: ptr("v1"), Config: map[string]string{"a": "b"},
			}}}
		})},
		"a logger and a batcher": {is: with(func(s is) {
			s.Spec.Predictor.Logger = &v1beta1.LoggerSpec{Mode: "all", URL: ptr("http://collector/x"), MetadataHeaders: []string{"a"}, MetadataAnnotations: []string{"b"}, BatchSize: ptr(1)}
			s.Spec.Predictor.Batcher = &v1beta1.Batcher{MaxBatchSize: ptr(8), MaxLatency: ptr(50), Timeout: ptr(5)}
		})},
		"a logger to files": {is: with(func(s is) {
			annotate(s, "serving.kserve.io/storageSecretName", "mine")
			s.Spec.Transformer = &v1beta1.TransformerSpec{ComponentExtensionSpec: v1beta1.ComponentExtensionSpec{Logger: &v1beta1.LoggerSpec{
				Mode: "all", URL: ptr("s3://bucket"), MarshallerURL: "http://m", BatchSize: ptr(10), BatchInterval: ptr("1m"),
				Storage: loggerStorage(map[string]string{"type": "s3", "region": "eu-west-1", "endpoint_url": "http://store"}),
			}}}
		})},
		"a logger to files that aren't made so": {
			is: with(func(s is) {
				s.Spec.Predictor.Logger = &v1beta1.LoggerSpec{
					Mode: "all", URL: ptr("gs://bucket"), BatchInterval: ptr("1m"),
					Storage: loggerStorage(map[string]string{"type": "s3", "format": "avro", "bucket": "other", "acl": "private"}),
				}
				s.Spec.Transformer = &v1beta1.TransformerSpec{ComponentExtensionSpec: v1beta1.ComponentExtensionSpec{Logger: &v1beta1.LoggerSpec{
					Mode: "all", URL: ptr("abfs://c@a.dfs.core.windows.net"), MarshallerURL: "http://m", Storage: loggerStorage(map[string]string{"format": "csv"}),
				}}}
			}),
			want: []string{
				"spec.predictor.logger.batchInterval", "spec.predictor.logger.storage.parameters[acl]", "spec.predictor.logger.storage.parameters[bucket]",
				"spec.predictor.logger.storage.parameters[format]", "spec.predictor.logger.storage.parameters[type]",
				"spec.transformer.logger.storage.parameters[format]",
			},
		},
		"a collector that is told of files": {
			is: with(func(s is) {
				annotate(s, "serving.kserve.io/storageSecretName", "mine")
				s.Spec.Transformer = &v1beta1.TransformerSpec{ComponentExtensionSpec: v1beta1.ComponentExtensionSpec{Logger: &v1beta1.LoggerSpec{
					Mode: "all", URL: ptr("http://collector"), Storage: loggerStorage(nil), MarshallerURL: "http://m", BatchSize: ptr(10), BatchInterval: ptr("1m"),
				}}}
			}),
			want: []string{
				"metadata.annotations[serving.kserve.io/storageSecretName]",
				"spec.transformer.logger.batchInterval", "spec.transformer.logger.batchSize", "spec.transformer.logger.marshallerUrl",
				"spec.transformer.logger.storage",
			},
		},
		"a logger that leads nowhere": {
			is: with(func(s is) {
				s.Spec.Predictor.Logger = &v1beta1.LoggerSpec{Mode: "all", URL: ptr("hdfs://bucket"), BatchSize: ptr(10)}
			}),
			want: []string{"spec.predictor.logger.url"},
		},
		"a logger and a batcher of a canary": {
			is: withCanaries(v1beta1.CanarySpec{Predictor: v1beta1.PredictorSpec{Name: "b", ComponentExtensionSpec: v1beta1.ComponentExtensionSpec{
				Logger: &v1beta1.LoggerSpec{Mode: "all", URL: ptr("http://collector")}, Batcher: &v1beta1.Batcher{},
			}}}),
			want: []string{"spec.canary[0].predictor.batcher", "spec.canary[0].predictor.logger"},
		},
		"what speaks of nodes": {
			is: with(func(s is) {
				p := &s.Spec.Predictor
				p.NodeSelector, p.Affinity, p.Tolerations = map[string]string{"a": "b"}, &corev1.Affinity{}, []corev1.Toleration{{}}
				p.HostNetwork, p.AutomountServiceAccountToken, p.RestartPolicy = true, ptr(false), corev1.RestartPolicyAlways
				p.ServiceAccountName = "robot"
			}),
			want: []string{"spec.predictor.affinity", "spec.predictor.nodeSelector", "spec.predictor.serviceAccountName", "spec.predictor.tolerations"},
		},
		"deep in a container": {
			is: with(func(s is) {
				s.Spec.Predictor.Model.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1"), "nvidia.com/gpu": resource.MustParse("1")}
				s.Spec.Predictor.Volumes = []corev1.Volume{
					{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}}},
					{Name: "b", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}},
				}
				s.Spec.Transformer = &v1beta1.TransformerSpec{PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{{
					Name:            "t",
					Ports:           []corev1.ContainerPort{{ContainerPort: 8080, Protocol: "TCP"}, {ContainerPort: 53, Protocol: "UDP"}},
					Env:             []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{}}}},
					SecurityContext: &corev1.SecurityContext{},
					VolumeMounts:    []corev1.VolumeMount{{Name: "a", SubPathExpr: "$(A)"}},
				}}}}
			}),
			want: []string{
				"spec.predictor.model.resources.limits[nvidia.com/gpu]", "spec.predictor.volumes[0].emptyDir.medium", "spec.predictor.volumes[1].nfs",
				"spec.transformer.containers[0].env[0].valueFrom.fileKeyRef", "spec.transformer.containers[0].ports[1].protocol",
				"spec.transformer.containers[0].securityContext", "spec.transformer.containers[0].volumeMounts[0].subPathExpr",
			},
		},
		"annotations": {
			is: with(func(s is) {
				for k, v := range map[string]string{
					DeploymentModeAnnotation: "RawDeployment", AutoscalerClassAnnotation: "keda", "mine": "x",
					"autoscaling.knative.dev/target": "5", "sidecar.istio.io/inject": "true",
					"storage.kserve.io/readonly": "false",
				} {
					annotate(s, k, v)
				}
			}),
			want: []string{
				"metadata.annotations[serving.kserve.io/autoscalerClass]",
				"metadata.annotations[sidecar.istio.io/inject]",
				"metadata.annotations[storage.kserve.io/readonly]",
			},
		},
		"annotations that ask for what is so": {
			is: with(func(s is) {
				annotate(s, DeploymentModeAnnotation, "Standard")
				annotate(s, AutoscalerClassAnnotation, "none")
				annotate(s, "storage.kserve.io/readonly", "true")
				annotate(s, "serving.kserve.io/stop", "true")
			}),
		},
		"annotations that are misspelt": {
			is: with(func(s is) {
				annotate(s, "stationmaster.dev/mirrors", "10")
				annotate(s, "autoscaling.knative.dev/wndow", "60s")
				annotate(s, "autoscaling.knative.dev/maxScale", "2")
				annotate(s, "stationmaster.dev/sticky", "cookie=c")
				annotate(s, LocalAnnotation, "command: [serve]")
				annotate(s, "example.com/mirrors", "10")
				annotate(s, enginetls.Annotation, enginetls.Verify)
				annotate(s, enginetls.RootsAnnotation, "pem")
				annotate(s, enginetls.NameAnnotation, "iris")
			}),
			want: []string{
				"metadata.annotations[autoscaling.knative.dev/wndow]",
				"metadata.annotations[stationmaster.dev/mirrors]",
			},
		},
		"annotations that are neither true nor false": {
			is: with(func(s is) {
				annotate(s, "serving.kserve.io/stop", "maybe")
				annotate(s, DisableAutoUpdateAnnotation, "True")
				annotate(s, TagRoutingAnnotation, "false")
			}),
			want: []string{
				"metadata.annotations[serving.kserve.io/disable-auto-update]",
				"metadata.annotations[serving.kserve.io/stop]",
			},
		},
		"another mode": {
			is:   with(func(s is) { annotate(s, DeploymentModeAnnotation, "Serverless") }),
			want: []string{"metadata.annotations[serving.kserve.io/deploymentMode]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, n := range NotInEffectOf(tc.is) {
				got = append(got, n.Field)
				if n.Reason == "" {
					t.Errorf("%s has no reason", n.Field)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNotInEffectOfRuntime(t *testing.T) {
	got := NotInEffectOfRuntime(&v1alpha1.ServingRuntimeSpec{
		MultiModel: ptr(true), GrpcDataEndpoint: ptr("port:8001"), Disabled: ptr(false),
		ServingRuntimePodSpec: v1alpha1.ServingRuntimePodSpec{NodeSelector: map[string]string{"a": "b"}, Containers: []corev1.Container{{Name: ServerContainer, TTY: true}}},
	})
	var paths []string
	for _, n := range got {
		paths = append(paths, n.Field)
	}
	want := []string{"spec.containers[0].tty", "spec.grpcDataEndpoint", "spec.multiModel", "spec.nodeSelector"}
	if !slices.Equal(paths, want) {
		t.Errorf("got %q, want %q", paths, want)
	}
	cluster := map[string]bool{}
	for _, n := range got {
		cluster[n.Field] = n.ClusterOnly
	}
	if !cluster["spec.nodeSelector"] || cluster["spec.multiModel"] {
		t.Errorf("ClusterOnly is %v", cluster)
	}
}

func loggerStorage(parameters map[string]string) *v1beta1.LoggerStorageSpec {
	return &v1beta1.LoggerStorageSpec{StorageSpec: v1beta1.StorageSpec{Path: ptr("logs"), Parameters: &parameters, StorageKey: ptr("k")}}
}
