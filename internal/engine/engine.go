// Package engine is the room of the engines' adapters: what is known of each, and which one a
// revision runs. Everything in it is a pure value or a pure function.
package engine

import (
	"path"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/engine/huggingface"
	"stationmaster.dev/stationmaster/internal/engine/llamacpp"
	"stationmaster.dev/stationmaster/internal/engine/mlserver"
	"stationmaster.dev/stationmaster/internal/engine/oip"
	"stationmaster.dev/stationmaster/internal/engine/ollama"
	"stationmaster.dev/stationmaster/internal/engine/openvino"
	"stationmaster.dev/stationmaster/internal/engine/sglang"
	"stationmaster.dev/stationmaster/internal/engine/tei"
	"stationmaster.dev/stationmaster/internal/engine/tgi"
	"stationmaster.dev/stationmaster/internal/engine/torchserve"
	"stationmaster.dev/stationmaster/internal/engine/triton"
	"stationmaster.dev/stationmaster/internal/engine/trtllm"
	"stationmaster.dev/stationmaster/internal/engine/vllm"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Annotation declares which engine a pod runs, by its adapter's name. It is one of the pod's: of the
// runtime's spec.annotations, the InferenceService or the component.
const Annotation = "stationmaster.dev/engine"

// adapters are all of them, in the order in which marks are looked for: a name that holds another's
// mark too comes first. The last two are known by their protocols alone.
var adapters = []*adapter.Adapter{
	&huggingface.Adapter, &vllm.Adapter, &sglang.Adapter, &trtllm.Adapter, &triton.Adapter, &tgi.Adapter, &tei.Adapter,
	&llamacpp.Adapter, &ollama.Adapter, &mlserver.Adapter, &openvino.Adapter, &torchserve.Adapter, &oip.Ours,
	&oip.V2, &torchserve.V1,
}

// All returns the adapters of all engines; they must not be changed.
func All() []*adapter.Adapter { return slices.Clone(adapters) }

// Names are those of all adapters.
func Names() []string {
	out := make([]string, len(adapters))
	for i, a := range adapters {
		out[i] = a.Name
	}
	return out
}

// ByName returns the adapter of a name, nil where there is none.
func ByName(name string) *adapter.Adapter {
	for _, a := range adapters {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// Facts are what is known of a revision's server.
type Facts struct {
	// Declared is the value of Annotation, if any.
	Declared string
	// Runtime is the name of the serving runtime, Images those of the container.
	Runtime string
	Images  []string
	// Command is the container's command with its arguments.
	Command []string
	// Protocols are those that it is declared to speak.
	Protocols []spec.Protocol
}

// Of returns the adapter of what a revision runs: the declared one; else the first whose mark is
// found in the command line, then in the names of runtime and image; else the one of the protocols;
// nil where nothing tells.
func Of(f Facts) *adapter.Adapter {
	if f.Declared != "" {
		return ByName(f.Declared)
	}
	words := words(f.Command)
	for _, a := range adapters {
		if slices.ContainsFunc(a.Known.Commands, func(c string) bool { return slices.Contains(words, c) }) {
			return a
		}
	}
	for _, a := range adapters {
		if named(a, f) {
			return a
		}
	}
	switch {
	case slices.Contains(f.Protocols, spec.V2), slices.Contains(f.Protocols, spec.GRPCV2):
		return &oip.V2
	case slices.Contains(f.Protocols, spec.V1):
		return &torchserve.V1
	}
	return nil
}

// words are those of a command line that may name an executable or a module: of what stands before
// the first flag, and of a shell's script.
func words(command []string) []string {
	var out []string
	for _, arg := range command {
		if arg == "-m" || arg == "-c" {
			continue
		}
		if strings.HasPrefix(arg, "-") {
			break
		}
		for _, w := range strings.Fields(arg) {
			out = append(out, path.Base(w))
		}
	}
	return out
}

func named(a *adapter.Adapter, f Facts) bool {
	return holds(f.Runtime, a.Known.Runtimes) || slices.ContainsFunc(f.Images, func(i string) bool { return holds(i, a.Known.Images) })
}

// holds says whether a mark stands in a name, at the start of a word; one of three letters or less
// must be a whole word, for there is a "tei" in "protein".
func holds(name string, marks []string) bool {
	return slices.ContainsFunc(marks, func(mark string) bool {
		for at := 0; ; at++ {
			i := strings.Index(name[at:], mark)
			if i < 0 {
				return false
			}
			at += i
			end := at + len(mark)
			if (at == 0 || !inWord(name[at-1])) && (len(mark) > 3 || end == len(name) || !inWord(name[end])) {
				return true
			}
		}
	})
}

func inWord(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }
