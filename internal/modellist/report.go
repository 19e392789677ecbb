package modellist

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// ReportPath is where a replica that serves many models tells of them: GET answers with the JSON of
// a Report, and 304 where the request's If-None-Match has its ETag.
const ReportPath = "/stationmaster/models"

// Report is what a replica says of the models of its list.
type Report struct {
	Models []Entry `json:"models"`
}

// Entry is what a replica says of one model.
type Entry struct {
	Name string `json:"name"`
	// URI is the place that the list names, which the rest is about.
	URI   string `json:"uri"`
	State State  `json:"state"`
	// Reason and Message say why the state is Failed: a word for machines, and a sentence.
	Reason  Reason `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Serves says, while the state isn't Ready, that the model from before an update answers.
	Serves bool `json:"serves,omitempty"`
}

// State is how far a replica is with a model.
type State string

// The states of a model. One that is Ready answers, if need be after a load from disk.
const (
	Loading State = "Loading"
	Ready   State = "Ready"
	Failed  State = "Failed"
)

// Reason sorts what keeps a replica from serving a model.
type Reason string

// The reasons: the bytes can't be had, the engine can't load them, or they are too large for it.
const (
	NotFetched Reason = "ModelNotFetched"
	NotLoaded  Reason = "ModelNotLoaded"
	TooLarge   Reason = "MemoryResourceNotAvailable"
)

// ParseReport decodes a report. An error is of kind errdef.ErrInvalid. What a state or a reason
// says that isn't known is for the reader to judge.
func ParseReport(raw []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("%w: a report of models: %w", errdef.ErrInvalid, err)
	}
	return &r, nil
}

// Encode returns the report as JSON, and its ETag.
func (r *Report) Encode() (text []byte, etag string, err error) {
	if text, err = json.Marshal(r); err != nil {
		return nil, "", fmt.Errorf("encode a report of models: %w", err)
	}
	sum := sha256.Sum256(text)
	return text, `"` + hex.EncodeToString(sum[:16]) + `"`, nil
}

// Key names a trained model.
type Key struct{ Namespace, Name string }
