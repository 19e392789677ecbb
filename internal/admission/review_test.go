package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/admission"
	"stationmaster.dev/stationmaster/internal/manifest"
)

const (
	service = `{apiVersion: serving.kserve.io/v1beta1, kind: InferenceService, metadata: {name: iris%s}, spec: {predictor: {%s}}}`
	sound   = "model: {modelFormat: {name: onnx}, storageUri: 'https://m/x'}"
	runtime = `{apiVersion: serving.kserve.io/v1alpha1, kind: ServingRuntime, metadata: {name: mine},
  spec: {supportedModelFormats: [{name: onnx, autoSelect: true, priority: 1}], containers: [{name: kserve-container, image: x}]}}`
)

func reviewer(err error) *admission.Reviewer {
	return &admission.Reviewer{
		Namespaces: []string{"team"}, Logger: slog.New(slog.DiscardHandler),
		Runtimes: func(_ context.Context, namespace string) ([]manifest.NamedRuntime, error) {
			one, yes := int32(1), true
			return []manifest.NamedRuntime{{Name: "of-" + namespace, Spec: &v1alpha1.ServingRuntimeSpec{
				SupportedModelFormats: []v1alpha1.SupportedModelFormat{{Name: "onnx", AutoSelect: &yes, Priority: &one}},
			}}}, err
		},
	}
}

// review asks a reviewer about an object in YAML, and about a change of it where old isn't empty.
func review(t *testing.T, r *admission.Reviewer, object, old string, change func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionResponse {
	t.Helper()
	raw := func(text string) []byte {
		if text == "" {
			return nil
		}
		out, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	var known struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(object), &known); err != nil {
		t.Fatal(err)
	}
	group, version, _ := strings.Cut(known.APIVersion, "/")
	req := &admissionv1.AdmissionRequest{
		UID: "u1", Operation: admissionv1.Create, Namespace: "team", Name: known.Metadata.Name,
		Kind: metav1.GroupVersionKind{Group: group, Version: version, Kind: known.Kind},
	}
	if req.Object.Raw = raw(object); old != "" {
		req.Operation, req.OldObject.Raw = admissionv1.Update, raw(old)
	}
	if change != nil {
		change(req)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req})
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	r.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, admission.Path, bytes.NewReader(body)))
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(rec.Body.Bytes(), &answer); err != nil || rec.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", rec.Code, err, rec.Body)
	}
	if answer.Kind != "AdmissionReview" || answer.APIVersion != "admission.k8s.io/v1" || answer.Response == nil || answer.Response.UID != "u1" {
		t.Fatalf("the answer is %s", rec.Body)
	}
	return answer.Response
}

