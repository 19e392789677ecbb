package jsonscan

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// padding makes a text long enough for the quick ways to be taken from its beginning.
const padding = "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"

// asOneByOne compares what is read fast with what is read one by one, values and errors.
func asOneByOne[T any](tb testing.TB, text string, fast func(*Scanner, int) (Elements[T], error), one func(*Scanner) (T, error)) {
	tb.Helper()
	quick, slow := New([]byte(text)), New([]byte(text))
	got, err := fast(quick, 4)
	want, wantErr := Nested(slow, 4, one)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Elements[T]{}), cmpopts.EquateNaNs()); diff != "" || fmt.Sprint(err) != fmt.Sprint(wantErr) || quick.pos != slow.pos {
		tb.Fatalf("%s: %v, want %v (-want +got)\n%s", text, err, wantErr, diff)
	}
}

func compareAll(tb testing.TB, text string) {
	tb.Helper()
	asOneByOne(tb, text, Float32s, (*Scanner).Float32)
	asOneByOne(tb, text, Float64s, (*Scanner).Float64)
	asOneByOne(tb, text, func(s *Scanner, hint int) (Elements[int16], error) {
		return Ints[int16](s, hint, math.MinInt16, math.MaxInt16)
	}, func(s *Scanner) (int16, error) { v, err := s.Int(math.MinInt16, math.MaxInt16); return int16(v), err })
	asOneByOne(tb, text, func(s *Scanner, hint int) (Elements[int64], error) {
		return Ints[int64](s, hint, math.MinInt64, math.MaxInt64)
	}, func(s *Scanner) (int64, error) { return s.Int(math.MinInt64, math.MaxInt64) })
	asOneByOne(tb, text, func(s *Scanner, hint int) (Elements[uint64], error) { return Uints[uint64](s, hint, math.MaxUint64) },
		func(s *Scanner) (uint64, error) { return s.Uint(math.MaxUint64) })
}

func TestLongArraysAreReadAsOneByOne(t *testing.T) {
	for _, text := range []string{
		"1", "-1", "0", "-0", "01", "0.5", "-0.25", ".5", "5.", "-", "", "1.5e3", "1e-5", "0.1234567", "0.12345678", "0.123456789", "0.1234567890123456",
		"0.12345678901234567", "0.1234567890123456789", "0.00000000000000000000012", "1234567890123456.5", "123456789012345.125", "18446744073709551615",
		"18446744073709551616", "-9223372036854775808", "9223372036854775807", "32768", "-32768", "65536", "null", "NaN", "-Infinity", "true", `"1"`, "[1]", "1 ", " 1", "1\t", "0.1x", "1.2.3",
		"3.4028235e38", "0.9999999999999999999", "9007199254740993.0", "0.10000000149011612", "16777217", "16777217.5", "8388608.5000000001", "1.00000005960464477539", "0.30000001192092896",
	} {
		compareAll(t, "[7,"+text+","+padding)
		compareAll(t, "[7, "+text+", "+padding)
		compareAll(t, "[7,"+text+"]")
		compareAll(t, "[[7,1],["+text+",2],[1,"+padding+"]")
	}
	compareAll(t, "[[7,1],[8,2],["+padding+"]")
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var words []string
		for range 20 {
			v := r.NormFloat64() * math.Pow(10, float64(r.IntN(12)-6))
			words = append(words, strconv.FormatFloat(v, 'f', -1, 64), strconv.FormatFloat(v, 'f', -1, 32), strconv.FormatFloat(v, 'f', r.IntN(22), 64), strconv.FormatFloat(v, 'g', 5, 64))
		}
		text := "[" + strings.Join(words, []string{",", ", "}[r.IntN(2)]) + "]"
		asOneByOne(t, text, Float32s, (*Scanner).Float32)
		asOneByOne(t, text, Float64s, (*Scanner).Float64)
	}
}

// TestDoublesOfManyDigits checks against strconv those that one division can't round rightly.
func TestDoublesOfManyDigits(t *testing.T) {
	check := func(n uint64, decimals uint) {
		text := fmt.Sprintf("%de-%d", n, decimals)
		want, err := strconv.ParseFloat(text, 64)
		if got := (quickNumber{mantissa: n, decimals: decimals}).float64(); err != nil || got != want {
			t.Fatalf("%s: %v, want %v, %v", text, got, want, err)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for decimals := range uint(23) {
		for _, n := range []uint64{1, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<54 + 2, 1<<54 + 6, 1<<63 + 1<<10, 1<<63 + 3<<10, math.MaxUint64, 1<<53*5 + 5, 9007199254740993} {
			check(n, decimals)
		}
		for range 20_000 {
			check(r.Uint64()>>r.IntN(20), decimals)
		}
	}
}

func FuzzNumbers(f *testing.F) {
	f.Add("0.12345678901234567, -1.5,3e4")
	f.Add("18446744073709551616,1,[2]")
	f.Fuzz(func(t *testing.T, text string) {
		compareAll(t, "["+text+","+padding)
		compareAll(t, "["+text)
	})
}

func TestArraysOfFloatsAsTheyAreOneByOne(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, 1e-6, 9.5e-7, 1e-7, 1e7, 16777215, 16777216, 1e21, 3.4e38, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
	for range 1000 {
		values = append(values, math.Float32frombits(r.Uint32()), float32(r.NormFloat64()))
	}
	want := []byte("[")
	for i, v := range values {
		if i > 0 {
			want = append(want, ',')
		}
		want = AppendFloat(want, float64(v), 32)
	}
	if got := AppendFloats(nil, values); string(got) != string(want)+"]" {
		t.Errorf("got %s, want %s", got, want)
	}
	for room := range 200 { // whatever is left of a buffer when a number's turn comes
		if got := AppendFloats(make([]byte, 0, room), values[:40]); !bytes.HasPrefix(want, got[:len(got)-1]) {
			t.Errorf("with room for %d: got %s", room, got)
		}
	}
	if got := AppendFloats([]byte("x"), nil); string(got) != "x[]" {
		t.Errorf("none: %s", got)
	}
}
