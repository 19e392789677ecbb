package local

import (
	"os"
	"testing"
	"time"
)

func TestALineOfProc(t *testing.T) {
	const tail = " S 1 42 43 0 -1 4194304 100 0 0 0 250 50 30 20 20 0 4 0 12345 1000000 256 18446744073709551615 1 1 0 0"
	for name, line := range map[string]string{"plain": "42 (engine)" + tail, "with a bracket in its name": "42 (en) gine (x))" + tail} {
		session, u, ok := parseStat([]byte(line))
		if !ok || session != 43 || u.CPU != 3500*time.Millisecond || u.Memory != 256*int64(os.Getpagesize()) {
			t.Errorf("%s: %d, %+v, %v", name, session, u, ok)
		}
	}
	for _, line := range []string{"", "42 (engine) S 1", "42 (engine) S 1 42 43 0 -1 1 1 0 0 0 x 1 1 1 20 0 4 0 1 1 256"} {
		if _, _, ok := parseStat([]byte(line)); ok {
			t.Errorf("%q was read", line)
		}
	}
}
