package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

func TestAnEnginesCertificatesAreTakenFromTheNamespace(t *testing.T) {
	b := newBench(t)
	b.service("iris", func(is *v1beta1.InferenceService) {
		is.Annotations = map[string]string{"stationmaster.dev/engine-ca-configmap": "roots"}
	})
	b.until("iris", "told what is missing", func(is *v1beta1.InferenceService) bool {
		f := is.Status.ModelStatus.LastFailureInfo
		return f != nil && strings.Contains(f.Message, "there is no config map roots in the namespace "+b.ns)
	})
	m := &corev1.ConfigMap{}
	m.Namespace, m.Name, m.Data = b.ns, "roots", map[string]string{"ca.crt": ""}
	if err := b.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	b.edit("iris", func(is *v1beta1.InferenceService) { is.Annotations["touched"] = "yes" })
	b.ready("iris")
}
