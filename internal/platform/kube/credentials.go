package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
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
	// registriesDir is where a puller finds pull secrets, each in a directory of its name as a file
	// registryKeys, and registryVolume the first part of the names of their volumes.
	registriesDir  = "/var/secrets/stationmaster-registries"
	registryKeys   = "config.json"
	registryVolume = "stationmaster-registry"
	// defaultAccount is the service account of pods that name none.
	defaultAccount = "default"
)

// setting is an annotation that becomes a variable.
type setting struct{ annotation, variable string }

// storeSettings are KServe's annotations that say how a store is reached, and the variables that
// tell a puller. KServe reads them from secrets; here they count on a service and on a service
// account, for secrets aren't read.
var storeSettings = []setting{
	{"serving.kserve.io/s3-endpoint", "S3_ENDPOINT"},
	{"serving.kserve.io/s3-usehttps", "S3_USE_HTTPS"},
	{"serving.kserve.io/s3-region", "AWS_DEFAULT_REGION"},
	{"serving.kserve.io/s3-verifyssl", "S3_VERIFY_SSL"},
	{"serving.kserve.io/s3-usevirtualbucket", "S3_USER_VIRTUAL_BUCKET"},
	{"serving.kserve.io/s3-useaccelerate", "S3_USE_ACCELERATE"},
	{"serving.kserve.io/s3-useanoncredential", "awsAnonymousCredential"},
}

// Annotations of KServe and of Amazon that lead to certificates and to a role.
const (
	caConfigMap = "serving.kserve.io/s3-cabundle-configmap"
	caPath      = "serving.kserve.io/s3-cabundle"
	roleARN     = "eks.amazonaws.com/role-arn"
	roleTokens  = "eks.amazonaws.com/audience"
	roleSTS     = "eks.amazonaws.com/sts-endpoint"
)

const (
	// caVolume and caDir are where a puller finds the certificates of stores, caKey their key.
	caVolume = "stationmaster-ca"
	caDir    = "/etc/ssl/custom-certs"
	caKey    = "cabundle.crt"
	// roleVolume and roleDir are where it finds the token that it takes a role with.
	roleVolume = "stationmaster-role-token"
	roleDir    = "/var/run/secrets/stationmaster/role"
	// roleAudience is whom the token is for, and roleSeconds for how long.
	roleAudience = "sts.amazonaws.com"
	roleSeconds  = 3600
)

// credentials are what a revision's pullers get: secrets by name, which the kubelet mounts, and
// variables. Nobody but the kubelet reads a secret.
type credentials struct {
	secrets []string
	// env is for buckets of S3's kind.
	env []corev1.EnvVar
	// ca is a config map with certificates of stores, under caKey; empty for none.
	ca, caKey string
	// registries are secrets with keys of registries.
	registries []string
	// audience is whom the token of a role is for; empty without a role.
	audience string
	// s3Alone keeps them from models that aren't in buckets of S3's kind.
	s3Alone bool
}

// annotationCredentials is on a Deployment or a LeaderWorkerSet whose pullers got all that credentials
// hold. Earlier operators gave some to models of S3's kind alone, and neither certificates nor roles.
const annotationCredentials = "stationmaster.dev/credentials"

// keeping returns what a revision's pullers get: what an earlier operator gave where live runs its
// pods and one is ready, so that an upgrade restarts no engine; all for another.
func (c credentials) keeping(live client.Object, hash string) credentials {
	if !hasReady(live, hash) || live.GetAnnotations()[annotationCredentials] != "" {
		return c
	}
	var env []corev1.EnvVar
	for _, e := range c.env {
		if slices.ContainsFunc(storeSettings, func(s setting) bool { return s.variable == e.Name }) {
			env = append(env, e)
		}
	}
	return credentials{secrets: c.secrets, env: env, registries: c.registries, s3Alone: true}
}

