package catalogue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// The kinds that a selected runtime can be of.
const (
	KindServingRuntime        = "ServingRuntime"
	KindClusterServingRuntime = "ClusterServingRuntime"
)

// Request is what selection needs to know of a predictor.
type Request struct {
	Format servingv1beta1.ModelFormat
	// Runtime is the one that the manifest names; empty means choose.
	Runtime string
	// Protocol is the manifest's protocolVersion; empty means unset.
	Protocol servingv1alpha1.Protocol
	// MultiNode says that the predictor has a workerSpec.
	MultiNode bool
	// NoModel says that the predictor brings no model of its own, so that a runtime which serves
	// many, as TrainedModels, comes first.
	NoModel bool
}

// RequestOf returns the request of a defaulted predictor, and false for one without a model,
// which needs no runtime.
func RequestOf(p *servingv1beta1.PredictorSpec) (Request, bool) {
	if p.Model == nil {
		return Request{}, false
	}
	r := Request{Format: p.Model.ModelFormat, MultiNode: p.WorkerSpec != nil}
	r.NoModel = p.Model.StorageURI == nil && p.Model.Storage == nil && len(p.StorageURIs) == 0
	if p.Model.Runtime != nil {
		r.Runtime = *p.Model.Runtime
	}
	if p.Model.ProtocolVersion != nil {
		r.Protocol = servingv1alpha1.Protocol(*p.Model.ProtocolVersion)
	}
	return r, true
}

// Selection is the runtime that serves a model. Spec and Annotations share memory with the
// runtime that was given and must not be changed.
type Selection struct {
	Name string
	// Kind is KindServingRuntime or KindClusterServingRuntime.
	Kind        string
	Spec        *servingv1alpha1.ServingRuntimeSpec
	Annotations map[string]string
	// Protocol is the one asked for, or else the lowest that the runtime lists; empty where
	// neither says one.
	Protocol servingv1alpha1.Protocol
}

// candidate is a runtime of either kind.
type candidate struct {
	name, kind  string
	spec        *servingv1alpha1.ServingRuntimeSpec
	annotations map[string]string
	createdUnix int64
}

// Select returns the runtime that serves the request, by KServe's rules and in its order
// (pkg/apis/serving/v1beta1/predictor_model.go), but that a multiModel runtime is chosen for a
// predictor without a model, which KServe has named: a named runtime is looked up in the namespace
// first and then in the cluster; otherwise the best of the namespace's that fit comes before
// the best of the cluster's. The order of the two lists has no influence. Every error is a
// *SelectionError.
func Select(r Request, namespaced []servingv1alpha1.ServingRuntime, cluster []servingv1alpha1.ClusterServingRuntime) (Selection, error) {
	scopes := [2][]candidate{}
	for i := range namespaced {
		o := &namespaced[i]
		scopes[0] = append(scopes[0], candidate{o.Name, KindServingRuntime, &o.Spec, o.Annotations, o.CreationTimestamp.Unix()})
	}
	for i := range cluster {
		o := &cluster[i]
		scopes[1] = append(scopes[1], candidate{o.Name, KindClusterServingRuntime, &o.Spec, o.Annotations, o.CreationTimestamp.Unix()})
	}
	if r.Runtime != "" {
		return selectNamed(r, scopes)
	}
	for _, scope := range scopes {
		var fit []candidate
		for _, c := range scope {
			if refuse(r, c) == "" {
				fit = append(fit, c)
			}
		}
		if len(fit) > 0 {
			return r.selected(slices.MinFunc(fit, r.better)), nil
		}
	}
	return Selection{}, noSupport(r, slices.Concat(scopes[0], scopes[1]))
}

func (r Request) selected(c candidate) Selection {
	s := Selection{Name: c.name, Kind: c.kind, Spec: c.spec, Annotations: c.annotations, Protocol: r.Protocol}
	if s.Protocol == "" {
		s.Protocol = manifest.LowestProtocol(c.spec.ProtocolVersions)
	}
	return s
}

