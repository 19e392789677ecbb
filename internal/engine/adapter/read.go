package adapter

import (
	"cmp"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/exposition"
)

// Reading is what an engine's page said, under the names that hold for all. It is immutable.
type Reading struct {
	// Values are those that were told, by name.
	Values map[Name]float64
	// FirstToken and PerToken are nil where they weren't told.
	FirstToken, PerToken *Counts
	// Batches and Batched are how many batches were run, and what of requests was in them; both
	// are zero where batches aren't counted.
	Batches, Batched float64
	// Adapters are the LoRA adapters that are loaded, sorted; nil where the engine doesn't tell.
	// MaxAdapters is how many may be in one batch, zero where that isn't known.
	Adapters    []string
	MaxAdapters int
	// BlockSize is how many tokens a block of the cache holds, and Blocks how many there are; zero
	// means not known.
	BlockSize, Blocks int
}

// Counts is a histogram of seconds.
type Counts struct {
	// Buckets have growing bounds, the last one finite; the counts are of all below.
	Buckets []Bucket
	Sum     float64
	Count   uint64
}

// Bucket counts what is at most its bound.
type Bucket struct {
	Bound float64
	Count uint64
}

// maxBuckets bounds what is kept of a histogram.
const maxBuckets = 128

// maxAdapters bounds how many adapters are kept.
const maxAdapters = 1024

// Read reads a page, which the caller bounds. Values that the page doesn't have are left out; an
// error says that it can't be read.
func (m *Metrics) Read(page io.Reader) (*Reading, error) {
	wanted := m.names()
	kept := map[string][]sample{}
	err := exposition.Read(page, func(name string) bool { return wanted[name] }, func(s *exposition.Sample) {
		kept[s.Name] = append(kept[s.Name], sample{s.Labels, s.Value})
	})
	if err != nil {
		return nil, err
	}
	return m.reading(kept), nil
}

type sample struct {
	labels []exposition.Label
	value  float64
}

func (s *sample) label(name string) string {
	of := exposition.Sample{Labels: s.labels}
	return of.Label(name)
}

// scalars are the values that are series, by name.
func (m *Metrics) scalars() map[Name][]Series {
	return map[Name][]Series{
		Running: m.Running, Waiting: m.Waiting, KVCacheUsage: m.KV,
		PrefixHits: m.Hits, PrefixQueries: m.Queries, PromptTokens: m.Prompt, GeneratedTokens: m.Generated,
	}
}

// Tells says whether an engine's page may have a value.
func (m *Metrics) Tells(n Name) bool {
	switch n {
	case BatchSize:
		return len(m.Batch) > 0
	case FirstToken:
		return len(m.FirstToken) > 0
	case PerToken:
		return len(m.PerToken) > 0
	}
	return len(m.scalars()[n]) > 0
}

// names are those of the page that count.
func (m *Metrics) names() map[string]bool {
	out := map[string]bool{}
	add := func(names ...string) {
		for _, n := range names {
			if n != "" {
				out[n] = true
			}
		}
	}
	for _, list := range m.scalars() {
		for _, s := range list {
			add(s.Names...)
		}
	}
	for _, h := range slices.Concat(m.FirstToken, m.PerToken) {
		add(h.Name+"_bucket", h.Name+"_sum", h.Name+"_count")
	}
	for _, b := range m.Batch {
		add(b.Now, b.Mean, b.Sum, b.Count)
	}
	if a := m.Adapters; a != nil {
		add(a.Name)
	}
	if c := m.Cache; c != nil {
		add(c.Info)
		add(c.SizeSeries.Names...)
		add(c.NumSeries.Names...)
	}
	return out
}

func (m *Metrics) reading(kept map[string][]sample) *Reading {
	r := &Reading{Values: map[Name]float64{}}
	for name, list := range m.scalars() {
		for _, s := range list {
			if v, ok := s.value(kept); ok {
				r.Values[name] = v
				break
			}
		}
	}
	r.FirstToken, r.PerToken = histogram(m.FirstToken, kept), histogram(m.PerToken, kept)
	m.batches(r, kept)
	if a := m.Adapters; a != nil {
		a.read(r, kept[a.Name])
	}
	if c := m.Cache; c != nil {
		c.read(r, kept)
	}
	return r
}

// value is what a series is worth, and whether all of it is there.
func (s *Series) value(kept map[string][]sample) (float64, bool) {
	total := 0.0
	for _, name := range s.Names {
		sum, n := 0.0, 0
		for i := range kept[name] {
			k := &kept[name][i]
			if math.IsNaN(k.value) || s.Label != "" && k.label(s.Label) != s.Value {
				continue
			}
			sum, n = sum+k.value, n+1
		}
		if n == 0 && !s.ZeroAtFirst {
			return 0, false
		}
		if s.Mean && n > 0 {
			sum /= float64(n)
		}
		total += sum
	}
	return total, len(s.Names) > 0 && !math.IsInf(total, 0)
}

