// Package pick chooses which replica of a revision gets a request. Policies are weighted mixes of
// scorers, which look at what is counted here and what engines told lately: requests and tokens in
// flight, the prefixes of prompts that a replica has in its cache, its use of the cache, its queue,
// its LoRA adapters. It is pure: no I/O, no goroutine, and both time and randomness are arguments.
package pick

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Scorer is one view on which replica is best.
type Scorer uint8

// The scorers, in the order of their names in scorerNames.
const (
	// RoundRobin prefers the replica whose turn it is.
	RoundRobin Scorer = iota
	// LeastRequests prefers replicas with few requests under way.
	LeastRequests
	// LeastTokens prefers replicas with few tokens in flight: of prompts that wait for their first
	// token, and of answers that are still to come.
	LeastTokens
	// Session prefers the replica that a client's session falls to.
	Session
	// Prefix prefers replicas that lately got a prompt that began alike.
	Prefix
	// KVCache prefers replicas whose engine tells of free key-value cache.
	KVCache
	// Queue prefers replicas whose engine tells of a short queue.
	Queue
	// LoRA prefers replicas that have the adapter that is asked for.
	LoRA

	scorers
)

var scorerNames = [scorers]string{"round-robin", "least-requests", "least-tokens", "session", "prefix", "kv-cache", "queue", "lora"}

// String returns the name by which a policy's text has the scorer.
func (s Scorer) String() string { return scorerNames[s] }

// Policy is how replicas are chosen. The zero Policy takes any replica at random; use Parse, or one
// of the defaults.
type Policy struct {
	// Weights are what each scorer's score, 0 to 1, counts for; 0 leaves it out.
	Weights [scorers]float64
	// Bound is how many times the mean load a replica may have, this request included, where a
	// scorer draws requests to certain replicas; at least 1. Below twice a request's own load it
	// doesn't apply.
	Bound float64
	// Header or Cookie tell one session from another; without either the header is X-Session-Id.
	Header, Cookie string
}

const (
	// DefaultBound leaves room for affinity: requests wait elsewhere for shorter than it takes to read
	// their prompts again, and over time replicas get within a tenth of the mean (the simulation in
	// sim_test.go).
	DefaultBound = 1.5
	maxBound     = 100
	maxWeight    = 1000
	// DefaultHeader is the header that tells sessions apart.
	DefaultHeader = "X-Session-Id"
)

// ForTensors is the default for engines that answer each request at once.
func ForTensors() Policy { return single(LeastRequests) }

// ForLanguage is the default for engines of language models.
func ForLanguage() Policy {
	p := Policy{Bound: DefaultBound}
	p.Weights[Prefix], p.Weights[LeastTokens], p.Weights[LoRA] = 3, 1, 2
	return p
}

func single(s Scorer) Policy {
	p := Policy{Bound: DefaultBound}
	p.Weights[s] = 1
	return p
}

// Parse reads a policy: names of scorers with commas between them, each with a weight if it isn't
// 1, and settings, as in "prefix=3, least-tokens, bound=1.25" or "session, header=X-User". An
// empty text, or "default", gives the default for the kind of engine. Errors are ErrInvalid and say
// what there is.
func Parse(text string, language bool) (Policy, error) {
	p := Policy{Bound: DefaultBound}
	text = strings.TrimSpace(text)
	if text == "" || text == "default" {
		if language {
			return ForLanguage(), nil
		}
		return ForTensors(), nil
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, given := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if seen[name] {
			return Policy{}, invalid("%.100q is there twice", name)
		}
		seen[name] = true
		if err := p.set(name, value, given); err != nil {
			return Policy{}, err
		}
	}
	switch {
	case p.Weights == [scorers]float64{}:
		return Policy{}, invalid("no scorer is named: name at least one of %s", strings.Join(scorerNames[:], ", "))
	case (p.Header != "" || p.Cookie != "") && p.Weights[Session] == 0:
		return Policy{}, invalid("header and cookie are settings of session: name it, too")
	case p.Header != "" && p.Cookie != "":
		return Policy{}, invalid("a session has a header or a cookie, not both")
	}
	return p, nil
}

