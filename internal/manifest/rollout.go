package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// StickyAnnotation names what tells clients apart whose requests stay on one revision and one
// replica: "header=<name>" or "cookie=<name>".
const StickyAnnotation = "stationmaster.dev/sticky"

// MirrorAnnotation is the percent of requests, 1 to 100, of which a canary at 0 % gets copies.
const MirrorAnnotation = "stationmaster.dev/mirror"

// ParseMirror reads the value of MirrorAnnotation; an empty one gives zero.
func ParseMirror(value string) (int, error) {
	if value == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(strings.TrimSuffix(value, "%"))
	if err != nil || n < 0 || n > 100 {
		return 0, errors.New("must be a percent, 0 to 100; nothing is mirrored without it")
	}
	return n, nil
}

// RolloutDurationAnnotation is Knative's: how long traffic takes to move to a new revision, as a
// duration like 380s.
const RolloutDurationAnnotation = "serving.knative.dev/rollout-duration"

// ParseRolloutDuration reads the value of RolloutDurationAnnotation; an empty one gives zero.
func ParseRolloutDuration(value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > maxRolloutDuration {
		return 0, errors.New("must be a duration from 0s to 168h; traffic moves at once without it")
	}
	return d, nil
}

const maxRolloutDuration = 7 * 24 * time.Hour

// DisableAutoUpdateAnnotation is KServe's: "true" keeps a Ready service on its revision when its
// runtime changes.
const DisableAutoUpdateAnnotation = "serving.kserve.io/disable-auto-update"

var errSticky = errors.New("must be header=<name> or cookie=<name>; requests are spread without it")

// ParseSticky reads the value of StickyAnnotation; an empty one gives nil.
func ParseSticky(value string) (*smv1alpha1.Sticky, error) {
	if value == "" {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	kind, name, _ := strings.Cut(value, "=")
	name = strings.TrimSpace(name)
	if name == "" || len(name) > 256 || strings.ContainsAny(name, " \t;,=") {
		return nil, errSticky
	}
	switch strings.TrimSpace(kind) {
	case "header":
		return &smv1alpha1.Sticky{Header: name}, nil
	case "cookie":
		return &smv1alpha1.Sticky{Cookie: name}, nil
	}
	return nil, errSticky
}

// CanaryService returns the service as it would be with its i-th canary as its predictor: what the
// canary sets is laid over the stable predictor field by field, lists as a whole, and nothing that
// is left out takes anything away. is must have its defaults; it isn't changed. The error, of kind
// ErrInvalid, is about the canary.
func CanaryService(is *v1beta1.InferenceService, i int) (*v1beta1.InferenceService, error) {
	stable, err := fieldsOf(is.Spec.Predictor)
	if err != nil {
		return nil, err
	}
	canary, err := fieldsOf(is.Spec.Canary[i].Predictor)
	if err != nil {
		return nil, err
	}
	overlay(stable, canary)
	raw, err := json.Marshal(stable)
	if err != nil {
		return nil, fmt.Errorf("merge canary %s: %w", is.Spec.Canary[i].Predictor.Name, err)
	}
	out := is.DeepCopy()
	out.Spec.Canary, out.Spec.Predictor = nil, v1beta1.PredictorSpec{}
	if err := json.Unmarshal(raw, &out.Spec.Predictor); err != nil {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("canary %s doesn't fit over the stable predictor: %v", is.Spec.Canary[i].Predictor.Name, err))
	}
	if m := out.Spec.Predictor.Model; m != nil && m.ModelFormat.Name != "" {
		out.Annotations[ModelFormatAnnotation] = m.ModelFormat.Name
	}
	return out, nil
}

func fieldsOf(p v1beta1.PredictorSpec) (map[string]any, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write predictor: %w", err)
	}
	var out map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&out); err != nil {
		return nil, fmt.Errorf("read predictor: %w", err)
	}
	return out, nil
}

// overlay lays what over sets over what under has.
func overlay(under, over map[string]any) {
	for k, v := range over {
		switch v := v.(type) {
		case nil:
		case string:
			if v != "" {
				under[k] = v
			}
		case map[string]any:
			if have, ok := under[k].(map[string]any); ok {
				overlay(have, v)
			} else {
				under[k] = v
			}
		default:
			under[k] = v
		}
	}
}

// IsTag reports whether a name can be a revision's tag: a DNS label that isn't one of the tags that
// rollouts use themselves.
func IsTag(name string) bool {
	return name != TagLatest && name != TagPrevious && name != TagCanary && len(validation.IsDNS1035Label(name)) == 0
}
