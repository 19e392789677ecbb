package route

import (
	"strings"
)

// HeaderRule sends requests with a header to the target that has a tag, whatever the weights.
type HeaderRule struct {
	Header string
	// Value must equal the header's; empty matches any.
	Value string
	Tag   string
}

// Mirror says that copies of a percent of the requests go to the target with a tag. The zero Mirror
// copies none.
type Mirror struct {
	Tag     string
	Percent int
}

// MirrorOf returns the backend that gets copies of a match's requests, nil for none.
func (t *Table) MirrorOf(m *Match) *Backend {
	if t == nil || m.Service == nil || m.Backend.Mirror.Percent <= 0 {
		return nil
	}
	return t.byKey[m.Service.Key].tagged[tagOf{m.Backend, m.Backend.Mirror.Tag}]
}

// Sticky names what tells clients apart whose requests stay on one revision and, while it is
// ready, on one replica: a header or a cookie. The zero Sticky means neither.
type Sticky struct {
	Header, Cookie string
}

// Steer applies what the matched backend asks for beside its weights: the first header rule that
// matches and whose target is ready changes the match's backend; else a client that the backend's
// Sticky tells apart gets its place. header returns a request's first header of a name, "" for
// none. Without rules and Sticky nothing is looked at.
func (t *Table) Steer(m *Match, header func(name string) string) {
	b := m.Backend
	if t == nil || b == nil || m.Service == nil || (len(b.Rules) == 0 && b.Sticky == (Sticky{})) {
		return
	}
	for _, r := range b.Rules {
		v := header(r.Header)
		if v == "" || (r.Value != "" && r.Value != v) {
			continue
		}
		if tagged := t.byKey[m.Service.Key].tagged[tagOf{b, r.Tag}]; tagged != nil {
			m.Backend = tagged
			break
		}
	}
	client := ""
	switch {
	case b.Sticky.Header != "":
		client = header(b.Sticky.Header)
	case b.Sticky.Cookie != "":
		client = cookie(header("Cookie"), b.Sticky.Cookie)
	}
	if client != "" {
		m.place = place(client)
	}
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

// place is where a client stands among all, uniform and the same in every gateway; never 0.
func place(client string) uint64 {
	return max(mix(hash(client)), 1)
}

// hash is 64-bit FNV-1a (Fowler, Noll, Vo).
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix spreads the bits of a hash: the finalizer of SplitMix64 (S. Vigna).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Pick is the backend's Pick, but for a client with a place, whose requests all go to one
// revision and one replica: clients are spread over revisions by their weights. A revision that
// gains weight keeps the clients that it had, and a replica that comes or goes moves only those
// that it takes or had (D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit
// Rates", 1998).
func (m *Match) Pick(rnd uint64, load func(*Endpoint) int64) (*Target, *Endpoint) {
	return m.PickExcept(rnd, load, nil)
}

// PickExcept is Pick without the endpoint not.
func (m *Match) PickExcept(rnd uint64, load func(*Endpoint) int64, not *Endpoint) (*Target, *Endpoint) {
	if m.place == 0 {
		return m.Backend.PickExcept(rnd, load, not)
	}
	return m.Backend.choose(uint32(m.place>>32), not, func(t *Target) *Endpoint { return t.of(m.place, not) })
}

// Chooser chooses endpoints of a target: by the low half of a random number, never not, and nil
// where there is no other.
type Chooser interface {
	Choose(t *Target, rnd uint32, not *Endpoint) *Endpoint
}

// PickBy is PickExcept with the endpoint chosen by somebody else, but for a client with a place.
// placed reports that it is such a client's, which the Chooser wasn't asked about. not may be nil.
func (m *Match) PickBy(rnd uint64, not *Endpoint, by Chooser) (t *Target, e *Endpoint, placed bool) {
	if m.place != 0 {
		t, e = m.PickExcept(rnd, nil, not)
		return t, e, true
	}
	t, e = m.Backend.choose(uint32(rnd>>32), not, func(t *Target) *Endpoint { return by.Choose(t, uint32(rnd), not) })
	return t, e, false
}

// of returns the endpoint that a place falls to.
func (t *Target) of(place uint64, not *Endpoint) *Endpoint {
	var found *Endpoint
	most := uint64(0)
	for i := range t.Endpoints {
		e := &t.Endpoints[i]
		if e == not {
			continue
		}
		if rank := mix(place ^ hash(e.Replica)); found == nil || rank > most {
			found, most = e, rank
		}
	}
	return found
}
