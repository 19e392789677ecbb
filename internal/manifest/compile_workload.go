package manifest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	engines "stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/spec"
)

// WorkloadOf returns what a platform runs for a stored revision: equal to what Compile
// returned when it was made, with the revision's name in it. Errors are of kind
// errdef.ErrInvalid and mean that the record was not made by Compile.
func WorkloadOf(namespace, name string, r *smv1alpha1.RevisionSpec) (spec.Workload, error) {
	w, err := workload(namespace, r)
	if err != nil {
		return spec.Workload{}, &CompileError{Component: spec.Component(r.Component), Reason: fmt.Errorf("revision %s: %w", name, err)}
	}
	w.Revision = spec.RevisionKey{Namespace: namespace, Name: name}
	w.Hash = r.Hash
	return w, nil
}

// workload translates a revision's pod. What has no local equivalent is left out; Compile
// reports it.
func workload(namespace string, r *smv1alpha1.RevisionSpec) (spec.Workload, error) {
	pod := &r.PodTemplate.Spec
	w := spec.Workload{
		Service:   spec.ServiceKey{Namespace: namespace, Name: r.Service},
		Component: spec.Component(r.Component), ModelName: r.ModelName,
	}
	for _, p := range r.Protocols {
		w.Protocols = append(w.Protocols, spec.Protocol(p))
	}
	for _, m := range r.Models {
		w.Models = append(w.Models, spec.Model{URI: m.URI, MountPath: cmp.Or(m.MountPath, DefaultModelPath)})
	}
	if s := pod.TerminationGracePeriodSeconds; s != nil {
		w.GracePeriod = time.Duration(*s) * time.Second
	}
	if len(pod.Containers) == 0 {
		return w, fmt.Errorf("the pod has no containers")
	}
	var local *LocalRuntime
	var err error
	if text := r.PodTemplate.Annotations[LocalAnnotation]; text != "" {
		if local, err = ParseLocal(text); err != nil {
			return w, err
		}
	}
	for _, v := range pod.Volumes {
		if vol, ok := volume(v); ok {
			w.Volumes = append(w.Volumes, vol)
		}
	}
	t := translator{volumes: pod.Volumes}
	var sidecars []spec.Container
	for _, c := range pod.InitContainers {
		tc, err := t.container(c, nil, false)
		if err != nil {
			return w, err
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			// A sidecar by Kubernetes' rules: it never ends, so it can't be waited for.
			sidecars = append(sidecars, tc)
			continue
		}
		w.Init = append(w.Init, tc)
	}
	engine := max(0, slices.IndexFunc(pod.Containers, named(ServerContainer)))
	server := engine
	if i := slices.IndexFunc(pod.Containers, named(TransformerContainer)); i >= 0 && w.Component == spec.Predictor {
		// A transformer in the predictor's pod takes the traffic.
		server = i
	}
	for i, c := range pod.Containers {
		var l *LocalRuntime
		if i == engine {
			l = local
		}
		tc, err := t.container(c, l, i == server || i == engine)
		if err != nil {
			return w, err
		}
		if i == server {
			w.Containers = slices.Insert(w.Containers, 0, tc)
		} else {
			w.Containers = append(w.Containers, tc)
		}
	}
	w.Containers = append(w.Containers, sidecars...)
	return w, nil
}

// volume returns the local equivalent of a pod's volume, and whether there is one.
func volume(v corev1.Volume) (spec.Volume, bool) {
	out := spec.Volume{Name: v.Name}
	items := func(ks []corev1.KeyToPath) map[string]string {
		if len(ks) == 0 {
			return nil
		}
		m := map[string]string{}
		for _, k := range ks {
			m[k.Key] = k.Path
		}
		return m
	}
	switch {
	case v.EmptyDir != nil:
		out.Kind = spec.VolumeEmptyDir
	case v.HostPath != nil:
		out.Kind, out.Source = spec.VolumeHostPath, v.HostPath.Path
	case v.PersistentVolumeClaim != nil:
		out.Kind, out.Source = spec.VolumeClaim, v.PersistentVolumeClaim.ClaimName
	case v.ConfigMap != nil:
		out.Kind, out.Source, out.Items = spec.VolumeConfigMap, v.ConfigMap.Name, items(v.ConfigMap.Items)
		out.Optional = v.ConfigMap.Optional != nil && *v.ConfigMap.Optional
	case v.Secret != nil:
		out.Kind, out.Source, out.Items = spec.VolumeSecret, v.Secret.SecretName, items(v.Secret.Items)
		out.Optional = v.Secret.Optional != nil && *v.Secret.Optional
	default:
		return out, false
	}
	return out, true
}

