package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// trainedModel is the iris model under another name.
func (s *installation) trainedModel(namespace, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"inferenceService": "many",
			"model":            map[string]any{"framework": "onnx", "memory": "1Mi", "storageUri": s.models + "/model.onnx"},
		},
	}}
}

// testDensity serves several models from one pod, with memory for two, and takes another in while
// it runs.
func (s *installation) testDensity(t *testing.T) {
	ns := namespace(t, restricted)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		apply(t, s.trainedModel(ns, name))
	}
	many := iris(t, ns, "", func(predictor map[string]any) {
		delete(modelOf(predictor), "storageUri")
		modelOf(predictor)["args"] = []any{"--memory_budget=2Mi"}
	})
	many.SetName("many")
	apply(t, many)
	t.Cleanup(func() { remove(t, many) })
	eventually(t, "the service is ready", func() error { return isReady(t, many) })
	at := func(name string) infer {
		return infer{url: "http://" + s.address + "/serving/" + ns + "/many/v2/models/" + name}
	}
	for _, name := range names {
		model := s.trainedModel(ns, name)
		eventually(t, name+" is ready and answers", func() error {
			_, err := at(name).rest(t.Context())
			return errors.Join(isReady(t, model), err)
		})
	}
	began := time.Now()
	apply(t, s.trainedModel(ns, "e"))
	eventually(t, "a new model answers", func() error {
		_, err := at("e").rest(t.Context())
		return err
	})
	t.Logf("a new model answered after %.1f s", time.Since(began).Seconds())
	for range 3 {
		for _, name := range append(names, "e") {
			if _, err := at(name).rest(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for name, tc := range map[string]struct{ uri, reason string }{
		"lost":  {s.models + "/nowhere.onnx", "ModelNotFetched"},
		"claim": {"pvc://claim/model", "StorageNotSupported"},
	} {
		model := s.trainedModel(ns, name)
		if err := unstructured.SetNestedField(model.Object, tc.uri, "spec", "model", "storageUri"); err != nil {
			t.Fatal(err)
		}
		apply(t, model)
		eventually(t, name+" says why it isn't ready", func() error {
			if err := isReady(t, model); err == nil || !strings.Contains(err.Error(), tc.reason) {
				return fmt.Errorf("%s: ready, or for another reason: %w", name, err)
			}
			return nil
		})
	}
	remove(t, s.trainedModel(ns, "a"))
	eventually(t, "a deleted model is gone", func() error {
		if _, err := at("a").rest(t.Context()); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	if pods := strings.Fields(s.kubectl(t, nil, "-n", ns, "get", "pods", "-o", "name")); len(pods) != 1 {
		t.Errorf("pods %q, want one", pods)
	}
}
