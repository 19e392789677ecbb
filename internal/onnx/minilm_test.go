package onnx_test

import (
	"fmt"
	"os"
	"testing"

	"stationmaster.dev/stationmaster/internal/onnx"
)

// minilm is the path of an all-MiniLM-L6-v2 export, which is too large to commit.
func minilm(t testing.TB) string {
	t.Helper()
	path := os.Getenv("STATIONMASTER_MINILM")
	if path == "" {
		t.Skip("set STATIONMASTER_MINILM to the path of an all-MiniLM-L6-v2 model.onnx")
	}
	return path
}

func sentences(batch, length int64) []onnx.Tensor {
	ids, ones := make([]int64, batch*length), make([]int64, batch*length)
	for i := range ids {
		ids[i], ones[i] = int64(1000+37*i%20000), 1
	}
	shape := []int64{batch, length}
	return []onnx.Tensor{
		{Name: "input_ids", Type: onnx.Int64, Shape: shape, Data: ids},
		{Name: "attention_mask", Type: onnx.Int64, Shape: shape, Data: ones},
		{Name: "token_type_ids", Type: onnx.Int64, Shape: shape, Data: make([]int64, batch*length)},
	}
}

func TestSentenceEncoderAgreesWithOnnxruntime(t *testing.T) {
	path := minilm(t)
	var got [2][]onnx.Tensor
	for i, backend := range []string{onnx.BackendBuiltin, onnx.BackendORT} {
		s, err := onnx.Open(path, onnx.Options{Prefer: backend})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if i == 1 && s.Backend() == onnx.BackendBuiltin {
			t.Skip("needs an onnxruntime shared library")
		}
		if got[i], err = s.Run(t.Context(), sentences(2, 12), nil); err != nil {
			t.Fatal(err)
		}
	}
	if diff := differ(got[0][0].Data, got[1][0].Data); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkSentenceEncoder(b *testing.B) {
	path := minilm(b)
	for _, backend := range []string{onnx.BackendBuiltin, onnx.BackendORT} {
		s, err := onnx.Open(path, onnx.Options{Prefer: backend})
		if err != nil {
			b.Fatal(err)
		}
		for _, size := range [][2]int64{{1, 16}, {1, 128}, {8, 64}} {
			in := sentences(size[0], size[1])
			b.Run(fmt.Sprintf("%s/%dx%d", backend, size[0], size[1]), func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Run(b.Context(), in, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
