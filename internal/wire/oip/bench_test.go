package oip_test

import (
	"fmt"
	"testing"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func payload(bytes int) *oip.InferRequest {
	n := int64(bytes / 8)
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(i%1000)/1000 + 0.001
	}
	return &oip.InferRequest{ID: "1", Inputs: []oip.Tensor{{Name: "x", Datatype: oip.FP32, Shape: []int64{1, n}, Data: data}}}
}

func BenchmarkDecodeRequest(b *testing.B) {
	for _, size := range []int{1 << 10, 128 << 10} {
		r := payload(size)
		for _, binary := range []bool{false, true} {
			body, n, err := oip.AppendRequest(nil, r, func(string) bool { return binary })
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%dKB/binary=%v", size>>10, binary), func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := oip.DecodeRequest(body, n); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkAppendRequest(b *testing.B) {
	for _, size := range []int{1 << 10, 128 << 10} {
		r := payload(size)
		for _, binary := range []bool{false, true} {
			var body []byte
			b.Run(fmt.Sprintf("%dKB/binary=%v", size>>10, binary), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					var err error
					if body, _, err = oip.AppendRequest(body[:0], r, func(string) bool { return binary }); err != nil {
						b.Fatal(err)
					}
				}
				b.SetBytes(int64(len(body)))
			})
		}
	}
}
