package kubernetes

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// repaired edits an object that the operator made, and then deletes it, and waits until it is as it
// was. At the end object holds the new one.
func repaired(t *testing.T, object *unstructured.Unstructured, edit func(*unstructured.Unstructured)) {
	t.Helper()
	key := client.ObjectKeyFromObject(object)
	if err := api.Get(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	made := object.DeepCopy()
	edited := object.DeepCopy()
	edit(edited)
	if reflect.DeepEqual(edited.Object, made.Object) {
		t.Fatal("the edit changes nothing")
	}
	if err := api.Patch(t.Context(), edited, client.MergeFrom(made)); err != nil {
		t.Fatal(err)
	}
	what := made.GetKind() + " " + made.GetName()
	eventually(t, "the edited "+what+" is as it was", func() error {
		if err := api.Get(t.Context(), key, object); err != nil {
			return err
		}
		if !reflect.DeepEqual(object.Object["spec"], made.Object["spec"]) {
			return fmt.Errorf("its spec is %v", object.Object["spec"])
		}
		return nil
	})
	if err := api.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deleted "+what+" is made anew", func() error {
		if err := api.Get(t.Context(), key, object); err != nil {
			return err
		}
		if object.GetUID() == made.GetUID() {
			return errors.New("it isn't gone yet")
		}
		return nil
	})
}

// setField changes one field of an object.
func setField(t *testing.T, value any, path ...string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
			t.Fatal(err)
		}
	}
}

// head names an object.
func head(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}
