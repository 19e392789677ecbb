package demand

import (
	"time"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/scale"
)

// Metrics says on which metrics a revision scales, and where they are read. It is immutable.
type Metrics struct {
	HPA scale.HPAConfig
	// Sources stand in the order of HPA.Metrics.
	Sources []Source
	// Replicas are those that are ready.
	Replicas []Replica
	// Engine is the name of the adapter of the engine that they run; empty means not known.
	Engine string
	// Security is how pages with https are reached.
	Security enginetls.Security
}

// Replica is where one replica's metrics are.
type Replica struct {
	// ID is the platform's name of it.
	ID string
	// Metrics is the URL of the page on which the engine tells its own metrics; empty means that
	// it has none.
	Metrics string
}

// Source is where a metric is read. Exactly one of the pointers is set.
type Source struct {
	Prometheus *PrometheusQuery
	Engine     *EngineMetric
	Resource   *ResourceUse
}

// PrometheusQuery is answered by a server that speaks Prometheus' query API.
type PrometheusQuery struct {
	// Server is its base URL, e.g. http://prometheus.monitoring:9090.
	Server string
	// Query is PromQL whose result is a scalar or one series.
	Query string
	// Namespace is for servers that are shared by several; empty means none is named.
	Namespace string
}

// EngineMetric is read from the replicas themselves, and summed up over them.
type EngineMetric struct {
	// Query is the metric's name, with labels in braces if only some of its series count; or one of
	// the names that hold for all engines.
	Query string
	// Over is what is made of a replica's values over time; empty means OverLast.
	Over Over
}

// Over is what is made of the values that one replica told during the last minute.
type Over string

// The ways to put values together. KServe spells them so.
const (
	OverLast  Over = "last_one"
	OverAvg   Over = "avg"
	OverMin   Over = "min"
	OverMax   Over = "max"
	OverSum   Over = "sum"
	OverCount Over = "count"
	// OverRate is the increase in a second of a counter.
	OverRate Over = "rate"
)

// ResourceUse is what the replicas use of a resource.
type ResourceUse struct {
	// Memory says that it is memory, in bytes; else it is CPU, in cores.
	Memory bool
	// Percent says that the measurement is a percentage of what a replica asks for, averaged over
	// the replicas; else it is the sum of what they use.
	Percent bool
	// Request is what a replica asks for, in bytes or cores; zero means nothing. Only Percent
	// needs it.
	Request float64
}

// Measured is what the metrics of a revision were. It is immutable.
type Measured struct {
	// Values stand in the order of Metrics.Sources.
	Values []scale.Measurement
	// Problem says why a value is missing; empty means none is. It is a sentence without a stop,
	// and stays the same while the cause does.
	Problem string
	At      time.Time
}
