// Package openai reads of the OpenAI API what a gateway has to know (which model a request
// asks for, whether it streams, what an answer says it used) and writes its errors and frames.
// It changes single values within texts and leaves all other bytes as they are. It is pure.
package openai

import (
	"net/url"
	"strings"
)

// DefaultRoot is what KServe's servers put before the API's own paths if they are told nothing else.
const DefaultRoot = "/openai"

// Op is what a path of the API asks for.
type Op uint8

// The operations. None is any other path.
const (
	None Op = iota
	Chat
	Completions
	Responses
	// Embeddings and what follows up to Audio name a model in their body and don't stream text.
	Embeddings
	Rerank
	Score
	Classify
	Moderations
	Images
	Audio
	// Models lists the models, Model tells of one.
	Models
	Model
)

// Asks reports whether requests of the operation have a body that names a model.
func (o Op) Asks() bool { return o >= Chat && o <= Audio }

// Generates reports whether the operation makes something, or judges it, in a way that a model of tensors
// has no form for: all but those about vectors, scores and classes.
func (o Op) Generates() bool {
	switch o {
	case Chat, Completions, Responses, Moderations, Images, Audio:
		return true
	}
	return false
}

// Usable reports whether a stream of the operation tells its usage on demand, by stream_options.
func (o Op) Usable() bool { return o == Chat || o == Completions }

// Call is what a path says.
type Call struct {
	Op Op
	// Root is what the path began with before Path; empty for nothing.
	Root string
	// Path is the rest: it begins with "/v1/".
	Path string
	// Model is what Op Model asks about, decoded.
	Model string
}

// ParsePath reads a path, without its query, that may begin with root ("/openai"; empty for none). It
// reports false where the API has no such path.
func ParsePath(path, root string) (Call, bool) {
	c := Call{Path: path}
	if rest, ok := strings.CutPrefix(path, root); ok {
		c.Root, c.Path = root, rest
	}
	rest, ok := strings.CutPrefix(c.Path, "/v1/")
	if !ok {
		return Call{}, false
	}
	if rest = strings.TrimSuffix(rest, "/"); rest == "" {
		return Call{}, false
	}
	c.Path = strings.TrimSuffix(c.Path, "/") // engines don't all take one at the end
	if name, ok := strings.CutPrefix(rest, "models/"); ok {
		// A model's name may have a slash, written as it is or as %2F.
		if u, err := url.PathUnescape(name); err == nil {
			name = u
		}
		c.Op, c.Model = Model, name
		return c, true
	}
	first, more, _ := strings.Cut(rest, "/")
	switch {
	case rest == "chat/completions":
		c.Op = Chat
	case rest == "completions":
		c.Op = Completions
	case rest == "responses":
		c.Op = Responses
	case rest == "embeddings":
		c.Op = Embeddings
	case rest == "rerank":
		c.Op = Rerank
	case rest == "score":
		c.Op = Score
	case rest == "classify":
		c.Op = Classify
	case rest == "moderations":
		c.Op = Moderations
	case first == "images" && more != "":
		c.Op = Images
	case first == "audio" && more != "":
		c.Op = Audio
	case rest == "models":
		c.Op = Models
	default:
		return Call{}, false
	}
	return c, true
}

// Under returns the path of the API ("/v1/…") under an engine's root ("/openai", "/" for none): a root that
// ends in a version of its own, as /v3, takes the place of /v1.
func Under(root, path string) string {
	root = strings.TrimSuffix(root, "/")
	version, ok := strings.CutPrefix(root[strings.LastIndexByte(root, '/')+1:], "v")
	if ok && version != "" && strings.Trim(version, "0123456789") == "" {
		path = strings.TrimPrefix(path, "/v1")
	}
	return root + path
}
