package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
)

func TestWhereAPodsCredentialsAre(t *testing.T) {
	account := func(annotations map[string]string, secrets ...corev1.ObjectReference) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "robot", Annotations: annotations}, Secrets: secrets}
	}
	for name, tc := range map[string]struct {
		annotations  map[string]string
		account      *corev1.ServiceAccount
		secrets      []string
		env          []string
		ca, audience string
	}{
		"no account":     {account: &corev1.ServiceAccount{}},
		"its account's":  {account: account(nil, corev1.ObjectReference{Name: "b"}, corev1.ObjectReference{Name: "a"}, corev1.ObjectReference{Name: "b"}), secrets: []string{"b", "a"}},
		"the one named":  {annotations: map[string]string{storageSecret: "mine"}, account: account(nil, corev1.ObjectReference{Name: "b"}), secrets: []string{"mine"}},
		"not its tokens": {account: account(nil, corev1.ObjectReference{Name: "robot-token-abcde"}, corev1.ObjectReference{Name: "robot-dockercfg-abcde"})},
		"not those of another namespace": {
			account: account(nil, corev1.ObjectReference{Namespace: "other", Name: "theirs"}, corev1.ObjectReference{Namespace: "team", Name: "ours"}),
			secrets: []string{"ours"},
		},
		"a service's settings go before its account's": {
			annotations: map[string]string{"serving.kserve.io/s3-region": "eu", "serving.kserve.io/s3-endpoint": "a$(b)"},
			account:     account(map[string]string{"serving.kserve.io/s3-region": "us", "serving.kserve.io/s3-useanoncredential": "true"}),
			env:         []string{"S3_ENDPOINT=a$$(b)", "AWS_DEFAULT_REGION=eu", "awsAnonymousCredential=true"},
		},
		"certificates of a config map": {
			annotations: map[string]string{caConfigMap: "roots"}, account: account(map[string]string{caPath: "/somewhere/ours.pem"}),
			ca: "roots/ours.pem",
		},
		"certificates under KServe's key": {account: account(map[string]string{caConfigMap: "roots"}), ca: "roots/cabundle.crt"},
		"a role of the account": {
			account: account(map[string]string{roleARN: "arn:aws:iam::1:role/r"}), audience: "sts.amazonaws.com",
			env: []string{"AWS_ROLE_ARN=arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/stationmaster/role/token"},
		},
		"no role of a service": {annotations: map[string]string{roleARN: "arn:aws:iam::1:role/r"}, account: account(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			got := credentialsFrom(&corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}, tc.account)
			if diff := cmp.Diff(tc.secrets, got.secrets); diff != "" {
				t.Errorf("secrets (-want +got):\n%s", diff)
			}
			var env []string
			for _, e := range got.env {
				env = append(env, e.Name+"="+e.Value)
			}
			if diff := cmp.Diff(tc.env, env); diff != "" {
				t.Errorf("variables (-want +got):\n%s", diff)
			}
			ca := ""
			if got.ca != "" {
				ca = got.ca + "/" + got.caKey
			}
			if ca != tc.ca || got.audience != tc.audience {
				t.Errorf("certificates %q and audience %q, want %q and %q", ca, got.audience, tc.ca, tc.audience)
			}
		})
	}
}

// Pullers of one pod share volumes, engines see no secret, and what needs no credentials gets none.
func TestOnlyPullersGetSecrets(t *testing.T) {
	is := serviceFrom(t, `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: many}
spec:
  predictor:
    serviceAccountName: reader
    storageUris:
    - {uri: "s3://shelf/base", mountPath: /mnt/models/base}
    - {uri: "s3://shelf/adapter", mountPath: /mnt/models/adapter}
    - {uri: "https://models.example/x", mountPath: /mnt/models/x}
    containers: [{name: kserve-container, image: "registry.example/engine:1"}]
`)
	m := memberOf(t, revisionOf(t, is, "predictor"), 1)
	m.credentials = credentialsFrom(&m.revision.Spec.PodTemplate, &reader)
	cfg := gatewayed
	template, err := cfg.podTemplate(m)
	if err != nil {
		t.Fatal(err)
	}
	var volumes, args []string
	for _, v := range template.Spec.Volumes {
		if v.Secret != nil {
			volumes = append(volumes, fmt.Sprint(v.Name, "=", v.Secret.SecretName, " ", *v.Secret.Optional))
		}
	}
	if diff := cmp.Diff([]string{"stationmaster-secret=shelf-key true", "stationmaster-secret-2=other-key true"}, volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	for _, c := range template.Spec.InitContainers {
		secrets := 0
		for _, a := range c.Args {
			if strings.HasPrefix(a, "--secret=") {
				secrets++
			}
		}
		args = append(args, fmt.Sprint(c.Args[len(c.Args)-1], " ", secrets, " ", slices.Contains(c.Args, "--secrets="+secretsDir)))
	}
	if diff := cmp.Diff([]string{"s3://shelf/base 2 true", "s3://shelf/adapter 2 true", "https://models.example/x 2 true"}, args); diff != "" {
		t.Errorf("pullers (-want +got):\n%s", diff)
	}
	for _, c := range template.Spec.Containers {
		for _, mount := range c.VolumeMounts {
			if strings.HasPrefix(mount.MountPath, "/var/secrets") {
				t.Errorf("%s sees %s", c.Name, mount.Name)
			}
		}
	}
}

// The platform's client knows the kinds that it was told of, and asks no server for others.
func TestServiceAccountsCanBeRead(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mapper(scheme).RESTMapping(schema.GroupKind{Kind: "ServiceAccount"}, "v1"); err != nil {
		t.Error(err)
	}
}

func TestPullersGetCertificatesAndARolesToken(t *testing.T) {
	is := serviceFrom(t, `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: many}
spec:
  predictor:
    storageUris:
    - {uri: "s3://shelf/base", mountPath: /mnt/models/base}
    - {uri: "gs://shelf/adapter", mountPath: /mnt/models/adapter}
    containers: [{name: kserve-container, image: "registry.example/engine:1"}]
`)
	m := memberOf(t, revisionOf(t, is, "predictor"), 1)
	m.credentials = credentialsFrom(&m.revision.Spec.PodTemplate, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		roleARN: "arn", caConfigMap: "roots",
	}}})
	cfg := gatewayed
	template, err := cfg.podTemplate(m)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range template.Spec.InitContainers {
		for _, v := range c.VolumeMounts {
			if v.Name == caVolume || v.Name == roleVolume {
				got = append(got, c.Name+" "+v.MountPath)
			}
		}
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "AWS_") || strings.HasPrefix(e.Name, "REQUESTS_") {
				got = append(got, c.Name+" "+e.Name)
			}
		}
	}
	want := []string{
		"storage-initializer /var/run/secrets/stationmaster/role", "storage-initializer /etc/ssl/custom-certs",
		"storage-initializer AWS_ROLE_ARN", "storage-initializer AWS_WEB_IDENTITY_TOKEN_FILE", "storage-initializer AWS_CA_BUNDLE", "storage-initializer REQUESTS_CA_BUNDLE",
		"storage-initializer-2 /etc/ssl/custom-certs", "storage-initializer-2 AWS_CA_BUNDLE", "storage-initializer-2 REQUESTS_CA_BUNDLE",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, v := range template.Spec.Volumes {
		if v.Name == roleVolume && v.Projected.Sources[0].ServiceAccountToken.Audience != roleAudience {
			t.Errorf("the token is for %q", v.Projected.Sources[0].ServiceAccountToken.Audience)
		}
	}
}

