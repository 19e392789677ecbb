package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Deliver sets Images by its name. An error says which names there are.
func (c *Config) Deliver(name string) (err error) {
	c.Images, err = oci.Parse(name)
	return err
}

// leftOpen reports whether a model comes in an image and its scheme leaves it open how.
func leftOpen(model spec.Model) bool { return strings.HasPrefix(model.URI, "oci://") }

// noteDelivery writes into annotations how the models of a revision reach its pods, where that was
// left open.
func (c *Config) noteDelivery(m member, annotations map[string]string) {
	if slices.ContainsFunc(m.workload.Models, leftOpen) {
		annotations[annotationDelivery] = string(cmp.Or(c.Images, oci.ImageVolume))
	}
}

// delivery returns how the models of a revision reach its pods where that is left open: as they do
// now where live runs it, so that an operator that was told otherwise replaces no pod; as configured for
// another.
func (c *Config) delivery(m *member, live client.Object) oci.Delivery {
	if !slices.ContainsFunc(m.workload.Models, leftOpen) || !runs(live, m.revision.Spec.Hash) {
		return c.Images
	}
	return cmp.Or(oci.Delivery(live.GetAnnotations()[annotationDelivery]), oci.ImageVolume)
}

// otherDelivery is what helps where a cluster or a node doesn't know image volumes.
const otherDelivery = "have the model come another way, by oci+modelcar:// or oci+fetch:// in its URI, " +
	"or by --oci-delivery of the operator (the chart's ociDelivery)"

// withoutImageVolumes adds to the refusal of a cluster that doesn't know image volumes what to do. Such
// an API server says that the volume is of no kind, or that it doesn't know the field.
func withoutImageVolumes(o client.Object, err error) error {
	refused := asRefusal(err)
	d, ok := o.(*appsv1.Deployment)
	if refused == nil || !ok || !hasImageVolume(&d.Spec.Template.Spec) {
		return err
	}
	text := err.Error()
	for _, said := range []string{"must specify a volume type", ".image: field not declared in schema", `unknown field "spec.template.spec.volumes`} {
		if strings.Contains(text, said) {
			return &refusedError{refused.kind, fmt.Errorf("the cluster has no image volumes (Kubernetes has them on since 1.35): %s: %w", otherDelivery, err), refused.terminal}
		}
	}
	return err
}

func hasImageVolume(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Image != nil })
}
