package modelstore

import (
	"bytes"
	"context"
	"os"
)

// Unpack stages an archive in dir, which it makes, and returns the tree.
func Unpack(ctx context.Context, dir, name string, body []byte) ([]Entry, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	limits := Limits{MaxBytes: 1 << 20, MaxFiles: 64}.withDefaults()
	s := newSink(dir, limits, func(string, int64) bool { return false }, nil)
	kind, err := kindOf(name, "")
	if err != nil {
		return nil, err
	}
	err = s.add(ctx, kind, name, bytes.NewReader(body))
	return s.tree(), err
}

// Waiters tells how many callers wait for a fetch.
func Waiters(s *Store, uri string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[flightKey{uri: uri}]
	if f == nil {
		return 0
	}
	return f.waiters
}

// Manifest and ParseManifest are a tree's canonical text and its reader.
var (
	Manifest      = manifest
	ParseManifest = parseManifest
)
