package compare

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// tolerance is how far apart two numbers may be, of 1 or of the greater one.
const tolerance = 1e-4

// output is one output of a model, as JSON has it.
type output struct {
	Name     string `json:"name"`
	Shape    []int  `json:"shape"`
	Datatype string `json:"datatype"`
	Data     any    `json:"data"`
}

// outputs reads the outputs of a V2 answer, in JSON, with binary tensors or as a message, sorted by
// name, or the predictions of a V1 answer as one output. It reports false for what is neither, and
// for packed bodies.
func (a Answer) outputs() ([]output, bool) {
	if a.Message {
		return messageOutputs(a.Body)
	}
	header, body := a.Header, a.Body
	if len(header["Content-Encoding"]) > 0 {
		return nil, false
	}
	jsonLen, err := oip.ParseHeaderLength(header[oip.HeaderLength]...)
	switch {
	case err != nil:
		return nil, false
	case jsonLen != oip.WholeBody:
		return packedOutputs(body, jsonLen)
	case !strings.Contains(header.Get("Content-Type"), "json"):
		return nil, false
	}
	var answer struct {
		Outputs     []output `json:"outputs"`
		Predictions any      `json:"predictions"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return nil, false
	}
	switch {
	case answer.Outputs != nil:
		slices.SortFunc(answer.Outputs, func(a, b output) int { return strings.Compare(a.Name, b.Name) })
		return answer.Outputs, true
	case answer.Predictions != nil:
		return []output{{Data: answer.Predictions}}, true
	}
	return nil, false
}

// near reports whether two outputs say the same, numbers within tolerance.
func near(a, b output) bool {
	return a.Name == b.Name && a.Datatype == b.Datatype && slices.Equal(a.Shape, b.Shape) && nearValues(a.Data, b.Data)
}

func nearValues(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && nearNumbers(a, b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, nearValues)
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			w, ok := b[k]
			if !ok || !nearValues(v, w) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a, b)
}

// nearNumbers also takes what only tensors have, not JSON: what is no number or infinite is near
// its like alone.
func nearNumbers(a, b float64) bool {
	if a == b || math.IsNaN(a) && math.IsNaN(b) {
		return true
	}
	apart := math.Abs(a - b)
	return !math.IsInf(apart, 0) && apart <= tolerance*max(1, math.Abs(a), math.Abs(b))
}
