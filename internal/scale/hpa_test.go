package scale_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/scale"
)

func newHPA(t testing.TB, o scale.Observed, change func(*scale.HPAConfig)) *scale.HPA {
	t.Helper()
	cfg := scale.HPAConfig{
		Metrics:  []scale.MetricTarget{{Name: "queue", Type: scale.AverageValue, Target: 10}},
		MinScale: 1, MaxScale: 100,
		Behavior: scale.DefaultBehavior(),
	}
	if change != nil {
		change(&cfg)
	}
	h, err := scale.NewHPA(cfg, t0, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func known(values ...float64) []scale.Measurement {
	m := make([]scale.Measurement, len(values))
	for i, v := range values {
		m[i] = scale.Measurement{Value: v, Known: true}
	}
	return m
}

func TestProposalsOfOneMetric(t *testing.T) {
	tenth := scale.Tolerance{Up: 0.1, Down: 0.1}
	for name, tc := range map[string]struct {
		target scale.MetricTarget
		value  float64
		o      scale.Observed
		t      scale.Tolerance
		want   int
		why    scale.Reasons
		ok     bool
	}{
		// The two examples of the Kubernetes documentation: 200m and 50m against 100m.
		"twice the target doubles":         {scale.MetricTarget{Type: scale.Value, Target: 0.1}, 0.2, scale.Observed{Asked: 3, Ready: 3}, tenth, 6, 0, true},
		"half the target halves":           {scale.MetricTarget{Type: scale.Value, Target: 0.1}, 0.05, scale.Observed{Asked: 4, Ready: 4}, tenth, 2, 0, true},
		"rounded up":                       {scale.MetricTarget{Type: scale.Value, Target: 10}, 12, scale.Observed{Asked: 3, Ready: 3}, tenth, 4, 0, true},
		"a tenth above is near enough":     {scale.MetricTarget{Type: scale.Value, Target: 10}, 11, scale.Observed{Asked: 30, Ready: 30}, tenth, 30, scale.Tolerated, true},
		"a tenth below is near enough":     {scale.MetricTarget{Type: scale.Value, Target: 10}, 9, scale.Observed{Asked: 30, Ready: 30}, tenth, 30, scale.Tolerated, true},
		"a tenth isn't with no tolerance":  {scale.MetricTarget{Type: scale.Value, Target: 10}, 11, scale.Observed{Asked: 30, Ready: 30}, scale.Tolerance{}, 33, 0, true},
		"only ready replicas have a share": {scale.MetricTarget{Type: scale.Value, Target: 10}, 20, scale.Observed{Asked: 4, Ready: 2}, tenth, 4, 0, true},
		"nothing ready proposes nothing":   {scale.MetricTarget{Type: scale.Value, Target: 10}, 1, scale.Observed{Asked: 4}, tenth, 0, scale.Activating, false},
		"utilization is a value":           {scale.MetricTarget{Type: scale.Utilization, Target: 80}, 120, scale.Observed{Asked: 2, Ready: 2}, tenth, 3, 0, true},
		"a total is divided":               {scale.MetricTarget{Type: scale.AverageValue, Target: 10}, 41, scale.Observed{Asked: 2, Ready: 2}, tenth, 5, 0, true},
		"a total doesn't need ready ones":  {scale.MetricTarget{Type: scale.AverageValue, Target: 10}, 41, scale.Observed{Asked: 2}, tenth, 5, 0, true},
		"a total within the tolerance":     {scale.MetricTarget{Type: scale.AverageValue, Target: 10}, 44, scale.Observed{Asked: 4, Ready: 4}, tenth, 4, scale.Tolerated, true},
		"a total of nothing":               {scale.MetricTarget{Type: scale.AverageValue, Target: 10}, 0, scale.Observed{Asked: 4, Ready: 4}, tenth, 0, 0, true},
		"from zero by a total":             {scale.MetricTarget{Type: scale.AverageValue, Target: 10}, 1, scale.Observed{}, tenth, 1, 0, true},
		"from zero by a value":             {scale.MetricTarget{Type: scale.Value, Target: 10}, 25, scale.Observed{}, tenth, 3, 0, true},
		"zero stays":                       {scale.MetricTarget{Type: scale.Value, Target: 10}, 0, scale.Observed{}, tenth, 0, 0, true},
		"an absurd value":                  {scale.MetricTarget{Type: scale.Value, Target: 1}, 1e300, scale.Observed{Asked: 1, Ready: 1}, tenth, math.MaxInt32, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			want, why, ok := scale.Propose(tc.target, tc.value, tc.o, tc.t)
			if want != tc.want || why != tc.why || ok != tc.ok {
				t.Errorf("%d, %v, %v; want %d, %v, %v", want, why, ok, tc.want, tc.why, tc.ok)
			}
		})
	}
}

func TestSeveralMetrics(t *testing.T) {
	two := func(c *scale.HPAConfig) {
		c.Metrics = append(c.Metrics, scale.MetricTarget{Name: "tokens", Type: scale.AverageValue, Target: 100})
		c.Behavior.ScaleDown.StabilizationWindow = 0
	}
	unknown := scale.Measurement{}
	for name, tc := range map[string]struct {
		measured []scale.Measurement
		want     int
		metric   string
		why      scale.Reasons
	}{
		"the highest wins":                      {known(60, 500), 6, "queue", 0},
		"whichever it is":                       {known(10, 700), 7, "tokens", 0},
		"both lower goes down":                  {known(10, 200), 2, "tokens", 0},
		"one missing, the other goes up":        {[]scale.Measurement{unknown, {Value: 700, Known: true}}, 7, "tokens", 0},
		"one missing, the other may not lower":  {[]scale.Measurement{unknown, {Value: 100, Known: true}}, 4, "tokens", scale.MissingMetric},
		"a part of one may not lower":           {[]scale.Measurement{{Value: 30, Known: true, Partial: true}, {Value: 100, Known: true}}, 4, "queue", scale.MissingMetric},
		"a part of one raises":                  {[]scale.Measurement{{Value: 70, Known: true, Partial: true}, {Value: 100, Known: true}}, 7, "queue", 0},
		"one left out, the other may not lower": {known(10), 4, "queue", scale.MissingMetric},
		"none known keeps what is":              {[]scale.Measurement{unknown, unknown}, 4, "queue", scale.NoData},
		"what is no number is missing":          {known(math.NaN(), math.Inf(1)), 4, "queue", scale.NoData},
		"less than nothing is missing":          {known(-5, 100), 4, "tokens", scale.MissingMetric},
	} {
		t.Run(name, func(t *testing.T) {
			o := scale.Observed{Asked: 4, Ready: 4}
			d := newHPA(t, o, two).Decide(at(60), o, tc.measured)
			if d.Replicas != tc.want || d.Metric != tc.metric || d.Reasons != tc.why {
				t.Errorf("%d by %s for %v, want %d by %s for %v (%v)", d.Replicas, d.Metric, d.Reasons, tc.want, tc.metric, tc.why, d)
			}
		})
	}
}

// apply runs decisions each period, applied at once, and returns the replicas after each.
func apply(h *scale.HPA, asked int, every time.Duration, values ...float64) []int {
	var got []int
	now := t0
	o := scale.Observed{Asked: asked, Ready: asked}
	for _, v := range values {
		now = now.Add(every)
		d := h.Decide(now, o, known(v))
		o.Asked, o.Ready = d.Replicas, d.Replicas
		got = append(got, d.Replicas)
	}
	return got
}

func repeat(n int, v float64) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = v
	}
	return values
}

