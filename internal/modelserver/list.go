package modelserver

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
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
