package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// adapter is a LoRA adapter of a service.
func adapter(namespace, name, of, uri string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1alpha1", "kind": "TrainedModel",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"inferenceService": of,
			"model":            map[string]any{"framework": "lora", "memory": "0", "storageUri": uri},
		},
	}}
}

// haveAdapter waits until each of so many engines has an adapter, or none of them has.
func haveAdapter(t *testing.T, service *unstructured.Unstructured, engines int, name string, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s in each engine: %v", name, want), func() error {
		for _, p := range enginesOf(t, service, engines) {
			list, err := models(t.Context(), "http://"+p.Status.PodIP+":8080")
			if err != nil {
				return err
			}
			if _, has := list[name]; has != want {
				return fmt.Errorf("%s has %v", p.Name, list)
			}
		}
		return nil
	})
}

// testAdapters has LoRA adapters come to each replica, be asked for as models, and go.
func (s *installation) testAdapters(t *testing.T) {
	ns := namespace(t, restricted)
	service := llm(ns, "tongues", 2, "--max-loras=2")
	s.serves(t, service)
	french, dutch := adapter(ns, "french", "tongues", "hf://lessons/french"), adapter(ns, "dutch", "tongues", "hf://lessons/dutch")
	for _, a := range []*unstructured.Unstructured{french, dutch} {
		apply(t, a)
		eventually(t, a.GetName()+" is ready", func() error { return isReady(t, a) })
		haveAdapter(t, service, 2, a.GetName(), true)
	}
	bare := "http://" + s.address
	for _, base := range []string{bare, s.below(service).base} {
		eventually(t, "the adapter is listed and answers at "+base, func() error {
			list, err := models(t.Context(), base)
			if err != nil {
				return err
			}
			if list["french"] != "tongues" || list["dutch"] != "tongues" {
				return fmt.Errorf("the list is %v", list)
			}
			_, err = chat{base, "french"}.ask(t.Context(), 3, "bonjour")
			return err
		})
	}

	// A replica that takes a deleted one's place has them before it is asked for them.
	if err := api.Delete(t.Context(), &enginesOf(t, service, 2)[0], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := (chat{bare, "dutch"}).ask(t.Context(), 1, fmt.Sprint("question ", i)); err != nil {
			t.Errorf("while a replica is replaced: %v", err)
		}
	}
	haveAdapter(t, service, 2, "dutch", true)

	claimed := adapter(ns, "claimed", "tongues", "pvc://claim/adapter")
	apply(t, claimed)
	eventually(t, "an adapter that nobody can bring says so", func() error {
		if err := isReady(t, claimed); err == nil || !strings.Contains(err.Error(), "StorageNotSupported") {
			return fmt.Errorf("ready, or for another reason: %w", err)
		}
		return nil
	})

	remove(t, french)
	haveAdapter(t, service, 2, "french", false)
	haveAdapter(t, service, 2, "dutch", true)
	eventually(t, "a deleted adapter is asked for in vain", func() error {
		_, err := chat{bare, "french"}.ask(t.Context(), 1, "bonjour")
		if err == nil {
			return errors.New("it answers")
		}
		if !strings.HasPrefix(err.Error(), "404") {
			return err
		}
		return nil
	})
}
