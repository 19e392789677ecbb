package control

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/plan"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/scale"
	"stationmaster.dev/stationmaster/internal/spec"
)

// scaled is how the number of a component's replicas moves; the zero value is fixed.
type scaled struct {
	// cfg has the bounds, and how it scales on requests; nil means that the autoscaler isn't asked.
	cfg *scale.Config
	// metrics are what it scales on beside requests; nil means on requests.
	metrics *demand.Metrics
	// elsewhere says that somebody else of the platform sets the number.
	elsewhere bool
	// least is where somebody else begins, or where it is fixed; zero means what minReplicas says.
	least int
}

// scaling returns how a component scales. An error is about what the manifest says.
func scaling(is *v1beta1.InferenceService, ext *v1beta1.ComponentExtensionSpec, oneMachine bool) (scaled, error) {
	s, annotations, err := manifest.Scaling(is, ext)
	if err != nil || s.Class == scale.ClassNone {
		return scaled{}, err
	}
	if !oneMachine && manifest.ScalesElsewhere(ext, s) {
		return scaled{elsewhere: true, least: max(s.Config.MinScale, 1)}, nil
	}
	if s.Class == scale.ClassExternal {
		return scaled{}, nil
	}
	m, err := metrics(ext, s)
	if err != nil {
		return scaled{}, err
	}
	if m == nil && s.Class != scale.ClassKPA {
		return scaled{least: s.Config.MinScale}, nil
	}
	cfg := s.Config
	if m != nil && onlyResources(m) {
		cfg.MinScale = max(cfg.MinScale, 1)
	}
	if cfg.MaxScale == 0 && !unbounded(annotations) {
		cfg.MaxScale = max(cfg.MinScale, cfg.InitialScale, cfg.ActivationScale, 1)
	}
	if m != nil {
		m.HPA.MinScale, m.HPA.MaxScale = cfg.MinScale, cfg.MaxScale
		if err := m.HPA.Validate(); err != nil {
			return scaled{}, err
		}
	}
	if cfg.MaxScale > 0 && cfg.MinScale == cfg.MaxScale {
		return scaled{least: cfg.MinScale}, nil
	}
	return scaled{cfg: &cfg, metrics: m}, nil
}

// unbounded reports whether a service asks for as many replicas as its load wants: a machine has
// no room for that unless somebody says so.
func unbounded(annotations map[string]string) bool {
	for _, name := range []string{"max-scale", "maxScale"} {
		if strings.TrimSpace(annotations["autoscaling.knative.dev/"+name]) == "0" {
			return true
		}
	}
	return false
}

// scaleOf sets how many replicas a component has, or may have.
func (c *Controller) scaleOf(s *service, comp *component, ext *v1beta1.ComponentExtensionSpec) {
	comp.replicas = replicas(ext)
	if c.cfg.Scaling == nil {
		return
	}
	how, err := scaling(s.is, ext, c.cfg.OneMachine)
	if err != nil {
		comp.refused = &refusal{v1beta1.InvalidPredictorSpec, err.Error()}
		return
	}
	comp.scaling, comp.metrics, comp.elsewhere = how.cfg, how.metrics, how.elsewhere
	cfg := how.cfg
	if cfg == nil {
		comp.replicas = max(comp.replicas, how.least)
		return
	}
	comp.replicas = max(cfg.MinScale, cfg.InitialScale, 1)
	if cfg.MaxScale > 0 {
		comp.replicas = min(comp.replicas, cfg.MaxScale)
	}
}

// wants tells plan what the autoscaler says of a component. What it hasn't decided on yet stays
// as it is: after a restart that is what runs, or sleeps.
func (c *Controller) wants(s *service, comp *component, pc *plan.Component) {
	if s.stopped {
		return
	}
	if comp.elsewhere {
		s.wantsOfOthers(comp, pc)
		return
	}
	if comp.scaling == nil {
		return
	}
	pc.Wants = map[string]int{}
	for _, name := range inPlay(pc) {
		n := 0
		if want, ok := c.cfg.Scaling.Wants.Load(spec.RevisionKey{Namespace: s.key.Namespace, Name: name}); ok {
			n = want.Replicas
		} else if name != pc.Last.RolledOut || pc.Last.Asleep.IsZero() {
			n = max(1, len((&facts{replicas: s.observed.Replicas}).of(name)))
		}
		n = max(n, comp.scaling.MinScale)
		if comp.scaling.MaxScale > 0 {
			n = min(n, comp.scaling.MaxScale)
		}
		pc.Wants[name] = n
	}
	if stable := pc.Last.RolledOut; stable != "" && stable != pc.Latest {
		// What takes over must be able to carry what the other one does.
		pc.Replicas = max(pc.Replicas, pc.Wants[stable])
	}
}

