package adopt

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Compare says in what a pod that runs differs from one that would be made. Both are as an API
// server admits them, with its defaults. Fields in restart are part of what was asked for: with
// them, the running pod isn't of that shape. Those in later are about a pod's start, its end and
// its protection: a running pod serves as well without them, and pods that start later have them.
// Both are sorted. models are those that ours fetches, by URI and path: how that is done is a
// matter of the start, what is fetched isn't.
func Compare(a, b *corev1.PodSpec, models map[string]string) (restart, later []string) {
	var d differences
	theirs := fetched(a)
	d.restart(!maps.Equal(theirs, models), "model (the pod has "+listed(theirs)+"; ours has "+listed(models)+")")
	for _, c := range b.Containers {
		if i := indexOf(a.Containers, c.Name); i >= 0 {
			d.container(&a.Containers[i], &c)
			d.restart(!apiequality.Semantic.DeepEqual(mounted(a, &a.Containers[i]), mounted(b, &c)), c.Name+".volumeMounts")
		} else {
			d.restart(true, "container "+c.Name)
		}
	}
	for _, c := range a.Containers {
		d.restart(indexOf(b.Containers, c.Name) < 0, "container "+c.Name)
	}
	for _, c := range slices.Concat(a.InitContainers, b.InitContainers) {
		i, j := indexOf(a.InitContainers, c.Name), indexOf(b.InitContainers, c.Name)
		switch {
		case fetches(c.Name):
			d.later(true, "initContainer "+c.Name)
		case i < 0 || j < 0 || !apiequality.Semantic.DeepEqual(a.InitContainers[i].Image, b.InitContainers[j].Image) ||
			!apiequality.Semantic.DeepEqual(a.InitContainers[i].Command, b.InitContainers[j].Command) ||
			!apiequality.Semantic.DeepEqual(a.InitContainers[i].Args, b.InitContainers[j].Args):
			d.restart(true, "initContainer "+c.Name)
		}
	}
	compare(d.restart, "", []field{
		{"serviceAccountName", a.ServiceAccountName, b.ServiceAccountName},
		{"nodeSelector", a.NodeSelector, b.NodeSelector},
		{"affinity", a.Affinity, b.Affinity},
		{"tolerations", a.Tolerations, b.Tolerations},
		{"topologySpreadConstraints", a.TopologySpreadConstraints, b.TopologySpreadConstraints},
		{"runtimeClassName", a.RuntimeClassName, b.RuntimeClassName},
		{"priorityClassName", a.PriorityClassName, b.PriorityClassName},
		{"hostNetwork", a.HostNetwork, b.HostNetwork},
		{"hostIPC", a.HostIPC, b.HostIPC},
		{"hostPID", a.HostPID, b.HostPID},
		{"shareProcessNamespace", a.ShareProcessNamespace, b.ShareProcessNamespace},
		{"schedulerName", a.SchedulerName, b.SchedulerName},
		{"dnsPolicy", a.DNSPolicy, b.DNSPolicy},
		{"dnsConfig", a.DNSConfig, b.DNSConfig},
		{"resourceClaims", a.ResourceClaims, b.ResourceClaims},
	})
	compare(d.later, "", []field{
		{"securityContext", a.SecurityContext, b.SecurityContext},
		{"automountServiceAccountToken", a.AutomountServiceAccountToken, b.AutomountServiceAccountToken},
		{"terminationGracePeriodSeconds", a.TerminationGracePeriodSeconds, b.TerminationGracePeriodSeconds},
		{"imagePullSecrets", a.ImagePullSecrets, b.ImagePullSecrets},
	})
	return slices.Sorted(maps.Keys(d.now)), slices.Sorted(maps.Keys(d.then))
}

// fetches reports whether an init container brings models. The name is KServe's and ours.
func fetches(name string) bool {
	return name == "storage-initializer" || strings.HasPrefix(name, "storage-initializer-")
}

// fetched returns what KServe's init containers bring, by URI and path.
func fetched(pod *corev1.PodSpec) map[string]string {
	out := map[string]string{}
	for _, c := range pod.InitContainers {
		if fetches(c.Name) {
			for pair := range slices.Chunk(c.Args, 2) {
				out[pair[0]] = pair[len(pair)-1]
			}
		}
	}
	return out
}