func TestBehavior(t *testing.T) {
	minute, quarter := time.Minute, 15*time.Second
	down := func(rules scale.Rules) func(*scale.HPAConfig) {
		return func(c *scale.HPAConfig) { c.Behavior.ScaleDown = rules }
	}
	up := func(rules scale.Rules) func(*scale.HPAConfig) {
		return func(c *scale.HPAConfig) { c.Behavior.ScaleUp = rules }
	}
	for name, tc := range map[string]struct {
		change func(*scale.HPAConfig)
		asked  int
		every  time.Duration
		values []float64
		want   []int
	}{
		"by default up by four or double each 15 s": {nil, 1, quarter, repeat(5, 1000), []int{5, 10, 20, 40, 80}},
		"by default not twice in one period":        {nil, 1, 5 * time.Second, repeat(6, 1000), []int{5, 5, 5, 10, 10, 10}},
		"by default down after five minutes":        {nil, 8, minute, repeat(6, 10), []int{8, 8, 8, 8, 1, 1}},
		"a peak within the window holds": {nil, 8, minute, []float64{10, 80, 10, 10, 10, 10, 10, 10, 10},
			[]int{8, 8, 8, 8, 8, 8, 1, 1, 1}},
		// The Kubernetes documentation's example: 80 replicas to 10, by 10 % or 4 a minute,
		// whichever is more.
		"down by a tenth or four, whichever is more": {
			down(scale.Rules{Select: scale.SelectMax, Policies: []scale.Policy{
				{Type: scale.PodsPolicy, Value: 4, Period: minute},
				{Type: scale.PercentPolicy, Value: 10, Period: minute},
			}}), 80, minute, repeat(12, 100), []int{72, 64, 57, 51, 45, 40, 36, 32, 28, 24, 20, 16},
		},
		"down by a tenth or four, whichever is less": {
			down(scale.Rules{Select: scale.SelectMin, Policies: []scale.Policy{
				{Type: scale.PodsPolicy, Value: 4, Period: minute},
				{Type: scale.PercentPolicy, Value: 10, Period: minute},
			}}), 80, minute, repeat(4, 100), []int{76, 72, 68, 64},
		},
		"never down": {down(scale.Rules{Select: scale.SelectDisabled}), 8, minute, repeat(3, 10), []int{8, 8, 8}},
		"never up":   {up(scale.Rules{Select: scale.SelectDisabled}), 2, minute, repeat(3, 500), []int{2, 2, 2}},
		"up by a percentage rounds up": {
			up(scale.Rules{Select: scale.SelectMax, Policies: []scale.Policy{{Type: scale.PercentPolicy, Value: 10, Period: minute}}}),
			1, minute, repeat(4, 1000), []int{2, 3, 4, 5},
		},
		"up by exactly a percentage": {
			up(scale.Rules{Select: scale.SelectMax, Policies: []scale.Policy{{Type: scale.PercentPolicy, Value: 10, Period: minute}}}),
			50, minute, repeat(1, 1000), []int{55},
		},
		"a peak is waited out before going up": {
			up(scale.Rules{StabilizationWindow: 2 * minute, Select: scale.SelectMax, Policies: []scale.Policy{{Type: scale.PodsPolicy, Value: 50, Period: minute}}}),
			2, minute, []float64{20, 90, 90, 90}, []int{2, 2, 9, 9},
		},
		"one is there for any demand, whatever the policies say": {
			func(c *scale.HPAConfig) {
				c.MinScale = 0
				c.Behavior.ScaleUp.Policies = []scale.Policy{{Type: scale.PercentPolicy, Value: 10, Period: minute}}
			}, 0, minute, []float64{0, 30, 30}, []int{0, 1, 2},
		},
		"to zero where the minimum is": {
			func(c *scale.HPAConfig) { c.MinScale = 0 }, 1, minute, repeat(6, 0), []int{1, 1, 1, 1, 0, 0},
		},
		"not to zero where it isn't": {nil, 1, minute, repeat(6, 0), []int{1, 1, 1, 1, 1, 1}},
		"at most the maximum":        {func(c *scale.HPAConfig) { c.MaxScale = 12 }, 1, quarter, repeat(4, 1000), []int{5, 10, 12, 12}},
		"over the maximum at once":   {func(c *scale.HPAConfig) { c.MaxScale = 3 }, 8, quarter, repeat(1, 1000), []int{3}},
		"under the minimum at once":  {func(c *scale.HPAConfig) { c.MinScale = 6 }, 1, quarter, repeat(1, 0), []int{6}},
	} {
		t.Run(name, func(t *testing.T) {
			o := scale.Observed{Asked: tc.asked, Ready: tc.asked}
			got := apply(newHPA(t, o, tc.change), tc.asked, tc.every, tc.values...)
			for i := range tc.want {
				if got[i] != tc.want[i] {
					t.Fatalf("%v, want %v", got, tc.want)
				}
			}
		})
	}
}

