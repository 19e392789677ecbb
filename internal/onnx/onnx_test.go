package onnx_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx"
	"stationmaster.dev/stationmaster/internal/onnx/ort"
)

const irisPath = "../../examples/iris/model/model.onnx"

func openIris(t *testing.T) onnx.Session {
	t.Helper()
	s, err := onnx.Open(irisPath, onnx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func flower() onnx.Tensor {
	return onnx.Tensor{Name: "input", Type: onnx.FP32, Shape: []int64{1, 4}, Data: []float32{5.1, 3.5, 1.4, 0.2}}
}

func TestInputsThatDontFitAreRefusedByName(t *testing.T) {
	s := openIris(t)
	for name, tc := range map[string]struct {
		change func(*onnx.Tensor)
		want   string
	}{
		"another type":                 {func(x *onnx.Tensor) { x.Type, x.Data = onnx.FP64, make([]float64, 4) }, "FP64"},
		"another width":                {func(x *onnx.Tensor) { x.Shape, x.Data = []int64{1, 3}, make([]float32, 3) }, "[-1 4]"},
		"another rank":                 {func(x *onnx.Tensor) { x.Shape = []int64{4} }, "[-1 4]"},
		"too few elements":             {func(x *onnx.Tensor) { x.Data = make([]float32, 3) }, "3 elements"},
		"a name that the model lacks":  {func(x *onnx.Tensor) { x.Name = "inputs" }, `no input "inputs"`},
		"a negative dimension":         {func(x *onnx.Tensor) { x.Shape = []int64{-1, 4} }, "[-1 4]"},
		"data that nothing is made of": {func(x *onnx.Tensor) { x.Data = 7 }, "int"},
	} {
		t.Run(name, func(t *testing.T) {
			in := flower()
			tc.change(&in)
			_, err := s.Run(t.Context(), []onnx.Tensor{in}, nil)
			if !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to say %q", err, tc.want)
			}
		})
	}
	if _, err := s.Run(t.Context(), nil, nil); !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), `"input" is missing`) {
		t.Errorf("no input gives %v", err)
	}
	if _, err := s.Run(t.Context(), []onnx.Tensor{flower()}, []string{"odds"}); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("an unknown output gives %v", err)
	}
}

func TestFilesThatCantBeServedAreRefused(t *testing.T) {
	whole, err := os.ReadFile(irisPath)
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{"empty": {}, "text": []byte("hello"), "cut off": whole[:len(whole)/2]} {
		path := filepath.Join(t.TempDir(), "model.onnx")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := onnx.Open(path, onnx.Options{}); !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("a file that is %s gives %v", name, err)
		}
	}
	if _, err := onnx.Open(irisPath, onnx.Options{Prefer: "abacus"}); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("an unknown backend gives %v", err)
	}
}

func TestOutputsComeInTheOrderAskedFor(t *testing.T) {
	s := openIris(t)
	got, err := s.Run(t.Context(), []onnx.Tensor{flower()}, []string{"probabilities", "label"})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Name != "probabilities" || !cmp.Equal(got[0].Shape, []int64{1, 3}) || !cmp.Equal(got[1].Data, []int64{0}) {
		t.Errorf("got %+v", got)
	}
}

func TestCallersRunAtOnce(t *testing.T) {
	s := openIris(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				got, err := s.Run(t.Context(), []onnx.Tensor{flower()}, []string{"label"})
				if err != nil || !cmp.Equal(got[0].Data, []int64{0}) {
					t.Errorf("%v %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, []onnx.Tensor{flower()}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up gives %v", err)
	}
}

// The file has a function of its own, which our decoder refuses, and in it a tensor that is
// kept outside the model's folder.
func TestTheLibraryGetsNoModelThatReachesOutOfItsFolder(t *testing.T) {
	if _, err := ort.Load(""); err != nil {
		t.Skipf("needs an onnxruntime shared library, set %s: %v", ort.Env, err)
	}
	field := func(num int, content string) string {
		if num < 16 {
			return string([]byte{byte(num<<3 | 2), byte(len(content))}) + content
		}
		return string([]byte{byte(num<<3|2)&0x7f | 0x80, byte(num >> 4), byte(len(content))}) + content
	}
	tensor := field(8, "w") + field(13, field(1, "location")+field(2, "../secret.bin")) + "\x70\x01"
	function := field(25, field(1, "f")+field(7, field(4, "Constant")+field(5, field(1, "value")+field(5, tensor))))
	model := field(7, field(2, "g")) + field(8, "\x10\x11") + function
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, []byte(model), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := onnx.Open(path, onnx.Options{})
	if !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), "secret.bin") {
		t.Errorf("got %v, want it to refuse secret.bin", err)
	}
}
