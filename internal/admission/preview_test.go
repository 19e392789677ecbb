package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"stationmaster.dev/stationmaster/internal/manifest"
)

// An API server lets in what it gets no answer about, so that warnings mustn't hold up a verdict.
func TestWhatCannotBeLookedUpInTimeIsOnlyAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reviewer(nil)
		r.Preview = func(ctx context.Context, _ string, _, _ manifest.Object) ([]string, error) {
			<-ctx.Done()
			return []string{"seen before"}, ctx.Err()
		}
		got := review(t, r, fmt.Sprintf(service, "", sound), "", nil)
		if !got.Allowed || len(got.Warnings) != 2 || got.Warnings[0] != "seen before" || !strings.Contains(got.Warnings[1], "not compared with what exists") {
			t.Errorf("the answer is %+v", got)
		}
	})
}
