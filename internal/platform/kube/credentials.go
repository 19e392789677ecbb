package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

const (
	// secretsDir is where a puller finds secrets, each in a directory of its name.
	secretsDir = "/var/secrets/stationmaster"
	// secretVolume is the first part of the names of their volumes.
	secretVolume = "stationmaster-secret"
	// storageConfig is the secret with the entries that a storage spec names (KServe's), and
	// entryVolume the first part of the names of volumes with one of them.
	storageConfig = "storage-config"
	entryVolume   = "stationmaster-storage"
	// storageSecret names the one secret that a service's credentials are in (KServe's).
	storageSecret = "serving.kserve.io/storageSecretName"
	// defaultAccount is the service account of pods that name none.
	defaultAccount = "default"
)

// storeSettings are KServe's annotations that say how a store is reached, and the variables that
// tell a puller. KServe reads them from secrets; here they count on a service and on a service
// account, for secrets aren't read.
var storeSettings = []struct{ annotation, variable string }{
	{"serving.kserve.io/s3-endpoint", "S3_ENDPOINT"},
	{"serving.kserve.io/s3-usehttps", "S3_USE_HTTPS"},
	{"serving.kserve.io/s3-region", "AWS_DEFAULT_REGION"},
	{"serving.kserve.io/s3-verifyssl", "S3_VERIFY_SSL"},
	{"serving.kserve.io/s3-usevirtualbucket", "S3_USER_VIRTUAL_BUCKET"},
	{"serving.kserve.io/s3-useaccelerate", "S3_USE_ACCELERATE"},
	{"serving.kserve.io/s3-useanoncredential", "awsAnonymousCredential"},
}

// credentials are what a revision's pullers get: secrets by name, which the kubelet mounts, and
// variables. Nobody but the kubelet reads a secret.
type credentials struct {
	secrets []string
	env     []corev1.EnvVar
}

// withCredentials reports whether a model may need some: a bucket's.
func withCredentials(uri string) bool {
	return strings.HasPrefix(uri, "s3://") || strings.HasPrefix(uri, manifest.StorageScheme+"://")
}

// credentialsOf finds the secrets of a member: the one that its annotation names, else those that
// its service account lists. A pod can name secrets and accounts of its own namespace only.
func (p *Platform) credentialsOf(ctx context.Context, m *member) (credentials, error) {
	if !slices.ContainsFunc(m.workload.Models, func(model spec.Model) bool { return withCredentials(model.URI) }) {
		return credentials{}, nil
	}
	template := &m.revision.Spec.PodTemplate
	name := template.Spec.ServiceAccountName
	if name == "" {
		name = defaultAccount
	}
	var account corev1.ServiceAccount
	err := p.client.Get(ctx, client.ObjectKey{Namespace: m.revision.Namespace, Name: name}, &account)
	if client.IgnoreNotFound(err) != nil {
		return credentials{}, fmt.Errorf("read service account %s/%s: %w", m.revision.Namespace, name, kindOf(err))
	}
	return credentialsFrom(template, &account), nil
}

// credentialsFrom makes credentials of what a pod template and its service account say. Secrets
// that hold the account's own tokens for Kubernetes and its registry are none of a store's.
func credentialsFrom(template *corev1.PodTemplateSpec, account *corev1.ServiceAccount) credentials {
	var out credentials
	if name := template.Annotations[storageSecret]; name != "" {
		out.secrets = []string{name}
	} else {
		for _, ref := range account.Secrets {
			own := strings.HasPrefix(ref.Name, account.Name+"-token-") || strings.HasPrefix(ref.Name, account.Name+"-dockercfg-")
			// The API has a namespace beside the name here; another than the pod's can't be meant.
			foreign := ref.Namespace != "" && ref.Namespace != account.Namespace
			if !own && !foreign && ref.Name != "" && !slices.Contains(out.secrets, ref.Name) {
				out.secrets = append(out.secrets, ref.Name)
			}
		}
	}
	for _, s := range storeSettings {
		value, ok := template.Annotations[s.annotation]
		if !ok {
			value = account.Annotations[s.annotation]
		}
		if value != "" {
			out.env = append(out.env, corev1.EnvVar{Name: s.variable, Value: strings.ReplaceAll(value, "$(", "$$(")})
		}
	}
	return out
}

// give hands credentials to a puller whose model may need them. A secret that isn't there keeps no
// pod from starting: the puller says which it looked for.
func (c credentials) give(pod *corev1.PodSpec, puller *corev1.Container) {
	puller.Env = append(puller.Env, c.env...)
	mounts := len(puller.VolumeMounts)
	uri := puller.Args[len(puller.Args)-1]
	args := slices.Clone(puller.Args[:len(puller.Args)-1])
	for i, name := range c.secrets {
		mountSecret(pod, puller, numbered(secretVolume, i), corev1.SecretVolumeSource{SecretName: name})
		args = append(args, "--secret="+name)
	}
	if u, err := url.Parse(uri); err == nil && u.Scheme == manifest.StorageScheme {
		mountSecret(pod, puller, entryVolume+"-"+shortHash(u.Host), corev1.SecretVolumeSource{
			SecretName: storageConfig, Items: []corev1.KeyToPath{{Key: u.Host, Path: u.Host}},
		})
	}
	if len(puller.VolumeMounts) > mounts {
		args = append(args, "--secrets="+secretsDir)
	}
	puller.Args = slices.Concat(args, []string{uri})
}

// mountSecret mounts a secret into a puller, by a volume that pullers may share.
func mountSecret(pod *corev1.PodSpec, puller *corev1.Container, volume string, source corev1.SecretVolumeSource) {
	at := path.Join(secretsDir, source.SecretName)
	if slices.ContainsFunc(puller.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == at }) {
		return // the whole secret is there
	}
	if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == volume }) {
		yes := true
		source.Optional = &yes
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Secret: &source}})
	}
	puller.VolumeMounts = append(puller.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: at, ReadOnly: true})
}

// shortHash is a name's hash as a part of a volume's name.
func shortHash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:4])
}
