// Package adapter holds what an engine's adapter says of it: by what it is recognised, how it is
// started, what it speaks, where it tells its metrics, and what they mean under the names that
// hold for all engines.
package adapter

import "stationmaster.dev/stationmaster/internal/spec"

// Adapter is what is known of one engine. It is immutable.
type Adapter struct {
	// Name is what the engine is called in labels, in the annotation that declares it, and in docs.
	Name string
	// Known is by what it is recognised where nothing is declared.
	Known Marks
	// Start is how its command line and environment are written.
	Start Start
	// Protocols are the inference protocols that it speaks by itself, the OpenAI API apart.
	Protocols []spec.Protocol
	// OpenAI is the path before /v1 under which it speaks the OpenAI API, "/" for none; one that ends in a
	// version of its own, as /v3, takes the place of /v1. Empty means that it doesn't.
	OpenAI string
	// Translate is how it is asked in other protocols, in the words of the annotation
	// stationmaster.dev/translate, where nothing else is declared.
	Translate string
	// Tasks are flags that tell, in the same words, what its model is for. Of those that are given the last
	// one counts.
	Tasks []Task
	// Ready is the path that answers with 200 once models are served.
	Ready string
	// Limits are ways to ask it how many tokens a request may have; the first counts that tells. Nil means
	// that it can't be asked.
	Limits []Question
	// Page is where its metrics are.
	Page Page
	// Metrics is what they mean. Where Page.Path is empty, there are none.
	Metrics Metrics
}

// Marks are words by which an engine is recognised.
type Marks struct {
	// Commands are names of executables and of Python modules, as they stand in a command line.
	Commands []string
	// Images and Runtimes are parts of the names of container images and of serving runtimes.
	Images, Runtimes []string
}

// Task is what a flag of the command line tells.
type Task struct {
	// Flag is given with Value as its value, or, where Value is empty, alone.
	Flag, Value string
	// Is is what the model is for: completions, chat, embeddings, rerank, score or classify.
	Is string
}

// Start is how an engine's command line and environment are written. A name that is empty has no
// such flag or variable.
type Start struct {
	// Model, Name, Host, Port and GRPCPort are the flags for the model's folder, the name under
	// which it is served, and the addresses.
	Model, Name, Host, Port, GRPCPort string
	// Env are variables for the same things, by the flag's field above in lower case: "model",
	// "name", "host", "port", "grpcport", "metricsport".
	Env map[string]string
}

// Page is where an engine's metrics are.
type Page struct {
	// Path is empty for an engine that has no page of metrics.
	Path string
	// Port is the number by default where it isn't that for inference; zero means that it is.
	Port int
	// PortFlag is the flag that sets the number.
	PortFlag string
	// Needs says, as the end of a sentence, what must be done to have the page or all that is on
	// it; empty means nothing.
	Needs string
}

// Metrics is where in an engine's page the values are that have one name for all engines. Of each
// list the first counts that the page has: names change from release to release.
type Metrics struct {
	// Running and Waiting count requests; KV is the used part of the cache of keys and values.
	Running, Waiting, KV []Series
	// Queries are what was looked up in the prefix cache, and Hits what of that was there, in
	// tokens or blocks.
	Hits, Queries []Series
	// Prompt and Generated count tokens.
	Prompt, Generated []Series
	// FirstToken and PerToken are histograms of times.
	FirstToken, PerToken []Histogram
	// Batch is how many requests are computed together.
	Batch []Batch
	// Adapters tells which LoRA adapters are loaded.
	Adapters *Adapters
	// Cache tells of what the cache of keys and values is made.
	Cache *Cache
	// Gone says, for people, what newer releases don't tell any more; empty for nothing.
	Gone string
}

// Series is a value made of an engine's own metrics.
type Series struct {
	// Names are added up; all must be there. Series of one name are added up, too.
	Names []string
	// Label, if any, must have the value Value in the series that count.
	Label, Value string
	// ZeroAtFirst says that it counts as zero while the page has nothing of it, for it comes with its
	// first value.
	ZeroAtFirst bool
	// Mean takes the mean of the series in place of their sum.
	Mean bool
}

// Named is the series of one name.
func Named(name string) Series { return Series{Names: []string{name}} }

// MeanOf is the mean of the series of one name: for ratios.
func MeanOf(name string) Series { return Series{Names: []string{name}, Mean: true} }

// Histogram is an engine's own histogram.
type Histogram struct {
	Name string
	// Unit is how many seconds one of its units is; zero means one.
	Unit float64
}

// Batch is how many requests an engine computes together: a gauge of those that it does now, a
// mean over its life with what was counted for it, or a sum with what was counted.
type Batch struct {
	Now              string
	Mean, Sum, Count string
}

// Adapters is the series whose labels list LoRA adapters, the names parted by commas, and whose
// value is the time at which it was so.
type Adapters struct {
	Name string
	// Lists are the labels with names, Max the one with how many there may be.
	Lists []string
	Max   string
}

// Cache is the series whose labels describe the cache, or the series that do.
type Cache struct {
	Info                  string
	BlockSize, Blocks     string
	SizeSeries, NumSeries Series
}
