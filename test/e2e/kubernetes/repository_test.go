package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// is asks for what a model of the engine that stands in for MLServer is.
func (s *installation) is(t *testing.T, namespace, service, model string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+s.address+"/serving/"+namespace+"/"+service+"/v2/models/"+model+"/infer", strings.NewReader(`{"inputs":[]}`))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	text, err := answerTo(req)
	if err != nil {
		return "", err
	}
	_, after, _ := bytes.Cut(text, []byte(`"data":["`))
	what, _, ok := bytes.Cut(after, []byte(`"`))
	if !ok {
		return "", fmt.Errorf("the answer is %s", text)
	}
	return string(what), nil
}

// testAgent has the agent beside an engine with a repository of models, as MLServer is, keep that
// to the TrainedModels.
func (s *installation) testAgent(t *testing.T) {
	ns := namespace(t, restricted)
	folder := t.TempDir()
	for name, text := range map[string]string{"oak.joblib": "oak", "elm.joblib": "elm", "ash.joblib": "ash", "bad.joblib": "broken"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	from := serveFolder(t, folder)
	tree := func(name, file string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel",
			"metadata": map[string]any{"namespace": ns, "name": name},
			"spec": map[string]any{
				"inferenceService": "trees",
				"model":            map[string]any{"framework": "sklearn", "memory": "1Mi", "storageUri": from + "/" + file},
			},
		}}
	}
	answers := func(name, want string) {
		t.Helper()
		eventually(t, name+" is "+want, func() error {
			what, err := s.is(t, ns, "trees", name)
			if err == nil && what != want {
				err = fmt.Errorf("it is %s", what)
			}
			return err
		})
	}

	trees := iris(t, ns, "", func(predictor map[string]any) {
		model := modelOf(predictor)
		delete(model, "storageUri")
		model["modelFormat"], model["protocolVersion"], model["image"] = map[string]any{"name": "sklearn"}, "v2", repositoryImage
	})
	trees.SetName("trees")
	apply(t, tree("one", "oak.joblib"))
	apply(t, trees)
	t.Cleanup(func() { remove(t, trees) })
	eventually(t, "the service is ready", func() error { return isReady(t, trees) })
	eventually(t, "its first model is ready", func() error { return isReady(t, tree("one", "oak.joblib")) })
	answers("one", "oak")
	names := []string{}
	pod := enginesOf(t, trees, 1)[0]
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	t.Logf("the pod's containers are %v", names)

	apply(t, tree("two", "elm.joblib"))
	answers("two", "elm")
	apply(t, tree("one", "ash.joblib"))
	answers("one", "ash")
	for name, tc := range map[string]struct{ file, reason, says string }{
		"lost": {"nowhere.joblib", "ModelNotFetched", "404"},
		"sick": {"bad.joblib", "ModelNotLoaded", "this model can't be read"},
	} {
		model := tree(name, tc.file)
		apply(t, model)
		eventually(t, name+" says why it isn't ready", func() error {
			if err := isReady(t, model); err == nil || !strings.Contains(err.Error(), tc.reason) || !strings.Contains(err.Error(), tc.says) {
				return fmt.Errorf("ready, or for another reason: %w", err)
			}
			return nil
		})
	}
	remove(t, tree("two", "elm.joblib"))
	eventually(t, "a deleted model is gone", func() error {
		if _, err := s.is(t, ns, "trees", "two"); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	answers("one", "ash")
	if now := enginesOf(t, trees, 1)[0]; now.UID != pod.UID {
		t.Errorf("another pod, %s, took %s's place", now.Name, pod.Name)
	}
}
