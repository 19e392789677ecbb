// Package routing turns a service's objects and its ready replicas into its line of the
// gateway's routing table. One machine and a cluster share it, so that both route alike: there
// the reconciler calls it, here each gateway does with what it watches. It does no I/O.
package routing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Service is what is known of one InferenceService.
type Service struct {
	Key     spec.ServiceKey
	Created time.Time
	// Domain is the last part of outside hosts.
	Domain string
	// InCluster adds the names by which pods reach a component: <component>.<namespace>, with
	// and without .svc and .svc.cluster.local behind it.
	InCluster  bool
	Components []Component
	// Revisions are those that the components' routes may name.
	Revisions []smv1alpha1.Revision
	Observed  spec.Observed
	// Models are the names of the trained models that the service serves; nil for a service that
	// has one model of its own. In place of the service's name they lead to it.
	Models []string
	// Adapters are the names of the LoRA adapters that the service lists, in order.
	Adapters []string
}

// The reasons of a component's condition, with the status True, while nothing of it runs for there
// is nothing to do, and while it is started again for requests that wait.
const (
	ReasonAsleep = "ScaledToZero"
	ReasonWaking = "Waking"
)

// Component is one component of a service.
type Component struct {
	Name spec.Component
	// Route says where its requests go; without targets nothing was rolled out or nothing serves.
	Route smv1alpha1.ComponentRoute
	// Why says, in words for a client, why nothing serves; it is read only when that is so.
	Why string
	// Returning says that what served will be back in a moment; read only when nothing serves.
	Returning bool
	// NextTry and Stopped are as in route.Backend; they are read only when nothing serves.
	NextTry time.Time
	Stopped bool
	// Cold says that requests wait for what Route names to start: it was rolled out, and nothing of
	// it runs because there was nothing to do. Hidden says that what still runs of it is about to
	// end, and gets no request.
	Cold, Hidden bool
	// Picking is what the manifest says of how replicas are picked; empty leaves it to the runtime.
	Picking string
	// Log and Batch are as in route.Backend.
	Log   *spec.PayloadLog
	Batch *spec.Batching
	// Prefill is as in route.Backend.
	Prefill *spec.Prefill
	// Hosts are names of this component beside the usual ones, e.g. an address of its own.
	Hosts []string
}

// NewComponent returns a component of a service with what its manifest alone says of it.
func NewComponent(is *v1beta1.InferenceService, name spec.Component) Component {
	return Component{Name: name, Log: manifest.PayloadLogOf(is, name), Batch: manifest.BatchingOf(is, name), Picking: manifest.PickingOf(is, name), Prefill: manifest.PrefillOf(is, name)}
}

// Line returns the service's line of the routing table. It names the targets that have a ready
// replica and a share; a component without any says why.
func Line(s Service) route.Service {
	r := route.Service{
		Key:        s.Key,
		Hosts:      []route.Host{{Name: manifest.Host(s.Key.Name, s.Key.Namespace, s.Domain)}},
		PathPrefix: manifest.PathPrefix(s.Key.Namespace, s.Key.Name),
		BareNames:  []string{s.Key.Name},
		Entry:      Entry(s.Components),
		Components: map[spec.Component]route.Backend{},
		Created:    s.Created,
		Adapters:   s.Adapters,
	}
	if s.Models != nil {
		r.BareNames = s.Models
	}
	for i := range s.Components {
		comp := &s.Components[i]
		r.Hosts = append(r.Hosts, s.hosts(comp)...)
		r.Hosts = append(r.Hosts, s.tagHosts(comp, comp.Name == r.Entry)...)
		r.Components[comp.Name] = s.backend(comp)
		if comp.Name == r.Entry && len(comp.Route.Targets) > 0 {
			if rev := s.revision(comp.Route.Targets[0].RevisionName); rev != nil {
				r.Timeout = time.Duration(rev.Spec.TimeoutSeconds) * time.Second
			}
		}
	}
	return r
}

