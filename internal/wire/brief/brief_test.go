package brief_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/wire/brief"
)

func TestMessages(t *testing.T) {
	long := strings.Repeat("a", 100000)
	tests := map[string]struct {
		got, want string
	}{
		"what is short stays":      {brief.Sprintf("%q has %v, %d", "x", []int64{1, -1}, 7), `"x" has [1 -1], 7`},
		"a long name":              {brief.Sprintf("%q", long), `"` + long[:197] + `…"`},
		"long bytes":               {brief.Sprintf("%s!", []byte(long)), long[:197] + "…!"},
		"an error's long text":     {brief.Sprintf("%v!", errors.New(long)), long[:205] + "…!"},
		"a name full of escapes":   {brief.Sprintf("%q", strings.Repeat("\x00", 100)), `"` + strings.Repeat(`\x00`, 51) + "…"},
		"a cut on a rune's border": {brief.Cut("aéé", 5), "a" + "éé"},
		"a cut within a rune":      {brief.Cut("aéééé", 7), "aé…"},
		"a cut to nothing":         {brief.Cut("abcdef", 2), "…"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got %q\nwant %q", tc.got, tc.want)
			}
		})
	}
	if got := brief.Sprintf("%v", make([]int64, 100000)); len(got) > 220 {
		t.Errorf("a shape of 100,000 dimensions takes %d bytes", len(got))
	}
	if err := brief.Errorf("%q: %w", long, io.EOF); !errors.Is(err, io.EOF) || len(err.Error()) > 220 {
		t.Errorf("got %v", err)
	}
}

func TestQuotationsAreBoundedAndUTF8(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := strings.Repeat(rapid.String().Draw(rt, "text"), rapid.IntRange(1, 500).Draw(rt, "times"))
		for _, verb := range []string{"%q", "%s", "%v", "%x"} {
			got := brief.Sprintf(verb, s)
			if len(got) > 220 || !utf8.ValidString(got) {
				rt.Fatalf("%s: %d bytes: %q", verb, len(got), got)
			}
			if want := fmt.Sprintf(verb, s); len(s) < 50 && len(want) < 200 && got != want {
				rt.Fatalf("%s: %q became %q", verb, want, got)
			}
		}
	})
}
