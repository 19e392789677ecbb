package routing

import (
	"strconv"
	"strings"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// contextFlags are the options by which engines are told how many tokens they take: vLLM's and
// Hugging Face server's, SGLang's, llama.cpp's long and short one, TGI's.
var contextFlags = []string{"--max-model-len", "--max_model_len", "--context-length", "--ctx-size", "-c", "--max-total-tokens"}

// contextLength is how many tokens a revision's engine takes, as its command line says; 0 where that
// says nothing.
func contextLength(rev *smv1alpha1.Revision) int {
	cs := rev.Spec.PodTemplate.Spec.Containers
	if len(cs) == 0 {
		return 0
	}
	words := append(append([]string{}, cs[0].Command...), cs[0].Args...)
	for i, word := range words {
		for _, flag := range contextFlags {
			value, ok := strings.CutPrefix(word, flag)
			switch {
			case !ok:
				continue
			case value == "" && i+1 < len(words):
				value = words[i+1]
			case strings.HasPrefix(value, "="):
				value = value[1:]
			}
			if n, err := strconv.Atoi(value); err == nil && n > 0 {
				return n
			}
		}
	}
	return 0
}