// Entry is the component that outside requests meet first: the transformer where there is one.
func Entry(comps []Component) spec.Component {
	if slices.ContainsFunc(comps, func(c Component) bool { return c.Name == spec.Transformer }) {
		return spec.Transformer
	}
	return spec.Predictor
}

func (s *Service) hosts(comp *Component) []route.Host {
	name := manifest.ComponentName(s.Key.Name, comp.Name)
	out := []route.Host{{Name: manifest.Host(name, s.Key.Namespace, s.Domain), Component: comp.Name}}
	if s.InCluster {
		short := name + "." + s.Key.Namespace
		for _, suffix := range []string{"", ".svc", ".svc.cluster.local"} {
			out = append(out, route.Host{Name: short + suffix, Component: comp.Name})
		}
	}
	for _, h := range comp.Hosts {
		out = append(out, route.Host{Name: h, Component: comp.Name})
	}
	return out
}

// IsCanary reports whether the newest revision of a component shares its traffic with the one that
// was rolled out last.
func IsCanary(r smv1alpha1.ComponentRoute) bool {
	return slices.ContainsFunc(r.Targets, func(t smv1alpha1.RouteTarget) bool { return t.Tag == manifest.TagPrevious }) &&
		slices.ContainsFunc(r.Targets, func(t smv1alpha1.RouteTarget) bool { return t.Tag == manifest.TagLatest })
}

// tagHosts are the names that lead to one target of a component: of the component's own host, and
// of the service's where outside requests meet that component first.
func (s *Service) tagHosts(comp *Component, entry bool) []route.Host {
	var out []route.Host
	for _, t := range comp.Route.Targets {
		if t.Tag == "" {
			continue
		}
		names := []string{t.Tag}
		if t.Tag == manifest.TagLatest && IsCanary(comp.Route) {
			names = append(names, manifest.TagCanary)
		}
		for _, name := range names {
			of := func(host string) route.Host {
				return route.Host{Name: manifest.TagHost(name, host, s.Key.Namespace, s.Domain), Component: comp.Name, Tag: t.Tag}
			}
			out = append(out, of(manifest.ComponentName(s.Key.Name, comp.Name)))
			if entry {
				out = append(out, of(s.Key.Name))
			}
		}
	}
	return out
}

func (s *Service) backend(comp *Component) route.Backend {
	b := route.Backend{Log: s.log(comp.Log), Batch: comp.Batch, Prefill: comp.Prefill}
	var cold, lingering []route.Target
	for _, target := range comp.Route.Targets {
		rev := s.revision(target.RevisionName)
		if rev == nil {
			continue
		}
		pages := PagesOf(rev, s.InCluster)
		t := s.target(rev, pages, int(target.Percent))
		t.Tag = target.Tag
		t.Picking = cmp.Or(comp.Picking, strings.TrimSpace(rev.Spec.PodTemplate.Annotations[manifest.PickingAnnotation]))
		if comp.Prefill != nil { // who reads no prompts gains nothing by those that it had
			t.Picking = cmp.Or(t.Picking, manifest.PrefillPicking)
		}
		if comp.Hidden {
			t.Endpoints = nil
		}
		if len(t.Endpoints) > 0 {
			b.Targets = append(b.Targets, t)
		} else {
			cold = append(cold, t)
		}
		if t.Endpoints = s.endpoints(rev, pages, lingers); len(t.Endpoints) > 0 && !comp.Hidden {
			lingering = append(lingering, t)
		}
		if u := rev.Status.Startup; u != nil && u.Ready != nil {
			b.Startup = max(b.Startup, u.Ready.Duration)
		}
	}
	for _, r := range comp.Route.HeaderRules {
		b.Rules = append(b.Rules, route.HeaderRule{Header: r.Header, Value: r.Value, Tag: r.Tag})
	}
	if mirror := comp.Route.Mirror; mirror != nil {
		for _, t := range comp.Route.Targets {
			if t.RevisionName == mirror.RevisionName {
				b.Mirror = route.Mirror{Tag: t.Tag, Percent: int(mirror.Percent)}
			}
		}
	}
	if sticky := comp.Route.Sticky; sticky != nil {
		b.Sticky = route.Sticky{Header: sticky.Header, Cookie: sticky.Cookie}
	}
	if len(b.Targets) == 0 {
		b.Targets = lingering
	}
	if len(b.Targets) > 0 {
		return b
	}
	b.Returning, b.NextTry, b.Stopped = comp.Returning, comp.NextTry, comp.Stopped
	for i := range s.Revisions { // one that was rolled out and has no target now tells, too
		if rev := &s.Revisions[i]; rev.Spec.Component == string(comp.Name) && rev.Status.Startup != nil && rev.Status.Startup.Ready != nil {
			b.Startup = max(b.Startup, rev.Status.Startup.Ready.Duration)
		}
	}
	if comp.Cold {
		b.Targets, b.Cold = cold, true
	}
	b.NotReady = fmt.Sprintf("the %s of service %s isn't ready", comp.Name, s.Key)
	if first, _, _ := strings.Cut(comp.Why, "\n"); first != "" {
		b.NotReady += ": " + withoutPaths(first)
	}
	return b
}

