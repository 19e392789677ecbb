package local_test

import (
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

func TestWhatReplicasUseIsKnown(t *testing.T) {
	b := start(t, nil)
	burn := spec.Container{Name: "burn", Command: []string{"sh", "-c", "while :; do :; done & wait"}}
	b.apply(workload(burn), 1)
	r := b.until("runs", func(r spec.Replica) bool { return r.Phase == spec.Ready })
	deadline := time.Now().Add(patience)
	for {
		used, err := b.Use(t.Context(), iris)
		if err != nil {
			t.Fatal(err)
		}
		// What burns is a child, so that the session counts and not its leader alone.
		if u := used[r.ID]; len(used) == 1 && u.CPU >= 50*time.Millisecond && u.Memory > 4096 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("used %+v", used)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if used, err := b.Use(t.Context(), spec.ServiceKey{Namespace: "default", Name: "other"}); err != nil || len(used) != 0 {
		t.Errorf("another service uses %v, %v", used, err)
	}
}
