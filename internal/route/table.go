// Package route decides where a request goes: an immutable table compiled from services and
// their ready replicas, and pure functions that match a host, a path or a model name and
// choose a target. It does no I/O and takes randomness as an argument.
package route

import (
	"time"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Service is one InferenceService as the gateway sees it, or an InferenceGraph.
type Service struct {
	Key spec.ServiceKey
	// Graph is set for an InferenceGraph, which has no components.
	Graph *spec.Graph
	// Hosts under which the service answers, without port, lower case: the service's own and
	// those of its components (Host.Component says which).
	Hosts []Host
	// PathPrefix is e.g. /serving/default/iris; empty for none.
	PathPrefix string
	// BareNames are the model names under which the service answers on the bare address.
	BareNames []string
	// Adapters are names of LoRA adapters that the service lists, in order. They lead to it on the
	// bare address, too, if it is Open, and engines know them by the same names.
	Adapters []string
	// Entry is the component that outside traffic meets first: transformer if there is one.
	Entry      spec.Component
	Components map[spec.Component]Backend
	// Timeout bounds one unary request; zero means the gateway's default.
	Timeout time.Duration
	// Created says which of two services that claim one host, prefix or bare name keeps it:
	// the older. Zero counts as youngest.
	Created time.Time
}

// Open reports whether the service has a name for clients outside the cluster. Those of one that hasn't
// know its hosts alone: neither its adapters' names nor its key lead to it from the bare address.
func (s *Service) Open() bool { return s.PathPrefix != "" || len(s.BareNames) > 0 }

// Host is a name that leads to a component of a service; an empty Component means Entry.
type Host struct {
	Name      string
	Component spec.Component
	// Tag, if any, leads to the one target that has it. Such a host yields to one without a tag.
	Tag string
}

// Backend is what serves one component.
type Backend struct {
	Targets []Target
	// NotReady says, in words for a client, why there is no ready endpoint; empty when there is.
	NotReady string
	// Returning says that there is no ready endpoint but soon will be, for what served a moment
	// ago is being started again; requests may wait for it.
	Returning bool
	// Cold says that nothing runs because there was nothing to do, or that it is being started for
	// a request again. Targets then names what a request starts, without endpoints, and requests
	// wait for it.
	Cold bool
	// Startup is how long a replica took to become ready, from nothing; zero means not known.
	Startup time.Duration
	// NextTry is when something that failed is started again at the earliest, and nothing comes
	// before; zero means that this isn't known, or that nothing stands in the way.
	NextTry time.Time
	// Stopped says that a person stopped the service: it comes back when a person says so.
	Stopped bool
	// Rules and Sticky are what Steer applies.
	Rules  []HeaderRule
	Mirror Mirror
	Sticky Sticky
	// Log and Batch say what of the requests is logged, and how they are put together; nil for
	// not at all. The targets that have a tag share them.
	Log   *spec.PayloadLog
	Batch *spec.Batching
	// Prefill says who reads the prompts of its requests; nil for its own replicas.
	Prefill *spec.Prefill
}

// Target is one revision with its share of the traffic.
type Target struct {
	Revision string
	// Tag is a name under which the target is called alone, whatever its weight; empty for none.
	Tag string
	// Weight in percent, 0 to 100; those of a backend sum to 100 when any endpoint is ready.
	Weight int
	// Digest of the revision's model, "sha256:…"; empty when it has none.
	Digest string
	// Format of the model, e.g. onnx; empty means not known.
	Format string
	// ContextLength is how many tokens the engine takes at most; 0 means not known.
	ContextLength int
	// ModelName is what the engine calls the model.
	ModelName string
	// OpenAI is the path before /v1 under which the engine speaks the OpenAI API, "/" for none;
	// empty means not known, then requests pass as they came.
	OpenAI string
	// Credentials says whether the engine gets what a client proves itself by.
	Credentials Credentials
	// Translate is what is declared of translations to the engine's protocol (package translate
	// reads it); empty leaves them to the model's metadata.
	Translate string
	// Picking is how endpoints are chosen (package pick reads it); empty means as is best for the
	// kind of engine.
	Picking string
	// Engine is the name of the adapter of what runs; empty means not known.
	Engine string
	// Protocols the engine speaks; empty means undeclared, then requests pass as they came.
	Protocols []spec.Protocol
	// Limit is the most requests that an endpoint is given at once; zero means no limit.
	Limit     int
	Endpoints []Endpoint
}

// Credentials says whether what clients prove themselves by goes on to an engine: the header fields
// Authorization, Cookie, X-Api-Key and Api-Key.
type Credentials uint8

// CredentialsByProtocol keeps those of the OpenAI API's clients from engines, whose keys are the
// front door's, and passes on all others, as KServe does.
const (
	CredentialsByProtocol Credentials = iota
	CredentialsForwarded
	CredentialsWithheld
)

// Endpoint is one ready replica's addresses ("host:port"); either may be empty.
type Endpoint struct {
	Replica string
	HTTP    string
	GRPC    string
	// Metrics is the URL of the page on which it tells its own metrics; empty means that it has none
	// that is reached.
	Metrics string
	// Security is how HTTP and GRPC are reached.
	Security enginetls.Security
}