func TestHPASaysWhy(t *testing.T) {
	o := scale.Observed{Asked: 8, Ready: 8}
	h := newHPA(t, o, nil)
	for _, tc := range []struct {
		measured []scale.Measurement
		o        scale.Observed
		want     string
	}{
		{known(84), o, "keep 8 replicas: queue 84 at 10 a replica wants 8; within the tolerance"},
		{known(12), o, "keep 8 replicas: queue 12 at 10 a replica wants 2; held by the stabilization window"},
		{known(900), o, "scale up from 8 to 16 replicas: queue 900 at 10 a replica wants 90; limited by a scaling policy"},
		{nil, o, "keep 8 replicas: no data on queue"},
	} {
		if d := h.Decide(at(60), tc.o, tc.measured); d.String() != tc.want {
			t.Errorf("says %q\nwant %q", d, tc.want)
		}
	}
}

func TestHPAWakesForHeldRequests(t *testing.T) {
	o := scale.Observed{Held: 2}
	h := newHPA(t, o, func(c *scale.HPAConfig) { c.MinScale = 0 })
	if d := h.Decide(at(1), o, nil); d.Replicas != 1 || !d.Reasons.Has(scale.Demanded) || !d.Hold {
		t.Errorf("with two requests held: %v", d)
	}
}

