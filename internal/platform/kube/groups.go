package kube

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
)

// annotationGroups marks the head's Service of a revision whose replicas span several pods: there
// is a LeaderWorkerSet in the revision's name. Those aren't in the cache, for a cluster may not have
// the kind, and this is how one is found that has to go.
const annotationGroups = "stationmaster.dev/groups"

// groups makes what runs replicas over several pods: a LeaderWorkerSet, and KServe's headless
// Service of their heads, which exists before they are ready, for workers look for them then.
func (c *Config) groups(m member, leader corev1.PodTemplateSpec) ([]client.Object, error) {
	workers, err := c.workerTemplate(m)
	if err != nil {
		return nil, err
	}
	noted := m.meta()
	noted.Annotations = c.notes(m)
	set, err := lws.Object(lws.Set{
		Meta: noted, Replicas: int32(m.replicas), Size: m.revision.Spec.Workers.Size, Leader: leader, Workers: workers,
	})
	if err != nil {
		return nil, err
	}
	heads := m.meta()
	heads.Name = manifest.HeadServiceName(m.workload.Service.Name, ordinal(m.revision.Name))
	heads.Annotations = map[string]string{annotationGroups: m.revision.Name}
	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: heads,
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: selector(&m.workload), PublishNotReadyAddresses: true},
	}
	for _, p := range m.workload.Server().Ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: cmp.Or(p.Name, fmt.Sprintf("port-%d", p.Number)), Port: int32(p.Number), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(p.Number)),
		})
	}
	return []client.Object{set, service}, nil
}

// ordinal is that of a revision among those of its component, with which its name ends.
func ordinal(revision string) int64 {
	n, err := strconv.ParseInt(revision[strings.LastIndexByte(revision, '-')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// withoutGroups turns the answer of a cluster that doesn't know LeaderWorkerSets into a refusal.
func withoutGroups(o client.Object, err error) error {
	if apierrors.IsNotFound(err) && o.GetObjectKind().GroupVersionKind() == lws.Kind {
		return &refusedError{errdef.ErrUnsupported, errdef.New(errdef.ErrUnsupported, lws.Missing), false}
	}
	return err
}

// endGroups deletes the LeaderWorkerSet that a Service of heads tells of.
func (p *Platform) endGroups(ctx context.Context, heads client.Object) error {
	name := heads.GetAnnotations()[annotationGroups]
	if name == "" {
		return nil
	}
	u := lws.Named(heads.GetNamespace(), name)
	if err := p.remove(ctx, u); err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.written, keyOf(u))
	p.mu.Unlock()
	return nil
}
