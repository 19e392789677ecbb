package ort_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
	"stationmaster.dev/stationmaster/internal/onnx/ort"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func library(t testing.TB) *ort.Library {
	t.Helper()
	lib, err := ort.Load("")
	if err != nil {
		t.Skipf("needs an onnxruntime shared library, set %s: %v", ort.Env, err)
	}
	return lib
}

func openExample(t testing.TB, name string) *ort.Session {
	t.Helper()
	s, err := library(t).Open(filepath.Join("../../../examples", name, "model/model.onnx"))
	if err != nil && strings.Contains(err.Error(), "locale") {
		t.Skipf("onnxruntime's StringNormalizer needs the system's en_US.UTF-8 locale: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func iris() map[string]*graph.Tensor {
	return map[string]*graph.Tensor{"input": {
		Name: "input", Type: graph.FP32, Shape: []int64{2, 4},
		Data: []float32{5.1, 3.5, 1.4, 0.2, 6.3, 3.3, 6, 2.5},
	}}
}

func TestIrisIsClassified(t *testing.T) {
	s := openExample(t, "iris")
	in, out, err := s.Describe()
	if err != nil {
		t.Fatal(err)
	}
	if len(in) != 1 || in[0].Name != "input" || in[0].Type != graph.FP32 || !cmp.Equal(in[0].Shape, []int64{-1, 4}) || len(out) != 2 {
		t.Fatalf("described as %+v, %+v", in, out)
	}
	got, err := s.Run(t.Context(), iris(), []string{out[0].Name, out[1].Name})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{0, 2}, got[0].Data); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if !cmp.Equal(got[1].Shape, []int64{2, 3}) || got[1].Data.([]float32)[0] < 0.9 {
		t.Errorf("probabilities %+v", got[1])
	}
}

func TestStringsGoInAndComeOut(t *testing.T) {
	s := openExample(t, "text")
	in, out, err := s.Describe()
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{"the invoice is wrong", "", "grüße, ok"}
	got, err := s.Run(t.Context(), map[string]*graph.Tensor{in[0].Name: {
		Name: in[0].Name, Type: graph.String, Shape: []int64{3, 1}[:len(in[0].Shape)], Data: texts,
	}}, []string{out[0].Name})
	if err != nil {
		t.Fatal(err)
	}
	if labels, ok := got[0].Data.([]string); !ok || len(labels) != len(texts) || labels[0] == "" {
		t.Errorf("labels %+v", got[0])
	}
}

func TestCallersRunAtOnce(t *testing.T) {
	s := openExample(t, "iris")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				got, err := s.Run(t.Context(), iris(), []string{"label"})
				if err != nil || !cmp.Equal([]int64{0, 2}, got[0].Data) {
					t.Errorf("%v %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestFaultsAreOfTheirKind(t *testing.T) {
	lib := library(t)
	broken := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(broken, []byte("no model"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lib.Open(broken); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a damaged file gives %v", err)
	}
	s := openExample(t, "iris")
	bad := iris()
	bad["input"].Type, bad["input"].Data = graph.FP64, make([]float64, 8)
	if _, err := s.Run(t.Context(), bad, []string{"label"}); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("an input of another type gives %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, iris(), []string{"label"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up gives %v", err)
	}
}

func TestAMissingLibraryIsSaid(t *testing.T) {
	t.Parallel()
	if _, err := ort.Load("/nonexistent/libonnxruntime.so"); !errors.Is(err, ort.ErrNoLibrary) || !errors.Is(err, errdef.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	notORT := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(notORT, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ort.Load(notORT); !errors.Is(err, ort.ErrNoLibrary) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkIris(b *testing.B) {
	s := openExample(b, "iris")
	for b.Loop() {
		if _, err := s.Run(b.Context(), iris(), []string{"label", "probabilities"}); err != nil {
			b.Fatal(err)
		}
	}
}
