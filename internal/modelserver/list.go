package modelserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// wanted is one model of the list.
type wanted struct {
	name, uri string
	memory    int64 // in bytes, as the list says; 0 for none
}

// readList decodes a list of models in the form of KServe's models.json. Names of models are
// unique in it, and each has a place that it comes from.
func readList(raw []byte) ([]wanted, error) {
	var lines []struct {
		Name string `json:"modelName"`
		Spec struct {
			URI       string `json:"storageUri"`
			Framework string `json:"framework"`
			Memory    string `json:"memory"`
		} `json:"modelSpec"`
	}
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the list of models isn't JSON as it should be: %v", err))
	}
	out := make([]wanted, 0, len(lines))
	seen := make(map[string]bool, len(lines))
	for i, l := range lines {
		switch {
		case l.Name == "" || l.Spec.URI == "":
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("entry %d of the list of models has no modelName or no storageUri", i+1))
		case seen[l.Name]:
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the list of models has %q twice", l.Name))
		}
		seen[l.Name] = true
		w := wanted{name: l.Name, uri: l.Spec.URI}
		if l.Spec.Memory != "" {
			var err error
			if w.memory, err = ParseBytes(l.Spec.Memory); err != nil {
				return nil, fmt.Errorf("the list of models: the memory of %q: %w", l.Name, err)
			}
		}
		out = append(out, w)
	}
	return out, nil
}

// ParseBytes reads a number of bytes: a whole number, alone or with one of Kubernetes' suffixes
// Ki, Mi, Gi, Ti, k, M, G or T. An error is of kind errdef.ErrInvalid.
func ParseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "KMGTik")
	factor, known := map[string]uint64{
		"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	}[s[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 63)
	high, low := bits.Mul64(n, factor)
	if err != nil || !known || high != 0 || low > 1<<63-1 {
		return 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%q is no number of bytes; write one such as 67108864 or 64Mi", s))
	}
	return int64(low), nil
}

// refresh reads the list if it changed.
func (f *fleet) refresh(ctx context.Context) error {
	f.reading.Lock()
	defer f.reading.Unlock()
	info, err := os.Stat(f.many.List)
	if err != nil {
		return fmt.Errorf("the list of models: %w; check --models_config", err)
	}
	if f.read != nil && os.SameFile(info, f.seen) && info.ModTime().Equal(f.seen.ModTime()) && info.Size() == f.seen.Size() {
		return nil
	}
	raw, err := os.ReadFile(f.many.List)
	if err != nil {
		return fmt.Errorf("the list of models: %w", err)
	}
	if f.read != nil && bytes.Equal(raw, f.read) {
		f.seen = info
		return nil
	}
	want, err := readList(raw)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read, f.seen = raw, info
	came, went := f.become(want)
	f.log.InfoContext(ctx, "the list of models changed", "models", len(want), "new", came, "gone", went)
	return nil
}

// become makes the models those of a list.
func (f *fleet) become(want []wanted) (came, went int) {
	names := make(map[string]bool, len(want))
	for _, w := range want {
		names[w.name] = true
		old := f.models[w.name]
		if old != nil && old.as == w {
			continue
		}
		if old != nil {
			f.retire(old)
		}
		f.next++
		l := &listed{as: w, model: newModel(w.name, "", f.open, f.turns), key: fmt.Sprintf("%s#%d", w.name, f.next)}
		l.set(oip.StateUnavailable, notAsked)
		f.models[w.name], f.keys[l.key] = l, l
		came++
	}
	for name, l := range f.models {
		if !names[name] {
			delete(f.models, name)
			f.retire(l)
			went++
		}
	}
	f.act()
	return came, went
}

// retire lets a model go that left the list: when those who use it have their answers.
func (f *fleet) retire(l *listed) {
	l.gone = true
	f.set.Drop(l.key)
	f.settle(l)
}

// settle forgets a model that is gone and that nothing holds any more.
func (f *fleet) settle(l *listed) {
	if !l.gone || l.attempt != nil || f.set.Holds(l.key) || f.keys[l.key] == nil {
		return
	}
	delete(f.keys, l.key)
	if l.release != nil {
		l.release()
	}
}

// find returns a model of the list, which is read again for a name that isn't in it.
func (f *fleet) find(name string) (*listed, error) {
	f.mu.Lock()
	l, n := f.models[name], len(f.models)
	f.mu.Unlock()
	if l != nil {
		return l, nil
	}
	if err := f.refresh(f.ctx); err == nil {
		f.mu.Lock()
		l, n = f.models[name], len(f.models)
		f.mu.Unlock()
	}
	if l == nil {
		return nil, errdef.New(errdef.ErrNotFound, brief.Sprintf("model %q is not found among the %d models of this server", name, n))
	}
	return l, nil
}
