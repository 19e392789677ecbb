package spec

import "time"

// PayloadLog says what of a component's requests is told to a collector of CloudEvents.
type PayloadLog struct {
	// URL is the collector's, http or https.
	URL string
	// Requests and Responses say which of the two are told; one of them is true.
	Requests, Responses bool
	// Headers are the request headers that an event carries, as the manifest spells them.
	Headers []string
	// Annotations are those of the service that an event carries.
	Annotations map[string]string
}

// Batching says how single requests to a component are put together.
type Batching struct {
	// MaxSize is the most rows in a batch, 1 or more.
	MaxSize int
	// MaxLatency is how long a batch waits to fill.
	MaxLatency time.Duration
	// Timeout is how long a request may take from its arrival to its answer; zero means no bound
	// but the service's own.
	Timeout time.Duration
}