func TestReviewsAreAnsweredInTheWordsOfTheManifestRoom(t *testing.T) {
	isvc := func(predictor string) string { return fmt.Sprintf(service, "", predictor) }
	for name, tc := range map[string]struct {
		object, old string
		change      func(*admissionv1.AdmissionRequest)
		// refused are the causes; none means that it is let in.
		refused []string
		warned  []string
		err     error
	}{
		"a sound service": {object: isvc(sound)},
		"what can't be names each field": {
			object: isvc(sound + ", sklearn: {}, containerConcurrency: -1"),
			refused: []string{
				"spec.predictor: Forbidden: exactly one of model, a framework field and a container named kserve-container may be set, not model and sklearn; keep one",
				"spec.predictor.containerConcurrency: Invalid value: -1: must be 0 (no limit) or more",
			},
		},
		"a field that does nothing yet is told": {
			object: isvc(sound + ", storageContainerName: mine"),
			warned: []string{"spec.predictor.storageContainerName has no effect here: ClusterStorageContainers aren't there yet; the built-in schemes fetch the model"},
		},
		"one that speaks of pods has its effect on a cluster": {object: isvc(sound + ", nodeSelector: {a: b}, serviceAccountName: robot, volumes: [{name: a, secret: {secretName: s, defaultMode: 256}}]")},
		"a field of a newer schema is told":                   {object: isvc(sound + ", hologram: true"), warned: []string{`unknown field "spec.predictor.hologram"`}},
		"or not, as its client asked": {
			object: isvc(sound + ", hologram: true"),
			change: func(r *admissionv1.AdmissionRequest) { r.Options.Raw = []byte(`{"fieldValidation":"Ignore"}`) },
		},
		"a change that can't be": {
			object: fmt.Sprintf(service, ", annotations: {serving.kserve.io/deploymentMode: Knative}", sound),
			old:    strings.TrimSuffix(isvc(sound), "}") + ", status: {deploymentMode: Standard}}",
			refused: []string{"metadata.annotations[serving.kserve.io/deploymentMode]: Forbidden: " +
				"update rejected: deploymentMode cannot be changed from 'Standard' to 'Knative'; delete the service and create it anew"},
		},
		"what isn't changed isn't judged again": {object: isvc("sklearn: {}, onnx: {}"), old: isvc("sklearn: {}, onnx: {}")},
		"what is being deleted may change":      {object: fmt.Sprintf(service, ", deletionTimestamp: '2026-11-30T12:00:00Z'", "sklearn: {}, onnx: {}"), old: isvc(sound)},
		"a namespace of others isn't ours to judge": {
			object: isvc(""), change: func(r *admissionv1.AdmissionRequest) { r.Namespace = "elsewhere" },
		},
		"a status isn't": {object: isvc(""), change: func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }},
		"a runtime is compared with its namespace's": {
			object: runtime, refused: []string{"spec.supportedModelFormats[0].priority: Invalid value: 1: " +
				"the runtime of-team has the same priority for format onnx, so which one is chosen would be chance; set another"},
		},
		"and let in where that can't be": {
			object: runtime, err: errors.New("etcd is away"),
			warned: []string{"not checked: etcd is away; the object's status will tell what is wrong with it"},
		},
		"a graph": {
			object: `{apiVersion: serving.kserve.io/v1alpha1, kind: InferenceGraph, metadata: {name: g}, spec: {minReplicas: 1,
  nodes: {root: {routerType: Sequence, steps: [{serviceName: a, nodeName: b}]}}}}`,
			refused: []string{`spec.nodes[root].steps[0]: Invalid value: "nodeName, serviceName": only one of nodeName, serviceName and serviceUrl can be set`},
			warned:  []string{"spec.minReplicas has no effect here: the graph runs in the gateway; there is no router pod"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := review(t, reviewer(tc.err), tc.object, tc.old, tc.change)
			var refused []string
			if !answer.Allowed {
				if answer.Result.Reason != metav1.StatusReasonInvalid || answer.Result.Code != http.StatusUnprocessableEntity {
					t.Errorf("refused with %+v", answer.Result)
				}
				for _, c := range answer.Result.Details.Causes {
					refused = append(refused, c.Field+": "+c.Message)
				}
			}
			if diff := cmp.Diff(tc.refused, refused); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warned, answer.Warnings); diff != "" {
				t.Errorf("warned (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsNoReviewIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		method, body string
		want         int
	}{
		"a GET":           {http.MethodGet, "", http.StatusMethodNotAllowed},
		"no JSON":         {http.MethodPost, "hello", http.StatusBadRequest},
		"no request":      {http.MethodPost, "{}", http.StatusBadRequest},
		"one without end": {http.MethodPost, strings.Repeat(" ", 17<<20), http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			rec := httptest.NewRecorder()
			reviewer(nil).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), tc.method, admission.Path, strings.NewReader(tc.body)))
			if rec.Code != tc.want {
				t.Errorf("%d, want %d: %s", rec.Code, tc.want, rec.Body)
			}
		})
	}
	t.Run("an unknown kind", func(t *testing.T) {
		if answer := review(t, reviewer(nil), "{apiVersion: v1, kind: Pod}", "", nil); answer.Allowed || !strings.Contains(answer.Result.Message, "is not one of") {
			t.Errorf("%+v", answer)
		}
	})
}

func FuzzReview(f *testing.F) {
	f.Add([]byte(`{"request":{"uid":"1","operation":"UPDATE","kind":{"kind":"InferenceService"},"object":{"apiVersion":"serving.kserve.io/v1beta1","kind":"InferenceService","metadata":{"name":"a"},"spec":{"predictor":{}}},"oldObject":{}}}`))
	f.Add([]byte(`{"request":{"object":{"metadata":[]}}}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		rec := httptest.NewRecorder()
		reviewer(nil).ServeHTTP(rec, httptest.NewRequest(http.MethodPost, admission.Path, bytes.NewReader(body)))
	})
}
