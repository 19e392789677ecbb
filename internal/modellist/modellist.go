// Package modellist is what passes between a control plane and the engines that serve many models:
// the list of a service's trained models, and what a replica says of each. It is pure.
package modellist

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Model is a trained model as the list has it.
type Model struct {
	Name, URI, Framework string
	// Memory is what the model declares, in bytes; 0 for nothing.
	Memory int64
}

// Parse decodes a list in the form of KServe's models.json. Names are unique in it, and each model
// has a place that it comes from; otherwise the error is of kind errdef.ErrInvalid.
func Parse(raw []byte) ([]Model, error) {
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
	out := make([]Model, 0, len(lines))
	seen := make(map[string]bool, len(lines))
	for i, l := range lines {
		switch {
		case l.Name == "" || l.Spec.URI == "":
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("entry %d of the list of models has no modelName or no storageUri", i+1))
		case seen[l.Name]:
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the list of models has %q twice", l.Name))
		}
		seen[l.Name] = true
		m := Model{Name: l.Name, URI: l.Spec.URI, Framework: l.Spec.Framework}
		if l.Spec.Memory != "" {
			var err error
			if m.Memory, err = ParseBytes(l.Spec.Memory); err != nil {
				return nil, fmt.Errorf("the list of models: the memory of %q: %w", l.Name, err)
			}
		}
		out = append(out, m)
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

// Encode writes a list, in the order of the models' names.
func Encode(models []Model) (string, error) {
	type modelSpec struct {
		URI       string `json:"storageUri"`
		Framework string `json:"framework"`
		Memory    string `json:"memory"`
	}
	type line struct {
		Name string    `json:"modelName"`
		Spec modelSpec `json:"modelSpec"`
	}
	list := make([]line, 0, len(models))
	for _, m := range models {
		list = append(list, line{m.Name, modelSpec{m.URI, m.Framework, strconv.FormatInt(m.Memory, 10)}})
	}
	slices.SortFunc(list, func(a, b line) int { return strings.Compare(a.Name, b.Name) })
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("write the list of models: %w", err)
	}
	return string(text), nil
}
