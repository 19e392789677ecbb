package adapter

import (
	"fmt"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Name is one under which every engine's metrics come out.
type Name string

// Prefix begins every Name.
const Prefix = "stationmaster_engine_"

// The names. Those that end in _total are counters, FirstToken and PerToken histograms, all others
// gauges.
const (
	// Running and Waiting are the requests that are computed and those that aren't yet.
	Running Name = Prefix + "requests_running"
	Waiting Name = Prefix + "requests_waiting"
	// KVCacheUsage is from 0 to 1.
	KVCacheUsage Name = Prefix + "kv_cache_usage_ratio"
	// PrefixHits and PrefixQueries are in the engine's own unit, tokens or blocks; only their ratio
	// is comparable.
	PrefixHits    Name = Prefix + "prefix_cache_hits_total"
	PrefixQueries Name = Prefix + "prefix_cache_queries_total"
	// PromptTokens and GeneratedTokens are tokens in and out; those found in the prefix cache count.
	PromptTokens    Name = Prefix + "prompt_tokens_total"
	GeneratedTokens Name = Prefix + "generated_tokens_total"
	// BatchSize is how many requests were computed together of late.
	BatchSize Name = Prefix + "batch_size"
	// FirstToken is the time from a request's arrival at the engine to its first token, PerToken
	// the time for each after that.
	FirstToken Name = Prefix + "time_to_first_token_seconds"
	PerToken   Name = Prefix + "time_per_output_token_seconds"
)

// Scalars are the names with one value for each replica, in the order of docs.
func Scalars() []Name {
	return []Name{Running, Waiting, KVCacheUsage, PrefixHits, PrefixQueries, PromptTokens, GeneratedTokens, BatchSize}
}

// Histograms are the names with a histogram for each replica.
func Histograms() []Name { return []Name{FirstToken, PerToken} }

// Counter says whether a name's values only grow.
func (n Name) Counter() bool {
	return slices.Contains([]Name{PrefixHits, PrefixQueries, PromptTokens, GeneratedTokens}, n)
}

// Help is the name's description.
func (n Name) Help() string { return help[n] }

var help = map[Name]string{
	Running:         "Requests that an engine computes, as it tells.",
	Waiting:         "Requests that wait in an engine, as it tells.",
	KVCacheUsage:    "The used part of an engine's cache of keys and values, 0 to 1.",
	PrefixHits:      "Tokens or blocks, as the engine counts, that its prefix cache had.",
	PrefixQueries:   "Tokens or blocks, as the engine counts, that were looked up in its prefix cache.",
	PromptTokens:    "Tokens of the prompts that an engine took.",
	GeneratedTokens: "Tokens that an engine generated.",
	BatchSize:       "Requests that an engine computes together: now, or on average since the look before.",
	FirstToken:      "Time from a request's arrival at an engine to its first token.",
	PerToken:        "Time that an engine takes for each token after the first.",
}

// Unified says whether a name is meant to be one of those that hold for all engines.
func Unified(query string) bool { return strings.HasPrefix(strings.TrimSpace(query), Prefix) }

// ParseName reads the name of a value to scale on. Its error, of kind errdef.ErrInvalid, says what it
// may be.
func ParseName(query string) (Name, error) {
	n := Name(strings.TrimSpace(query))
	if !slices.Contains(Scalars(), n) {
		names := make([]string, len(Scalars()))
		for i, s := range Scalars() {
			names[i] = string(s)
		}
		return "", errdef.New(errdef.ErrInvalid, fmt.Sprintf("%q isn't what is known of all engines: %s, each without labels", query, strings.Join(names, ", ")))
	}
	return n, nil
}
