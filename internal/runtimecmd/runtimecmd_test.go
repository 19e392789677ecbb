package runtimecmd_test

import (
	"errors"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/runtimecmd"
)

func TestArgumentsAreReadOrToldWhatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		args       []string
		wantStatus int
		wantLog    bool
		want       string
	}{
		"good":           {args: []string{"--size=3", "--log_level=debug"}, wantLog: true},
		"help":           {args: []string{"--help"}, want: "-size"},
		"an unknown one": {args: []string{"--no"}, wantStatus: runtimecmd.Usage, want: "a runtime: flag provided but not defined: -no; --help lists the flags\n"},
		"a word":         {args: []string{"word"}, wantStatus: runtimecmd.Usage, want: "a runtime: unexpected argument \"word\"; all are flags such as --size\n"},
		"a strange level": {
			args: []string{"--log_level=loud"}, wantStatus: runtimecmd.Usage, want: "a runtime: --log_level \"loud\": use debug, info, warn or error\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			c := runtimecmd.New("a runtime", &stderr)
			size := c.Flags.Int("size", 0, "a size")
			log, status := c.Parse(tc.args, "--size")
			if status != tc.wantStatus || (log != nil) != tc.wantLog || tc.wantLog && *size != 3 {
				t.Errorf("status %d, a log %v, size %d", status, log != nil, *size)
			}
			if got := stderr.String(); got != tc.want && (name != "help" || !strings.Contains(got, tc.want)) {
				t.Errorf("it says %q, want %q", got, tc.want)
			}
		})
	}
	var stderr strings.Builder
	c := runtimecmd.New("a runtime", &stderr)
	if c.Failed(errors.New("no")) != runtimecmd.Error || stderr.String() != "a runtime: no\n" {
		t.Errorf("a failure is told as %q", stderr.String())
	}
}
