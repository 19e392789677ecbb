package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/spec"
)

// annotationList holds on a pod which list of models it should have by now.
const annotationList = "stationmaster.dev/model-list"

// nudge makes kubelets bring a list of models that changed to the pods that mount it, by a change
// of the pods themselves: by itself a kubelet looks again each minute or so.
func (p *Platform) nudge(ctx context.Context, key spec.ServiceKey, want []platform.Assignment) error {
	name := manifest.ModelListName(key.Name)
	reads := func(a platform.Assignment) bool {
		return a.Replicas > 0 && slices.ContainsFunc(a.Workload.Volumes, func(v spec.Volume) bool {
			return v.Kind == spec.VolumeConfigMap && v.Source == name
		})
	}
	if !slices.ContainsFunc(want, reads) {
		return nil
	}
	var list corev1.ConfigMap
	err := p.client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &list)
	if apierrors.IsNotFound(err) {
		return nil // pods wait for it
	}
	if err != nil {
		return fmt.Errorf("read the list of models %s/%s: %w", key.Namespace, name, kindOf(err))
	}
	sum := sha256.Sum256([]byte(list.Data[manifest.ModelListKey]))
	now := hex.EncodeToString(sum[:8])
	pods, err := p.pods(ctx, key)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationList: now}}})
	if err != nil {
		return fmt.Errorf("encode a pod's annotation: %w", err)
	}
	for i := range pods {
		pod := &pods[i]
		there := slices.ContainsFunc(want, func(a platform.Assignment) bool {
			return reads(a) && a.Workload.Revision.Name == pod.Labels[labelRevision]
		})
		if !there || pod.DeletionTimestamp != nil || pod.Annotations[annotationList] == now {
			continue
		}
		err := p.client.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("tell pod %s/%s of its list of models: %w", pod.Namespace, pod.Name, kindOf(err))
		}
	}
	return nil
}
