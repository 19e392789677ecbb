package manifest_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

func fromYAML[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", "  ")), &v); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return v
}

func TestAModelsContainerIsLaidOverTheRuntimes(t *testing.T) {
	for name, tc := range map[string]struct{ base, over, want string }{
		"scalars are replaced": {
			"{name: kserve-container, image: a, workingDir: /a}", "{name: x, image: b}",
			"{name: kserve-container, image: b, workingDir: /a}",
		},
		"args are joined, the runtime's first": {
			"{name: c, args: [a, b]}", "{name: c, args: [b, d]}", "{name: c, args: [a, b, b, d]}",
		},
		"a command is replaced": {
			"{name: c, command: [a, b], args: [x]}", "{name: c, command: [d]}", "{name: c, command: [d], args: [x]}",
		},
		"variables merge by name": {
			"{name: c, env: [{name: A, value: '1'}, {name: B, value: '2'}]}", "{name: c, env: [{name: B, value: '3'}, {name: D, value: '4'}]}",
			"{name: c, env: [{name: A, value: '1'}, {name: B, value: '3'}, {name: D, value: '4'}]}",
		},
		"a source takes the place of a value": {
			"{name: c, env: [{name: A, value: '1'}]}", "{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}",
			"{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}",
		},
		"a value takes the place of a source": {
			"{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}", "{name: c, env: [{name: A, value: '1'}]}",
			"{name: c, env: [{name: A, value: '1'}]}",
		},
		"a source takes the place of another": {
			"{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}", "{name: c, env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}",
			"{name: c, env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}",
		},
		"ports merge by number": {
			"{name: c, ports: [{containerPort: 8080}, {containerPort: 9000}]}", "{name: c, ports: [{containerPort: 9000, name: h2c}]}",
			"{name: c, ports: [{containerPort: 8080}, {containerPort: 9000, name: h2c}]}",
		},
		"mounts merge by path": {
			"{name: c, volumeMounts: [{name: a, mountPath: /a}]}", "{name: c, volumeMounts: [{name: b, mountPath: /a}, {name: d, mountPath: /d}]}",
			"{name: c, volumeMounts: [{name: b, mountPath: /a}, {name: d, mountPath: /d}]}",
		},
		"resources merge by name": {
			"{name: c, resources: {limits: {cpu: '1', memory: 2Gi}, requests: {cpu: '1'}}}", "{name: c, resources: {limits: {cpu: '4', nvidia.com/gpu: '1'}}}",
			"{name: c, resources: {limits: {cpu: '4', memory: 2Gi, nvidia.com/gpu: '1'}, requests: {cpu: '1'}}}",
		},
		"a probe's pace is merged": {
			"{name: c, readinessProbe: {httpGet: {path: /a, port: 1}, periodSeconds: 5}}", "{name: c, readinessProbe: {periodSeconds: 9}}",
			"{name: c, readinessProbe: {httpGet: {path: /a, port: 1}, periodSeconds: 9}}",
		},
		"a probe's action is replaced": {
			"{name: c, readinessProbe: {httpGet: {path: /a, port: 1}, periodSeconds: 5}}", "{name: c, readinessProbe: {tcpSocket: {port: 2}}}",
			"{name: c, readinessProbe: {tcpSocket: {port: 2}, periodSeconds: 5}}",
		},
		"a hook is replaced": {
			"{name: c, lifecycle: {preStop: {exec: {command: [a]}}, postStart: {exec: {command: [p]}}}}", "{name: c, lifecycle: {preStop: {sleep: {seconds: 3}}}}",
			"{name: c, lifecycle: {preStop: {sleep: {seconds: 3}}, postStart: {exec: {command: [p]}}}}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			base, over := fromYAML[corev1.Container](t, tc.base), fromYAML[corev1.Container](t, tc.over)
			b, o := base.DeepCopy(), over.DeepCopy()
			got := manifest.MergeContainer(base, over)
			want := fromYAML[corev1.Container](t, tc.want)
			byName(got.Env)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if cmp.Diff(*b, base) != "" || cmp.Diff(*o, over) != "" {
				t.Error("the merge changed its arguments")
			}
		})
	}
}

