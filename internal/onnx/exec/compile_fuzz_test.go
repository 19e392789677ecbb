package exec_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/exec"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// FuzzCompile holds Compile to its word for whatever the decoder lets through: no panic, and
// errors of a kind. The seeds are small for the reason that graph.FuzzDecode gives.
func FuzzCompile(f *testing.F) {
	for _, name := range []string{"linear_regression", "logistic_binary", "cnn_1d", "cnn_3d", "svc_binary", "mixed_one_hot"} {
		raw, err := os.ReadFile(filepath.Join("../testdata", name+".onnx"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := graph.Decode(raw, nil)
		if err != nil {
			return
		}
		if _, err := exec.Compile(m); err != nil && !errors.Is(err, errdef.ErrInvalid) && !errors.Is(err, errdef.ErrUnsupported) {
			t.Fatalf("an error of no kind: %v", err)
		}
	})
}
