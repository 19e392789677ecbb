package kubernetes

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

const judged = `{apiVersion: serving.kserve.io/v1beta1, kind: InferenceService, metadata: {name: %s}, spec: {predictor: {%s}}}`

// dryRun applies a manifest without storing it, as `kubectl apply --dry-run=server` does, and
// returns what kubectl said, errors and warnings alike.
func (s *installation) dryRun(t *testing.T, namespace, manifest string) (said string, refused bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.binary, "kubectl", "--kubeconfig", shared.Kubeconfig(), "-n", namespace, "apply", "--server-side", "--dry-run=server", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return string(out), err != nil
}

// testAdmission has the API server tell what would be refused, and what would have no effect,
// before anything is stored.
func (s *installation) testAdmission(t *testing.T) {
	ns := namespace(t, restricted)
	const sound = "model: {modelFormat: {name: onnx}, storageUri: 'https://models.example.com/m'}"
	eventually(t, "the API server asks the operator", func() error {
		if said, refused := s.dryRun(t, ns, fmt.Sprintf(judged, "two", sound+", sklearn: {}")); !refused {
			return errors.New(said)
		}
		return nil
	})
	for name, tc := range map[string]struct {
		manifest string
		refused  bool
		want     []string
	}{
		"a sound service":             {fmt.Sprintf(judged, "iris", sound), false, []string{"serverside-applied (server dry run)"}},
		"two implementations":         {fmt.Sprintf(judged, "iris", sound+", sklearn: {}"), true, []string{"exactly one of model, a framework field and a container named kserve-container may be set, not model and sklearn; keep one"}},
		"more at least than at most":  {fmt.Sprintf(judged, "iris", sound+", minReplicas: 3, maxReplicas: 2"), true, []string{"spec.predictor.minReplicas: Invalid value: 3: must be no more than maxReplicas, 2"}},
		"a name that is no host":      {fmt.Sprintf(judged, "1iris", sound), true, []string{"must start with a lower-case letter"}},
		"a name too long for labels":  {fmt.Sprintf(judged, strings.Repeat("a", 64), sound), true, []string{"metadata.name: Too long"}},
		"a path of one machine":       {fmt.Sprintf(judged, "iris", "model: {modelFormat: {name: onnx}, storageUri: model}"), false, []string{"Warning: spec.predictor: the model model is a path of one machine"}},
		"a port that is none":         {fmt.Sprintf(judged, "iris", "containers: [{name: kserve-container, image: x, ports: [{containerPort: 99999}]}]"), false, []string{"Warning: spec.predictor: the cluster would refuse the Deployment: ", "99999"}},
		"a toleration of no operator": {fmt.Sprintf(judged, "iris", sound+", tolerations: [{key: a, operator: Nope}]"), false, []string{"Warning: spec.predictor: the cluster would refuse the Deployment: ", "Nope"}},
		"what the namespace forbids":  {fmt.Sprintf(judged, "iris", sound+", hostNetwork: true"), false, []string{"Warning: spec.predictor: the cluster says of the Deployment: would violate PodSecurity"}},
		"an unknown field":            {fmt.Sprintf(judged, "iris", sound+", minReplica: 1"), true, []string{"minReplica"}},
		"a field that does nothing":   {fmt.Sprintf(judged, "iris", sound+", storageContainerName: mine"), false, []string{"Warning: spec.predictor.storageContainerName has no effect here: ", "serverside-applied (server dry run)"}},
		"one with effect on clusters": {fmt.Sprintf(judged, "iris", sound+", nodeSelector: {a: b}"), false, []string{"serverside-applied (server dry run)"}},
		"a runtime that ties with another": {`{apiVersion: serving.kserve.io/v1alpha1, kind: ServingRuntime, metadata: {name: mine},
  spec: {supportedModelFormats: [{name: f, priority: 1}, {name: f, priority: 2}], containers: [{name: kserve-container, image: x}]}}`, true,
			[]string{"the priority of format f must be the same in each of its entries; it is 1 in the first"}},
		"a graph that runs in circles": {`{apiVersion: serving.kserve.io/v1alpha1, kind: InferenceGraph, metadata: {name: g},
  spec: {nodes: {root: {routerType: Sequence, steps: [{nodeName: root}]}}}}`, true, []string{"nodes lead to each other in a circle: no request would come to an end"}},
	} {
		t.Run(name, func(t *testing.T) {
			said, refused := s.dryRun(t, ns, tc.manifest)
			if refused != tc.refused {
				t.Errorf("refused is %v, want %v: %s", refused, tc.refused, said)
			}
			for _, want := range tc.want {
				if !strings.Contains(said, want) {
					t.Errorf("kubectl doesn't say %q but:\n%s", want, said)
				}
			}
			if !tc.refused && strings.Contains(said, "Warning") != strings.Contains(strings.Join(tc.want, ""), "Warning") {
				t.Errorf("other warnings than wanted:\n%s", said)
			}
		})
	}
}
