// Package platformtest is the suite that every platform passes: what callers may rely on,
// whatever runs the replicas.
package platformtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Fixture is one fresh platform with workloads that it can run.
type Fixture struct {
	Platform platform.Platform
	// Serve returns containers that become ready; Fail those that end at once.
	Serve func() []spec.Container
	Fail  func() []spec.Container
	// Patience bounds the wait for one step. Zero means 20 s.
	Patience time.Duration
}

// Run runs the suite; factory makes a fixture that ends with the subtest.
func Run(t *testing.T, factory func(t *testing.T) Fixture) {
	t.Helper()
	for name, scenario := range map[string]func(*testing.T, *bench){
		"starts as many replicas as asked":                   startsMany,
		"scales up and down":                                 scales,
		"replaces a revision":                                replaces,
		"replaces replicas whose hash changed":               rehashes,
		"shows why a workload fails":                         fails,
		"applies the same twice without effect":              idempotent,
		"removes a service and forgets it":                   removes,
		"keeps services of one name in two namespaces apart": namespaces,
		"refuses a workload without a container":             refuses,
		"lists services sorted":                              lists,
		"tells changes, coalesced, until the context ends":   tells,
		"knows nothing of an unknown service":                unknown,
	} {
		t.Run(name, func(t *testing.T) {
			f := factory(t)
			if f.Patience == 0 {
				f.Patience = 20 * time.Second
			}
			scenario(t, &bench{Fixture: f, t: t})
		})
	}
}

type bench struct {
	Fixture
	t *testing.T
}

var iris = spec.ServiceKey{Namespace: "default", Name: "iris"}

func (b *bench) workload(key spec.ServiceKey, revision, hash string, containers []spec.Container) spec.Workload {
	return spec.Workload{
		Service: key, Revision: spec.RevisionKey{Namespace: key.Namespace, Name: revision}, Component: spec.Predictor,
		Containers: containers, Hash: hash, GracePeriod: 5 * time.Second,
	}
}

func (b *bench) apply(key spec.ServiceKey, want ...platform.Assignment) {
	b.t.Helper()
	if err := b.Platform.Apply(b.t.Context(), key, want); err != nil {
		b.t.Fatalf("apply %s: %v", key, err)
	}
}

func (b *bench) observe(key spec.ServiceKey) spec.Observed {
	b.t.Helper()
	o, err := b.Platform.Observe(b.t.Context(), key)
	if err != nil {
		b.t.Fatalf("observe %s: %v", key, err)
	}
	return o
}

// until waits for what is observed to be as wanted.
func (b *bench) until(key spec.ServiceKey, what string, ok func(spec.Observed) bool) spec.Observed {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), b.Patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		o := b.observe(key)
		if ok(o) {
			return o
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			for _, r := range o.Replicas {
				b.t.Logf("%s %s %s %+v", r.ID, r.Hash, r.Phase, r.Failure)
			}
			b.t.Fatalf("%s: no %s within %v", key, what, b.Patience)
		}
	}
}

func ready(o spec.Observed) int {
	n := 0
	for _, r := range o.Replicas {
		if r.Phase == spec.Ready {
			n++
		}
	}
	return n
}

func exactly(n int) func(spec.Observed) bool {
	return func(o spec.Observed) bool { return ready(o) == n && len(o.Replicas) == n }
}

func ids(o spec.Observed) []string {
	var out []string
	for _, r := range o.Replicas {
		out = append(out, r.ID)
	}
	return out
}

func startsMany(t *testing.T, b *bench) {
	b.apply(iris, platform.Assignment{Workload: b.workload(iris, "iris-1", "a", b.Serve()), Replicas: 3})
	o := b.until(iris, "three ready replicas", exactly(3))
	for _, r := range o.Replicas {
		if r.Revision.Name != "iris-1" || r.Hash != "a" || r.Created.IsZero() || r.Timings.ReadyAt.IsZero() || r.Failure != nil {
			t.Errorf("replica %+v lacks what a ready one has", r)
		}
	}
	got := ids(o)
	if !slices.IsSorted(got) || len(slices.Compact(got)) != 3 {
		t.Errorf("replica ids %v aren't sorted and distinct", got)
	}
}

func scales(t *testing.T, b *bench) {
	w := b.workload(iris, "iris-1", "a", b.Serve())
	b.apply(iris, platform.Assignment{Workload: w, Replicas: 1})
	first := ids(b.until(iris, "one", exactly(1)))
	b.apply(iris, platform.Assignment{Workload: w, Replicas: 3})
	three := b.until(iris, "three", exactly(3))
	if !slices.Contains(ids(three), first[0]) {
		t.Errorf("scaling up replaced %v with %v", first, ids(three))
	}
	b.apply(iris, platform.Assignment{Workload: w, Replicas: 1})
	one := ids(b.until(iris, "one", exactly(1)))
	if !slices.Contains(ids(three), one[0]) {
		t.Errorf("scaling down left %v, which isn't of %v", one, ids(three))
	}
	b.apply(iris, platform.Assignment{Workload: w, Replicas: 0})
	b.until(iris, "none", exactly(0))
}

func replaces(t *testing.T, b *bench) {
	old, next := b.workload(iris, "iris-1", "a", b.Serve()), b.workload(iris, "iris-2", "b", b.Serve())
	b.apply(iris, platform.Assignment{Workload: old, Replicas: 1})
	first := ids(b.until(iris, "one", exactly(1)))
	b.apply(iris, platform.Assignment{Workload: old, Replicas: 1}, platform.Assignment{Workload: next, Replicas: 2})
	both := b.until(iris, "three of both", exactly(3))
	if len(both.Of(next.Revision)) != 2 || !slices.Contains(ids(both), first[0]) {
		t.Errorf("replicas %v, want two new ones beside %v", ids(both), first)
	}
	b.apply(iris, platform.Assignment{Workload: next, Replicas: 2})
	o := b.until(iris, "two", exactly(2))
	if len(o.Of(next.Revision)) != 2 {
		t.Errorf("replicas %v are left, want the new revision's", ids(o))
	}
}

