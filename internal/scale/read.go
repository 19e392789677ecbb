package scale

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The annotations that choose who scales.
const (
	// ClassAnnotation is KServe's: none, hpa, keda or external.
	ClassAnnotation = "serving.kserve.io/autoscalerClass"
	// KnativeClassAnnotation is Knative's: kpa.autoscaling.knative.dev or the hpa of it.
	KnativeClassAnnotation = "autoscaling.knative.dev/class"

	knativePrefix = "autoscaling.knative.dev/"
)

// Class is who decides on a revision's replicas.
type Class string

// The classes.
const (
	// ClassKPA is a Scaler: concurrency or requests a second.
	ClassKPA Class = "kpa"
	// ClassHPA is an HPA, or a HorizontalPodAutoscaler where the platform has them.
	ClassHPA Class = "hpa"
	// ClassKEDA is a ScaledObject where the platform has them, and an HPA elsewhere.
	ClassKEDA Class = "keda"
	// ClassExternal is somebody else: the number of replicas is left as it is.
	ClassExternal Class = "external"
	// ClassNone is nobody: the replicas are MinScale.
	ClassNone Class = "none"
)

// Settings is what a manifest says about the scaling of one component, in plain values.
type Settings struct {
	// Annotations are those of the service and the component, merged. Only those of Knative's
	// and KServe's autoscaling are read.
	Annotations map[string]string
	// MinReplicas and the other fields are KServe's; nil and zero mean not given. A field that
	// is given rules over the annotation of the same meaning, as in KServe.
	MinReplicas          *int
	MaxReplicas          int
	ScaleMetric          string
	ScaleTarget          *int
	ContainerConcurrency int
}

// Scaling is what Read makes of Settings.
type Scaling struct {
	Class Class
	// Config holds for ClassKPA; its MinScale and MaxScale hold for every class.
	Config Config
	// Resource is cpu or memory where ScaleMetric or the metric annotation asks for it.
	Resource string
	// Notes says which annotations were overruled by a field, one sentence each.
	Notes []string
}

// Read returns how a component scales: base, changed by what its manifest says. An error is of
// kind errdef.ErrInvalid and names the annotation or field, what is wrong and what is allowed.
// Annotations of a class that isn't the KPA's are checked as well: a wrong one is never
// ignored. Unknown annotations of Knative's autoscaling are refused.
func Read(base Config, s Settings) (Scaling, error) {
	out := Scaling{Config: base}
	if s.ContainerConcurrency != 0 {
		out.Config.ContainerConcurrency = s.ContainerConcurrency
	}
	metric := ""
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		name, ours := strings.CutPrefix(key, knativePrefix)
		if !ours || key == KnativeClassAnnotation {
			continue
		}
		if plain, old := oldNames[name]; old {
			if _, both := s.Annotations[knativePrefix+plain]; both {
				out.Notes = append(out.Notes, key+" is overruled by "+knativePrefix+plain)
				continue
			}
			name = plain
		}
		value := s.Annotations[key]
		if name == "metric" {
			metric = value
			continue
		}
		read, known := readers[name]
		if !known {
			return Scaling{}, invalid(key, value, "no annotation of the autoscaler: "+strings.Join(Annotations(), ", "))
		}
		if want, ok := read(value, &out.Config); !ok {
			return Scaling{}, invalid(key, value, want)
		}
	}
	metric = out.fields(s, metric)
	if err := out.class(s.Annotations, metric); err != nil {
		return Scaling{}, err
	}
	if out.Config.InitialScale == 0 && !out.Config.AllowZeroInitialScale {
		return Scaling{}, invalid(knativePrefix+"initial-scale", "0", "1 or more here: starting without a replica isn't allowed")
	}
	if err := out.Config.Validate(); err != nil {
		return Scaling{}, fmt.Errorf("autoscaling: %w", err)
	}
	return out, nil
}

// fields lets the manifest's fields rule, notes what they overrule and returns the metric.
func (r *Scaling) fields(s Settings, metric string) string {
	rule := func(annotation, field string, given bool, same bool, set func()) {
		if !given {
			return
		}
		if _, both := s.Annotations[knativePrefix+annotation]; both && !same {
			r.Notes = append(r.Notes, knativePrefix+annotation+" is overruled by "+field)
		}
		set()
	}
	c := &r.Config
	if s.MinReplicas != nil {
		rule("min-scale", "minReplicas", true, c.MinScale == *s.MinReplicas, func() { c.MinScale = *s.MinReplicas })
	}
	rule("max-scale", "maxReplicas", s.MaxReplicas != 0, c.MaxScale == s.MaxReplicas, func() { c.MaxScale = s.MaxReplicas })
	if s.ScaleTarget != nil {
		rule("target", "scaleTarget", true, c.Target == float64(*s.ScaleTarget), func() { c.Target = float64(*s.ScaleTarget) })
	}
	rule("metric", "scaleMetric", s.ScaleMetric != "", metric == s.ScaleMetric, func() { metric = s.ScaleMetric })
	return metric
}