// wanting reports whether a model of a member may need credentials.
func (c *Config) wanting(m *member) bool {
	return slices.ContainsFunc(m.workload.Models, func(model spec.Model) bool {
		kind, _ := c.sourceOf(model.URI)
		return withCredentials(model.URI) || kind == pulled && inImage(model.URI)
	})
}

// withCredentials reports whether a model may need some: what isn't of the pod's own.
func withCredentials(uri string) bool {
	scheme, _, _ := strings.Cut(uri, "://")
	return slices.Contains([]string{"s3", "gs", "abfs", "hf", "https", "http", manifest.StorageScheme}, strings.ToLower(scheme))
}

// ofS3 reports whether a model is in a bucket of S3's kind.
func ofS3(uri string) bool {
	return strings.HasPrefix(uri, "s3://") || strings.HasPrefix(uri, manifest.StorageScheme+"://")
}

// credentialsOf finds the secrets of a member: the one that its annotation names, else those that
// its service account lists. A pod can name secrets and accounts of its own namespace only.
// Images of models that are fetched need those of their registry; cfg says how models come. live is
// what runs the member, nil for nothing.
func (p *Platform) credentialsOf(ctx context.Context, cfg *Config, m *member, live client.Object) (credentials, error) {
	if !cfg.wanting(m) {
		return credentials{}, nil
	}
	template := &m.revision.Spec.PodTemplate
	name := template.Spec.ServiceAccountName
	if name == "" {
		name = defaultAccount
	}
	account, err := p.accounts.get(ctx, p.client, client.ObjectKey{Namespace: m.revision.Namespace, Name: name}, time.Now())
	if err != nil {
		return credentials{}, err
	}
	return credentialsFrom(template, account).keeping(live, m.revision.Spec.Hash), nil
}

// accounts keeps service accounts for a moment: many services of a namespace are applied at once and
// most have the same. The zero value is ready.
type accounts struct {
	mu   sync.Mutex
	read map[client.ObjectKey]readAccount
}

type readAccount struct {
	account *corev1.ServiceAccount
	until   time.Time
}

// accountKept is how long a service account is taken to be what it was.
const accountKept = 2 * time.Second

// get returns a service account, an empty one where there is none; it isn't to be changed.
func (a *accounts) get(ctx context.Context, api client.Reader, key client.ObjectKey, now time.Time) (*corev1.ServiceAccount, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if have, ok := a.read[key]; ok && now.Before(have.until) {
		return have.account, nil
	}
	account := &corev1.ServiceAccount{}
	if err := api.Get(ctx, key, account); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read service account %s: %w", key, kindOf(err))
	}
	maps.DeleteFunc(a.read, func(_ client.ObjectKey, old readAccount) bool { return !now.Before(old.until) })
	if a.read == nil {
		a.read = map[client.ObjectKey]readAccount{}
	}
	a.read[key] = readAccount{account, now.Add(accountKept)}
	return account, nil
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
	pulls := template.Spec.ImagePullSecrets
	if len(pulls) == 0 {
		pulls = account.ImagePullSecrets // as Kubernetes has it
	}
	for _, ref := range pulls {
		if ref.Name != "" && !slices.Contains(out.registries, ref.Name) {
			out.registries = append(out.registries, ref.Name)
		}
	}
	said := func(annotation string) string {
		if value, ok := template.Annotations[annotation]; ok {
			return value
		}
		return account.Annotations[annotation]
	}
	set := func(name, value string) {
		if value != "" {
			out.env = append(out.env, corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$(", "$$(")})
		}
	}
	for _, s := range storeSettings {
		set(s.variable, said(s.annotation))
	}
	if out.ca = said(caConfigMap); out.ca != "" {
		out.caKey = caKey
		if at := said(caPath); at != "" { // KServe's is a path in the container
			out.caKey = path.Base(at)
		}
	}
	// A role is the account's: a service can't take another's by saying so.
	if role := account.Annotations[roleARN]; role != "" {
		set("AWS_ROLE_ARN", role)
		set("AWS_WEB_IDENTITY_TOKEN_FILE", path.Join(roleDir, "token"))
		set("AWS_ENDPOINT_URL_STS", account.Annotations[roleSTS])
		out.audience = cmp.Or(account.Annotations[roleTokens], roleAudience)
	}
	return out
}

// give hands credentials to a puller whose model may need them. A secret that isn't there keeps no
// pod from starting: the puller says which it looked for.
func (c credentials) give(pod *corev1.PodSpec, puller *corev1.Container) {
	uri := puller.Args[len(puller.Args)-1]
	if c.s3Alone && !ofS3(uri) {
		return
	}
	if ofS3(uri) {
		puller.Env = append(puller.Env, c.env...)
		c.giveRole(pod, puller)
	}
	c.giveCertificates(pod, puller)
	mounts := len(puller.VolumeMounts)
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

// inImage reports whether a model comes in an image.
func inImage(uri string) bool {
	_, _, ok := oci.Of(uri, "")
	return ok
}

// giveRegistries hands the pod's pull secrets to a puller of a model's image, which reads them as the
// kubelet does. One that isn't there keeps no pod from starting.
func (c credentials) giveRegistries(pod *corev1.PodSpec, puller *corev1.Container) {
	c.giveCertificates(pod, puller)
	uri := puller.Args[len(puller.Args)-1]
	args := slices.Clone(puller.Args[:len(puller.Args)-1])
	yes := true
	for i, name := range c.registries {
		volume, at := numbered(registryVolume, i), path.Join(registriesDir, name)
		addVolume(pod, volume, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: name, Optional: &yes, Items: []corev1.KeyToPath{{Key: corev1.DockerConfigJsonKey, Path: registryKeys}},
		}})
		puller.VolumeMounts = append(puller.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: at, ReadOnly: true})
		args = append(args, "--registry-keys="+path.Join(at, registryKeys))
	}
	puller.Args = slices.Concat(args, []string{uri})
}