func byName(env []corev1.EnvVar) {
	for i := range env {
		for j := i + 1; j < len(env); j++ {
			if env[j].Name < env[i].Name {
				env[i], env[j] = env[j], env[i]
			}
		}
	}
}

func TestAPrivilegedContainerIsFreeOfTheRuntimesBan(t *testing.T) {
	base := fromYAML[corev1.Container](t, "name: a\nsecurityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true}")
	got := manifest.MergeContainer(base, fromYAML[corev1.Container](t, "securityContext: {privileged: true}"))
	if d := cmp.Diff(fromYAML[corev1.Container](t, "name: a\nsecurityContext: {privileged: true, runAsNonRoot: true}"), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// What the service itself bans stays, for the API server to refuse.
	got = manifest.MergeContainer(base, fromYAML[corev1.Container](t, "securityContext: {privileged: true, allowPrivilegeEscalation: false}"))
	if s := got.SecurityContext; s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		t.Errorf("%+v", s)
	}
}

func TestContainersKeepKServesOrder(t *testing.T) {
	names := func(cs []corev1.Container) string {
		var out []string
		for _, c := range cs {
			out = append(out, c.Name+strings.Join(c.Args, ""))
		}
		return strings.Join(out, " ")
	}
	for name, tc := range map[string]struct{ runtime, service, want string }{
		"the server first":                   {"[{name: side}, {name: kserve-container}]", "[]", "kserve-container side"},
		"the runtime's before the service's": {"[{name: kserve-container}, {name: side}]", "[{name: own}]", "kserve-container side own"},
		"a transformer comes second":         {"[{name: side}, {name: kserve-container}]", "[{name: own}, {name: transformer-container}]", "kserve-container transformer-container side own"},
		"a transformer of both is merged":    {"[{name: kserve-container}, {name: transformer-container, args: ['1']}]", "[{name: transformer-container, args: ['2']}]", "kserve-container transformer-container12"},
		"a sidecar of both is merged":        {"[{name: kserve-container}, {name: side, args: ['1']}]", "[{name: side, args: ['2']}]", "kserve-container side12"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := manifest.MergeContainers(fromYAML[[]corev1.Container](t, tc.runtime), corev1.Container{}, fromYAML[[]corev1.Container](t, tc.service))
			if err != nil || names(got) != tc.want {
				t.Errorf("got %q, %v; want %q", names(got), err, tc.want)
			}
		})
	}
	if _, err := manifest.MergeContainers([]corev1.Container{{Name: "engine"}}, corev1.Container{}, nil); err == nil || !strings.Contains(err.Error(), "kserve-container") {
		t.Errorf("a runtime without kserve-container: %v", err)
	}
}

func TestPodFieldsMerge(t *testing.T) {
	base := fromYAML[servingv1alpha1.ServingRuntimePodSpec](t, `
containers: [{name: kserve-container}]
nodeSelector: {disk: ssd}
hostIPC: true
schedulerName: volcano
imagePullSecrets: [{name: a}]
tolerations: [{key: gpu, operator: Exists}]
volumes:
- {name: shm, emptyDir: {medium: Memory}}
- {name: cache, emptyDir: {}}
`)
	over := fromYAML[servingv1beta1.PodSpec](t, `
containers: [{name: side}]
nodeSelector: {zone: a}
imagePullSecrets: [{name: b}]
serviceAccountName: sa
volumes:
- {name: cache, persistentVolumeClaim: {claimName: big}}
`)
	got := manifest.MergePod(base, over)
	want := fromYAML[corev1.PodSpec](t, `
containers: null
nodeSelector: {disk: ssd, zone: a}
hostIPC: true
schedulerName: volcano
serviceAccountName: sa
imagePullSecrets: [{name: b}, {name: a}]
tolerations: [{key: gpu, operator: Exists}]
volumes:
- {name: cache, persistentVolumeClaim: {claimName: big}}
- {name: shm, emptyDir: {medium: Memory}}
`)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestMergingAnEmptyContainerChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := corev1.Container{Name: "kserve-container", Image: rapid.StringMatching(`[a-z]{0,5}`).Draw(t, "image")}
		c.Args = rapid.SliceOfN(rapid.StringMatching(`[a-z-]{1,5}`), 1, 4).Draw(t, "args")
		for _, n := range rapid.SliceOfNDistinct(rapid.StringMatching(`[A-Z]{1,2}`), 0, 4, rapid.ID).Draw(t, "env") {
			c.Env = append(c.Env, corev1.EnvVar{Name: n, Value: rapid.StringMatching(`[a-z]{0,3}`).Draw(t, "value")})
		}
		got := manifest.MergeContainer(c, corev1.Container{})
		if d := cmp.Diff(c, got); d != "" {
			t.Fatalf("(-before +after):\n%s", d)
		}
		twice := manifest.MergeContainer(c, corev1.Container{Args: c.Args})
		if len(twice.Args) != 2*len(c.Args) {
			t.Fatalf("args %v: they must be joined", twice.Args)
		}
	})
}

