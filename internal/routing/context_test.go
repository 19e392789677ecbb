package routing

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

func TestHowManyTokensEnginesTake(t *testing.T) {
	tests := map[string]struct {
		args []string
		want int
	}{
		"vLLM, in two words":        {[]string{"--port", "8080", "--max-model-len", "32768"}, 32768},
		"Hugging Face, in one":      {[]string{"--max_model_len=4096"}, 4096},
		"llama.cpp, short":          {[]string{"-m", "/mnt/models", "-c", "2048"}, 2048},
		"as the model says":         {[]string{"-c", "0"}, 0},
		"another option like it":    {[]string{"-cache", "7"}, 0},
		"not a number":              {[]string{"--max-model-len", "auto"}, 0},
		"nothing behind the option": {[]string{"--ctx-size"}, 0},
		"nothing":                   {nil, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var rev smv1alpha1.Revision
			rev.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Command: []string{"engine"}, Args: tc.args}}
			if got := contextLength(&rev); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
	if got := contextLength(new(smv1alpha1.Revision)); got != 0 {
		t.Errorf("without a container: %d", got)
	}
}
