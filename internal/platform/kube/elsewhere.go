package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/spec"
)

const (
	// annotationScaler marks a Deployment whose number of replicas isn't ours: it names the kind
	// of object that sets it, or external.
	annotationScaler = "stationmaster.dev/scaler"
	external         = "external"
	// keeper owns the number of replicas from when we let go of it until somebody else sets it.
	// Without an owner it would fall back to one.
	keeper = "stationmaster-replicas"
)

// elsewhere is what an assignment whose replicas somebody else sets needs beside its pods.
type elsewhere struct {
	// scaler is the object that is to set the number; nil means that it is made by hand.
	scaler client.Object
	// begun says that the cluster has the Deployment already, with a number of its own.
	begun bool
}

func (e *elsewhere) kind() string {
	if e.scaler == nil {
		return external
	}
	return e.scaler.GetObjectKind().GroupVersionKind().Kind
}

// delegate finds out who sets the replicas of a member, and lets go of them.
func (p *Platform) delegate(ctx context.Context, m *member, live *appsv1.Deployment) error {
	if p.cfg.Service == nil {
		return errors.New("BUG: replicas are set elsewhere, and nothing reads services")
	}
	is, err := p.cfg.Service(ctx, m.workload.Service)
	if err != nil {
		return fmt.Errorf("read service %s: %w", m.workload.Service, err)
	}
	made, err := scaler(is, m.meta(), string(m.workload.Component))
	if err != nil {
		return err
	}
	m.elsewhere = &elsewhere{scaler: made, begun: live != nil}
	if live == nil || live.Annotations[annotationScaler] != "" {
		return nil
	}
	return p.keepReplicas(ctx, live)
}

// keepReplicas writes a Deployment's number of replicas down under another name than ours, so that
// it stays when we apply the Deployment without one.
func (p *Platform) keepReplicas(ctx context.Context, live *appsv1.Deployment) error {
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": live.Name, "namespace": live.Namespace},
		"spec":     map[string]any{"replicas": int64(asked(live))},
	}}
	u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := p.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(keeper), client.ForceOwnership); err != nil {
		return fmt.Errorf("let go of the replicas of %s/%s: %w", live.Namespace, live.Name, kindOf(err))
	}
	return nil
}

func asked(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// applyScaler makes what sets a revision's replicas. What goes wrong is a problem of the scaling
// and not of the replicas, which run on.
func (p *Platform) applyScaler(ctx context.Context, m *member) error {
	made := m.elsewhere.scaler
	if made == nil {
		return nil
	}
	err := p.converge(ctx, made)
	switch {
	case err == nil:
		p.unscaled(m, spec.Elsewhere{})
	case apierrors.IsNotFound(err):
		p.unscaled(m, spec.Elsewhere{
			Reason:  "KEDANotInstalled",
			Problem: "this cluster has no KEDA, whose ScaledObject the class keda needs; install it, or choose another class. The number of replicas stays",
		})
	case isRefusal(err):
		p.unscaled(m, spec.Elsewhere{Reason: "AutoscalerRefused", Problem: err.Error()})
	default:
		return err
	}
	return nil
}

// problem is what stands in the way of a revision's scaling.
type problem struct {
	spec.Elsewhere
	service spec.ServiceKey
}

// unscaled keeps what stands in the way of a revision's scaling, and tells of a change.
func (p *Platform) unscaled(m *member, now spec.Elsewhere) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := m.workload.Revision
	if p.problems[key].Elsewhere == now {
		return
	}
	if p.problems[key] = (problem{now, m.workload.Service}); now.Problem == "" {
		delete(p.problems, key)
	}
	p.feed.Notify(m.workload.Service)
}

// unscaledServices are those of whose revisions one has a problem. The caller holds the lock.
func (p *Platform) unscaledServices() []spec.ServiceKey {
	seen := map[spec.ServiceKey]bool{}
	for _, at := range p.problems {
		seen[at.service] = true
	}
	return slices.Collect(maps.Keys(seen))
}

// endScaledObject deletes a revision's ScaledObject if its Deployment says that there is one.
func (p *Platform) endScaledObject(ctx context.Context, live *appsv1.Deployment) error {
	if live.Annotations[annotationScaler] != scaledObject.Kind {
		return nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(scaledObject)
	u.SetNamespace(live.Namespace)
	u.SetName(live.Name)
	if err := p.remove(ctx, u); err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.written, keyOf(u))
	p.mu.Unlock()
	return nil
}

// kedas reports whether an object with our labels is one that KEDA made of a ScaledObject of ours,
// whose labels it copies.
func kedas(o client.Object) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && owner.Kind == scaledObject.Kind
}

// elsewhereOf tells of the Deployments whose replicas somebody else sets.
func (p *Platform) elsewhereOf(key spec.ServiceKey, deployments []appsv1.Deployment, scalers []autoscalingv2.HorizontalPodAutoscaler) map[string]spec.Elsewhere {
	out := map[string]spec.Elsewhere{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range deployments {
		d := &deployments[i]
		if d.Annotations[annotationScaler] == "" {
			continue
		}
		e := p.problems[spec.RevisionKey{Namespace: key.Namespace, Name: d.Name}].Elsewhere
		if e.Asked = int(asked(d)); e.Problem == "" {
			for j := range scalers {
				if scalers[j].Spec.ScaleTargetRef.Name == d.Name && e.Asked > 0 {
					e.Reason, e.Problem = inactive(&scalers[j])
				}
			}
		}
		out[d.Name] = e
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// inactive says why a HorizontalPodAutoscaler doesn't scale; nothing where it does, or hasn't
// looked yet.
func inactive(h *autoscalingv2.HorizontalPodAutoscaler) (reason, problem string) {
	for _, c := range h.Status.Conditions {
		if (c.Type == autoscalingv2.ScalingActive || c.Type == autoscalingv2.AbleToScale) && c.Status == corev1.ConditionFalse {
			return c.Reason, "its HorizontalPodAutoscaler: " + c.Message
		}
	}
	return "", ""
}

// meta is what the objects of a revision have in common.
func (m *member) meta() metav1.ObjectMeta {
	w := &m.workload
	return metav1.ObjectMeta{
		Name: w.Revision.Name, Namespace: w.Revision.Namespace,
		Labels: merged(podLabels(w), serviceLabels(w.Service)), OwnerReferences: revisionOwner(m.revision),
	}
}
