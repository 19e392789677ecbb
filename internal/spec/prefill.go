package spec

// Prefill says that the prompts of a service's requests are read by the replicas of another one.
type Prefill struct {
	// Service is the name of the other InferenceService, of the same namespace.
	Service string
	// Header says that a sidecar of the service's own replicas asks the other's, as a header names
	// it; else the gateway asks it, and hands on what it says of its key-value cache.
	Header bool
	// MinTokens is how many tokens a prompt has at least that is read elsewhere.
	MinTokens int
}
