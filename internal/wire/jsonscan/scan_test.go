package jsonscan_test

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
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

func TestWholeNumbersAreExactHoweverTheyAreWritten(t *testing.T) {
	tests := map[string]struct {
		text string
		want int64
		ok   bool
	}{
		"2^53 as a fraction":                  {"9007199254740992.0", 1 << 53, true},
		"one more as a fraction":              {"9007199254740993.0", 0, false},
		"one more with an exponent":           {"9007199254740993e0", 0, false},
		"one more as an integer":              {"9007199254740993", 1<<53 + 1, true},
		"less than one more, not whole":       {"9007199254740992.5", 0, false},
		"next to one":                         {"1.000000000000000000000001", 0, false},
		"one with many zeros":                 {"1.000000000000000000000000", 1, true},
		"nought with a sign":                  {"-0.0", 0, true},
		"a negative with an exponent":         {"-1.5e1", -15, true},
		"zeros that the exponent takes away":  {"12000e-3", 12, true},
		"a fraction that it makes whole":      {"0.0012e4", 12, true},
		"an exponent beyond all counting":     {"1e99999999999999999999", 0, false},
		"a negative one beyond all counting":  {"10e-99999999999999999999", 0, false},
		"nought with any exponent":            {"0e99999999999999999999", 0, true},
		"the largest of 64 bits as a float":   {"9223372036854775807.0", 0, false},
		"the largest of 64 bits as it is":     {"9223372036854775807", math.MaxInt64, true},
		"the smallest of 64 bits as it is":    {"-9223372036854775808", math.MinInt64, true},
		"one beyond the smallest of 64 bits":  {"-9223372036854775809", 0, false},
		"the smallest of 53 bits as a float":  {"-9007199254740992.0", -(1 << 53), true},
		"one beyond the smallest of 53, same": {"-9007199254740993.0", 0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := jsonscan.New([]byte(tc.text)).Int(math.MinInt64, math.MaxInt64)
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("%s became %d, %v", tc.text, got, err)
			}
			if tc.want < 0 {
				tc.ok = false
			}
			u, err := jsonscan.New([]byte(tc.text)).Uint(math.MaxUint64)
			if (err == nil) != tc.ok || tc.ok && u != uint64(tc.want) {
				t.Errorf("%s became unsigned %d, %v", tc.text, u, err)
			}
		})
	}
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,18})(\.[0-9]{0,3}0{1,20})?([eE][+-]?[0-9]{1,2})?`).Draw(rt, "number")
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			rt.Fatalf("math/big can't read %s, so nothing is compared", text)
		}
		limit := big.NewInt(1 << 53)
		if !strings.ContainsAny(text, ".eE") {
			limit = new(big.Int).SetUint64(math.MaxUint64)
		}
		want := exact.IsInt() && exact.Num().CmpAbs(limit) <= 0
		got, err := jsonscan.New([]byte(text)).Int(math.MinInt64, math.MaxInt64)
		if wantInt := want && exact.Num().IsInt64(); (err == nil) != wantInt || wantInt && got != exact.Num().Int64() {
			rt.Fatalf("%s became %d, %v", text, got, err)
		}
		u, err := jsonscan.New([]byte(text)).Uint(math.MaxUint64)
		if wantUint := want && exact.Sign() >= 0; (err == nil) != wantUint || wantUint && u != exact.Num().Uint64() {
			rt.Fatalf("%s became unsigned %d, %v", text, u, err)
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

func TestWhatStandsOutInAStringIsSeenWhereverItIs(t *testing.T) {
	for _, special := range []string{`\"`, `\\`, `\n`, `\u00e9`, `\ud83d\ude00`, "é", "😀", " ", "\x7f", "~"} {
		for before := range 20 {
			for after := range 20 {
				text := `"` + strings.Repeat("a", before) + special + strings.Repeat("b", after) + `"`
				var want string
				if err := json.Unmarshal([]byte(text), &want); err != nil {
					t.Fatal(err)
				}
				got, err := jsonscan.New([]byte(text)).String()
				if err != nil || string(got) != want {
					t.Fatalf("%s: got %q, %v", text, got, err)
				}
			}
		}
	}
	for _, wrong := range []string{"\x00", "\x1f", "\n", "\xff", "\xc3", `\x`, `\u12`, `\ud83d`, `\ud83d\u0041`, `\`} {
		for before := range 20 {
			text := `"` + strings.Repeat("a", before) + wrong + strings.Repeat("z", before%3) + `"`
			if got, err := jsonscan.New([]byte(text)).String(); err == nil {
				t.Fatalf("%q: got %q", text, got)
			}
			if text, err := jsonscan.New([]byte(text)).Skip(); err == nil {
				t.Fatalf("skipped %q", text)
			}
		}
	}
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
