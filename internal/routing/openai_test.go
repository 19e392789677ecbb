package routing

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/translate"
)

func TestWhereEnginesSpeakOpenAI(t *testing.T) {
	tests := map[string]struct {
		runtime, image, annotation, want string
		env                              []corev1.EnvVar
	}{
		"KServe's own prefix":          {runtime: "kserve-huggingfaceserver", env: []corev1.EnvVar{{Name: "KSERVE_OPENAI_ROUTE_PREFIX", Value: "llm/"}}, want: "/llm"},
		"KServe's own prefix, none":    {runtime: "kserve-huggingfaceserver", env: []corev1.EnvVar{{Name: "KSERVE_OPENAI_ROUTE_PREFIX"}}, want: "/"},
		"KServe's Hugging Face server": {runtime: "kserve-huggingfaceserver-multinode", want: "/openai"},
		"vLLM by KServe":               {runtime: "kserve-vllmserver", want: "/"},
		"llama.cpp":                    {runtime: "stationmaster-llamacpp", want: "/"},
		"a runtime of one's own":       {runtime: "llm", image: "vllm/vllm-openai:latest", want: "/"},
		"a container":                  {image: "ghcr.io/ggml-org/llama.cpp:server", want: "/"},
		"an engine that isn't known":   {runtime: "kserve-sklearnserver", image: "kserve/sklearnserver:latest"},
		"an annotation goes before":    {runtime: "kserve-vllmserver", annotation: "/api/", want: "/api"},
		"an annotation for none":       {annotation: "/", want: "/"},
		"an annotation against it":     {runtime: "kserve-vllmserver", annotation: "-"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var rev smv1alpha1.Revision
			if tc.runtime != "" {
				rev.Spec.Runtime = &smv1alpha1.RuntimeIdentity{Name: tc.runtime}
			}
			if tc.image != "" || tc.env != nil {
				rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Image: tc.image, Env: tc.env}}
			}
			if tc.annotation != "" {
				rev.Spec.PodTemplate.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{OpenAIRootAnnotation: tc.annotation}}
			}
			if got := openAIRoot(&rev); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWhatIsDeclaredOfTranslations(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"nothing":              {nil, ""},
		"settings":             {map[string]string{manifest.TranslateAnnotation: " input=text "}, "input=text"},
		"off":                  {map[string]string{manifest.TranslateAnnotation: "off"}, "off"},
		"paths are left alone": {map[string]string{OpenAIRootAnnotation: "-"}, "off"},
		"but translate":        {map[string]string{OpenAIRootAnnotation: "-", manifest.TranslateAnnotation: "task=chat"}, "task=chat"},
		"a root":               {map[string]string{OpenAIRootAnnotation: "/"}, ""},
	} {
		var rev smv1alpha1.Revision
		rev.Spec.PodTemplate.Annotations = tc.annotations
		if got := translation(&rev); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestWhatAnEngineTellsOfTranslations(t *testing.T) {
	for name, tc := range map[string]struct {
		declared string
		command  []string
		want     string
	}{
		"TEI":                         {"", []string{"text-embeddings-router", "--model-id", "x"}, "task=embeddings, dialect=tei"},
		"TEI, declared otherwise":     {"task=rerank", []string{"text-embeddings-router"}, "task=embeddings, dialect=tei, task=rerank"},
		"TEI, off":                    {"off", []string{"text-embeddings-router"}, "off"},
		"vLLM":                        {"", []string{"vllm", "serve", "x"}, "dialect=vllm"},
		"vLLM that makes vectors":     {"", []string{"sh", "-c", "exec vllm serve x --task embed"}, "dialect=vllm, task=embeddings"},
		"vLLM that scores":            {"input=pairs", []string{"vllm", "serve", "x", "--task=score"}, "dialect=vllm, task=score, input=pairs"},
		"llama.cpp that ranks":        {"", []string{"llama-server", "--embeddings", "--reranking", "--port", "1"}, "task=rerank"},
		"llama.cpp":                   {"", []string{"llama-server", "--port", "1"}, ""},
		"OpenVINO's embeddings":       {"", []string{"ovms", "--task", "embeddings"}, "models=either, task=embeddings"},
		"OpenVINO's text, by default": {"", []string{"ovms", "--task", "text_generation"}, "models=either"},
	} {
		var rev smv1alpha1.Revision
		rev.Spec.PodTemplate.Annotations = map[string]string{manifest.TranslateAnnotation: tc.declared}
		rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Command: tc.command}}
		got := translation(&rev)
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
		if _, err := translate.ParseSettings(got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhoseEnginesGetCredentials(t *testing.T) {
	for value, want := range map[string]route.Credentials{
		"": route.CredentialsByProtocol, "forward": route.CredentialsForwarded, "withhold": route.CredentialsWithheld,
	} {
		var rev smv1alpha1.Revision
		rev.Spec.PodTemplate.Annotations = map[string]string{manifest.CredentialsAnnotation: value}
		if got := credentials(&rev); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}
