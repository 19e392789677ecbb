package kube

import (
	"path/filepath"
	"testing"
)

// TestChildrenOfShapes records, in the short form of KServe's samples, what of KServe's manifests
// no sample shows, or only one that may be absent.
func TestChildrenOfShapes(t *testing.T) {
	const head = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n"
	for name, tc := range map[string]struct {
		cfg  Config
		text string
	}{
		"pipeline": {gatewayed, `
metadata: {name: iris}
spec:
  predictor: {model: {modelFormat: {name: onnx}, storageUri: "https://models.example/iris.onnx"}}
  transformer:
    containerConcurrency: 4
    containers: [{name: own, image: "registry.example/transformer:1", env: [{name: STORAGE_URI, value: "https://models.example/words"}]}]
  explainer: {containers: [{name: own, image: "registry.example/explainer:1", ports: [{containerPort: 5000}]}]}
`},
		"adversary": {gatewayed, `
metadata: {name: iris}
spec:
  predictor: {model: {modelFormat: {name: sklearn}, storageUri: "pvc://shelf/iris/v1"}}
  explainer: {art: {type: SquareAttack, config: {nb_classes: "10", b: "2"}, storageUri: "https://models.example/iris"}}
`},
		"beside": {gatewayed, `
metadata: {name: iris}
spec:
  predictor:
    model: {modelFormat: {name: sklearn}, storageUri: "https://models.example/iris"}
    containers: [{name: transformer-container, image: "registry.example/transformer:1", ports: [{containerPort: 8090}]}]
`},
		"autoscaler": {gatewayed, `
metadata: {name: iris, annotations: {serving.kserve.io/autoscalerClass: hpa}}
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 5
    scaleMetric: memory
    scaleTarget: 60
    deploymentStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 50%, maxUnavailable: 0}}
    containers: [{name: kserve-container, image: "registry.example/engine:1"}]
`},
		"keda": {gatewayed, `
metadata: {name: iris, annotations: {serving.kserve.io/autoscalerClass: keda}}
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 5
    autoScaling:
      behavior: {scaleDown: {stabilizationWindowSeconds: 30}}
      metrics:
      - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
      - {type: External, external: {metric: {backend: prometheus, serverAddress: "http://prometheus:9090", query: up}, target: {type: Value, value: "5"}}}
    containers: [{name: kserve-container, image: "registry.example/engine:1"}]
`},
		"multi-model": {gatewayed, `
metadata: {name: shelf}
spec: {predictor: {model: {modelFormat: {name: onnx}}}}
`},
		"multi-model-agent": {gatewayed, `
metadata: {name: shelf}
spec: {predictor: {model: {modelFormat: {name: sklearn}, protocolVersion: v2}}}
`},
		"without-a-gateway": {Config{Image: ownImage}, `
metadata: {name: iris, labels: {team: a}, annotations: {note: b}}
spec:
  predictor:
    labels: {tier: gold}
    containers:
    - name: kserve-container
      image: registry.example/engine:1
      ports: [{containerPort: 9000, name: h2c}, {containerPort: 8080}]
      livenessProbe: {httpGet: {path: /live}}
`},
	} {
		t.Run(name, func(t *testing.T) {
			is, objects, err := attempt(t, &tc.cfg, head+tc.text)
			if err != nil {
				t.Fatal(err)
			}
			kept(t, is, objects)
			compare(t, filepath.Join("testdata", "shapes", name+".yaml"), rendered(t, objects))
		})
	}
}
