package gateway

import (
	"sync"

	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// models keeps what engines told of their models: it stays the same as long as a revision does. The
// zero models are ready for use, by any goroutine.
type models struct {
	mu    sync.RWMutex
	known map[targetKey]map[string]*knownModel
}

// knownModel is what an engine told of a model, and what a translation makes of it.
type knownModel struct {
	// meta is nil where the engine knows nothing of the model.
	meta *oip.ModelMetadata
	// texts says how it is asked about texts; nil where it can't be, and why says why.
	texts *translate.Model
	why   error
}

func (m *models) get(key targetKey, name string) *knownModel {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.known[key][name]
}

func (m *models) put(key targetKey, name string, k *knownModel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = map[targetKey]map[string]*knownModel{}
	}
	if m.known[key] == nil {
		m.known[key] = map[string]*knownModel{}
	}
	m.known[key][name] = k
}

// prune forgets the models of revisions that aren't in the table any more.
func (m *models) prune(live func(targetKey) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.known {
		if !live(key) {
			delete(m.known, key)
		}
	}
}