// inPlay names the revisions of a component that run, or are to.
func inPlay(pc *plan.Component) []string {
	names := []string{pc.Latest, pc.Last.Latest, pc.Last.RolledOut}
	for _, v := range pc.Variants {
		names = append(names, v.Revision)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// wantsOfOthers tells plan what somebody else asks for of a component. A revision that nobody has
// asked for yet begins with what minReplicas says, or with as many as the one that it replaces.
func (s *service) wantsOfOthers(comp *component, pc *plan.Component) {
	pc.Wants = map[string]int{}
	for _, name := range inPlay(pc) {
		if other, ok := s.observed.Elsewhere[name]; ok {
			pc.Wants[name] = other.Asked
		} else {
			pc.Wants[name] = comp.replicas
		}
	}
	if stable := pc.Last.RolledOut; stable != "" && stable != pc.Latest {
		pc.Replicas = max(pc.Replicas, pc.Wants[stable])
	}
	if latest, ok := s.observed.Elsewhere[pc.Latest]; ok {
		// More than what is asked for can't get ready.
		pc.Replicas = max(min(pc.Replicas, latest.Asked), 1)
	}
}

// sleeper reads from a status whether a component sleeps, which is the memory after a restart.
func sleeper(is *v1beta1.InferenceService, comp spec.Component) time.Time {
	switch conditionOf(is.Status.Conditions, readyCondition[comp]).Reason {
	case routing.ReasonAsleep, routing.ReasonWaking:
		return time.Unix(1, 0)
	}
	return time.Time{}
}

// subjects tells the autoscaler what of a service scales, after it was planned.
func (c *Controller) subjects(s *service) {
	board := c.cfg.Scaling
	if board == nil {
		return
	}
	var out []demand.Subject
	for _, comp := range s.comps {
		if comp.scaling == nil || s.stopped {
			continue
		}
		out = append(out, s.subjectsOf(comp, c.cfg.OneMachine)...)
	}
	if len(out) == 0 {
		board.Subjects.Delete(s.key)
		return
	}
	if old, _ := board.Subjects.Load(s.key); !reflect.DeepEqual(old, out) {
		board.Subjects.Store(s.key, out)
	}
}

func (s *service) subjectsOf(comp *component, oneMachine bool) []demand.Subject {
	i := slices.IndexFunc(s.plan.Rollouts, func(r plan.Rollout) bool { return r.Component == comp.name })
	if i < 0 {
		return nil
	}
	r := &s.plan.Rollouts[i]
	names := []string{r.Latest}
	if r.RolledOut != "" && r.RolledOut != r.Latest {
		names = append(names, r.RolledOut)
	}
	for _, v := range r.Variants {
		if !slices.Contains(names, v.Revision) {
			names = append(names, v.Revision)
		}
	}
	shared := 0
	for _, t := range s.plan.Traffic {
		if t.Component == comp.name && t.Percent > 0 {
			shared++
		}
	}
	var out []demand.Subject
	for _, name := range names {
		rev := comp.revision(name)
		if rev == nil {
			continue
		}
		subject := demand.Subject{
			Revision: name, Component: comp.name, Config: *comp.scaling, RolledOut: name == r.RolledOut,
			Pinned: shared > 1 || len(r.Variants) > 0,
		}
		subject.Config.ContainerConcurrency = int(rev.Spec.ContainerConcurrency)
		if comp.metrics != nil {
			subject.Metrics = ofRevision(comp.metrics, rev, s.observed.Replicas, oneMachine)
		}
		for _, a := range s.plan.Assignments {
			if a.Component == comp.name && a.Revision == name {
				subject.Asked = a.Replicas
			}
		}
		for _, replica := range s.observed.Replicas {
			if replica.Revision.Name == name && replica.Phase == spec.Ready {
				subject.Ready++
			}
		}
		out = append(out, subject)
	}
	return out
}