// listed writes models down for people, in the order of their URIs.
func listed(models map[string]string) string {
	if len(models) == 0 {
		return "none"
	}
	var out []string
	for _, uri := range slices.Sorted(maps.Keys(models)) {
		out = append(out, uri+" at "+models[uri])
	}
	return strings.Join(out, " and ")
}

// field is one part of a pod template, as KServe has it and as we do.
type field struct {
	name         string
	theirs, ours any
}

// compare tells of each field whether it differs, by its name behind at.
func compare(tell func(differs bool, field string), at string, fields []field) {
	for _, f := range fields {
		tell(!apiequality.Semantic.DeepEqual(f.theirs, f.ours), at+f.name)
	}
}

type differences struct{ now, then map[string]bool }

func (d *differences) restart(differs bool, field string) { note(&d.now, differs, field) }
func (d *differences) later(differs bool, field string)   { note(&d.then, differs, field) }

func note(into *map[string]bool, differs bool, field string) {
	if !differs {
		return
	}
	if *into == nil {
		*into = map[string]bool{}
	}
	(*into)[field] = true
}

func (d *differences) container(a, b *corev1.Container) {
	at := b.Name + "."
	ours := known(a.Env, b.Env)
	d.later(len(ours) < len(b.Env), at+"env "+serviceEnv)
	compare(d.restart, at, []field{
		{"image", a.Image, b.Image},
		{"command", a.Command, b.Command},
		{"args", a.Args, b.Args},
		{"workingDir", a.WorkingDir, b.WorkingDir},
		{"env", byName(a.Env), byName(ours)},
		{"envFrom", a.EnvFrom, b.EnvFrom},
		{"resources", a.Resources, b.Resources},
		{"volumeDevices", a.VolumeDevices, b.VolumeDevices},
	})
	compare(d.later, at, []field{
		{"ports", a.Ports, b.Ports},
		{"startupProbe", a.StartupProbe, b.StartupProbe},
		{"readinessProbe", a.ReadinessProbe, b.ReadinessProbe},
		{"livenessProbe", a.LivenessProbe, b.LivenessProbe},
		{"lifecycle", a.Lifecycle, b.Lifecycle},
		{"securityContext", a.SecurityContext, b.SecurityContext},
		{"imagePullPolicy", a.ImagePullPolicy, b.ImagePullPolicy},
		{"terminationMessagePolicy", a.TerminationMessagePolicy, b.TerminationMessagePolicy},
	})
}

// mount is what a container finds at a path.
type mount struct {
	Source           corev1.VolumeSource
	SubPath          string
	SubPathExpr      string
	ReadOnly         bool
	MountPropagation corev1.MountPropagationMode
}

// tokenPath is where pods find the token of their service account, in a volume whose name differs
// from pod to pod.
const tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// mounted returns what a container finds where, whatever volumes are called.
func mounted(p *corev1.PodSpec, c *corev1.Container) map[string]mount {
	out := map[string]mount{}
	for _, m := range c.VolumeMounts {
		if m.MountPath == tokenPath {
			continue
		}
		at := mount{SubPath: m.SubPath, SubPathExpr: m.SubPathExpr, ReadOnly: m.ReadOnly}
		if m.MountPropagation != nil {
			at.MountPropagation = *m.MountPropagation
		}
		for _, v := range p.Volumes {
			if v.Name == m.Name {
				at.Source = v.VolumeSource
			}
		}
		out[m.MountPath] = at
	}
	return out
}

// serviceEnv names the service to its containers. Earlier versions of KServe don't set it, and
// later ones add it to no Deployment that lacks it.
const serviceEnv = "INFERENCE_SERVICE_NAME"

// known returns ours without serviceEnv where theirs lack it.
func known(theirs, ours []corev1.EnvVar) []corev1.EnvVar {
	if _, ok := byName(theirs)[serviceEnv]; ok {
		return ours
	}
	return slices.DeleteFunc(slices.Clone(ours), func(e corev1.EnvVar) bool { return e.Name == serviceEnv })
}

func byName(env []corev1.EnvVar) map[string]corev1.EnvVar {
	out := map[string]corev1.EnvVar{}
	for _, e := range env {
		out[e.Name] = e
	}
	return out
}

func indexOf(containers []corev1.Container, name string) int {
	return slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
}