func TestHPARefusesAndNamesWhat(t *testing.T) {
	for field, change := range map[string]func(*scale.HPAConfig){
		"autoScaling.metrics must":                                func(c *scale.HPAConfig) { c.Metrics = nil },
		"autoScaling.metrics[0].target.type":                      func(c *scale.HPAConfig) { c.Metrics[0].Type = "Total" },
		"autoScaling.metrics[0].target must":                      func(c *scale.HPAConfig) { c.Metrics[0].Target = math.NaN() },
		"autoScaling.minReplicas":                                 func(c *scale.HPAConfig) { c.MinScale = -1 },
		"autoScaling.maxReplicas":                                 func(c *scale.HPAConfig) { c.MinScale, c.MaxScale = 3, 2 },
		"autoScaling.behavior.scaleUp.stabilizationWindowSeconds": func(c *scale.HPAConfig) { c.Behavior.ScaleUp.StabilizationWindow = 2 * time.Hour },
		"autoScaling.behavior.scaleUp.selectPolicy":               func(c *scale.HPAConfig) { c.Behavior.ScaleUp.Select = "" },
		"autoScaling.behavior.scaleDown.policies must":            func(c *scale.HPAConfig) { c.Behavior.ScaleDown.Policies = nil },
		"autoScaling.behavior.scaleDown.tolerance":                func(c *scale.HPAConfig) { c.Behavior.ScaleDown.Tolerance = -1 },
		"autoScaling.behavior.scaleUp.policies[1].type":           func(c *scale.HPAConfig) { c.Behavior.ScaleUp.Policies[1].Type = "Nodes" },
		"autoScaling.behavior.scaleUp.policies[0].value":          func(c *scale.HPAConfig) { c.Behavior.ScaleUp.Policies[0].Value = 0 },
		"autoScaling.behavior.scaleUp.policies[0].periodSeconds":  func(c *scale.HPAConfig) { c.Behavior.ScaleUp.Policies[0].Period = time.Hour },
	} {
		t.Run(field, func(t *testing.T) {
			cfg := scale.HPAConfig{
				Metrics:  []scale.MetricTarget{{Name: "queue", Type: scale.AverageValue, Target: 10}},
				MaxScale: 10, Behavior: scale.DefaultBehavior(),
			}
			change(&cfg)
			_, err := scale.NewHPA(cfg, t0, scale.Observed{})
			if !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), field) {
				t.Errorf("%v, want an error of kind invalid that names %s", err, field)
			}
			h := newHPA(t, scale.Observed{}, nil)
			if err := h.Update(cfg); !errors.Is(err, errdef.ErrInvalid) {
				t.Errorf("an update took it: %v", err)
			}
		})
	}
}

