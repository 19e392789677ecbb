package preview

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// The kinds of what pods name in their namespace.
const (
	kindConfigMap = "ConfigMap"
	kindSecret    = "Secret"
	kindClaim     = "PersistentVolumeClaim"
	kindAccount   = "ServiceAccount"
)

// storageConfig is the secret with the entries that storage:// names (KServe's).
const storageConfig = "storage-config"

// reference is an object of the namespace that pods can't do without, and a key in it, if one is
// named.
type reference struct{ kind, name, key string }

// references says which of the objects that a component's pods name aren't there.
func (s *sight) references(ctx context.Context, is *v1beta1.InferenceService, c *manifest.Compiled, at string) error {
	var refs []reference
	pods := []*corev1.PodSpec{&c.PodTemplate.Spec}
	if c.Workers != nil {
		pods = append(pods, &c.Workers.PodTemplate.Spec)
	}
	for _, pod := range pods {
		refs = append(refs, referred(pod, s.OneMachine)...)
	}
	for _, m := range c.Workload.Models {
		u, err := url.Parse(m.URI)
		switch {
		case err != nil:
		case !reads(u.Scheme):
			s.say("%s: nobody reads models of %s://: bring it to https://, s3://, gs://, abfs://, hf://, oci:// or pvc://", at, u.Scheme)
		case !s.OneMachine && (u.Scheme == "" || u.Scheme == "file"):
			s.say("%s: the model %s is a path of one machine, and replicas on a cluster have none of its files: bring it to https://, s3://, gs://, abfs://, hf://, oci:// or pvc://", at, m.URI)
		case u.Scheme == "pvc":
			refs = append(refs, reference{kind: kindClaim, name: u.Host})
		case u.Scheme == manifest.StorageScheme:
			refs = append(refs, reference{kind: kindSecret, name: storageConfig, key: u.Host})
		}
	}
	seen := map[reference]bool{}
	for _, r := range refs {
		// The list of trained models is ours to make.
		if seen[r] || r.name == "" || r.name == manifest.ModelListName(is.Name) {
			continue
		}
		seen[r] = true
		wrong, err := s.look(ctx, r)
		if err != nil {
			return err
		}
		if wrong != "" {
			s.say("%s: %s", at, wrong)
		}
	}
	return nil
}

// reads says whether models of a scheme are fetched, or mounted.
func reads(scheme string) bool {
	both := []string{"https", "http", "s3", "gs", "abfs", "hf", "pvc", "file", "", manifest.StorageScheme, "oci", "oci+native", "oci+modelcar", "oci+fetch"}
	return slices.Contains(both, scheme)
}

// referred returns what a pod names and isn't optional. Volumes that one machine doesn't have are
// told as not in effect.
func referred(pod *corev1.PodSpec, oneMachine bool) []reference {
	var out []reference
	add := func(kind, name, key string, optional *bool) {
		if optional == nil || !*optional {
			out = append(out, reference{kind, name, key})
		}
	}
	items := func(kind, name string, keys []corev1.KeyToPath, optional *bool) {
		add(kind, name, "", optional)
		for _, k := range keys {
			add(kind, name, k.Key, optional)
		}
	}
	add(kindAccount, pod.ServiceAccountName, "", nil)
	for i := range pod.Volumes {
		v := &pod.Volumes[i]
		if v.ConfigMap != nil {
			items(kindConfigMap, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
		}
		if v.Secret != nil {
			items(kindSecret, v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
		}
		if v.PersistentVolumeClaim != nil {
			add(kindClaim, v.PersistentVolumeClaim.ClaimName, "", nil)
		}
		if v.Projected != nil && !oneMachine {
			for _, p := range v.Projected.Sources {
				if p.ConfigMap != nil {
					items(kindConfigMap, p.ConfigMap.Name, p.ConfigMap.Items, p.ConfigMap.Optional)
				}
				if p.Secret != nil {
					items(kindSecret, p.Secret.Name, p.Secret.Items, p.Secret.Optional)
				}
			}
		}
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add(kindConfigMap, r.Name, r.Key, r.Optional)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add(kindSecret, r.Name, r.Key, r.Optional)
			}
		}
		for _, e := range c.EnvFrom {
			if e.ConfigMapRef != nil {
				add(kindConfigMap, e.ConfigMapRef.Name, "", e.ConfigMapRef.Optional)
			}
			if e.SecretRef != nil {
				add(kindSecret, e.SecretRef.Name, "", e.SecretRef.Optional)
			}
		}
	}
	return out
}

// look says what is wrong with what a reference leads to; empty where nothing is, or where it isn't
// for us to read.
func (s *sight) look(ctx context.Context, r reference) (string, error) {
	var object client.Object
	switch r.kind {
	case kindConfigMap:
		object = &corev1.ConfigMap{}
	case kindSecret:
		if !s.OneMachine {
			return "", nil // kubelets read secrets
		}
		object = &corev1.Secret{}
	case kindClaim, kindAccount:
		if s.OneMachine {
			return "", nil // a claim is a directory that is made, and accounts are told as not in effect
		}
		object = &corev1.PersistentVolumeClaim{}
		if r.kind == kindAccount {
			object = &corev1.ServiceAccount{}
		}
	}
	err := s.Live.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: r.name}, object)
	switch {
	case apierrors.IsForbidden(err):
		return "", nil
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the %s %s isn't there: replicas can't start before it is", r.kind, r.name), nil
	case err != nil:
		return "", fmt.Errorf("read %s %s: %w", r.kind, r.name, err)
	}
	return shape(object, r), nil
}

// shape says what an object lacks that a reference asks for.
func shape(object client.Object, r reference) string {
	var text []byte
	has := true
	switch o := object.(type) {
	case *corev1.ConfigMap:
		_, has = o.Data[r.key]
		if _, binary := o.BinaryData[r.key]; binary {
			has = true
		}
	case *corev1.Secret:
		text, has = o.Data[r.key]
	}
	switch {
	case r.key == "":
		return ""
	case !has:
		return fmt.Sprintf("the %s %s has no key %s", r.kind, r.name, r.key)
	case r.kind == kindSecret && r.name == storageConfig:
		var entry struct{ Type, Bucket string }
		if json.Unmarshal(text, &entry) != nil {
			return fmt.Sprintf("the entry %s of the Secret %s is no JSON object of strings", r.key, r.name)
		}
		if kind := strings.ToLower(entry.Type); kind != "" && kind != "s3" {
			return fmt.Sprintf("the entry %s of the Secret %s has the type %q; only s3 is known", r.key, r.name, entry.Type)
		}
	}
	return ""
}
