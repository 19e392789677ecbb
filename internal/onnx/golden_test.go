package onnx_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx"
	"stationmaster.dev/stationmaster/internal/onnx/ort"
)

// golden is what generate.py and networks.py in test/golden/onnx record of a model under onnxruntime.
type golden struct {
	Inputs, Outputs map[string]recorded
}

type recorded struct {
	Type  string
	Shape []int64
	Data  []any
}

func (r recorded) tensor(name string) onnx.Tensor {
	t := onnx.Tensor{Name: name, Shape: r.Shape}
	switch r.Type {
	case "FP32":
		t.Type, t.Data = onnx.FP32, each(r.Data, func(x any) float32 { return float32(number(x)) })
	case "INT64":
		t.Type, t.Data = onnx.Int64, each(r.Data, func(x any) int64 { return int64(number(x)) })
	case "INT32":
		t.Type, t.Data = onnx.Int32, each(r.Data, func(x any) int32 { return int32(number(x)) })
	case "BYTES":
		t.Type, t.Data = onnx.String, each(r.Data, func(x any) string { return x.(string) })
	default:
		panic("the golden files have no " + r.Type)
	}
	return t
}

func each[T any](d []any, f func(any) T) []T {
	out := make([]T, len(d))
	for i, x := range d {
		out[i] = f(x)
	}
	return out
}

func number(x any) float64 {
	if s, ok := x.(string); ok && s == "nan" {
		return math.NaN()
	}
	return x.(float64)
}

// needsLibrary are the golden models that the built-in executor lacks operators for.
var needsLibrary = map[string]string{"knn": "Scan of ai.onnx version 17 (node "}

func goldens(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.onnx")
	if err != nil || len(files) < 30 {
		t.Fatalf("found %d golden models, %v", len(files), err)
	}
	return files
}

func readGolden(t testing.TB, model string) (in []onnx.Tensor, want map[string]recorded) {
	t.Helper()
	raw, err := os.ReadFile(strings.TrimSuffix(model, ".onnx") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	for name, r := range g.Inputs {
		in = append(in, r.tensor(name))
	}
	return in, g.Outputs
}

func TestModelsComputeWhatOnnxruntimeDoes(t *testing.T) {
	for _, backend := range []string{onnx.BackendBuiltin, onnx.BackendORT} {
		t.Run(backend, func(t *testing.T) {
			if backend == onnx.BackendORT {
				if _, err := ort.Load(""); err != nil {
					t.Skipf("needs an onnxruntime shared library, set %s: %v", ort.Env, err)
				}
			}
			for _, model := range goldens(t) {
				t.Run(strings.TrimSuffix(filepath.Base(model), ".onnx"), func(t *testing.T) {
					name := filepath.Base(t.Name())
					if op := needsLibrary[name]; op != "" && backend == onnx.BackendBuiltin {
						_, err := onnx.Open(model, onnx.Options{Prefer: backend, Library: "/nonexistent"})
						if !errors.Is(err, errdef.ErrUnsupported) || !strings.Contains(err.Error(), op) {
							t.Fatalf("without the library it should be refused, naming %s: %v", op, err)
						}
						return
					}
					s, err := onnx.Open(model, onnx.Options{Prefer: backend})
					if err != nil && strings.Contains(err.Error(), "locale") {
						t.Skip("onnxruntime needs the en_US.UTF-8 locale for text")
					}
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close()
					if !strings.HasPrefix(s.Backend(), backend) {
						t.Fatalf("executed by %s", s.Backend())
					}
					in, want := readGolden(t, model)
					got, err := s.Run(t.Context(), in, nil)
					if err != nil {
						t.Fatal(err)
					}
					if len(got) != len(want) {
						t.Fatalf("%d outputs, want %d", len(got), len(want))
					}
					for _, out := range got {
						w := want[out.Name].tensor(out.Name)
						if out.Type != w.Type || !cmp.Equal(out.Shape, w.Shape) {
							t.Errorf("%s is %s%v, want %s%v", out.Name, out.Type, out.Shape, w.Type, w.Shape)
							continue
						}
						if diff := differ(out.Data, w.Data); diff != "" {
							t.Errorf("%s: %s", out.Name, diff)
						}
					}
				})
			}
		})
	}
}

// differ allows 1e-4, relative for numbers over 1; labels must be equal.
func differ(got, want any) string {
	w, isFloat := want.([]float32)
	if !isFloat {
		return cmp.Diff(want, got)
	}
	for i, g := range got.([]float32) {
		if d := math.Abs(float64(g - w[i])); !(d <= 1e-4*max(1, math.Abs(float64(w[i])))) {
			return fmt.Sprintf("element %d is %v, want %v", i, g, w[i])
		}
	}
	return ""
}

func BenchmarkGolden(b *testing.B) {
	for _, name := range []string{"random_forest", "xgboost", "logistic_multi", "mlp", "text_tfidf", "cnn", "lstm"} {
		for _, backend := range []string{onnx.BackendBuiltin, onnx.BackendORT} {
			b.Run(name+"/"+backend, func(b *testing.B) {
				model := "testdata/" + name + ".onnx"
				s, err := onnx.Open(model, onnx.Options{Prefer: backend})
				if err != nil {
					b.Skip(err)
				}
				defer s.Close()
				in, _ := readGolden(b, model)
				in[0] = firstRow(in[0])
				for b.Loop() {
					if _, err := s.Run(b.Context(), in, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func firstRow(t onnx.Tensor) onnx.Tensor {
	cols := int64(1)
	for _, d := range t.Shape[1:] {
		cols *= d
	}
	t.Shape = append([]int64{1}, t.Shape[1:]...)
	switch d := t.Data.(type) {
	case []float32:
		t.Data = d[:cols]
	case []string:
		t.Data = d[:cols]
	}
	return t
}
