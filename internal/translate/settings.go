// Package translate carries requests of one inference protocol to engines that speak another, and
// their answers back: OpenAI's embeddings, rerank, score and classify over tensors of the Open
// Inference Protocol (V2) and back, V2's generate and infer over OpenAI's completions and chat, and
// KServe's V1 over V2 and back. It is pure: bodies and messages in, bodies and messages out.
//
// What a protocol can't carry is refused with the reason: errdef.ErrInvalid for what a client could
// ask otherwise, errdef.ErrUnsupported for what the model can't do, and a Broken error for an
// engine's answer that isn't one.
package translate

import (
	"fmt"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
)

// Annotation declares how a model's protocol is translated, as ParseSettings reads it.
const Annotation = "stationmaster.dev/translate"

// Settings are what somebody declared of a model. The zero Settings leave all to its metadata.
type Settings struct {
	// Off says that nothing is translated.
	Off bool
	// Task is what texts that come as tensors ask of an engine that speaks OpenAI: completions (""
	// means them, too), chat, embeddings, rerank, score or classify.
	Task string
	// Dialect is how an engine that speaks OpenAI is asked for rerank, score and classify: "", DialectVLLM
	// or DialectTEI.
	Dialect string
	// Either says that the engine answers some models over V2 and some over OpenAI: the model's metadata
	// tells which.
	Either bool
	// Text and Pair name the inputs that take texts, and second texts; Output the one output that is
	// read. Empty means that the metadata tells.
	Text, Pair, Output string
	// Pooling makes one vector of those of a text's tokens: mean, cls, last, or "" for mean.
	Pooling string
	// Normalize says whether vectors are given the length 1; nil means those that were pooled here.
	Normalize *bool
	// Truncate says that dimensions may be asked for, and are then the first ones.
	Truncate bool
	// Labels are the names of classes, in the order of the output.
	Labels []string
}

// The tasks of Settings.
const (
	TaskCompletions = "completions"
	TaskChat        = "chat"
	TaskEmbeddings  = "embeddings"
	TaskRerank      = "rerank"
	TaskScore       = "score"
	TaskClassify    = "classify"
)

// ParseSettings reads a declaration: "off", or settings with commas between them, as in
// "input=text, output=vector, pooling=mean, normalize=true, dimensions=truncate, labels=no|yes,
// task=chat, dialect=tei, models=either". Of a setting that comes twice the last one counts. Errors are
// ErrInvalid.
func ParseSettings(text string) (Settings, error) {
	var s Settings
	if strings.TrimSpace(text) == "off" {
		s.Off = true
		return s, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, value, _ := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if value == "" {
			return Settings{}, invalid("%s: %.100q isn't a setting: write key=value, or off", Annotation, part)
		}
		if err := s.set(key, value); err != nil {
			return Settings{}, err
		}
	}
	return s, nil
}

func (s *Settings) set(key, value string) error {
	oneOf := func(words ...string) error {
		if slices.Contains(words, value) {
			return nil
		}
		return invalid("%s: %s is one of %s, not %.100q", Annotation, key, strings.Join(words, ", "), value)
	}
	switch key {
	case "task":
		s.Task = value
		return oneOf(TaskCompletions, TaskChat, TaskEmbeddings, TaskRerank, TaskScore, TaskClassify)
	case "dialect":
		if s.Dialect = value; value == "openai" {
			s.Dialect = ""
		}
		return oneOf("openai", DialectVLLM, DialectTEI)
	case "models":
		s.Either = value == "either"
		return oneOf("either", "declared")
	case "input":
		s.Text = value
	case "pair":
		s.Pair = value
	case "output":
		s.Output = value
	case "pooling":
		s.Pooling = value
		return oneOf("mean", "cls", "last")
	case "normalize":
		on := value == "true"
		s.Normalize = &on
		return oneOf("true", "false")
	case "dimensions":
		s.Truncate = value == "truncate"
		return oneOf("truncate", "refuse")
	case "labels":
		s.Labels = strings.Split(value, "|")
	default:
		return invalid("%s: there is no setting %.100q; there are task, dialect, models, input, pair, output, pooling, normalize, dimensions and labels", Annotation, key)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, brief.Sprintf(format, args...))
}

func unsupported(format string, args ...any) error {
	return errdef.New(errdef.ErrUnsupported, brief.Sprintf(format, args...))
}

// Broken makes what is wrong with an engine's answer the engine's fault, not the client's.
func Broken(err error) error {
	return fmt.Errorf("%w: the engine's answer can't be translated: %s", errdef.ErrInternal, err.Error())
}
