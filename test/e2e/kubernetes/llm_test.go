package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// llm is a service of the simulated LLM engine, whose model has the service's name, with so many
// replicas. Its times are a tenth of a real engine's.
func llm(namespace, name string, replicas int64, args ...string) *unstructured.Unstructured {
	given := []any{"--host=0.0.0.0", "--port=8080", "--served-model-name=" + name, "--time-scale=0.1"}
	for _, a := range args {
		given = append(given, a)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{"predictor": map[string]any{
			"minReplicas": replicas, "maxReplicas": replicas,
			"annotations": map[string]any{},
			"containers": []any{map[string]any{
				"name": "kserve-container", "image": llmImage, "args": given,
				"ports":           []any{map[string]any{"containerPort": int64(8080)}},
				"readinessProbe":  map[string]any{"httpGet": map[string]any{"path": "/health", "port": int64(8080)}, "periodSeconds": int64(1)},
				"securityContext": map[string]any{"runAsNonRoot": true},
				"resources": map[string]any{
					"requests": map[string]any{"cpu": "10m", "memory": "32Mi"}, "limits": map[string]any{"memory": "128Mi"},
				},
			}},
		}},
	}}
}

// predictorOf and containerOf are those of a service by llm.
func predictorOf(service *unstructured.Unstructured) map[string]any {
	return service.Object["spec"].(map[string]any)["predictor"].(map[string]any)
}

func containerOf(service *unstructured.Unstructured) map[string]any {
	return predictorOf(service)["containers"].([]any)[0].(map[string]any)
}

// enginesOf waits until so many pods of a service are ready, and returns them.
func enginesOf(t *testing.T, service *unstructured.Unstructured, want int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, fmt.Sprintf("%d engines of %s are ready", want, service.GetName()), func() (err error) {
		if pods, err = ready(t.Context(), service.GetNamespace(), "isvc."+service.GetName()+"-predictor"); err == nil && len(pods) != want {
			err = fmt.Errorf("%d are", len(pods))
		}
		return err
	})
	return pods
}

// serves applies a service of llm and waits until it is ready and answers. It is removed when the
// test ends.
func (s *installation) serves(t *testing.T, service *unstructured.Unstructured) {
	t.Helper()
	apply(t, service)
	t.Cleanup(func() { remove(t, service) })
	eventually(t, service.GetName()+" is ready", func() error { return isReady(t, service) })
	for _, g := range running(t, gateway) {
		eventually(t, service.GetName()+" answers through "+g.Name, func() error {
			_, err := at(&g, service.GetNamespace(), service.GetName()).ask(t.Context(), 1, "hello")
			return err
		})
	}
}

// chat is where a language model is asked.
type chat struct {
	// base is the URL up to /v1.
	base, model string
}

// below is a service's model by the service's path on the gateway.
func (s *installation) below(service *unstructured.Unstructured) chat {
	return chat{"http://" + s.address + "/serving/" + service.GetNamespace() + "/" + service.GetName(), service.GetName()}
}

// said is what an answer has.
type said struct {
	Model   string
	Choices []struct{ Message struct{ Content string } }
	Usage   struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}
}

// ask sends a conversation, of which the user has the first turn and every other after it, and
// fails unless the answer is whole and of the model.
func (c chat) ask(ctx context.Context, most int, turns ...string) (said, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	messages := []map[string]string{}
	for i, turn := range turns {
		messages = append(messages, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": turn})
	}
	body, err := json.Marshal(map[string]any{"model": c.model, "messages": messages, "max_tokens": most})
	if err != nil {
		return said{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return said{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	text, err := answerTo(req)
	if err != nil {
		return said{}, err
	}
	var got said
	if err := json.Unmarshal(text, &got); err != nil {
		return said{}, err
	}
	if got.Model != c.model || len(got.Choices) != 1 || got.Choices[0].Message.Content == "" || got.Usage.CompletionTokens == 0 {
		return got, fmt.Errorf("the answer is %s", text)
	}
	return got, nil
}

// answerTo sends a request from inside and returns the body of an answer of 200.
func answerTo(req *http.Request) ([]byte, error) {
	resp, err := inside.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return body, nil
}

// models are those that a list of models at base names, with the parent of each.
func models(ctx context.Context, base string) (map[string]string, error) {
	text, err := get(ctx, base+"/v1/models")
	if err != nil {
		return nil, err
	}
	var list struct{ Data []struct{ ID, Parent string } }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, m := range list.Data {
		out[m.ID] = m.Parent
	}
	return out, nil
}

// sum adds up the samples of a page of metrics that begin with name and have all the labels, as
// they stand in it.
func sum(page, name string, labels ...string) float64 {
	total := 0.0
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			ok = ok && strings.Contains(rest, l)
		}
		fields := strings.Fields(rest)
		if n, err := strconv.ParseFloat(fields[len(fields)-1], 64); ok && err == nil {
			total += n
		}
	}
	return total
}
