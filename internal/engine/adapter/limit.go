package adapter

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Question is a request by which an engine tells how many tokens a request may have, prompt and answer
// together.
type Question struct {
	// Path is what is asked, on the engine's port for HTTP.
	Path string
	// Body is what is posted, given what the engine calls its model; nil asks with GET.
	Body func(model string) []byte
	// Read finds the number in an answer; 0 means that it doesn't tell.
	Read func(answer []byte, model string) int
}

// ListedLimit asks the OpenAI API's list of models, at a path, for what stands there beside the API's own
// members: vLLM's and SGLang's max_model_len, and llama.cpp's meta.
func ListedLimit(path string) Question { return Question{Path: path, Read: readListed} }

func readListed(answer []byte, model string) int {
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
			Max    int    `json:"max_model_len"`
			Meta   struct {
				Context int `json:"n_ctx"`
				Trained int `json:"n_ctx_train"`
			} `json:"meta"`
		} `json:"data"`
	}
	if json.Unmarshal(answer, &list) != nil {
		return 0
	}
	found := 0
	for _, m := range list.Data {
		n := first(m.Max, m.Meta.Context, m.Meta.Trained)
		switch {
		case m.ID == model && n > 0:
			return n
		case m.Parent == "" && found == 0:
			found = n
		}
	}
	return found
}

// ToldLimit asks with GET for an object that has the number as one of its members, the first of which
// counts that is there. A member within an object is written with a dot.
func ToldLimit(path string, members ...string) Question {
	return Question{Path: path, Read: func(answer []byte, _ string) int {
		for _, m := range members {
			if n := member(answer, strings.Split(m, ".")); n > 0 {
				return n
			}
		}
		return 0
	}}
}

func member(text []byte, path []string) int {
	for _, name := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil {
			return 0
		}
		text = object[name]
	}
	return number(text)
}

// ShownLimit posts a model's name, as Ollama's /api/show wants it, for the number that its parameters set, or
// else for that which it was trained with.
func ShownLimit(path string) Question {
	return Question{
		Path: path,
		Body: func(model string) []byte {
			b, _ := json.Marshal(map[string]string{"model": model}) // a text always can be
			return b
		},
		Read: readShown,
	}
}

func readShown(answer []byte, _ string) int {
	var shown struct {
		Parameters string                     `json:"parameters"`
		Info       map[string]json.RawMessage `json:"model_info"`
	}
	if json.Unmarshal(answer, &shown) != nil {
		return 0
	}
	for line := range strings.Lines(shown.Parameters) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == "num_ctx" {
			return number([]byte(words[1]))
		}
	}
	var kind string
	if json.Unmarshal(shown.Info["general.architecture"], &kind) != nil {
		return 0
	}
	return number(shown.Info[kind+".context_length"])
}

// number reads a whole positive number; 0 stands for all else.
func number(text []byte) int {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// first returns the first number above 0, or 0.
func first(ns ...int) int {
	for _, n := range ns {
		if n > 0 {
			return n
		}
	}
	return 0
}