func rehashes(t *testing.T, b *bench) {
	b.apply(iris, platform.Assignment{Workload: b.workload(iris, "iris-1", "a", b.Serve()), Replicas: 1})
	b.until(iris, "one", exactly(1))
	b.apply(iris, platform.Assignment{Workload: b.workload(iris, "iris-1", "b", b.Serve()), Replicas: 1})
	b.until(iris, "one of the new hash", func(o spec.Observed) bool { return exactly(1)(o) && o.Replicas[0].Hash == "b" })
}

func fails(t *testing.T, b *bench) {
	b.apply(iris, platform.Assignment{Workload: b.workload(iris, "iris-1", "a", b.Fail()), Replicas: 1})
	o := b.until(iris, "failure", func(o spec.Observed) bool {
		return len(o.Replicas) == 1 && o.Replicas[0].Failure != nil
	})
	f := o.Replicas[0].Failure
	if f.Reason == "" || f.At.IsZero() || f.ExitCode == 0 {
		t.Errorf("failure %+v lacks reason, time or exit code", f)
	}
	if o.Replicas[0].Phase == spec.Ready {
		t.Error("a failed replica counts as ready")
	}
	b.apply(iris)
	b.until(iris, "none", exactly(0))
}

func idempotent(t *testing.T, b *bench) {
	a := platform.Assignment{Workload: b.workload(iris, "iris-1", "a", b.Serve()), Replicas: 2}
	b.apply(iris, a)
	first := ids(b.until(iris, "two", exactly(2)))
	for range 5 {
		b.apply(iris, a)
	}
	if second := ids(b.until(iris, "two", exactly(2))); !slices.Equal(first, second) {
		t.Errorf("replicas %v became %v", first, second)
	}
}

func removes(t *testing.T, b *bench) {
	b.apply(iris, platform.Assignment{Workload: b.workload(iris, "iris-1", "a", b.Serve()), Replicas: 2})
	b.until(iris, "two", exactly(2))
	b.apply(iris)
	b.until(iris, "none", exactly(0))
	b.until(iris, "empty list of services", func(spec.Observed) bool {
		got, err := b.Platform.Services(t.Context())
		return err == nil && len(got) == 0
	})
}

func namespaces(t *testing.T, b *bench) {
	other := spec.ServiceKey{Namespace: "team", Name: "iris"}
	b.apply(iris, platform.Assignment{Workload: b.workload(iris, "iris-1", "a", b.Serve()), Replicas: 1})
	b.apply(other, platform.Assignment{Workload: b.workload(other, "iris-1", "a", b.Serve()), Replicas: 1})
	one, two := b.until(iris, "one", exactly(1)), b.until(other, "one", exactly(1))
	if one.Replicas[0].ID == two.Replicas[0].ID {
		t.Errorf("both have the replica %s", one.Replicas[0].ID)
	}
	b.apply(other)
	b.until(other, "none", exactly(0))
	b.until(iris, "one still", exactly(1))
}

func refuses(t *testing.T, b *bench) {
	err := b.Platform.Apply(t.Context(), iris, []platform.Assignment{{Workload: b.workload(iris, "iris-1", "a", nil), Replicas: 1}})
	if !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("error %v, want one of kind invalid", err)
	}
}

func lists(t *testing.T, b *bench) {
	for _, name := range []string{"c", "a", "b"} {
		key := spec.ServiceKey{Namespace: "default", Name: name}
		b.apply(key, platform.Assignment{Workload: b.workload(key, name+"-1", "x", b.Serve()), Replicas: 1})
	}
	got, err := b.Platform.Services(t.Context())
	if want := "[default/a default/b default/c]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("services %v (%v), want %s", got, err, want)
	}
}

func tells(t *testing.T, b *bench) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := b.Platform.Changes(ctx)
	w := b.workload(iris, "iris-1", "a", b.Serve())
	const changed = 20
	for i := range changed {
		b.apply(iris, platform.Assignment{Workload: w, Replicas: 2 + i%2})
	}
	b.until(iris, "three", exactly(3))
	// Nobody read until now, and what was kept is a few values, not one per change. News that come
	// meanwhile end the count at the first moment without any.
	timeout := time.After(b.Patience)
	kept, more := 0, true
	take := func(got spec.ServiceKey) {
		if kept++; got != iris {
			t.Errorf("change of %s, want %s", got, iris)
		}
	}
	select {
	case got := <-changes:
		take(got)
	case <-timeout:
		t.Fatal("no change is told")
	}
	for more {
		select {
		case got := <-changes:
			take(got)
		default:
			more = false
		}
	}
	if kept >= changed {
		t.Errorf("%d changes were kept for a reader that wasn't reading, want a few of %d", kept, changed)
	}
	cancel()
	timeout = time.After(b.Patience)
	for {
		select {
		case _, open := <-changes:
			if !open {
				return
			}
		case <-timeout:
			t.Fatal("the channel stays open after its context ended")
		}
	}
}

func unknown(t *testing.T, b *bench) {
	if o := b.observe(spec.ServiceKey{Namespace: "x", Name: "y"}); len(o.Replicas) != 0 {
		t.Errorf("replicas %v of a service that was never applied", ids(o))
	}
	b.apply(spec.ServiceKey{Namespace: "x", Name: "y"}) // removing it is no error
}
