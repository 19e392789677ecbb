package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

func TestWhatSetsReplicas(t *testing.T) {
	const (
		target = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: iris-1}\n"
		hpa    = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n"
		keda   = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n"
	)
	for name, tc := range map[string]struct{ annotations, predictor, want string }{
		"the processor by default": {"serving.kserve.io/autoscalerClass: hpa", "{}", hpa + `
spec:
  ` + target + `
  minReplicas: 1
  maxReplicas: 1
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]`},
		"memory with a target, from zero": {"{}", "{minReplicas: 0, maxReplicas: 4, scaleMetric: memory, scaleTarget: 60}", hpa + `
spec:
  ` + target + `
  minReplicas: 1
  maxReplicas: 4
  metrics: [{type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 60}}}]`},
		"metrics and a pace": {"serving.kserve.io/autoscalerClass: hpa", `
minReplicas: 2
maxReplicas: 8
autoScaling:
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization}}}
  - {type: Resource, resource: {name: memory, target: {type: Value, value: 1Gi}}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 7, policies: [{type: Pods, value: 1, periodSeconds: 30}]}}`, hpa + `
spec:
  ` + target + `
  minReplicas: 2
  maxReplicas: 8
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1Gi}}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 7, policies: [{type: Pods, value: 1, periodSeconds: 30}]}}`},
		"bounds and target of Knative's annotations": {"{autoscaling.knative.dev/class: hpa.autoscaling.knative.dev, autoscaling.knative.dev/metric: cpu, autoscaling.knative.dev/max-scale: '5', autoscaling.knative.dev/target: '30'}", "{}", hpa + `
spec:
  ` + target + `
  minReplicas: 1
  maxReplicas: 5
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 30}}}]`},
		"KEDA": {"serving.kserve.io/autoscalerClass: keda", `
minReplicas: 0
maxReplicas: 8
autoScaling:
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
  - type: External
    external:
      metric: {backend: graphite, serverAddress: "http://g", query: a.b, namespace: team}
      target: {type: Value, value: 500m}
      authenticationRef: {authModes: basic, authenticationRef: {name: secret}}
  - type: PodMetric
    podmetric: {metric: {backend: opentelemetry, query: queue, operationOverTime: avg}, target: {type: Value, value: "4"}}
  behavior: {scaleUp: {stabilizationWindowSeconds: 3}}`, keda + `
spec:
  ` + target + `
  minReplicaCount: 0
  maxReplicaCount: 8
  triggers:
  - {type: cpu, metricType: Utilization, metadata: {value: "50"}}
  - type: graphite
    metadata: {serverAddress: "http://g", query: a.b, namespace: team, threshold: "0.5", authModes: basic}
    authenticationRef: {name: secret}
  - type: external
    metadata: {scalerAddress: "keda-otel-scaler.keda.svc:4318", targetValue: "4", operationOverTime: avg, metricQuery: 'sum(queue{namespace="ns", deployment="iris-1"})'}
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleUp: {stabilizationWindowSeconds: 3}}}}`},
		"somebody else": {"serving.kserve.io/autoscalerClass: external", "{}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := &v1beta1.InferenceService{}
			for text, into := range map[string]any{tc.annotations: &is.Annotations, tc.predictor: &is.Spec.Predictor} {
				if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
					t.Fatal(err)
				}
			}
			made, err := scaler(is, metav1.ObjectMeta{Namespace: "ns", Name: "iris-1", Labels: map[string]string{"a": "b"}}, "predictor")
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" {
				if made != nil {
					t.Fatalf("made %v", made)
				}
				return
			}
			var want map[string]any
			if err := yaml.Unmarshal([]byte("metadata: {namespace: ns, name: iris-1, labels: {a: b}}\n"+tc.want), &want); err != nil {
				t.Fatal(err)
			}
			content, _, err := wanted(made)
			if err != nil {
				t.Fatal(err)
			}
			delete(content["metadata"].(map[string]any), "annotations")
			raw, err := yaml.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := yaml.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
