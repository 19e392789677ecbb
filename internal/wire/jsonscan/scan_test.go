package jsonscan_test

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

func TestFloatsAreTheNearestOnes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.OneOf(
			rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?`),
			rapid.Map(rapid.Uint32(), func(b uint32) string {
				v := math.Float32frombits(b &^ (1 << 30)) // finite
				// A decimal next to the half-way point of two singles.
				half := new(big.Float).Quo(big.NewFloat(float64(v)+float64(math.Nextafter32(v, 9))), big.NewFloat(2))
				return half.Text('g', 20)
			}),
		).Draw(rt, "number")
		want64, _ := strconv.ParseFloat(text, 64)
		if got, err := jsonscan.New([]byte(text)).Float64(); err != nil || got != want64 {
			rt.Fatalf("%s: got %v, %v, want %v", text, got, err, want64)
		}
		want32, err := strconv.ParseFloat(text, 32)
		if err != nil {
			return // out of range
		}
		if got, err := jsonscan.New([]byte(text)).Float32(); err != nil || got != float32(want32) {
			rt.Fatalf("%s: got %v, %v, want %v", text, got, err, float32(want32))
		}
	})
}

func FuzzSkip(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-2.5e3,true,null,"\u00e9\ud83d\ude00"]}`, `[[[]]]`, `"`, `01`, `1e`, `{"a":1,}`, "\"\x01\"", `"\x"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := jsonscan.New(text)
		_, err := s.Skip()
		if err == nil {
			err = s.End()
		}
		if err == nil && !json.Valid(text) && !pythonic(text) {
			t.Fatalf("took %q, which is no JSON", text)
		}
		if err != nil && json.Valid(text) && !lenient(text) {
			t.Fatalf("refused %q: %v", text, err)
		}
	})
}

// pythonic says whether the text may hold the words for numbers that only Python writes.
func pythonic(text []byte) bool {
	for _, c := range text {
		if c == 'N' || c == 'I' {
			return true
		}
	}
	return false
}

// lenient says whether encoding/json may take what RFC 8259 and this package don't: bytes that
// aren't UTF-8, lone surrogates, deeper nesting.
func lenient(text []byte) bool {
	for _, c := range text {
		if c >= 0x80 || c == 'u' {
			return true
		}
	}
	return len(text) > jsonscan.MaxDepth
}

func FuzzString(f *testing.F) {
	f.Add([]byte("a\"\\\n\x01é\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		out := jsonscan.AppendString(nil, text)
		if !json.Valid(out) {
			t.Fatalf("%q became %s, which is no JSON", text, out)
		}
		got, err := jsonscan.New(out).String()
		if err != nil {
			t.Fatal(err)
		}
		if want := string([]rune(string(text))); string(got) != want {
			t.Fatalf("%q came back as %q", want, got)
		}
	})
}
