package local

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// inherited are the variables of the control plane that engines see. All else stays here, so
// that its secrets don't leak into engines. A name that ends in '*' is a prefix.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
	"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYENV_ROOT", "PYENV_VERSION", "SSL_CERT_*", "REQUESTS_CA_BUNDLE",
	"OMP_NUM_THREADS", "OPENBLAS_*", "MKL_*", "CUDA_*", "NVIDIA_*", "ROCM_*", "HIP_*", "JAVA_HOME",
	"HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "DOCKER_HOST", "XDG_RUNTIME_DIR",
}

// baseEnviron returns what an engine inherits, with extra directories first on PATH.
func baseEnviron(environ, path []string) map[string]string {
	out := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if slices.ContainsFunc(inherited, func(in string) bool {
			prefix, wild := strings.CutSuffix(in, "*")
			return name == in || wild && strings.HasPrefix(name, prefix)
		}) {
			out[name] = value
		}
	}
	if len(path) > 0 {
		out["PATH"] = strings.Trim(strings.Join(path, ":")+":"+out["PATH"], ":")
	}
	return out
}

// variables resolves a container's environment on top of base. A value may refer to the
// variables before it.
func (r *instance) variables(ctx context.Context, c *spec.Container, base map[string]string, lists ...[]spec.EnvVar) (map[string]string, error) {
	env := maps.Clone(base)
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for _, list := range lists {
		for _, v := range list {
			if v.From == nil {
				env[v.Name] = swapPorts(expand(v.Value, lookup), r.ports)
				continue
			}
			got, err := r.lookup(ctx, c, v)
			if err != nil {
				return nil, fmt.Errorf("environment variable %s: %w", v.Name, err)
			}
			maps.Copy(env, got)
		}
	}
	return env, nil
}

func (r *instance) lookup(ctx context.Context, c *spec.Container, v spec.EnvVar) (map[string]string, error) {
	one := func(s string) map[string]string { return map[string]string{v.Name: s} }
	from := v.From
	switch from.Kind {
	case "secret", "configMap":
		values, err := r.object(ctx, from.Kind, from.Name, from.Optional)
		if err != nil || values == nil {
			return nil, err
		}
		if from.Key == "" {
			out := map[string]string{}
			for key, value := range values {
				out[v.Name+key] = string(value)
			}
			return out, nil
		}
		value, ok := values[from.Key]
		if !ok && !from.Optional {
			return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("%s %s/%s has no key %s", from.Kind, r.w.Service.Namespace, from.Name, from.Key))
		}
		if !ok {
			return nil, nil
		}
		return one(string(value)), nil
	case "field":
		s, err := r.field(from.Key)
		return one(s), err
	case "resource":
		s, err := resource(c, from.Key)
		return one(s), err
	}
	return nil, errdef.New(errdef.ErrUnsupported, "source "+from.Kind+" isn't known on one machine")
}

// object reads a secret or config map; a missing one is nil if optional.
func (r *instance) object(ctx context.Context, kind, name string, optional bool) (map[string][]byte, error) {
	if r.p.cfg.Objects == nil {
		return nil, errdef.New(errdef.ErrUnavailable, "secrets and config maps can't be read here")
	}
	get := r.p.cfg.Objects.ConfigMap
	if kind == "secret" {
		get = r.p.cfg.Objects.Secret
	}
	values, err := get(ctx, r.w.Service.Namespace, name)
	if err != nil {
		if optional && errdef.KindOf(err) == errdef.ErrNotFound {
			return nil, nil
		}
		return nil, fmt.Errorf("read %s %s/%s: %w", kind, r.w.Service.Namespace, name, err)
	}
	if values == nil {
		values = map[string][]byte{}
	}
	return values, nil
}

// field answers the downward API's field paths as far as a process has them.
func (r *instance) field(path string) (string, error) {
	host, _ := os.Hostname()
	labels := map[string]string{
		"app":                                "isvc." + r.w.Service.Name + "-" + string(r.w.Component),
		"component":                          string(r.w.Component),
		"serving.kserve.io/inferenceservice": r.w.Service.Name,
	}
	if name, ok := strings.CutPrefix(path, "metadata.labels['"); ok {
		return labels[strings.TrimSuffix(name, "']")], nil
	}
	if strings.HasPrefix(path, "metadata.annotations['") {
		return "", nil
	}
	switch path {
	case "metadata.name", "metadata.uid":
		return r.id, nil
	case "metadata.namespace":
		return r.w.Service.Namespace, nil
	case "spec.serviceAccountName":
		return "default", nil
	case "spec.nodeName":
		return host, nil
	case "status.podIP", "status.hostIP", "status.podIPs", "status.hostIPs":
		return "127.0.0.1", nil
	}
	return "", errdef.New(errdef.ErrUnsupported, "field "+path+" doesn't exist on one machine")
}

// resource answers limits and requests; what has no limit has the machine's all, as a pod
// has its node's.
func resource(c *spec.Container, key string) (string, error) {
	switch key {
	case "limits.cpu", "requests.cpu":
		if c.Resources.MilliCPU == 0 {
			return strconv.Itoa(runtime.NumCPU()), nil
		}
		return strconv.FormatInt((c.Resources.MilliCPU+999)/1000, 10), nil
	case "limits.memory", "requests.memory":
		if c.Resources.MemoryBytes != 0 {
			return strconv.FormatInt(c.Resources.MemoryBytes, 10), nil
		}
		raw, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return "", fmt.Errorf("read the machine's memory: %w", err)
		}
		for _, line := range strings.Split(string(raw), "\n") {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
				kib, err := strconv.ParseInt(f[1], 10, 64)
				return strconv.FormatInt(kib<<10, 10), err
			}
		}
	}
	return "", errdef.New(errdef.ErrUnsupported, "resource "+key+" isn't known on one machine")
}