// class settles who decides, and the metric with it.
func (r *Scaling) class(annotations map[string]string, metric string) error {
	switch v, given := annotations[KnativeClassAnnotation]; {
	case v == "kpa.autoscaling.knative.dev":
		r.Class = ClassKPA
	case v == "hpa.autoscaling.knative.dev":
		r.Class = ClassHPA
	case given:
		return invalid(KnativeClassAnnotation, v, "kpa.autoscaling.knative.dev or hpa.autoscaling.knative.dev")
	}
	switch v, given := annotations[ClassAnnotation]; {
	case !given:
	case r.Class == ClassKPA || (r.Class != "" && Class(v) != r.Class):
		return invalid(ClassAnnotation, v, "left out beside "+KnativeClassAnnotation)
	case slices.Contains([]Class{ClassHPA, ClassKEDA, ClassExternal, ClassNone}, Class(v)):
		r.Class = Class(v)
	default:
		return invalid(ClassAnnotation, v, "none, hpa, keda or external")
	}
	switch metric {
	case "":
		if r.Class == "" {
			r.Class = ClassKPA
		}
	case string(Concurrency), string(RPS):
		if r.Class == ClassHPA {
			return invalid("scaleMetric", metric, "cpu or memory with the class hpa")
		}
		if r.Class == "" {
			r.Class = ClassKPA
		}
		r.Config.Metric = Metric(metric)
	case "cpu", "memory":
		if r.Class == ClassKPA {
			return invalid("scaleMetric", metric, "concurrency or rps with the class kpa")
		}
		if r.Class == "" {
			r.Class = ClassHPA
		}
		r.Resource = metric
	default:
		return invalid("scaleMetric", metric, "concurrency, rps, cpu or memory")
	}
	return nil
}

// Annotations returns the names that Read knows under autoscaling.knative.dev/, sorted.
func Annotations() []string {
	names := append(slices.Collect(maps.Keys(readers)), "class", "metric")
	slices.Sort(names)
	return names
}

// Knows reports whether Read heeds an annotation, named whole: one under autoscaling.knative.dev/ that
// Knative has, in either spelling.
func Knows(annotation string) bool {
	name, ok := strings.CutPrefix(annotation, knativePrefix)
	if old, is := oldNames[name]; is {
		name = old
	}
	return ok && slices.Contains(Annotations(), name)
}

// oldNames are the spellings that Knative still takes.
var oldNames = map[string]string{
	"initialScale":                  "initial-scale",
	"maxScale":                      "max-scale",
	"metricAggregationAlgorithm":    "metric-aggregation-algorithm",
	"minScale":                      "min-scale",
	"panicThresholdPercentage":      "panic-threshold-percentage",
	"panicWindowPercentage":         "panic-window-percentage",
	"scaleDownDelay":                "scale-down-delay",
	"scaleToZeroPodRetentionPeriod": "scale-to-zero-pod-retention-period",
	"targetBurstCapacity":           "target-burst-capacity",
	"targetUtilizationPercentage":   "target-utilization-percentage",
}

// readers set one field each, from the text of the annotation of that name. They return what is
// allowed, and whether the text is. (Knative: ValidateAnnotations.)
var readers = map[string]func(text string, c *Config) (want string, ok bool){
	"target":                     number64(TargetMin, maxValue, func(c *Config, v float64) { c.Target = v }),
	"panic-window-percentage":    number64(panicWindowMin, panicWindowMax, func(c *Config, v float64) { c.PanicWindowPercentage = v }),
	"panic-threshold-percentage": number64(panicThresholdMin, panicThresholdMax, func(c *Config, v float64) { c.PanicThresholdPercentage = v }),
	"target-utilization-percentage": number64(1, 100, func(c *Config, v float64) {
		c.Utilization = v / 100
	}),
	"target-burst-capacity": func(text string, c *Config) (string, bool) {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || (v != -1 && !within(v, 0, maxValue)) {
			return "a number of 0 or more, or -1", false
		}
		c.TargetBurstCapacity = v
		return "", true
	},
	"min-scale":     integer(0, func(c *Config, v int) { c.MinScale = v }),
	"max-scale":     integer(0, func(c *Config, v int) { c.MaxScale = v }),
	"initial-scale": integer(0, func(c *Config, v int) { c.InitialScale = v }),
	"activation-scale": integer(2, func(c *Config, v int) {
		c.ActivationScale = v
	}),
	"window":                             duration(WindowMin, time.Second, func(c *Config, v time.Duration) { c.Window = v }),
	"scale-down-delay":                   duration(0, time.Second, func(c *Config, v time.Duration) { c.ScaleDownDelay = v }),
	"scale-to-zero-pod-retention-period": duration(0, time.Nanosecond, func(c *Config, v time.Duration) { c.Retention = v }),
	"metric-aggregation-algorithm": func(text string, c *Config) (string, bool) {
		switch text {
		case "", string(Linear):
			c.Aggregation = Linear
		case string(WeightedExponential), "weightedExponential":
			c.Aggregation = WeightedExponential
		default:
			return "linear or weighted-exponential", false
		}
		return "", true
	},
}

func number64(low, high float64, set func(*Config, float64)) func(string, *Config) (string, bool) {
	return func(text string, c *Config) (string, bool) {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !within(v, low, high) {
			return fmt.Sprintf("a number from %g to %g", low, high), false
		}
		set(c, v)
		return "", true
	}
}

func integer(low int, set func(*Config, int)) func(string, *Config) (string, bool) {
	return func(text string, c *Config) (string, bool) {
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil || int(v) < low {
			return fmt.Sprintf("a whole number from %d to %d", low, math.MaxInt32), false
		}
		set(c, int(v))
		return "", true
	}
}

func duration(low, step time.Duration, set func(*Config, time.Duration)) func(string, *Config) (string, bool) {
	return func(text string, c *Config) (string, bool) {
		v, err := time.ParseDuration(text)
		if err != nil || v < low || v > WindowMax || v%step != 0 {
			if step == time.Second {
				return fmt.Sprintf("whole seconds from %v to %v, such as 90s", low, WindowMax), false
			}
			return fmt.Sprintf("a duration from %v to %v, such as 90s", low, WindowMax), false
		}
		set(c, v)
		return "", true
	}
}

func invalid(name, value, want string) error {
	return errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s is %q and must be %s", name, value, want))
}