// translator turns a pod's containers into values of spec.
type translator struct{ volumes []corev1.Volume }

// shmPath is shared memory, which every process of a machine has without a mount.
const shmPath = "/dev/shm"

func (t translator) container(c corev1.Container, local *LocalRuntime, serves bool) (spec.Container, error) {
	out := spec.Container{
		Name: c.Name, Image: c.Image, Command: slices.Clone(c.Command), Args: slices.Clone(c.Args), WorkingDir: c.WorkingDir,
		Env: environment(c), Ports: portsOf(c, local),
		Resources: spec.Resources{
			MilliCPU:    c.Resources.Limits.Cpu().MilliValue(),
			MemoryBytes: c.Resources.Limits.Memory().Value(),
		},
	}
	if len(out.Ports) == 0 && serves {
		out.Ports = []spec.Port{{Name: "http", Number: DefaultHTTPPort, Scheme: spec.HTTP}}
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(t.volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			return out, fmt.Errorf("container %s mounts volume %s, which isn't there: add it to volumes", c.Name, m.Name)
		}
		v, ok := volume(t.volumes[i])
		if !ok || (v.Kind == spec.VolumeEmptyDir && m.MountPath == shmPath) {
			continue
		}
		claim := t.volumes[i].PersistentVolumeClaim
		out.Mounts = append(out.Mounts, spec.Mount{
			Volume: m.Name, Path: m.MountPath, SubPath: m.SubPath, ReadOnly: m.ReadOnly || (claim != nil && claim.ReadOnly),
		})
	}
	if local != nil {
		out.Local = local.command()
	}
	var err error
	for _, p := range []struct {
		name string
		from *corev1.Probe
		to   **spec.Probe
	}{
		{"startupProbe", c.StartupProbe, &out.Startup},
		{"readinessProbe", c.ReadinessProbe, &out.Readiness},
		{"livenessProbe", c.LivenessProbe, &out.Liveness},
	} {
		if *p.to, err = probe(out.Ports, p.from); err != nil {
			return out, fmt.Errorf("container %s: %s: %w", c.Name, p.name, err)
		}
	}
	if l := c.Lifecycle; l != nil {
		if out.PostStart, err = hook(out.Ports, l.PostStart); err != nil {
			return out, fmt.Errorf("container %s: lifecycle.postStart: %w", c.Name, err)
		}
		if out.PreStop, err = hook(out.Ports, l.PreStop); err != nil {
			return out, fmt.Errorf("container %s: lifecycle.preStop: %w", c.Name, err)
		}
	}
	return out, nil
}

// portsOf returns a container's ports: those it declares, then those that its engine has by
// the local document. UDP and SCTP ports carry no inference and are left out.
func portsOf(c corev1.Container, local *LocalRuntime) []spec.Port {
	var out []spec.Port
	add := func(name string, number int32) {
		if !slices.ContainsFunc(out, func(p spec.Port) bool { return p.Number == int(number) }) {
			out = append(out, spec.Port{Name: name, Number: int(number), Scheme: scheme(name)})
		}
	}
	for _, p := range c.Ports {
		if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
			add(p.Name, p.ContainerPort)
		}
	}
	if local != nil {
		for _, p := range local.Ports {
			add(p.Name, p.ContainerPort)
		}
	}
	return out
}

// scheme tells from a port's name what is spoken on it, as KServe does.
func scheme(name string) spec.PortScheme {
	if strings.HasPrefix(name, "h2c") || strings.HasPrefix(name, "grpc") {
		return spec.H2C
	}
	return spec.HTTP
}

