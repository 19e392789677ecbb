package exposition_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"stationmaster.dev/stationmaster/internal/wire/exposition"
)

func TestReadHandsOutWhatIsWanted(t *testing.T) {
	page := "# HELP a Something.\n# TYPE a gauge\n" +
		"a 1\n" +
		"  a{x=\"1\",y=\"a \\\"b\\\"\\n\\\\\",} 2.5e1 1712345678901\n" +
		"\n" +
		"vllm:b{le=\"+Inf\"} +Inf\n" +
		"other{broken\n" +
		"a{} NaN\n"
	type sample struct {
		Name  string
		X, Y  string
		Value float64
	}
	var got []sample
	err := exposition.Read(strings.NewReader(page), func(name string) bool { return name != "other" }, func(s *exposition.Sample) {
		got = append(got, sample{s.Name, s.Label("x"), s.Label("y"), s.Value})
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []sample{{"a", "", "", 1}, {"a", "1", "a \"b\"\n\\", 25}, {"vllm:b", "", "", math.Inf(1)}, {"a", "", "", math.NaN()}}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestPagesThatCantBeRead(t *testing.T) {
	for name, page := range map[string]string{
		"HTML":                  "a<br>\n",
		"labels without an end": "a{x=\"1\"\n",
		"no value":              "a{x=\"1\"}\n",
		"a word as value":       "a much\n",
		"a line without an end": "a" + strings.Repeat(" ", 100_000) + "1\n",
	} {
		t.Run(name, func(t *testing.T) {
			err := exposition.Read(strings.NewReader(page), func(string) bool { return true }, func(*exposition.Sample) {})
			if err == nil {
				t.Error("it was read")
			}
		})
	}
}

func FuzzSum(f *testing.F) {
	for _, s := range []string{"a 1\n", "a{b=\"c\\\"\\n\"} 1e3 5\n", "a{} NaN", "a{b=\"", "ab 1\na 2", "a{b!=\"x\"} 1", "# a 1\na\t2"} {
		f.Add("a", s)
		f.Add(`a{b="c"}`, s)
	}
	f.Fuzz(func(t *testing.T, query, page string) {
		which, err := exposition.ParseSelector(query)
		if err != nil {
			return
		}
		if which.Name == "" {
			t.Fatalf("%q names nothing", query)
		}
		v, err := exposition.Sum(strings.NewReader(page), which)
		if err == nil && !strings.Contains(page, which.Name) {
			t.Errorf("%v of %q in %q", v, query, page)
		}
	})
}
