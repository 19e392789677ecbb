package catalogue

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// Reason says why no runtime was selected, in the words of modelStatus.lastFailureInfo.reason.
type Reason string

// The reasons.
const (
	// RuntimeNotRecognized: the named runtime doesn't exist.
	RuntimeNotRecognized Reason = "RuntimeNotRecognized"
	// RuntimeDisabled: the named runtime is disabled.
	RuntimeDisabled Reason = "RuntimeDisabled"
	// NoSupportingRuntime: the named runtime, or every runtime, doesn't serve the format or
	// speak the protocol.
	NoSupportingRuntime Reason = "NoSupportingRuntime"
)

// SelectionError says why a model has no runtime and what to do. It is of kind
// errdef.ErrInvalid, or errdef.ErrNotFound for RuntimeNotRecognized.
type SelectionError struct {
	Reason  Reason
	Message string
	// Refused lists why each candidate wasn't chosen, those that serve the format first; nil
	// when a runtime was named.
	Refused []Refusal
}

// Refusal is why one runtime wasn't chosen.
type Refusal struct {
	Kind string
	Name string
	// Why is a clause such as "supports only v2; set protocolVersion: v2".
	Why string
}

// Error returns the message.
func (e *SelectionError) Error() string { return e.Message }

// Unwrap returns the error's kind.
func (e *SelectionError) Unwrap() error {
	if e.Reason == RuntimeNotRecognized {
		return errdef.ErrNotFound
	}
	return errdef.ErrInvalid
}

// refuse returns why automatic selection leaves a runtime out; empty means it fits.
func refuse(r Request, c candidate) string {
	var named, auto []servingv1alpha1.SupportedModelFormat
	for _, f := range c.spec.SupportedModelFormats {
		if f.Name == r.Format.Name {
			named = append(named, f)
			if isTrue(f.AutoSelect) {
				auto = append(auto, f)
			}
		}
	}
	switch {
	case len(named) == 0:
		return "doesn't serve " + r.Format.Name
	case isTrue(c.spec.Disabled):
		return "is disabled"
	case isTrue(c.spec.MultiModel) && !r.NoModel:
		return "serves many models from one replica (multiModel); leave the model's storage out and make a TrainedModel for each"
	case !slices.ContainsFunc(named, r.serves):
		return fmt.Sprintf("serves %s only in version %s; set modelFormat.version to one of them or leave it out", r.Format.Name, versions(named))
	case !slices.ContainsFunc(auto, r.serves):
		return "doesn't offer itself (autoSelect is false); set model.runtime: " + c.name
	case !speaks(c.spec, r.effectiveProtocol()):
		return fmt.Sprintf("supports only %s; set protocolVersion: %s", list(c.spec.ProtocolVersions), manifest.LowestProtocol(c.spec.ProtocolVersions))
	case c.spec.WorkerSpec != nil && !r.MultiNode:
		return "spans several nodes; add predictor.workerSpec"
	case c.spec.WorkerSpec == nil && r.MultiNode:
		return "runs on one node; remove predictor.workerSpec"
	}
	return ""
}

// noSupport explains why none of all was chosen.
func noSupport(r Request, all []candidate) *SelectionError {
	e := &SelectionError{Reason: NoSupportingRuntime}
	var near, far []Refusal
	known := map[string]bool{}
	for _, c := range all {
		refusal := Refusal{Kind: c.kind, Name: c.name, Why: refuse(r, c)}
		serves := false
		for _, f := range c.spec.SupportedModelFormats {
			known[f.Name] = true
			serves = serves || f.Name == r.Format.Name
		}
		if serves {
			near = append(near, refusal)
		} else {
			far = append(far, refusal)
		}
	}
	byName := func(a, b Refusal) int { return strings.Compare(a.Name+"/"+a.Kind, b.Name+"/"+b.Kind) }
	slices.SortFunc(near, byName)
	slices.SortFunc(far, byName)
	e.Refused = slices.Concat(near, far)

	var b strings.Builder
	fmt.Fprintf(&b, "no runtime found to support framework/version %s with protocol %s", r.format(), r.effectiveProtocol())
	if r.Protocol == "" {
		b.WriteString(" (protocolVersion is unset, which counts as v1)")
	}
	b.WriteString(": ")
	if len(near) == 0 {
		b.WriteString(unknownFormat(r.Format.Name, known))
	}
	for i, n := range near {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "runtime %s %s", n.Name, n.Why)
	}
	e.Message = b.String()
	return e
}

// unknownFormat says that nothing serves a format, and which are served.
func unknownFormat(name string, known map[string]bool) string {
	if len(known) == 0 {
		return "there is no runtime at all; create a ServingRuntime or ClusterServingRuntime"
	}
	sorted := slices.Sorted(maps.Keys(known))
	for _, k := range sorted {
		if strings.EqualFold(k, name) {
			return fmt.Sprintf("format names are case-sensitive; set modelFormat.name: %s", k)
		}
	}
	return fmt.Sprintf("no runtime lists the format; the known ones are %s", strings.Join(sorted, ", "))
}

func (r Request) format() string {
	if r.Format.Version == nil {
		return r.Format.Name
	}
	return r.Format.Name + " " + *r.Format.Version
}

func versions(fs []servingv1alpha1.SupportedModelFormat) string {
	var vs []string
	for _, f := range fs {
		if f.Version != nil && !slices.Contains(vs, *f.Version) {
			vs = append(vs, *f.Version)
		}
	}
	if len(vs) == 0 {
		return "(none)"
	}
	return strings.Join(vs, ", ")
}

func formats(s *servingv1alpha1.ServingRuntimeSpec) string {
	var out []string
	for _, f := range s.SupportedModelFormats {
		n := f.Name
		if f.Version != nil {
			n += " " + *f.Version
		}
		out = append(out, n)
	}
	if len(out) == 0 {
		return "no format"
	}
	return strings.Join(out, ", ")
}

func list(ps []servingv1alpha1.Protocol) string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = string(p)
	}
	return strings.Join(out, ", ")
}

func names(scopes [2][]candidate) string {
	var out []string
	for _, scope := range scopes {
		for _, c := range scope {
			out = append(out, c.name)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}
