// Package lws makes LeaderWorkerSets, by which one replica spans several pods, and reads a group
// of pods as the one replica that it is. It is pure.
package lws

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Kind is LeaderWorkerSet's. Its objects are made without its types: whether a cluster has LWS,
// and which one, shows when they are applied.
var Kind = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}

// Missing says what to do where a cluster doesn't know the kind.
const Missing = "this cluster has no LeaderWorkerSet, which a predictor with workerSpec needs: install LWS (sigs.k8s.io/lws, 0.6 or later); it is tried again by itself"

const (
	// groupIndex is a label that LWS's controller puts on every pod of its groups.
	groupIndex = "leaderworkerset.sigs.k8s.io/group-index"
	// partLabel tells a group's workers from its leader, which has none.
	partLabel = "stationmaster.dev/part"
	worker    = "worker"
	// sizeAnnotation is the number of pods of a leader's group.
	sizeAnnotation = "stationmaster.dev/group-size"
	indexEnv       = "STATIONMASTER_GROUP_INDEX"
)

// maxName leaves room in the names of pods and in the labels that Kubernetes derives from them
// ("-<group>-<worker>", and a StatefulSet's hash).
const maxName = 46

// Set is what a LeaderWorkerSet is made of.
type Set struct {
	// Meta has the set's name, namespace, labels and owner.
	Meta metav1.ObjectMeta
	// Replicas is the number of groups, Size that of the pods in each, the leader included.
	Replicas, Size int32
	// Leader and Workers are the pods. Their labels must not be the same for both.
	Leader, Workers corev1.PodTemplateSpec
}

// Object returns the LeaderWorkerSet as it is applied. A group is replaced as a whole when one of
// its pods starts again, because engines over several nodes don't take back a lost one; a new
// group comes up before an old one goes.
func Object(s Set) (*unstructured.Unstructured, error) {
	if len(s.Meta.Name) > maxName {
		return nil, fmt.Errorf("the name %s is too long for a replica over several nodes, whose pods append to it: shorten the service's name by %d letters", s.Meta.Name, len(s.Meta.Name)-maxName)
	}
	leader, workers := s.Leader.DeepCopy(), s.Workers.DeepCopy()
	mark(leader, workers, s.Size)
	tell(leader, s.Meta.Name)
	tell(workers, s.Meta.Name)
	var parts [3]map[string]any
	for i, part := range []any{&s.Meta, leader, workers} {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(part)
		if err != nil {
			return nil, fmt.Errorf("encode LeaderWorkerSet %s: %w", s.Meta.Name, err)
		}
		parts[i] = content
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": parts[0],
		"spec": map[string]any{
			"replicas":      int64(s.Replicas),
			"startupPolicy": "LeaderCreated",
			"networkConfig": map[string]any{"subdomainPolicy": "Shared"},
			"rolloutStrategy": map[string]any{
				"type":                       "RollingUpdate",
				"rollingUpdateConfiguration": map[string]any{"maxUnavailable": int64(0), "maxSurge": int64(1)},
			},
			"leaderWorkerTemplate": map[string]any{
				"size": int64(s.Size), "restartPolicy": "RecreateGroupOnPodRestart",
				"leaderTemplate": parts[1], "workerTemplate": parts[2],
			},
		},
	}}
	u.SetGroupVersionKind(Kind)
	return u, nil
}

// Named is a LeaderWorkerSet without content, to be read into or deleted.
func Named(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(Kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// Runs reports whether a LeaderWorkerSet, as the API has it, has groups or is about to.
func Runs(u *unstructured.Unstructured) bool {
	asked, said, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	there, _, _ := unstructured.NestedInt64(u.Object, "status", "replicas")
	return there > 0 || asked > 0 || !said
}

// HasReady reports whether a LeaderWorkerSet, as the API has it, has a ready group.
func HasReady(u *unstructured.Unstructured) bool {
	ready, _, _ := unstructured.NestedInt64(u.Object, "status", "readyReplicas")
	return ready > 0
}

func mark(leader, workers *corev1.PodTemplateSpec, size int32) {
	if leader.Annotations == nil {
		leader.Annotations = map[string]string{}
	}
	leader.Annotations[sizeAnnotation] = fmt.Sprint(size)
	if workers.Labels == nil {
		workers.Labels = map[string]string{}
	}
	workers.Labels[partLabel] = worker
}

// tell lets containers know where their group's leader is, in KServe's words: HEAD_SVC is a name
// that ".<namespace>.svc.cluster.local" follows.
func tell(t *corev1.PodTemplateSpec, name string) {
	env := []corev1.EnvVar{
		{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
			APIVersion: "v1", FieldPath: "metadata.labels['" + groupIndex + "']",
		}}},
		{Name: "HEAD_SVC", Value: name + "-$(" + indexEnv + ")." + name},
		{Name: "WORKER_SVC", Value: name},
	}
	for i := range t.Spec.Containers {
		c := &t.Spec.Containers[i]
		own := slices.DeleteFunc(slices.Clone(env), func(e corev1.EnvVar) bool {
			return slices.ContainsFunc(c.Env, func(have corev1.EnvVar) bool { return have.Name == e.Name })
		})
		// First, so that a container's own variables may refer to them.
		c.Env = append(own, c.Env...)
	}
}

// IsWorker reports whether a pod is of a group and not its leader: it takes no requests.
func IsWorker(p *corev1.Pod) bool { return p.Labels[partLabel] == worker }

// Group is which group a pod is of, unique among those of a revision; empty for a pod that is a
// replica alone.
func Group(p *corev1.Pod) string { return p.Labels[groupIndex] }

// Size is how many pods the group of a leader has; 1 for a pod that is a replica alone.
func Size(leader *corev1.Pod) int {
	n := 1
	if _, err := fmt.Sscan(leader.Annotations[sizeAnnotation], &n); err != nil || n < 1 {
		return 1
	}
	return n
}

// Join returns what a group is as one replica: the leader's, with its workers' failures and
// restarts, and not ready before all of size pods are. Workers are of the leader's group.
func Join(leader spec.Replica, size int, workers []spec.Replica) spec.Replica {
	out := leader
	ready, lingering := 1, 0
	for _, w := range workers {
		out.Restarts += w.Restarts
		switch {
		case w.Phase == spec.Ready:
			ready++
		case w.Lingers:
			lingering++
		case w.Phase == spec.Failed && out.Phase != spec.Draining:
			out.Phase = spec.Failed
		}
		if w.Failure != nil && out.Failure == nil {
			f := *w.Failure
			f.Message = "worker " + w.ID + ": " + f.Message
			out.Failure = &f
		}
	}
	if out.Phase == spec.Ready && ready < size {
		out.Phase, out.Lingers = spec.Loading, ready+lingering >= size
	}
	return out
}
