package graph_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// FuzzDecode holds the decoder to its word: no panic, errors of a kind, and constants whose
// shapes fit their data. The seeds are small because the fuzzer shrinks each input that reaches
// new code, for up to a minute each, and shows no executions meanwhile: with a seed of 6 KB it
// seemed to stand still. -fuzzminimizetime=10x makes it go through 35,000 inputs a second.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"../../../examples/iris/model/model.onnx", "../testdata/linear_regression.onnx", "../testdata/logistic_strings_zipmap.onnx", "../testdata/cnn_1d.onnx"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no seeds at %s: %v", pattern, err)
		}
		for _, path := range files {
			raw, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
			f.Add(raw[:len(raw)/2])
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := graph.Decode(raw, fstest.MapFS{"weights.bin": {Data: make([]byte, 64)}})
		if err != nil {
			if !errors.Is(err, errdef.ErrInvalid) && !errors.Is(err, errdef.ErrUnsupported) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		for name, c := range m.Graph.Consts {
			if _, ok := graph.Count(c.Shape); !ok || c.Type == graph.Undefined {
				t.Fatalf("constant %q has the shape %v and type %s", name, c.Shape, c.Type)
			}
		}
	})
}

func TestExternalTensorsStayInTheModelsFolder(t *testing.T) {
	// A model whose one constant of 2 floats is kept in the file that location names.
	model := func(location string) []byte {
		entry := message(1, "location", 2, location)
		tensor := append([]byte{0x08, 2, 0x10, 1}, message(8, "w")...)
		tensor = append(tensor, message(13, string(entry))...)
		tensor = append(tensor, 0x70, 1)
		return append(message(7, string(message(5, string(tensor)))), message(8, string([]byte{0x10, 17}))...)
	}
	dir := t.TempDir()
	inside := filepath.Join(dir, "model")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(inside, "*", "_ORT_MEM_ADDR_"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "secret.bin"), filepath.Join(inside, "w.bin"), filepath.Join(inside, "*/_ORT_MEM_ADDR_/*")} {
		if err := os.WriteFile(path, make([]byte, 8), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret.bin", filepath.Join(inside, "link.bin")); err != nil {
		t.Fatal(err)
	}
	for location, wantErr := range map[string]bool{
		"w.bin": false, "*/_ORT_MEM_ADDR_/*": true, "../secret.bin": true, filepath.Join(dir, "secret.bin"): true, "link.bin": true, "none.bin": true, "": true,
	} {
		path := filepath.Join(inside, "model.onnx")
		if err := os.WriteFile(path, model(location), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := graph.Read(path)
		if (err != nil) != wantErr || (wantErr && !errors.Is(err, errdef.ErrInvalid)) {
			t.Errorf("%q gives %v", location, err)
		}
		if err := graph.CheckExternal(path); (err != nil) != wantErr || (wantErr && !errors.Is(err, errdef.ErrInvalid)) {
			t.Errorf("the check of %q gives %v", location, err)
		}
	}
}

// A tensor may hide where Decode stops before it or passes over it.
func TestExternalTensorsAreCheckedWhereverTheyAre(t *testing.T) {
	field := func(num int, content []byte) []byte { return message(num, string(content)) }
	entry := message(1, "location", 2, "../secret.bin")
	tensor := append(append(message(8, "w"), field(13, entry)...), 0x70, 1)
	node := func(attr []byte) []byte { return field(5, attr) }
	graphWith := func(n []byte) []byte { return field(1, n) }
	// A field of a number above 15 needs two bytes.
	wide := func(num int, content []byte) []byte {
		return append([]byte{byte(num<<3|2)&0x7f | 0x80, byte(num >> 4), byte(len(content))}, content...)
	}
	for name, model := range map[string][]byte{
		"a sparse constant's values":    field(7, field(15, field(1, tensor))),
		"a sparse constant's places":    field(7, field(15, field(2, tensor))),
		"an attribute":                  field(7, graphWith(node(field(5, tensor)))),
		"an attribute's list":           field(7, graphWith(node(field(10, tensor)))),
		"a sparse attribute":            field(7, graphWith(node(wide(22, field(1, tensor))))),
		"a subgraph":                    field(7, graphWith(node(field(6, field(5, tensor))))),
		"a list of subgraphs":           field(7, graphWith(node(field(11, field(5, tensor))))),
		"a function":                    wide(25, field(7, node(field(5, tensor)))),
		"a function's default":          wide(25, field(11, field(5, tensor))),
		"a training step":               wide(20, field(1, field(5, tensor))),
		"a constant of an unknown type": field(7, field(5, append([]byte{0x10, 99}, tensor...))),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.onnx")
			if err := os.WriteFile(path, model, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := graph.CheckExternal(path); !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), "secret.bin") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// message encodes length-delimited fields, given as pairs of number and content under 128 bytes.
func message(pairs ...any) []byte {
	var out []byte
	for i := 0; i < len(pairs); i += 2 {
		s := pairs[i+1].(string)
		out = append(out, byte(pairs[i].(int)<<3|2), byte(len(s)))
		out = append(out, s...)
	}
	return out
}
