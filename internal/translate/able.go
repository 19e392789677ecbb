package translate

import (
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// vectorNames and scoreNames are how engines call outputs of vectors, and of scores or classes, the more
// likely one first.
var (
	vectorNames = []string{"sentence_embedding", "embedding", "embeddings", "last_hidden_state", "token_embeddings", "pooler_output"}
	scoreNames  = []string{"probabilities", "probs", "scores", "score", "relevance_score", "logits"}
)

// isVector reports whether an output goes by a vector's name.
func isVector(name string) bool {
	name = strings.ToLower(name)
	return slices.Contains(vectorNames, name) || strings.Contains(name, "embedding") || strings.Contains(name, "hidden_state")
}

// classes reports whether an output of this name may tell classes: one by a vector's name does where
// somebody gave the classes' names.
func (m *Model) classes(name string) bool { return len(m.Labels) > 0 || !isVector(name) }

// noClasses refuses to take an output of vectors for one of classes.
func noClasses(what string) error {
	return unsupported("%s tells vectors, not classes: ask for embeddings, rerank or score; if its numbers are of classes, declare their names with labels=<name>|<name> in the annotation %s", what, Annotation)
}

// classifies says by the metadata why the model's answer can't be read as classes; nil where it may, or
// where its outputs aren't told.
func (m *Model) classifies() error {
	var vectors []string
	for i := range m.outputs {
		out := &m.outputs[i]
		switch {
		case out.Datatype == oip.Bytes:
			return nil
		case !float(out.Datatype) || m.Output != "" && m.Output != out.Name:
		case m.classes(out.Name):
			return nil
		default:
			vectors = append(vectors, out.Name)
		}
	}
	if len(vectors) == 0 {
		return nil
	}
	return noClasses("the model's output " + strings.Join(vectors, ", "))
}

// embeds reports whether the metadata leaves it possible to read the model's answer as vectors.
func (m *Model) embeds() bool {
	for i := range m.outputs {
		out := &m.outputs[i]
		perToken := len(out.Shape) == 3 && out.Shape[1] != 1 && m.text != ""
		switch {
		case m.Output != "" && m.Output != out.Name:
		case float(out.Datatype) && !perToken && (m.Output != "" || !slices.Contains(scoreNames, out.Name)):
			return true
		}
	}
	return len(m.outputs) == 0
}

// paths are those of the OpenAI API that the model can be asked for.
func (m *Model) paths() []string {
	var paths []string
	switch {
	case m.pair != "" || m.pairs:
		return []string{"/v1/rerank", "/v1/score"}
	case m.embeds():
		paths = append(paths, "/v1/embeddings")
		if m.text != "" {
			paths = append(paths, "/v1/rerank", "/v1/score")
		}
	}
	if m.text != "" && m.classifies() == nil {
		paths = append(paths, "/v1/classify")
	}
	return paths
}