// giveCertificates mounts the config map with certificates of stores, whatever the scheme. The pod
// doesn't start before it is there.
func (c credentials) giveCertificates(pod *corev1.PodSpec, puller *corev1.Container) {
	if c.ca == "" {
		return
	}
	at := path.Join(caDir, caKey)
	addVolume(pod, caVolume, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: c.ca}, Items: []corev1.KeyToPath{{Key: c.caKey, Path: caKey}},
	}})
	puller.VolumeMounts = append(puller.VolumeMounts, corev1.VolumeMount{Name: caVolume, MountPath: caDir, ReadOnly: true})
	puller.Env = append(puller.Env, corev1.EnvVar{Name: "AWS_CA_BUNDLE", Value: at}, corev1.EnvVar{Name: "REQUESTS_CA_BUNDLE", Value: at})
}

// giveRole mounts a token of the pod's service account that the role's authority takes.
func (c credentials) giveRole(pod *corev1.PodSpec, puller *corev1.Container) {
	if c.audience == "" {
		return
	}
	seconds := int64(roleSeconds)
	addVolume(pod, roleVolume, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: c.audience, ExpirationSeconds: &seconds, Path: "token"},
	}}}})
	puller.VolumeMounts = append(puller.VolumeMounts, corev1.VolumeMount{Name: roleVolume, MountPath: roleDir, ReadOnly: true})
}

// addVolume adds a volume that pullers share.
func addVolume(pod *corev1.PodSpec, name string, source corev1.VolumeSource) {
	if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
}

// mountSecret mounts a secret into a puller, by a volume that pullers may share.
func mountSecret(pod *corev1.PodSpec, puller *corev1.Container, volume string, source corev1.SecretVolumeSource) {
	at := path.Join(secretsDir, source.SecretName)
	if slices.ContainsFunc(puller.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == at }) {
		return // the whole secret is there
	}
	yes := true
	source.Optional = &yes
	addVolume(pod, volume, corev1.VolumeSource{Secret: &source})
	puller.VolumeMounts = append(puller.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: at, ReadOnly: true})
}

// shortHash is a name's hash as a part of a volume's name.
func shortHash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:4])
}