func (s *Service) target(rev *smv1alpha1.Revision, pages Pages, percent int) route.Target {
	t := route.Target{Revision: rev.Name, Weight: percent, ModelName: rev.Spec.ModelName, OpenAI: openAIRoot(rev), Credentials: credentials(rev), Translate: translation(rev), ContextLength: contextLength(rev), Limit: int(rev.Spec.ContainerConcurrency)}
	if f := rev.Spec.ModelFormat; f != nil {
		t.Format = f.Name
	}
	for _, p := range rev.Spec.Protocols {
		t.Protocols = append(t.Protocols, spec.Protocol(p))
	}
	if a := EngineOf(rev); a != nil {
		t.Engine = a.Name
		// A container of one's own tells no protocols: of an engine of both kinds that would mean OpenAI alone.
		if len(t.Protocols) == 0 && strings.Contains(a.Translate, "models=either") {
			t.Protocols = slices.Clone(a.Protocols)
		}
	}
	var model string
	if len(rev.Spec.Models) > 0 {
		model = rev.Spec.Models[0].URI
	}
	t.Endpoints = s.endpoints(rev, pages, isReady)
	for _, r := range s.Observed.Of(spec.RevisionKey{Namespace: rev.Namespace, Name: rev.Name}) {
		if t.Digest == "" && (isReady(r) || lingers(r)) {
			t.Digest = r.Digests[model]
		}
	}
	if t.Digest == "" {
		for _, m := range rev.Status.Models {
			if m.URI == model {
				t.Digest = m.Digest
			}
		}
	}
	return t
}

// endpoints are those of a revision's replicas that are of use.
func (s *Service) endpoints(rev *smv1alpha1.Revision, pages Pages, of func(spec.Replica) bool) []route.Endpoint {
	var out []route.Endpoint
	security := Security(rev)
	for _, r := range s.Observed.Of(spec.RevisionKey{Namespace: rev.Namespace, Name: rev.Name}) {
		if of(r) {
			out = append(out, route.Endpoint{Replica: r.ID, HTTP: r.HTTP, GRPC: r.GRPC, Metrics: pages.Of(r), Security: security})
		}
	}
	return out
}

func isReady(r spec.Replica) bool { return r.Phase == spec.Ready }

// lingers says whether a replica is taken where a component has no ready one.
func lingers(r spec.Replica) bool { return r.Phase != spec.Ready && r.Lingers }

func (s *Service) revision(name string) *smv1alpha1.Revision {
	for i := range s.Revisions {
		if s.Revisions[i].Name == name {
			return &s.Revisions[i]
		}
	}
	return nil
}