// TestMergingEqualsKubernetes takes Kubernetes' own strategic merge as the oracle.
func TestMergingEqualsKubernetes(t *testing.T) {
	words := func(t *rapid.T, what string) string {
		return rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, what)
	}
	names := func(t *rapid.T) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 0, 4, rapid.ID).Draw(t, "names")
	}
	quantities := func(t *rapid.T) corev1.ResourceList {
		out := corev1.ResourceList{}
		for _, n := range names(t) {
			out[corev1.ResourceName(n)] = resource.MustParse(rapid.SampledFrom([]string{"1", "2Gi", "500m"}).Draw(t, "quantity"))
		}
		if len(out) == 0 {
			return nil
		}
		return out
	}
	container := func(t *rapid.T) corev1.Container {
		c := corev1.Container{Name: "kserve-container", Image: words(t, "image"), WorkingDir: words(t, "dir")}
		c.Command = rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, "command")
		for _, n := range names(t) {
			c.Env = append(c.Env, corev1.EnvVar{Name: n, Value: words(t, "value")})
		}
		for _, n := range names(t) {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: int32(n[0]), Name: words(t, "port")})
		}
		for _, n := range names(t) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{MountPath: "/" + n, Name: "v" + words(t, "volume"), ReadOnly: rapid.Bool().Draw(t, "ro")})
		}
		c.Resources.Limits, c.Resources.Requests = quantities(t), quantities(t)
		if rapid.Bool().Draw(t, "probe") {
			c.ReadinessProbe = &corev1.Probe{PeriodSeconds: rapid.Int32Range(0, 2).Draw(t, "period")}
			c.ReadinessProbe.HTTPGet = &corev1.HTTPGetAction{Path: words(t, "path"), Port: intstr.FromInt32(1)}
		}
		if rapid.Bool().Draw(t, "security") {
			yes := rapid.Bool().Draw(t, "root")
			c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: &yes, Capabilities: &corev1.Capabilities{}}
			for _, n := range names(t) {
				c.SecurityContext.Capabilities.Drop = append(c.SecurityContext.Capabilities.Drop, corev1.Capability(n))
			}
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		base, over := container(t), container(t)
		// Kubernetes merges the two handlers of a probe; ours is replaced as a whole on purpose.
		if over.ReadinessProbe != nil && base.ReadinessProbe != nil {
			base.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{}
		}
		b, err := json.Marshal(base)
		if err != nil {
			t.Fatal(err)
		}
		o, err := json.Marshal(over)
		if err != nil {
			t.Fatal(err)
		}
		m, err := strategicpatch.StrategicMergePatch(b, o, corev1.Container{})
		if err != nil {
			t.Fatal(err)
		}
		var want corev1.Container
		if err := json.Unmarshal(m, &want); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(manifest.MergeContainer(base, over))
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(wanted), string(got)); d != "" {
			t.Fatalf("(-Kubernetes +ours):\n%s", d)
		}
	})
}