// environment lists envFrom before env, which wins over it.
func environment(c corev1.Container) []spec.EnvVar {
	var out []spec.EnvVar
	isTrue := func(b *bool) bool { return b != nil && *b }
	for _, f := range c.EnvFrom {
		v := spec.EnvVar{Name: f.Prefix}
		switch {
		case f.SecretRef != nil:
			v.From = &spec.EnvSource{Kind: "secret", Name: f.SecretRef.Name, Optional: isTrue(f.SecretRef.Optional)}
		case f.ConfigMapRef != nil:
			v.From = &spec.EnvSource{Kind: "configMap", Name: f.ConfigMapRef.Name, Optional: isTrue(f.ConfigMapRef.Optional)}
		default:
			continue
		}
		out = append(out, v)
	}
	for _, e := range c.Env {
		v := spec.EnvVar{Name: e.Name, Value: e.Value}
		if s := e.ValueFrom; s != nil {
			switch {
			case s.SecretKeyRef != nil:
				v.From = &spec.EnvSource{Kind: "secret", Name: s.SecretKeyRef.Name, Key: s.SecretKeyRef.Key, Optional: isTrue(s.SecretKeyRef.Optional)}
			case s.ConfigMapKeyRef != nil:
				v.From = &spec.EnvSource{Kind: "configMap", Name: s.ConfigMapKeyRef.Name, Key: s.ConfigMapKeyRef.Key, Optional: isTrue(s.ConfigMapKeyRef.Optional)}
			case s.FieldRef != nil:
				v.From = &spec.EnvSource{Kind: "field", Key: s.FieldRef.FieldPath}
			case s.ResourceFieldRef != nil:
				v.From = &spec.EnvSource{Kind: "resource", Name: s.ResourceFieldRef.ContainerName, Key: s.ResourceFieldRef.Resource}
			default:
				continue
			}
		}
		out = append(out, v)
	}
	return out
}

// probe translates a probe and fills in Kubernetes' defaults (core/v1 API reference, Probe).
func probe(ports []spec.Port, p *corev1.Probe) (*spec.Probe, error) {
	if p == nil {
		return nil, nil
	}
	seconds := func(n, otherwise int32) time.Duration { return time.Duration(cmp.Or(n, otherwise)) * time.Second }
	a, err := action(ports, p.Exec, p.HTTPGet, p.TCPSocket)
	if err != nil {
		return nil, err
	}
	if p.GRPC != nil {
		if a != nil {
			return nil, fmt.Errorf("more than one action: keep one of exec, httpGet, tcpSocket, grpc")
		}
		a = &spec.Action{GRPC: &spec.GRPCAction{Port: int(p.GRPC.Port)}}
		if p.GRPC.Service != nil {
			a.GRPC.Service = *p.GRPC.Service
		}
	}
	if a == nil {
		return nil, fmt.Errorf("no action: add one of exec, httpGet, tcpSocket, grpc")
	}
	return &spec.Probe{
		Action: *a, InitialDelay: seconds(p.InitialDelaySeconds, 0), Period: seconds(p.PeriodSeconds, 10), Timeout: seconds(p.TimeoutSeconds, 1),
		SuccessThreshold: int(cmp.Or(p.SuccessThreshold, 1)), FailureThreshold: int(cmp.Or(p.FailureThreshold, 3)),
	}, nil
}

func hook(ports []spec.Port, h *corev1.LifecycleHandler) (*spec.Action, error) {
	if h == nil {
		return nil, nil
	}
	a, err := action(ports, h.Exec, h.HTTPGet, h.TCPSocket)
	if err != nil {
		return nil, err
	}
	if h.Sleep != nil {
		if a != nil {
			return nil, fmt.Errorf("more than one action: keep one of exec, httpGet, tcpSocket, sleep")
		}
		a = &spec.Action{Sleep: time.Duration(h.Sleep.Seconds) * time.Second}
	}
	if a == nil {
		return nil, fmt.Errorf("no action: add one of exec, httpGet, tcpSocket, sleep")
	}
	return a, nil
}

