package graph_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// FuzzDecode holds the decoder to its word: no panic, errors of a kind, and constants whose
// shapes fit their data.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"../../../examples/*/model/model.onnx", "../testdata/linear_regression.onnx", "../testdata/decision_tree.onnx"} {
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
	for _, path := range []string{filepath.Join(dir, "secret.bin"), filepath.Join(inside, "w.bin")} {
		if err := os.WriteFile(path, make([]byte, 8), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret.bin", filepath.Join(inside, "link.bin")); err != nil {
		t.Fatal(err)
	}
	for location, wantErr := range map[string]bool{
		"w.bin": false, "../secret.bin": true, filepath.Join(dir, "secret.bin"): true, "link.bin": true, "none.bin": true, "": true,
	} {
		path := filepath.Join(inside, "model.onnx")
		if err := os.WriteFile(path, model(location), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := graph.Read(path)
		if (err != nil) != wantErr || (wantErr && !errors.Is(err, errdef.ErrInvalid)) {
			t.Errorf("%q gives %v", location, err)
		}
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
