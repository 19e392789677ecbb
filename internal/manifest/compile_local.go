package manifest

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/internal/spec"
)

// LocalAnnotation holds how a runtime's kserve-container runs without its image: a YAML
// document of the LocalRuntime type. It stands on a runtime's metadata or, on top of it, on a
// service or component; compiled pods carry it with placeholders filled in.
const LocalAnnotation = "stationmaster.dev/local"

// LocalRuntime is the document in LocalAnnotation. Its fields mean what those of
// spec.LocalCommand mean.
type LocalRuntime struct {
	LocalAlternative `json:",inline"`
	// Alternatives are tried in order after the document's own command.
	Alternatives []LocalAlternative `json:"alternatives,omitempty"`
	// Ports that the engine listens on wherever it runs. They complete those that the
	// container declares: KServe's runtimes declare none.
	Ports []LocalPort `json:"ports,omitempty"`
	// Install tells a person how to get the engine.
	Install string `json:"install,omitempty"`
}

// LocalAlternative is one way to run an engine.
type LocalAlternative struct {
	Command  []string   `json:"command,omitempty"`
	Args     []string   `json:"args,omitempty"`
	Env      []LocalEnv `json:"env,omitempty"`
	Requires []string   `json:"requires,omitempty"`
	Check    []string   `json:"check,omitempty"`
}

// LocalEnv is an environment variable of a local command.
type LocalEnv struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// LocalPort is a port of an engine; a name that begins with grpc or h2c means HTTP/2.
type LocalPort struct {
	Name          string `json:"name"`
	ContainerPort int32  `json:"containerPort"`
}

// ParseLocal decodes the document of LocalAnnotation strictly. Errors are about the document.
func ParseLocal(text string) (*LocalRuntime, error) {
	l := &LocalRuntime{}
	if err := yaml.UnmarshalStrict([]byte(text), l); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", LocalAnnotation, err)
	}
	for _, a := range l.ways() {
		if len(a.Command) == 0 && len(a.Args) == 0 && len(a.Check)+len(a.Requires) > 0 {
			return nil, fmt.Errorf("annotation %s: requires or check without a command: add the command that they stand for", LocalAnnotation)
		}
		for _, e := range a.Env {
			if e.Name == "" {
				return nil, fmt.Errorf("annotation %s: an env entry has no name: add one", LocalAnnotation)
			}
		}
	}
	for _, a := range l.Alternatives {
		if len(a.Command) == 0 {
			return nil, fmt.Errorf("annotation %s: an alternative has no command: add one", LocalAnnotation)
		}
	}
	for _, p := range l.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 {
			return nil, fmt.Errorf("annotation %s: port %d isn't between 1 and 65535", LocalAnnotation, p.ContainerPort)
		}
	}
	return l, nil
}

// ways returns every way to run, the preferred one first, for changing in place.
func (l *LocalRuntime) ways() []*LocalAlternative {
	out := []*LocalAlternative{&l.LocalAlternative}
	for i := range l.Alternatives {
		out = append(out, &l.Alternatives[i])
	}
	return out
}

// adopt makes a manifest's own args and environment count in a local command too: args go to
// the end, as they do behind the runtime's, and its variables win.
func (l *LocalRuntime) adopt(over corev1.Container) {
	for _, w := range l.ways() {
		if len(w.Command) > 0 {
			w.Command = slices.Concat(w.Command, over.Args)
		} else if len(w.Args) > 0 {
			w.Args = slices.Concat(w.Args, over.Args)
		}
		w.Env = slices.DeleteFunc(w.Env, func(e LocalEnv) bool {
			return slices.ContainsFunc(over.Env, func(o corev1.EnvVar) bool { return o.Name == e.Name })
		})
	}
}

// command returns the document as a value of spec; nil for a document that holds ports only.
func (l *LocalRuntime) command() *spec.LocalCommand {
	if len(l.Command) == 0 && len(l.Args) == 0 && len(l.Env) == 0 && l.Install == "" {
		return nil
	}
	c := l.LocalAlternative.command()
	c.Install = l.Install
	for _, a := range l.Alternatives {
		c.Alternatives = append(c.Alternatives, a.command())
	}
	return &c
}

func (a LocalAlternative) command() spec.LocalCommand {
	c := spec.LocalCommand{Command: a.Command, Args: a.Args, Requires: a.Requires, Check: a.Check}
	for _, e := range a.Env {
		c.Env = append(c.Env, spec.EnvVar{Name: e.Name, Value: e.Value})
	}
	return c
}

// annotation returns the document in the form that compiled pods carry.
func (l *LocalRuntime) annotation() (string, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return "", fmt.Errorf("encode annotation %s: %w", LocalAnnotation, err)
	}
	return string(text), nil
}
