package spec

import "time"

// PayloadLog says what of a component's requests is told to a collector of CloudEvents, or stored.
type PayloadLog struct {
	// URL is the collector's, http or https; with Store the bucket's and its folder's, s3, gs or abfs.
	URL string
	// Store says how entries are stored; nil means that URL is a collector's.
	Store *PayloadStore
	// Requests and Responses say which of the two are told; one of them is true.
	Requests, Responses bool
	// Headers are the request headers that an event carries, as the manifest spells them.
	Headers []string
	// Annotations are those of the service that an event carries.
	Annotations map[string]string
}

// PayloadStore says how entries become files of a bucket. Two that are equal mean the same place.
type PayloadStore struct {
	// Path is a folder below those that bucket, namespace, service and component make.
	Path string
	// Format is json, csv or parquet.
	Format string
	// Marshaller is the address of what turns entries into a file in place of Format; empty for none.
	Marshaller string
	// BatchSize is the most entries of a file, 1 or more.
	BatchSize int
	// BatchInterval is how long an entry waits for others; zero means until there are BatchSize.
	BatchInterval time.Duration
	// Secret, Key and ServiceAccount say where the credentials are, in the service's namespace: in
	// a secret, in an entry of the secret storage-config, in the secrets of a service account.
	// Empty ones don't count.
	Secret, Key, ServiceAccount string
	// Region and Endpoint go before those of the credentials.
	Region, Endpoint string
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
