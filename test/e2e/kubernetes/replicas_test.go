package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// at is a service's model by its path on one of the gateways.
func at(g *corev1.Pod, namespace, name string) chat {
	return chat{"http://" + g.Status.PodIP + ":8080/serving/" + namespace + "/" + name, name}
}

// finished is how many requests each of the simulated engines ended well, by pod.
func finished(t *testing.T, pods []corev1.Pod) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, p := range pods {
		page, err := get(t.Context(), "http://"+p.Status.PodIP+":8080/metrics")
		if err != nil {
			t.Fatal(err)
		}
		out[p.Name] = int(sum(page, "vllm:request_success_total"))
	}
	return out
}

// steadily keeps a replica in the table however busy the machine is: these tests tell replicas apart.
func steadily(probe map[string]any) { probe["failureThreshold"] = int64(60) }

// testConversations has each of two gateways lead all turns of a conversation to one replica, and
// tell of them and of their engines together what was used.
func (s *installation) testConversations(t *testing.T) {
	ns := namespace(t, restricted)
	service := llm(ns, "sage", 3)
	steadily(containerOf(service)["readinessProbe"].(map[string]any))
	s.serves(t, service)
	pods := enginesOf(t, service, 3)
	gateways := running(t, gateway)
	const conversations, turns = 4, 4
	for _, g := range gateways {
		c := at(&g, ns, "sage")
		eventually(t, g.Name+" has the service", func() error {
			_, err := c.ask(t.Context(), 1, "hello")
			return err
		})
		for n := range conversations {
			before := finished(t, pods)
			said := []string{strings.Repeat(fmt.Sprintf("Conversation %d by %s. ", n, g.Name), 40)}
			for range turns {
				answer, err := c.ask(t.Context(), 8, said...)
				if err != nil {
					t.Fatal(err)
				}
				said = append(said, answer.Choices[0].Message.Content, "And then?")
			}
			had := map[string]int{}
			for name, now := range finished(t, pods) {
				if now > before[name] {
					had[name] = now - before[name]
				}
			}
			if len(had) != 1 {
				t.Errorf("conversation %d by %s was led by %v, want one replica", n, g.Name, had)
			}
		}
	}

	labels := []string{`namespace="` + ns + `"`, `service="sage"`}
	eventually(t, "gateways and engines tell of the same tokens", func() error {
		var answered, counted, cached, told float64
		for _, g := range gateways {
			page, err := get(t.Context(), "http://"+g.Status.PodIP+":9090/metrics")
			if err != nil {
				return err
			}
			answered += sum(page, "stationmaster_gateway_requests_total", labels...)
			counted += sum(page, "stationmaster_tokens_total", append(labels, `kind="completion"`)...)
			told = sum(page, "stationmaster_engine_generated_tokens_total", labels...)
			cached = sum(page, "stationmaster_engine_prefix_cache_hits_total", labels...)
		}
		if all := finished(t, pods); counted == 0 || cached == 0 || counted != told || answered < conversations*turns*2 {
			return fmt.Errorf("%v requests and %v tokens answered, %v made by %v, %v from their caches", answered, counted, told, all, cached)
		}
		return nil
	})
}

// testEnginesDie breaks engines off in the midst of answers. Who has seen nothing of one is answered
// by another.
func (s *installation) testEnginesDie(t *testing.T) {
	ns := namespace(t, restricted)
	service := llm(ns, "phoenix", 3)
	s.serves(t, service)
	c := s.below(service)
	l := startLoad(t, 20, func(ctx context.Context) error {
		_, err := c.ask(ctx, 150, "tell me a long story")
		return err
	})
	first := enginesOf(t, service, 3)
	for i := range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+first[i].Status.PodIP+":8080/sim/fault", strings.NewReader(`{"crash":true}`))
		if err != nil {
			t.Fatal(err)
		}
		// The answer breaks off with all others.
		if resp, err := shared.HTTP().Do(req); err == nil {
			resp.Body.Close()
		}
		eventually(t, first[i].Name+" crashed and is back", func() error {
			for _, p := range enginesOf(t, service, 3) {
				if p.Name == first[i].Name && p.Status.ContainerStatuses[0].RestartCount > 0 {
					return nil
				}
			}
			return fmt.Errorf("it wasn't started again")
		})
	}
	if err := api.Delete(t.Context(), &first[2], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another took the deleted one's place", func() error {
		for _, p := range enginesOf(t, service, 3) {
			if p.Name == first[2].Name {
				return fmt.Errorf("%s is there", p.Name)
			}
		}
		return nil
	})
	l.end(t)
}

// testLoadOfAllGateways has a service grow for what two gateways carry together, of which neither
// would have it grow.
func (s *installation) testLoadOfAllGateways(t *testing.T) {
	ns := namespace(t, restricted)
	service := llm(ns, "crowd", 1, "--time-scale=1")
	predictor := predictorOf(service)
	predictor["maxReplicas"], predictor["scaleTarget"], predictor["scaleMetric"] = int64(3), int64(10), "concurrency"
	s.serves(t, service)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const clients = 4 // of each gateway; a replica is meant to carry 7, which is 70 % of 10
	gateways := running(t, gateway)
	ended := make(chan error, clients*len(gateways))
	for _, g := range gateways {
		for range clients {
			go func() {
				for ctx.Err() == nil {
					if _, err := at(&g, ns, "crowd").ask(ctx, 100, "and now?"); err != nil && ctx.Err() == nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}()
		}
	}
	hasReplicas(t, ns, "crowd-predictor-00001", 2)
	stop()
	for range clients * len(gateways) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