func TestHPAStaysWithinBoundsAndNeverFallsBlind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := scale.HPAConfig{
			Metrics: []scale.MetricTarget{
				{Name: "a", Type: scale.AverageValue, Target: rapid.Float64Range(0.1, 100).Draw(t, "target a")},
				{Name: "b", Type: scale.Value, Target: rapid.Float64Range(0.1, 100).Draw(t, "target b")},
			},
			MinScale: rapid.IntRange(0, 4).Draw(t, "min"),
			Behavior: scale.DefaultBehavior(),
		}
		cfg.MaxScale = cfg.MinScale + rapid.IntRange(1, 30).Draw(t, "room")
		cfg.Behavior.ScaleDown.StabilizationWindow = time.Duration(rapid.IntRange(0, 120).Draw(t, "window")) * time.Second
		select_ := rapid.SampledFrom([]scale.SelectPolicy{scale.SelectMax, scale.SelectMin, scale.SelectDisabled})
		cfg.Behavior.ScaleUp.Select, cfg.Behavior.ScaleDown.Select = select_.Draw(t, "up"), select_.Draw(t, "down")
		h, err := scale.NewHPA(cfg, t0, scale.Observed{})
		if err != nil {
			t.Fatal(err)
		}
		var o scale.Observed
		for tick := range rapid.IntRange(1, 80).Draw(t, "ticks") {
			measured := make([]scale.Measurement, 2)
			for i := range measured {
				measured[i] = scale.Measurement{
					Value: rapid.Float64Range(0, 1000).Draw(t, "value"),
					Known: rapid.IntRange(0, 3).Draw(t, "known") > 0,
				}
			}
			d := h.Decide(at(tick*15), o, measured)
			if d.Replicas < cfg.MinScale || d.Replicas > cfg.MaxScale {
				t.Fatalf("%d replicas, between %d and %d", d.Replicas, cfg.MinScale, cfg.MaxScale)
			}
			blind := !measured[0].Known || !measured[1].Known
			if blind && d.Replicas < o.Asked {
				t.Fatalf("down from %d with a metric missing: %v", o.Asked, d)
			}
			switch {
			case d.Replicas > max(o.Asked, 1) && o.Asked >= cfg.MinScale && cfg.Behavior.ScaleUp.Select == scale.SelectDisabled:
				t.Fatalf("up though that is disabled: %v", d)
			case d.Replicas < o.Asked && cfg.Behavior.ScaleDown.Select == scale.SelectDisabled:
				t.Fatalf("down though that is disabled: %v", d)
			}
			o.Asked, o.Ready = d.Replicas, d.Replicas
		}
	})
}

func TestTheLastReplica(t *testing.T) {
	now := scale.DefaultBehavior()
	now.ScaleDown.StabilizationWindow = 0
	for name, tc := range map[string]struct {
		o    scale.Observed
		want int
		why  scale.Reasons
	}{
		"goes":                           {scale.Observed{Asked: 2, Ready: 2}, 0, 0},
		"stays while requests come":      {scale.Observed{Asked: 2, Ready: 2, Busy: true}, 1, scale.LastReplica},
		"is none where there was none":   {scale.Observed{Busy: true}, 0, 0},
		"comes back for one that waits":  {scale.Observed{Held: 1}, 1, scale.Demanded},
		"stays for one that waits first": {scale.Observed{Asked: 1, Held: 1, Busy: true}, 1, scale.Demanded},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHPA(t, tc.o, func(c *scale.HPAConfig) { c.MinScale, c.Behavior = 0, now })
			d := h.Decide(t0.Add(time.Minute), tc.o, known(0))
			if d.Replicas != tc.want || d.Reasons&(scale.LastReplica|scale.Demanded) != tc.why {
				t.Errorf("%v, want %d because of %v", d, tc.want, tc.why)
			}
		})
	}
}
