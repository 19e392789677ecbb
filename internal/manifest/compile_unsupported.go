package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// The fields with an effect on a process of one machine. Every other one that is set is
// reported, so that a field the Kubernetes API gains later is too.
var (
	podFields = set("containers", "initContainers", "volumes", "terminationGracePeriodSeconds",
		// Processes share the machine's network, IPC and processes anyway.
		"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace",
		// Without an image there is nothing to pull.
		"imagePullSecrets")
	containerFields = set("name", "image", "command", "args", "workingDir", "env", "envFrom", "ports", "volumeMounts",
		"startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "resources", "imagePullPolicy")
	mountFields    = set("name", "mountPath", "subPath", "readOnly")
	portFields     = set("name", "containerPort", "protocol")
	probeFields    = set("exec", "httpGet", "tcpSocket", "grpc", "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold")
	resourceFields = set("requests", "limits")
	limitFields    = set("cpu", "memory")
	volumeFields   = map[string]map[string]bool{
		"emptyDir":              {},
		"hostPath":              set("path"),
		"persistentVolumeClaim": set("claimName", "readOnly"),
		"configMap":             set("name", "items", "optional"),
		"secret":                set("secretName", "items", "optional"),
	}
	envSources = set("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
)

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// unsupported lists the fields without a local equivalent. A runtime that has a local command
// was written for the local platform, so that only those of other runtimes are listed.
func unsupported(in Input, p part, b built) []string {
	var f finder
	f.pod(p.path, tree(p.pod))
	if p.model != nil {
		m := p.model
		path := p.path + ".model"
		f.container(path, tree(&m.Container))
		if m.Storage != nil {
			f.add(path + ".storage")
		}
		if m.Confidential != nil && m.Confidential.Enabled {
			f.add(path + ".confidential")
		}
		if b.local != nil && len(b.local.Command)+len(b.local.Args) > 0 {
			// The local command stands for the runtime's image, not for another.
			if m.Image != "" {
				f.add(path + ".image")
			}
			if m.RuntimeVersion != nil {
				f.add(path + ".runtimeVersion")
			}
		}
	}
	if p.art != nil {
		f.container(p.path+".art", tree(&p.art.Container))
		if p.art.Storage != nil {
			f.add(p.path + ".art.storage")
		}
	}
	if in.Component == "predictor" {
		f.predictor(in.Service)
	}
	if in.Runtime != nil && p.model != nil {
		if b.local == nil {
			f.runtime(in.Runtime)
		}
		for i, v := range in.Runtime.Volumes {
			if _, ok := volume(v); !ok && b.local != nil {
				f.add(fmt.Sprintf("runtime.spec.volumes[%d]", i))
			}
		}
	}
	return f.paths
}

type finder struct{ paths []string }

func (f *finder) add(path string) { f.paths = append(f.paths, path) }

func (f *finder) predictor(s *servingv1beta1.InferenceService) {
	if s.Spec.Predictor.WorkerSpec != nil {
		f.add("spec.predictor.workerSpec")
	}
	if s.Spec.Predictor.StorageContainerName != nil {
		f.add("spec.predictor.storageContainerName")
	}
}

// runtime reports a runtime's fields, those for the many-model mode included, which no mode
// has.
func (f *finder) runtime(r *servingv1alpha1.ServingRuntimeSpec) {
	core := r.Core()
	t := tree(&core)
	f.pod("runtime.spec", t)
	rest := tree(r)
	for _, k := range []string{"workerSpec", "grpcEndpoint", "grpcDataEndpoint", "httpDataEndpoint", "replicas", "storageHelper", "builtInAdapter"} {
		if rest[k] != nil {
			f.add("runtime.spec." + k)
		}
	}
}

// pod reports a pod spec's fields.
func (f *finder) pod(path string, pod map[string]any) {
	for _, k := range keys(pod) {
		v := pod[k]
		switch {
		case podFields[k]:
		case k == "restartPolicy" && v == "Always":
		case k == "automountServiceAccountToken" && v == false:
		default:
			f.add(path + "." + k)
		}
	}
	for _, list := range []string{"containers", "initContainers"} {
		each(pod[list], func(i int, c map[string]any) { f.container(fmt.Sprintf("%s.%s[%d]", path, list, i), c) })
	}
	each(pod["volumes"], func(i int, v map[string]any) {
		for _, k := range keys(v) {
			at := fmt.Sprintf("%s.volumes[%d].%s", path, i, k)
			known, ok := volumeFields[k]
			switch {
			case k == "name":
			case !ok:
				f.add(at)
			default:
				f.unless(at, v[k], known)
				if m, ok := v[k].(map[string]any); ok {
					each(m["items"], func(j int, item map[string]any) {
						f.unless(fmt.Sprintf("%s.items[%d]", at, j), item, set("key", "path"))
					})
				}
			}
		}
	})
}

// container reports a container's fields.
func (f *finder) container(path string, c map[string]any) {
	f.unless(path, c, containerFields)
	each(c["volumeMounts"], func(i int, m map[string]any) { f.unless(fmt.Sprintf("%s.volumeMounts[%d]", path, i), m, mountFields) })
	each(c["ports"], func(i int, p map[string]any) {
		f.unless(fmt.Sprintf("%s.ports[%d]", path, i), p, portFields)
		if p["protocol"] != nil && p["protocol"] != "TCP" {
			f.add(fmt.Sprintf("%s.ports[%d].protocol", path, i))
		}
	})
	for _, k := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
		f.unless(path+"."+k, c[k], probeFields)
	}
	f.unless(path+".lifecycle", c["lifecycle"], set("postStart", "preStop"))
	f.unless(path+".resources", c["resources"], resourceFields)
	if r, ok := c["resources"].(map[string]any); ok {
		f.unless(path+".resources.limits", r["limits"], limitFields)
		if requests, ok := r["requests"].(map[string]any); ok {
			// CPU and memory requests are for placing a pod; on one machine there is no choice.
			f.unless(path+".resources.requests", requests, limitFields)
		}
	}
	each(c["env"], func(i int, e map[string]any) {
		at := fmt.Sprintf("%s.env[%d].valueFrom", path, i)
		f.unless(at, e["valueFrom"], envSources)
		if from, ok := e["valueFrom"].(map[string]any); ok {
			if r, ok := from["resourceFieldRef"].(map[string]any); ok && r["divisor"] != nil && r["divisor"] != "0" && r["divisor"] != "1" {
				f.add(at + ".resourceFieldRef.divisor")
			}
		}
	})
}

// unless reports the fields of an object that aren't known. Empty ones say nothing.
func (f *finder) unless(path string, v any, known map[string]bool) {
	m, _ := v.(map[string]any)
	for _, k := range keys(m) {
		if !known[k] && m[k] != nil {
			if strings.ContainsAny(k, "./") {
				f.add(fmt.Sprintf("%s[%s]", path, k))
			} else {
				f.add(path + "." + k)
			}
		}
	}
}

func keys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

func each(v any, do func(i int, m map[string]any)) {
	list, _ := v.([]any)
	for i, e := range list {
		if m, ok := e.(map[string]any); ok {
			do(i, m)
		}
	}
}

// tree returns a value as JSON has it, without nulls and empty objects at its top.
func tree(v any) map[string]any {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("BUG: %T doesn't encode as JSON: %v", v, err))
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		panic(fmt.Sprintf("BUG: %T isn't an object in JSON: %v", v, err))
	}
	for k, e := range m {
		if inner, ok := e.(map[string]any); e == nil || (ok && len(inner) == 0) {
			delete(m, k)
		}
	}
	return m
}
