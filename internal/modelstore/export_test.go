package modelstore

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