func (p *Policy) set(name, value string, given bool) error {
	if i := slices.Index(scorerNames[:], name); i >= 0 {
		p.Weights[i] = 1
		if given {
			w, err := strconv.ParseFloat(value, 64)
			if err != nil || !(w > 0) || w > maxWeight {
				return invalid("the weight of %s must be a number above 0 and at most %d, not %.100q", name, maxWeight, value)
			}
			p.Weights[i] = w
		}
		return nil
	}
	switch name {
	case "bound":
		b, err := strconv.ParseFloat(value, 64)
		if err != nil || !(b >= 1) || b > maxBound {
			return invalid("bound must be a number from 1 to %d, as a multiple of the mean load, not %.100q", maxBound, value)
		}
		p.Bound = b
	case "header", "cookie":
		if value == "" || len(value) > 256 || strings.ContainsFunc(value, notToken) {
			return invalid("%s needs a name, as in %s=user", name, name)
		}
		if name == "header" {
			p.Header = value
		} else {
			p.Cookie = value
		}
	default:
		return invalid("there is no %.100q: the scorers are %s, and the settings bound, header and cookie", name, strings.Join(scorerNames[:], ", "))
	}
	return nil
}

// notToken reports characters that no name of a header or cookie has (RFC 9110, 5.6.2).
func notToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

func invalid(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, fmt.Sprintf(format, args...))
}

// String returns the policy as Parse reads it.
func (p Policy) String() string {
	var parts []string
	for s, w := range p.Weights {
		switch w {
		case 0:
		case 1:
			parts = append(parts, scorerNames[s])
		default:
			parts = append(parts, scorerNames[s]+"="+strconv.FormatFloat(w, 'g', -1, 64))
		}
	}
	if p.Bound != DefaultBound {
		parts = append(parts, "bound="+strconv.FormatFloat(p.Bound, 'g', -1, 64))
	}
	if p.Header != "" {
		parts = append(parts, "header="+p.Header)
	}
	if p.Cookie != "" {
		parts = append(parts, "cookie="+p.Cookie)
	}
	return strings.Join(parts, ", ")
}

func (p *Policy) uses(s Scorer) bool { return p.Weights[s] > 0 }

// ReadsPrompts reports whether a request's prompt must be known to choose.
func (p *Policy) ReadsPrompts() bool { return p.uses(Prefix) || p.uses(LeastTokens) }

// ReadsBodies reports whether what a request's body asks for must be known to choose.
func (p *Policy) ReadsBodies() bool { return p.ReadsPrompts() || p.uses(LoRA) }

// Hashes reports whether the hashes of a prompt's blocks are used.
func (p *Policy) Hashes() bool { return p.uses(Prefix) }

// Sessions reports whether what tells a client's session is used.
func (p *Policy) Sessions() bool { return p.uses(Session) }

// Samples reports whether what engines tell of themselves is of use.
func (p *Policy) Samples() bool {
	return p.uses(KVCache) || p.uses(Queue) || p.uses(LoRA) || p.uses(LeastTokens) || p.uses(Prefix)
}

// SessionOf returns the hash of what tells a request's session, 0 for none. header returns a
// request's first header of a name, "" for none.
func (p *Policy) SessionOf(header func(name string) string) uint64 {
	if !p.uses(Session) {
		return 0
	}
	var id string
	switch {
	case p.Cookie != "":
		id = cookie(header("Cookie"), p.Cookie)
	case p.Header != "":
		id = header(p.Header)
	default:
		id = header(DefaultHeader)
	}
	if id == "" {
		return 0
	}
	return Hash(id)
}

// cookie returns the value of a cookie within a Cookie header, "" for none.
func cookie(header, name string) string {
	for header != "" {
		var pair string
		pair, header, _ = strings.Cut(header, ";")
		if k, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && k == name {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// draws reports whether some scorer draws requests to certain replicas, so that the bound applies.
func (p *Policy) draws() bool { return p.uses(Prefix) || p.uses(Session) || p.uses(LoRA) }
