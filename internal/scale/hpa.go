package scale

import (
	"fmt"
	"math"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The rules in this file are those of Kubernetes' HorizontalPodAutoscaler: "Algorithm
// details", "Scaling on multiple metrics" and "Configurable scaling behavior" in
// kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale. Where they differ,
// the comment says so.

// TargetType is how a metric's value is compared with its target.
type TargetType string

// The types of target. KServe's External and PodMetric metrics use the first two.
const (
	// Value compares the metric as it is: replicas change as its ratio to the target does.
	Value TargetType = "Value"
	// AverageValue divides the metric, a total, among the replicas.
	AverageValue TargetType = "AverageValue"
	// Utilization is Value for a percentage of what replicas asked for, averaged over them.
	Utilization TargetType = "Utilization"
)

// MetricTarget is a metric and what to keep it at.
type MetricTarget struct {
	// Name tells the metric in decisions.
	Name string
	Type TargetType
	// Target is above zero.
	Target float64
}

// Measurement is a metric's value now. The zero value is one that is missing.
type Measurement struct {
	Value float64
	Known bool
	// Partial says that Value is of some replicas only: enough to go up on, and not to go down.
	Partial bool
}

// SelectPolicy chooses among the policies of one direction.
type SelectPolicy string

// The ways to choose.
const (
	SelectMax      SelectPolicy = "Max"
	SelectMin      SelectPolicy = "Min"
	SelectDisabled SelectPolicy = "Disabled"
)

// PolicyType is the unit of a policy.
type PolicyType string

// The units of a policy.
const (
	PodsPolicy    PolicyType = "Pods"
	PercentPolicy PolicyType = "Percent"
)

// Policy bounds the change within a period.
type Policy struct {
	Type PolicyType
	// Value is a number of replicas, or of percent of those at the start of the period.
	Value int
	// Period is 1 s to 30 min.
	Period time.Duration
}

// Rules bound the changes in one direction.
type Rules struct {
	// StabilizationWindow is how long the most cautious recommendation holds, up to 1 h.
	StabilizationWindow time.Duration
	Select              SelectPolicy
	// Policies has one at least, unless Select is SelectDisabled.
	Policies []Policy
	// Tolerance is the part of the target by which a metric may differ without a change.
	Tolerance float64
}

// Behavior is the `behavior` of a HorizontalPodAutoscaler, and of KServe's autoScaling.
type Behavior struct {
	ScaleUp   Rules
	ScaleDown Rules
}

// DefaultBehavior returns Kubernetes' own: up by 4 replicas or 100 % each 15 s, whichever is
// more, and down to any number that was enough for the last 5 min. A manifest that gives a
// part replaces that part: set the fields that it gives.
func DefaultBehavior() Behavior {
	return Behavior{
		ScaleUp: Rules{
			Select: SelectMax,
			Policies: []Policy{
				{Type: PodsPolicy, Value: 4, Period: 15 * time.Second},
				{Type: PercentPolicy, Value: 100, Period: 15 * time.Second},
			},
			Tolerance: 0.1,
		},
		ScaleDown: Rules{
			StabilizationWindow: 5 * time.Minute,
			Select:              SelectMax,
			Policies:            []Policy{{Type: PercentPolicy, Value: 100, Period: 15 * time.Second}},
			Tolerance:           0.1,
		},
	}
}

// HPAConfig says how a revision scales on metrics of any kind.
type HPAConfig struct {
	// Metrics has one at least; the one that asks for most decides.
	Metrics []MetricTarget
	// MinScale may be zero; a MaxScale of zero means no bound.
	MinScale int
	MaxScale int
	Behavior Behavior
}

// Validate returns an error of kind errdef.ErrInvalid that names the first field that is out
// of its range, or nil.
func (c *HPAConfig) Validate() error {
	bad := func(field, want string) error {
		return errdef.New(errdef.ErrInvalid, "autoScaling."+field+" must be "+want)
	}
	if len(c.Metrics) == 0 {
		return bad("metrics", "one metric at least")
	}
	for i, m := range c.Metrics {
		if m.Type != Value && m.Type != AverageValue && m.Type != Utilization {
			return bad(fmt.Sprintf("metrics[%d].target.type", i), "Value, AverageValue or Utilization")
		}
		if m.Target <= 0 || !within(m.Target, 0, maxValue) {
			return bad(fmt.Sprintf("metrics[%d].target", i), fmt.Sprintf("above 0 and at most %g", maxValue))
		}
	}
	if c.MinScale < 0 || c.MinScale > maxReplicas {
		return bad("minReplicas", "0 or more")
	}
	if c.MaxScale != 0 && (c.MaxScale < c.MinScale || c.MaxScale > maxReplicas) {
		return bad("maxReplicas", "not below minReplicas")
	}
	for _, r := range []struct {
		field string
		rules *Rules
	}{{"behavior.scaleUp", &c.Behavior.ScaleUp}, {"behavior.scaleDown", &c.Behavior.ScaleDown}} {
		if field, want := r.rules.check(); field != "" {
			return bad(r.field+"."+field, want)
		}
	}
	return nil
}

// check returns the first field that is out of its range and what is allowed, or nothing.
func (r *Rules) check() (field, want string) {
	switch {
	case r.StabilizationWindow < 0 || r.StabilizationWindow > time.Hour:
		return "stabilizationWindowSeconds", "0 to 3600"
	case r.Select != SelectMax && r.Select != SelectMin && r.Select != SelectDisabled:
		return "selectPolicy", "Max, Min or Disabled"
	case len(r.Policies) == 0 && r.Select != SelectDisabled:
		return "policies", "one policy at least"
	case !within(r.Tolerance, 0, maxValue):
		return "tolerance", "0 or more"
	}
	for i, p := range r.Policies {
		switch {
		case p.Type != PodsPolicy && p.Type != PercentPolicy:
			return fmt.Sprintf("policies[%d].type", i), "Pods or Percent"
		case p.Value <= 0 || p.Value > maxReplicas:
			return fmt.Sprintf("policies[%d].value", i), "above 0"
		case p.Period < time.Second || p.Period > 30*time.Minute:
			return fmt.Sprintf("policies[%d].periodSeconds", i), "1 to 1800"
		}
	}
	return "", ""
}

// HPA decides for one revision on metrics of any kind, as a HorizontalPodAutoscaler does. What
// it remembers is bounded: see extremes and changes. It is not safe for concurrent use.
type HPA struct {
	cfg      HPAConfig
	up, down extremes
	added    changes
	removed  changes
	asked    int
	decided  time.Time
}

// NewHPA returns an HPA for a revision that was asked to have so many replicas. The error is
// that of HPAConfig.Validate.
func NewHPA(cfg HPAConfig, now time.Time, o Observed) (*HPA, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &HPA{
		cfg:     cfg,
		up:      extremes{window: cfg.Behavior.ScaleUp.StabilizationWindow},
		down:    extremes{window: cfg.Behavior.ScaleDown.StabilizationWindow, greatest: true},
		asked:   o.Asked,
		decided: now,
	}
	// A restarted control plane stays at what runs for a stabilization window.
	h.down.with(now, o.Asked)
	h.up.with(now, o.Asked)
	return h, nil
}

// Update changes the settings and keeps what is remembered. After an error (that of
// HPAConfig.Validate) nothing has changed.
func (h *HPA) Update(cfg HPAConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	h.cfg = cfg
	h.up.window = cfg.Behavior.ScaleUp.StabilizationWindow
	h.down.window = cfg.Behavior.ScaleDown.StabilizationWindow
	return nil
}

// Decide returns how many replicas the revision should have. Measurements stand in the order
// of HPAConfig.Metrics; those left out are missing. Call it each 15 s, or more often.
//
// With every metric missing the number stays; with some missing it doesn't go down. From zero
// it goes to one at least where a metric asks for any, whatever the policies say, and where
// requests are held; the last replica of a busy revision stays.
func (h *HPA) Decide(now time.Time, o Observed, measured []Measurement) Decision {
	d := Decision{From: o.Asked, Ready: o.Ready, Mode: Stable, Wanted: unknown, Initialized: true}
	h.notice(now, o.Asked)
	missing := h.measure(o, measured, &d)
	switch want := h.cfg.clampHPA(o.Asked); {
	case want < o.Asked:
		d.Replicas, d.Reasons = want, AtMaxScale
	case want > o.Asked:
		d.Replicas, d.Reasons = want, AtMinScale
	case d.Wanted == unknown:
		d.Replicas = o.Asked
		d.Reasons |= NoData
	case missing && d.Wanted < o.Asked:
		d.Replicas = o.Asked
		d.Reasons |= MissingMetric
	default:
		d.Replicas = h.bounded(now, o.Asked, &d)
	}
	switch {
	case d.Replicas > 0:
	case o.Held > 0:
		d.Replicas = 1
		d.Reasons |= Demanded
	case o.Busy && o.Asked > 0:
		d.Replicas = 1
		d.Reasons |= LastReplica
	}
	d.Hold = d.Replicas == 0 || o.Ready == 0
	h.decided = now
	return d
}

// notice remembers a change of what was asked for since the last decision, for as long as a
// policy of either direction looks back. (Kubernetes forgets it by the policies of its own
// direction, so that one that looks back further miscounts.)
func (h *HPA) notice(now time.Time, asked int) {
	keep := max(longest(h.cfg.Behavior.ScaleUp), longest(h.cfg.Behavior.ScaleDown))
	switch {
	case asked > h.asked:
		h.added.add(now, keep, change{at: h.decided, n: asked - h.asked})
	case asked < h.asked:
		h.removed.add(now, keep, change{at: h.decided, n: h.asked - asked})
	}
	h.asked = asked
}

// measure takes the proposal of the metric that asks for most and reports whether one is
// missing.
func (h *HPA) measure(o Observed, measured []Measurement, d *Decision) (missing bool) {
	tolerance := Tolerance{Up: h.cfg.Behavior.ScaleUp.Tolerance, Down: h.cfg.Behavior.ScaleDown.Tolerance}
	for i, m := range h.cfg.Metrics {
		if i >= len(measured) || !measured[i].Known || !within(measured[i].Value, 0, math.MaxFloat64) {
			missing = true
			continue
		}
		want, why, ok := Propose(m, measured[i].Value, o, tolerance)
		if !ok {
			missing = true
			d.Reasons |= why
			continue
		}
		missing = missing || measured[i].Partial
		if want > d.Wanted {
			d.Wanted = want
			d.Metric, d.Target = m.Name, m.Target
			d.Stable = Reading{Value: measured[i].Value, Want: want}
			d.Reasons = d.Reasons&Activating | why
		}
	}
	if d.Metric == "" {
		d.Metric, d.Target = h.cfg.Metrics[0].Name, h.cfg.Metrics[0].Target
	}
	return missing
}

// Tolerance is the part of a target by which a metric may be above or below it without a
// change.
type Tolerance struct{ Up, Down float64 }

// Propose returns the number of replicas that one metric asks for. It is what is asked for
// already where the metric is within the tolerance, with the reason Tolerated. It isn't ok
// while replicas were asked for and none is ready to be measured against; Kubernetes would
// go down then.
func Propose(m MetricTarget, value float64, o Observed, t Tolerance) (want int, why Reasons, ok bool) {
	ratio := value / m.Target
	if o.Asked == 0 {
		return count(math.Ceil(ratio)), 0, true
	}
	share := ratio
	if m.Type == AverageValue {
		share = ratio / float64(o.Asked)
	}
	if share >= 1-t.Down && share <= 1+t.Up {
		return o.Asked, Tolerated, true
	}
	if m.Type == AverageValue {
		return count(math.Ceil(ratio)), 0, true
	}
	if o.Ready == 0 {
		return 0, Activating, false
	}
	return count(math.Ceil(ratio * float64(o.Ready))), 0, true
}

// bounded applies the stabilization windows, the policies and the bounds to the wish.
func (h *HPA) bounded(now time.Time, asked int, d *Decision) int {
	lowest, highest := h.up.with(now, d.Wanted), h.down.with(now, d.Wanted)
	want := min(max(asked, lowest), highest)
	if want != d.Wanted {
		d.Reasons |= Stabilized
	}
	limit, why := want, Reasons(0)
	switch {
	case want > asked:
		limit, why = h.cfg.Behavior.ScaleUp.mostAfter(now, asked, &h.added, &h.removed)
		limit = min(want, max(limit, asked, 1))
	case want < asked:
		limit, why = h.cfg.Behavior.ScaleDown.leastAfter(now, asked, &h.added, &h.removed)
		limit = max(want, min(limit, asked))
	}
	if limit != want {
		d.Reasons |= why
	}
	switch within := h.cfg.clampHPA(limit); {
	case within < limit:
		d.Reasons |= AtMaxScale
		return within
	case within > limit:
		d.Reasons |= AtMinScale
		return within
	}
	return limit
}

func (c *HPAConfig) clampHPA(n int) int {
	n = max(n, c.MinScale)
	if c.MaxScale > 0 {
		n = min(n, c.MaxScale)
	}
	return n
}

// mostAfter returns the most replicas that the policies allow now.
func (r *Rules) mostAfter(now time.Time, asked int, added, removed *changes) (int, Reasons) {
	if r.Select == SelectDisabled {
		return asked, PolicyDisabled
	}
	most := 0
	for i, p := range r.Policies {
		from := atStart(now, p.Period, asked, added, removed)
		to := from + p.Value
		if p.Type == PercentPolicy {
			// Rounded up, so that a small percentage of few replicas still grows. Whole
			// numbers: Kubernetes' floats make 111 of 100 and 10 %.
			to = (from*(100+p.Value) + 99) / 100
		}
		if i == 0 || (r.Select == SelectMin) == (to < most) {
			most = to
		}
	}
	return most, PolicyLimited
}

// leastAfter returns the fewest replicas that the policies allow now.
func (r *Rules) leastAfter(now time.Time, asked int, added, removed *changes) (int, Reasons) {
	if r.Select == SelectDisabled {
		return asked, PolicyDisabled
	}
	least := 0
	for i, p := range r.Policies {
		from := atStart(now, p.Period, asked, added, removed)
		to := from - p.Value
		if p.Type == PercentPolicy {
			to = from * (100 - min(p.Value, 100)) / 100
		}
		if i == 0 || (r.Select == SelectMin) == (to > least) {
			least = to
		}
	}
	return max(least, 0), PolicyLimited
}

// atStart returns how many replicas were asked for at the start of a period.
func atStart(now time.Time, period time.Duration, asked int, added, removed *changes) int {
	from := asked - added.within(now, period) + removed.within(now, period)
	return min(max(from, 0), maxReplicas)
}

func longest(r Rules) time.Duration {
	var l time.Duration
	for _, p := range r.Policies {
		l = max(l, p.Period)
	}
	return l
}
