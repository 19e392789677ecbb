package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

func ptr[T any](v T) *T { return &v }

func service(p v1beta1.PredictorSpec) *v1beta1.InferenceService {
	return &v1beta1.InferenceService{
		ObjectMeta: metav1.ObjectMeta{Name: "iris"},
		Spec:       v1beta1.InferenceServiceSpec{Predictor: p},
	}
}

func model(format, uri string) *v1beta1.ModelSpec {
	m := &v1beta1.ModelSpec{ModelFormat: v1beta1.ModelFormat{Name: format}}
	if uri != "" {
		m.StorageURI = &uri
	}
	return m
}

func frameworkOf(uri string) *v1beta1.FrameworkSpec {
	return &v1beta1.FrameworkSpec{PredictorExtensionSpec: v1beta1.PredictorExtensionSpec{StorageURI: &uri}}
}

func TestFrameworkFieldsBecomeModel(t *testing.T) {
	for format, wantV2 := range map[string]bool{
		"sklearn": false, "xgboost": false, "tensorflow": false, "pytorch": false, "triton": true,
		"onnx": true, "huggingface": true, "pmml": false, "lightgbm": false, "paddle": false,
	} {
		t.Run(format, func(t *testing.T) {
			var p v1beta1.PredictorSpec
			found := false
			for _, f := range frameworks(&p) {
				if f.name == format {
					*f.spec, found = frameworkOf("file:///m"), true
				}
			}
			if !found {
				t.Fatal("no such field")
			}
			is := service(p)
			Default(is, Defaults{})
			m := is.Spec.Predictor.Model
			if m == nil || m.ModelFormat.Name != format || *m.StorageURI != "file:///m" {
				t.Fatalf("model is %+v", m)
			}
			if got := m.ProtocolVersion != nil && *m.ProtocolVersion == v1beta1.ProtocolV2; got != wantV2 {
				t.Errorf("protocol v2 set: %t, want %t", got, wantV2)
			}
			if len(implementations(&is.Spec.Predictor)) != 1 {
				t.Errorf("implementations %v", implementations(&is.Spec.Predictor))
			}
			if is.Annotations[ModelFormatAnnotation] != format {
				t.Errorf("annotation %q", is.Annotations[ModelFormatAnnotation])
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	limits := corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("2Gi")},
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}
	for name, tc := range map[string]struct {
		is   *v1beta1.InferenceService
		d    Defaults
		got  func(*v1beta1.InferenceService) any
		want any
	}{
		"model with format onnx keeps no protocol": {
			is:   service(v1beta1.PredictorSpec{Model: model("onnx", "")}),
			got:  func(is *v1beta1.InferenceService) any { return is.Spec.Predictor.Model.ProtocolVersion },
			want: (*v1beta1.Protocol)(nil),
		},
		"format vLLM speaks v2": {
			is:   service(v1beta1.PredictorSpec{Model: model("vLLM", "")}),
			got:  func(is *v1beta1.InferenceService) any { return is.Spec.Predictor.Model.ProtocolVersion },
			want: ptr(v1beta1.ProtocolV2),
		},
		"the old name of mode Standard": {
			is: &v1beta1.InferenceService{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{DeploymentModeAnnotation: "RawDeployment"}},
			},
			got:  func(is *v1beta1.InferenceService) any { return is.Annotations[DeploymentModeAnnotation] },
			want: ModeStandard,
		},
		"the status' mode before the annotation's": {
			is: &v1beta1.InferenceService{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{DeploymentModeAnnotation: "Standard"}},
				Status:     v1beta1.InferenceServiceStatus{DeploymentMode: "Serverless"},
			},
			got:  func(is *v1beta1.InferenceService) any { return is.Annotations[DeploymentModeAnnotation] },
			want: ModeKnative,
		},
		"the configured mode last": {
			is:   &v1beta1.InferenceService{},
			d:    Defaults{DeploymentMode: "Serverless"},
			got:  func(is *v1beta1.InferenceService) any { return is.Annotations[DeploymentModeAnnotation] },
			want: ModeKnative,
		},
		"one custom container gets the server's name": {
			is:   service(v1beta1.PredictorSpec{PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{{Name: "mine"}}}}),
			got:  func(is *v1beta1.InferenceService) any { return is.Spec.Predictor.Containers[0].Name },
			want: ServerContainer,
		},
		"a sidecar of a model keeps its name": {
			is:   service(v1beta1.PredictorSpec{Model: model("onnx", ""), PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{{Name: "mine"}}}}),
			got:  func(is *v1beta1.InferenceService) any { return is.Spec.Predictor.Containers[0].Name },
			want: "mine",
		},
		"resources of a custom container where it has none": {
			is: service(v1beta1.PredictorSpec{PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{
				{Name: "sidecar"},
				{Name: ServerContainer, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}},
			}}}),
			d:   Defaults{Resources: &limits},
			got: func(is *v1beta1.InferenceService) any { return is.Spec.Predictor.Containers[1].Resources },
			want: corev1.ResourceRequirements{
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("2Gi")},
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			},
		},
		"no service account token unless asked": {
			is:   service(v1beta1.PredictorSpec{Model: model("onnx", "")}),
			got:  func(is *v1beta1.InferenceService) any { return is.Spec.Predictor.AutomountServiceAccountToken },
			want: ptr(false),
		},
		"a token that the manifest asks for": {
			is: service(v1beta1.PredictorSpec{Model: model("onnx", ""), PodSpec: v1beta1.PodSpec{AutomountServiceAccountToken: ptr(true)}}),
			got: func(is *v1beta1.InferenceService) any {
				return is.Spec.Predictor.AutomountServiceAccountToken
			},
			want: ptr(true),
		},
		"a canary's framework field": {
			is: &v1beta1.InferenceService{Spec: v1beta1.InferenceServiceSpec{
				Canary: []v1beta1.CanarySpec{{Predictor: v1beta1.PredictorSpec{Triton: frameworkOf("file:///m")}}},
			}},
			got:  func(is *v1beta1.InferenceService) any { return is.Spec.Canary[0].Predictor.Model.ModelFormat.Name },
			want: "triton",
		},
	} {
		t.Run(name, func(t *testing.T) {
			Default(tc.is, tc.d)
			if diff := cmp.Diff(tc.want, tc.got(tc.is)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaultingTwiceChangesNothingMore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		is := drawService(rt)
		d := Defaults{
			DeploymentMode:               rapid.SampledFrom([]string{"", "Standard", "RawDeployment", "Serverless"}).Draw(rt, "mode"),
			AutomountServiceAccountToken: rapid.Bool().Draw(rt, "token"),
		}
		if rapid.Bool().Draw(rt, "resources") {
			d.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
		}
		Default(is, d)
		once := is.DeepCopy()
		Default(is, d)
		if diff := cmp.Diff(once, is); diff != "" {
			rt.Errorf("(-once +twice):\n%s", diff)
		}
	})
}

// drawService draws a service that combines what Default looks at.
func drawService(rt *rapid.T) *v1beta1.InferenceService {
	is := service(v1beta1.PredictorSpec{})
	p := &is.Spec.Predictor
	if mode := rapid.SampledFrom([]string{"", "Standard", "RawDeployment", "Serverless", "ModelMesh"}).Draw(rt, "annotation"); mode != "" {
		is.Annotations = map[string]string{DeploymentModeAnnotation: mode}
	}
	for _, f := range frameworks(p) {
		if rapid.IntRange(0, 5).Draw(rt, f.name) == 0 {
			*f.spec = frameworkOf("file:///m")
		}
	}
	if rapid.Bool().Draw(rt, "model") {
		p.Model = model(rapid.SampledFrom([]string{"", "onnx", "triton", "vLLM"}).Draw(rt, "format"), "file:///m")
	}
	for range rapid.IntRange(0, 2).Draw(rt, "containers") {
		p.Containers = append(p.Containers, corev1.Container{Name: rapid.SampledFrom([]string{"", "a", ServerContainer, TransformerContainer}).Draw(rt, "container")})
	}
	if rapid.Bool().Draw(rt, "transformer") {
		is.Spec.Transformer = &v1beta1.TransformerSpec{PodSpec: v1beta1.PodSpec{Containers: []corev1.Container{{}}}}
	}
	if rapid.Bool().Draw(rt, "canary") {
		is.Spec.Canary = []v1beta1.CanarySpec{{TrafficPercent: 10, Predictor: v1beta1.PredictorSpec{Name: "next", ONNX: frameworkOf("file:///n")}}}
	}
	return is
}