// action translates the actions that probes and hooks have in common; nil for none.
func action(ports []spec.Port, exec *corev1.ExecAction, get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction) (*spec.Action, error) {
	var out *spec.Action
	n := 0
	if exec != nil {
		n++
		out = &spec.Action{Exec: slices.Clone(exec.Command)}
	}
	if get != nil {
		n++
		port, err := portNumber(ports, get.Port)
		if err != nil {
			return nil, err
		}
		h := &spec.HTTPAction{Port: port, Host: get.Host, Path: cmp.Or(get.Path, "/"), TLS: get.Scheme == corev1.URISchemeHTTPS}
		for _, header := range get.HTTPHeaders {
			if h.Headers == nil {
				h.Headers = map[string]string{}
			}
			h.Headers[header.Name] = header.Value
		}
		out = &spec.Action{HTTP: h}
	}
	if tcp != nil {
		n++
		port, err := portNumber(ports, tcp.Port)
		if err != nil {
			return nil, err
		}
		out = &spec.Action{TCP: &spec.TCPAction{Port: port, Host: tcp.Host}}
	}
	if n > 1 {
		return nil, fmt.Errorf("more than one action: keep one of exec, httpGet, tcpSocket")
	}
	return out, nil
}

func portNumber(ports []spec.Port, p intstr.IntOrString) (int, error) {
	if p.Type == intstr.Int {
		return p.IntValue(), nil
	}
	for _, have := range ports {
		if have.Name == p.StrVal {
			return have.Number, nil
		}
	}
	return 0, fmt.Errorf("port %q is none of the container's port names: declare it in ports, or give its number", p.StrVal)
}

// spokenAnnotations say how a revision's engine is spoken to. A revision keeps those that it was made
// with, so that its replicas are reached as they were started, and a change of one makes another.
var spokenAnnotations = []string{
	enginetls.Annotation, enginetls.RootsAnnotation, enginetls.NameAnnotation,
	engines.Annotation, openAIRootAnnotation, TranslateAnnotation, CredentialsAnnotation,
}

// Is reports whether a stored revision has the shape that was compiled: what identifies shapes may be
// reckoned otherwise by now than when the revision was made, which is no change of the service.
func (c *Compiled) Is(r *smv1alpha1.RevisionSpec) bool {
	if r.Hash == c.Workload.Hash {
		return true
	}
	w, err := workload(c.Workload.Service.Namespace, r)
	if err != nil {
		return false
	}
	again, err := hash(w, &r.PodTemplate, r.Workers)
	return err == nil && again == c.Workload.Hash
}

// hash identifies what a running replica depends on: the workload (containers, models by URI,
// volumes, grace period), the pod's spec, which holds what only Kubernetes heeds, and the
// annotations by which its engine is spoken to. Labels and other annotations, resolved digests,
// the revision's name and installation hints are not in it; a label that a placeholder puts into
// an argument counts by that.
func hash(w spec.Workload, pod *corev1.PodTemplateSpec, workers *smv1alpha1.RevisionWorkers) (string, error) {
	w.Revision, w.Hash = spec.RevisionKey{}, ""
	w.Models = slices.Clone(w.Models)
	for i := range w.Models {
		w.Models[i].Digest = ""
	}
	w.Containers = slices.Clone(w.Containers)
	for i, c := range w.Containers {
		if c.Local != nil {
			l := *c.Local
			l.Install = ""
			w.Containers[i].Local = &l
		}
	}
	// What there is none of isn't written, so that hashes of before it was known still hold.
	type group struct {
		Size int32
		Pod  corev1.PodSpec
	}
	var beside *group
	if workers != nil {
		beside = &group{workers.Size, workers.PodTemplate.Spec}
	}
	spoken := map[string]string{}
	for _, key := range spokenAnnotations {
		if value, ok := pod.Annotations[key]; ok {
			spoken[key] = value
		}
	}
	text, err := json.Marshal(struct {
		Workload spec.Workload
		Pod      corev1.PodSpec
		Workers  *group            `json:",omitempty"`
		Spoken   map[string]string `json:",omitempty"`
	}{w, pod.Spec, beside, spoken})
	if err != nil {
		return "", fmt.Errorf("hash workload: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}
