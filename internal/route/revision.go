package route

// pin keeps a backend of each revision apart, for requests that name one. A backend of a single
// revision is its own.
func (e *entry) pin(b *Backend) {
	if len(b.Targets) < 2 {
		return
	}
	for _, t := range b.Targets {
		if t.Revision == "" {
			continue
		}
		if e.tagged == nil {
			e.tagged = map[tagOf]*Backend{}
		}
		t.Weight = 100
		pinned := &Backend{Targets: []Target{t}, Startup: b.Startup, Log: b.Log, Batch: b.Batch}
		if len(t.Endpoints) == 0 {
			pinned.Cold, pinned.NotReady, pinned.NextTry = b.Cold, b.NotReady, b.NextTry
		}
		e.tagged[tagOf{b, pinTag(t.Revision)}] = pinned
	}
}

// pinTag stands for a revision among the tags, none of which has such a name.
func pinTag(revision string) string { return "@" + revision }

// Pin leads a match to one revision of its backend, whatever the weights: by the revision's name,
// or the target's tag. It reports false where the backend has targets, and none of them is that.
func (t *Table) Pin(m *Match, revision string) bool {
	if t == nil || m.Service == nil || m.Backend == nil || len(m.Backend.Targets) == 0 {
		return true
	}
	if only := m.Backend.Targets; len(only) == 1 {
		return only[0].Revision == revision || only[0].Tag == revision
	}
	tagged := t.byKey[m.Service.Key].tagged
	for _, tag := range [...]string{pinTag(revision), revision} {
		if b := tagged[tagOf{m.Backend, tag}]; b != nil {
			m.Backend = b
			return true
		}
	}
	return false
}
