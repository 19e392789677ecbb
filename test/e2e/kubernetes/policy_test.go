package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// selected are the addresses of the pods that a selector means in a namespace; nil means all.
func selected(ctx context.Context, namespace string, by *metav1.LabelSelector) ([]string, error) {
	selector := labels.Everything()
	if by != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(by); err != nil {
			return nil, err
		}
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	var out []string
	for _, p := range pods.Items {
		if p.Status.PodIP != "" && !p.Spec.HostNetwork {
			out = append(out, p.Status.PodIP)
		}
	}
	return out, nil
}

// peers are the addresses of the pods that a policy lets in.
func peers(ctx context.Context, p *networkingv1.NetworkPolicy) ([]string, error) {
	var out []string
	for _, rule := range p.Spec.Ingress {
		if len(rule.Ports) > 0 || len(rule.From) == 0 {
			return nil, fmt.Errorf("%s has a rule that isn't understood here: %+v", p.Name, rule)
		}
		for _, peer := range rule.From {
			if peer.IPBlock != nil {
				return nil, fmt.Errorf("%s lets a block of addresses in", p.Name)
			}
			namespaces := []string{p.Namespace}
			if peer.NamespaceSelector != nil {
				selector, err := metav1.LabelSelectorAsSelector(peer.NamespaceSelector)
				if err != nil {
					return nil, err
				}
				var list corev1.NamespaceList
				if err := api.List(ctx, &list, client.MatchingLabelsSelector{Selector: selector}); err != nil {
					return nil, err
				}
				namespaces = nil
				for _, ns := range list.Items {
					namespaces = append(namespaces, ns.Name)
				}
			}
			for _, ns := range namespaces {
				ips, err := selected(ctx, ns, peer.PodSelector)
				if err != nil {
					return nil, err
				}
				out = append(out, ips...)
			}
		}
	}
	return out, nil
}

// enforce has the nodes do what a network plugin that knows policies does, for the pods that there
// are now, until the test ends.
func enforce(t *testing.T, p *networkingv1.NetworkPolicy) {
	t.Helper()
	if !slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
		t.Fatalf("the policy is of the types %v", p.Spec.PolicyTypes)
	}
	shielded, err := selected(t.Context(), p.Namespace, &p.Spec.PodSelector)
	if err != nil || len(shielded) == 0 {
		t.Fatalf("the policy shields %v: %v", shielded, err)
	}
	let, err := peers(t.Context(), p)
	if err != nil || len(let) == 0 {
		t.Fatalf("the policy lets %v in: %v", let, err)
	}
	table := "policy-" + p.Namespace
	if err := shared.Filter(t.Context(), fmt.Sprintf(`table ip %s {
  chain forward {
    type filter hook forward priority 0; policy accept;
    ct state established,related accept
    ip saddr { %s } ip daddr { %s } accept
    ip daddr { %[3]s } drop
  }
}`, table, strings.Join(let, ", "), strings.Join(shielded, ", "))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Filter(context.WithoutCancel(t.Context()), "delete table ip "+table); err != nil {
			t.Error(err)
		}
	})
}

// testPolicy enforces the NetworkPolicy of a service: gateways and operators do what they do as
// before, and nobody else reaches its engines.
func (s *installation) testPolicy(t *testing.T) {
	ns := namespace(t, nil)
	service := llm(ns, "castle", 2, "--max-loras=2")
	s.serves(t, service)
	create(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: stranger, labels: {app: stranger}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: echo, image: "localhost:5000/echo:1", readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}]
`)
	engines := enginesOf(t, service, 2)
	var stranger corev1.Pod
	eventually(t, "a stranger runs in the namespace", func() error {
		pods, err := ready(t.Context(), ns, "stranger")
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("%d pods are ready: %w", len(pods), err)
		}
		stranger = pods[0]
		return nil
	})
	through := func(target string) error {
		out, err := get(t.Context(), "http://"+stranger.Status.PodIP+":8080/get?url="+url.QueryEscape(target))
		if err == nil && !strings.Contains(out, "castle") {
			err = fmt.Errorf("it reads %s", out)
		}
		return err
	}
	for _, e := range engines {
		eventually(t, "without enforcement the stranger reaches "+e.Name, func() error { return through("http://" + e.Status.PodIP + ":8080/v1/models") })
	}

	var policies networkingv1.NetworkPolicyList
	if err := api.List(t.Context(), &policies, client.InNamespace(ns)); err != nil || len(policies.Items) != 1 {
		t.Fatalf("there are %d policies: %v", len(policies.Items), err)
	}
	enforce(t, &policies.Items[0])
	for _, e := range engines {
		if err := through("http://" + e.Status.PodIP + ":8080/v1/models"); err == nil {
			t.Errorf("the stranger reaches %s on %s from %s", e.Name, e.Spec.NodeName, stranger.Spec.NodeName)
		}
	}
	if err := through("http://castle-predictor/v1/models"); err != nil {
		t.Errorf("the stranger isn't answered by the gateway: %v", err)
	}
	for _, g := range running(t, gateway) {
		if _, err := at(&g, ns, "castle").ask(t.Context(), 1, "hello"); err != nil {
			t.Errorf("by %s: %v", g.Name, err)
		}
	}
	tongue := adapter(ns, "castle-tongue", "castle", "hf://lessons/castle")
	apply(t, tongue)
	eventually(t, "the operator has engines load an adapter", func() error { return isReady(t, tongue) })
	eventually(t, "gateways read the engines' metrics", func() error {
		for _, g := range running(t, gateway) {
			page, err := get(t.Context(), "http://"+g.Status.PodIP+":9090/metrics")
			if err != nil {
				return err
			}
			if up := sum(page, "stationmaster_engine_up", `namespace="`+ns+`"`); up != 2 {
				return errors.Join(err, fmt.Errorf("%s reads %v", g.Name, up))
			}
		}
		return nil
	})
}