func (m *Metrics) batches(r *Reading, kept map[string][]sample) {
	one := func(name string) (float64, bool) {
		s := Named(name)
		return s.value(kept)
	}
	for _, b := range m.Batch {
		if v, ok := one(b.Now); ok {
			r.Values[BatchSize] = v
			return
		}
		count, counted := one(b.Count)
		if !counted {
			continue
		}
		if sum, ok := one(b.Sum); ok {
			r.Batches, r.Batched = count, sum
			return
		}
		if mean, ok := one(b.Mean); ok {
			r.Batches, r.Batched = count, count*mean
			return
		}
	}
}

// histogram adds up the series of the first histogram that is there.
func histogram(list []Histogram, kept map[string][]sample) *Counts {
	for _, h := range list {
		unit := cmp.Or(h.Unit, 1)
		out := &Counts{}
		by := map[float64]uint64{}
		for i := range kept[h.Name+"_bucket"] {
			k := &kept[h.Name+"_bucket"][i]
			bound, err := strconv.ParseFloat(k.label("le"), 64)
			if err != nil || math.IsNaN(bound) || !countable(k.value) {
				continue
			}
			if !math.IsInf(bound, 1) {
				by[bound*unit] += uint64(k.value)
			}
		}
		for bound, n := range by {
			out.Buckets = append(out.Buckets, Bucket{bound, n})
		}
		slices.SortFunc(out.Buckets, func(a, b Bucket) int { return cmp.Compare(a.Bound, b.Bound) })
		counted := kept[h.Name+"_count"]
		if len(counted) == 0 || len(out.Buckets) == 0 || len(out.Buckets) > maxBuckets {
			continue
		}
		for i := range counted {
			if countable(counted[i].value) {
				out.Count += uint64(counted[i].value)
			}
		}
		for _, s := range kept[h.Name+"_sum"] {
			if !math.IsNaN(s.value) && !math.IsInf(s.value, 0) {
				out.Sum += s.value * unit
			}
		}
		return out
	}
	return nil
}

func countable(v float64) bool { return v >= 0 && v < 1<<62 }

// read takes the series that was written last.
func (a *Adapters) read(r *Reading, kept []sample) {
	var last *sample
	for i := range kept {
		if last == nil || kept[i].value > last.value {
			last = &kept[i]
		}
	}
	if last == nil {
		return
	}
	r.Adapters = []string{}
	for _, list := range a.Lists {
		for name := range strings.SplitSeq(last.label(list), ",") {
			if name = strings.TrimSpace(name); name != "" && len(r.Adapters) < maxAdapters {
				r.Adapters = append(r.Adapters, name)
			}
		}
	}
	slices.Sort(r.Adapters)
	r.Adapters = slices.Compact(r.Adapters)
	r.MaxAdapters, _ = strconv.Atoi(last.label(a.Max))
}

func (c *Cache) read(r *Reading, kept map[string][]sample) {
	for i := range kept[c.Info] {
		k := &kept[c.Info][i]
		if n, err := strconv.Atoi(k.label(c.BlockSize)); err == nil && n > 0 {
			r.BlockSize = n
		}
		if n, err := strconv.Atoi(k.label(c.Blocks)); err == nil && n > 0 {
			r.Blocks += n
		}
	}
	size, blocks := c.SizeSeries, c.NumSeries
	if v, ok := size.value(kept); ok && v > 0 && v < math.MaxInt32 {
		r.BlockSize = int(v)
	}
	if v, ok := blocks.value(kept); ok && v > 0 && v < math.MaxInt32 {
		r.Blocks = int(v)
	}
}

// Value returns a value that isn't a histogram, and whether it is known. Before is the reading before
// this one of the same engine, or nil: where batches are counted, their size is the mean of those that
// were run since, and zero where none was.
func (r *Reading) Value(n Name, before *Reading) (float64, bool) {
	if v, ok := r.Values[n]; ok || n != BatchSize || before == nil || r.Batches == 0 {
		return v, ok
	}
	batches, batched := r.Batches-before.Batches, r.Batched-before.Batched
	switch {
	case batches < 0: // it began anew
		return r.Batched / r.Batches, true
	case batches == 0:
		return 0, true
	}
	return max(batched, 0) / batches, true
}

// Any says whether an engine's page may have any value at all.
func (m *Metrics) Any() bool {
	return slices.ContainsFunc(slices.Concat(Scalars(), Histograms()), m.Tells)
}