// selectNamed checks a named runtime: found, enabled, protocol, format. Whether it may be
// chosen automatically, serves many models or spans nodes doesn't matter here, as in KServe.
func selectNamed(r Request, scopes [2][]candidate) (Selection, error) {
	for _, scope := range scopes {
		i := slices.IndexFunc(scope, func(c candidate) bool { return c.name == r.Runtime })
		if i < 0 {
			continue
		}
		c := scope[i]
		switch {
		case isTrue(c.spec.Disabled):
			return Selection{}, &SelectionError{Reason: RuntimeDisabled, Message: fmt.Sprintf(
				"%s %s is disabled: name another in model.runtime, or set spec.disabled of the runtime to false", c.kind, c.name)}
		case r.Protocol != "" && !speaks(c.spec, r.Protocol):
			return Selection{}, &SelectionError{Reason: NoSupportingRuntime, Message: fmt.Sprintf(
				"%s %s doesn't support protocol version %s: set protocolVersion to one of %s, or name another runtime",
				c.kind, c.name, r.Protocol, list(c.spec.ProtocolVersions))}
		case !slices.ContainsFunc(c.spec.SupportedModelFormats, r.serves):
			return Selection{}, &SelectionError{Reason: NoSupportingRuntime, Message: fmt.Sprintf(
				"%s %s doesn't support framework/version %s: it serves %s; change modelFormat or name another runtime",
				c.kind, c.name, r.format(), formats(c.spec))}
		}
		return r.selected(c), nil
	}
	return Selection{}, &SelectionError{Reason: RuntimeNotRecognized, Message: fmt.Sprintf(
		"waiting for runtime %s to become available: there is no ServingRuntime of that name in the namespace and no ClusterServingRuntime; create it, or correct model.runtime (known: %s)",
		r.Runtime, names(scopes))}
}

// serves says whether a format entry fits: the name exactly, and the version string exactly
// where the manifest gives one.
func (r Request) serves(f servingv1alpha1.SupportedModelFormat) bool {
	return f.Name == r.Format.Name && (r.Format.Version == nil || (f.Version != nil && *f.Version == *r.Format.Version))
}

// effectiveProtocol is what automatic selection matches; KServe takes an unset one as v1.
func (r Request) effectiveProtocol() servingv1alpha1.Protocol {
	if r.Protocol == "" {
		return protocolV1
	}
	return r.Protocol
}

// better orders two candidates of one scope that both fit; negative means a comes first.
func (r Request) better(a, b candidate) int {
	return cmp.Or(
		many(b.spec)-many(a.spec),
		cmp.Compare(r.priority(b.spec), r.priority(a.spec)),
		cmp.Compare(lowest(a), lowest(b)),
		cmp.Compare(b.createdUnix, a.createdUnix),
		strings.Compare(a.name, b.name),
	)
}

// many is 1 for a runtime that serves many models, and 0 for others.
func many(s *servingv1alpha1.ServingRuntimeSpec) int {
	if isTrue(s.MultiModel) {
		return 1
	}
	return 0
}

// priority returns that of the first entry with the format's name, whatever its version or
// autoSelect (KServe's rule), and 0, below every set one, when it is unset.
func (r Request) priority(s *servingv1alpha1.ServingRuntimeSpec) int32 {
	for _, f := range s.SupportedModelFormats {
		if f.Name == r.Format.Name {
			if f.Priority == nil {
				return 0
			}
			return *f.Priority
		}
	}
	return 0
}

// protocolV1 is what an unset protocolVersion counts as.
const protocolV1 servingv1alpha1.Protocol = "v1"

// lowest returns the place of the lowest protocol that a candidate lists; none is last.
func lowest(c candidate) int {
	return manifest.ProtocolRank(manifest.LowestProtocol(c.spec.ProtocolVersions))
}

// speaks says whether a runtime supports p; one that lists no protocol supports any.
func speaks(s *servingv1alpha1.ServingRuntimeSpec, p servingv1alpha1.Protocol) bool {
	return len(s.ProtocolVersions) == 0 || slices.Contains(s.ProtocolVersions, p)
}

func isTrue(b *bool) bool { return b != nil && *b }