func TestServiceAccountsAreReadOnceInAMoment(t *testing.T) {
	api := &countedReader{}
	var a accounts
	now := time.Unix(0, 0)
	key := client.ObjectKey{Namespace: "team", Name: "robot"}
	for _, step := range []struct {
		after time.Duration
		reads int
	}{{0, 1}, {time.Second, 1}, {accountKept, 2}, {accountKept + time.Second, 2}} {
		if _, err := a.get(t.Context(), api, key, now.Add(step.after)); err != nil || api.reads != step.reads {
			t.Errorf("after %s it was read %d times, want %d; %v", step.after, api.reads, step.reads, err)
		}
	}
}

type countedReader struct {
	client.Reader
	reads int
}

func (c *countedReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	c.reads++
	return nil
}

// Before, models of S3's kind alone got credentials, and no certificates or roles.
func TestAnUpgradeGivesRunningPodsNoCredentialsThatTheyHadNot(t *testing.T) {
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{roleARN: "arn:aws:iam::1:role/r", caConfigMap: "roots", "serving.kserve.io/s3-region": "eu"}},
		Secrets:    []corev1.ObjectReference{{Name: "key"}},
	}
	running := func(ready int32, annotation string) client.Object {
		one := int32(1)
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &one}, Status: appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: ready}}
		d.Labels, d.Annotations = map[string]string{labelHash: "a"}, map[string]string{annotationCredentials: annotation}
		return d
	}
	groups := lws.Named("default", "iris-1")
	groups.Object["spec"], groups.Object["status"] = map[string]any{"replicas": int64(1)}, map[string]any{"readyReplicas": int64(1)}
	groups.SetLabels(map[string]string{labelHash: "a"})
	for title, tc := range map[string]struct {
		live   client.Object
		uri    string
		volume []string
		env    bool
	}{
		"a new one gets all":                        {uri: "s3://shelf/a", volume: []string{roleVolume, caVolume, secretVolume}, env: true},
		"one that this operator made gets all":      {live: running(1, "all"), uri: "https://m.example/a", volume: []string{caVolume, secretVolume}},
		"one that isn't ready gets all":             {live: running(0, ""), uri: "https://m.example/a", volume: []string{caVolume, secretVolume}},
		"one that is ready stays without":           {live: running(1, ""), uri: "https://m.example/a"},
		"groups that are ready stay without":        {live: groups, uri: "https://m.example/a"},
		"one of S3 stays with its secret and place": {live: running(1, ""), uri: "s3://shelf/a", volume: []string{secretVolume}, env: true},
	} {
		t.Run(title, func(t *testing.T) {
			var pod corev1.PodSpec
			puller := corev1.Container{Args: []string{"pull", tc.uri}}
			credentialsFrom(&corev1.PodTemplateSpec{}, account).keeping(tc.live, "a").give(&pod, &puller)
			var volumes []string
			for _, v := range pod.Volumes {
				volumes = append(volumes, v.Name)
			}
			if diff := cmp.Diff(tc.volume, volumes); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
			region := slices.ContainsFunc(puller.Env, func(e corev1.EnvVar) bool { return e.Name == "AWS_DEFAULT_REGION" })
			role := slices.ContainsFunc(puller.Env, func(e corev1.EnvVar) bool { return e.Name == "AWS_ROLE_ARN" })
			if region != tc.env || role != slices.Contains(tc.volume, roleVolume) {
				t.Errorf("it gets %v", puller.Env)
			}
		})
	}
}
