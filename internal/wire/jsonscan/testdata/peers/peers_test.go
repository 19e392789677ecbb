// Package peers compares how numbers of tensors are read and written with encoding/json and a peer, in one
// process. It is a module of its own, so that the peer is no part of the product: go test -bench . in this
// folder.
package peers

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	goccy "github.com/goccy/go-json"

	"stationmaster.dev/stationmaster/internal/translate"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

const rows, width = 1000, 384

// vectors are numbers as an embedding has them.
func vectors() []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]float32, rows*width)
	for i := range out {
		out[i] = float32(r.NormFloat64() / 20)
	}
	return out
}

func perNumber(b *testing.B, n int) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/number")
}

func BenchmarkWrite(b *testing.B) {
	values := vectors()[:1<<14]
	for name, write := range map[string]func(dst []byte) ([]byte, error){
		"stationmaster": func(dst []byte) ([]byte, error) { return jsonscan.AppendFloats(dst[:0], values), nil },
		"encoding-json": func([]byte) ([]byte, error) { return json.Marshal(values) },
		"goccy":         func([]byte) ([]byte, error) { return goccy.Marshal(values) },
	} {
		b.Run(name, func(b *testing.B) {
			var dst []byte
			for b.Loop() {
				var err error
				if dst, err = write(dst); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(dst)))
			perNumber(b, len(values))
		})
	}
}

func BenchmarkRead(b *testing.B) {
	values := vectors()[:1<<14]
	doubles, whole := make([]float64, len(values)), make([]int64, len(values))
	for i, v := range values {
		doubles[i], whole[i] = float64(v), int64(v*1e6)
	}
	marshal := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			b.Fatal(err)
		}
		return text
	}
	for _, tc := range []struct {
		name string
		text []byte
		here func(*jsonscan.Scanner) error
		into func() any
	}{
		{"FP32", marshal(values), func(s *jsonscan.Scanner) error { _, err := jsonscan.Float32s(s, len(values)); return err }, func() any { return new([]float32) }},
		{"FP32-as-doubles", marshal(doubles), func(s *jsonscan.Scanner) error { _, err := jsonscan.Float32s(s, len(values)); return err }, func() any { return new([]float32) }},
		{"FP64", marshal(doubles), func(s *jsonscan.Scanner) error { _, err := jsonscan.Float64s(s, len(values)); return err }, func() any { return new([]float64) }},
		{"INT64", marshal(whole), func(s *jsonscan.Scanner) error {
			_, err := jsonscan.Ints[int64](s, len(values), -1<<63, 1<<63-1)
			return err
		}, func() any { return new([]int64) }},
	} {
		for name, read := range map[string]func() error{
			"stationmaster": func() error { return tc.here(jsonscan.New(tc.text)) },
			"encoding-json": func() error { return json.Unmarshal(tc.text, tc.into()) },
			"goccy":         func() error { return goccy.Unmarshal(tc.text, tc.into()) },
		} {
			b.Run(tc.name+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(tc.text)))
				for b.Loop() {
					if err := read(); err != nil {
						b.Fatal(err)
					}
				}
				perNumber(b, len(values))
			})
		}
	}
}

// BenchmarkEmbeddings makes the answer to a thousand texts of the vectors that an engine told.
func BenchmarkEmbeddings(b *testing.B) {
	values := vectors()
	t := oip.Tensor{Name: "v", Datatype: oip.FP32, Shape: []int64{rows, width}, Data: values}
	raw, err := t.AppendRaw(nil)
	if err != nil {
		b.Fatal(err)
	}
	out := &oip.InferResponse{Outputs: []oip.Tensor{{Name: "v", Datatype: oip.FP32, Shape: t.Shape, Raw: raw}}}
	model, err := translate.NewModel(&oip.ModelMetadata{Inputs: []oip.TensorMetadata{{Name: "text", Datatype: oip.Bytes, Shape: []int64{-1}}}}, translate.Settings{})
	if err != nil {
		b.Fatal(err)
	}
	for _, format := range []string{"base64", "float"} {
		body := `{"model":"m","encoding_format":"` + format + `","input":["` + strings.Repeat(`a","`, rows-1) + `a"]}`
		r, err := translate.NewEmbeddings([]byte(body), model)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(format+"/stationmaster", func(b *testing.B) {
			for b.Loop() {
				if _, err := r.Answer(out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	type entry struct {
		Object    string    `json:"object"`
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	answer := struct {
		Object string  `json:"object"`
		Data   []entry `json:"data"`
	}{Object: "list"}
	for i := range rows {
		answer.Data = append(answer.Data, entry{"embedding", i, values[i*width : (i+1)*width]})
	}
	for name, marshal := range map[string]func(any) ([]byte, error){"encoding-json": json.Marshal, "goccy": func(v any) ([]byte, error) { return goccy.Marshal(v) }} {
		b.Run("float/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := marshal(answer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
