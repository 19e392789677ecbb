package errdef_test

import (
	"errors"
	"fmt"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
)

func TestKindsAreFoundThroughWrapping(t *testing.T) {
	for _, kind := range errdef.Kinds() {
		err := fmt.Errorf("open model: %w", errdef.New(kind, "no such thing; check the name"))
		if got := errdef.KindOf(err); !errors.Is(got, kind) {
			t.Errorf("kind of %q is %v, want %v", err, got, kind)
		}
		if got, want := err.Error(), "open model: no such thing; check the name"; got != want {
			t.Errorf("text %q, want %q: the kind must not show in a message of its own", got, want)
		}
	}
	if got := errdef.KindOf(errors.New("plain")); !errors.Is(got, errdef.ErrInternal) {
		t.Errorf("an error of no kind counts as %v, want internal", got)
	}
	if errdef.KindOf(nil) != nil {
		t.Error("nil has a kind")
	}
}

func TestTerminalSurvivesWrapping(t *testing.T) {
	err := fmt.Errorf("pull: %w", errdef.Terminal(errdef.ErrUnsupported))
	if !errdef.IsTerminal(err) || !errors.Is(err, errdef.ErrUnsupported) {
		t.Errorf("%v lost its mark or its kind", err)
	}
	if errdef.IsTerminal(errdef.ErrNotFound) || errdef.Terminal(nil) != nil {
		t.Error("something unmarked counts as terminal")
	}
}
