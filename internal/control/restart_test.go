package control

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestAComponentReturnsWhileItsNextStartIsNear(t *testing.T) {
	failed := func(terminal bool, again time.Duration) []spec.Replica {
		f := &spec.Failure{Reason: spec.Exited, Terminal: terminal}
		if !terminal {
			f.RetryAt = t0.Add(again)
		}
		return []spec.Replica{replica("r1", spec.Failed, f)}
	}
	loading := []spec.Replica{replica("r1", spec.Loading, nil)}
	tests := map[string]struct {
		facts facts
		want  bool
	}{
		"after a restart its engine loads":            {facts{want: 1, rolledOut: "r1", replicas: loading}, true},
		"after a crash it starts again in a moment":   {facts{want: 1, rolledOut: "r1", replicas: failed(false, time.Second)}, true},
		"just within the limit":                       {facts{want: 1, rolledOut: "r1", replicas: failed(false, soon-time.Millisecond)}, true},
		"at the limit it is too far":                  {facts{want: 1, rolledOut: "r1", replicas: failed(false, soon)}, false},
		"a long back-off is too far":                  {facts{want: 1, rolledOut: "r1", replicas: failed(false, time.Minute)}, false},
		"one that can't run doesn't return":           {facts{want: 1, rolledOut: "r1", replicas: failed(true, 0)}, false},
		"one of two near is enough":                   {facts{want: 2, rolledOut: "r1", replicas: append(failed(true, 0), loading...)}, true},
		"a new service never served":                  {facts{want: 1, latest: "r1", replicas: loading}, false},
		"one that serves needs no return":             {facts{want: 1, rolledOut: "r1", serving: "r1", replicas: loading}, false},
		"a stopped one stays away":                    {facts{want: 1, rolledOut: "r1", stopped: true, replicas: loading}, false},
		"one that asks for no replica stays away":     {facts{rolledOut: "r1", replicas: loading}, false},
		"no replica yet says nothing":                 {facts{want: 1, rolledOut: "r1"}, false},
		"what drains doesn't return":                  {facts{want: 1, rolledOut: "r1", replicas: []spec.Replica{replica("r1", spec.Draining, nil)}}, false},
		"another revision's replica doesn't count":    {facts{want: 1, rolledOut: "r1", replicas: []spec.Replica{replica("r2", spec.Loading, nil)}}, false},
		"a failure whose time has come counts as now": {facts{want: 1, rolledOut: "r1", replicas: failed(false, -time.Hour)}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.facts.returning(t0); got != tc.want {
				t.Errorf("returning: %v, want %v", got, tc.want)
			}
		})
	}
}

// A request that comes while the next start is near waits; so the table has to be made anew when it
// gets near, though nothing else happens then.
func TestAServiceIsLookedAtAgainWhenItsNextStartDrawsNear(t *testing.T) {
	failed := func(again time.Duration, terminal bool) spec.Replica {
		return replica("r1", spec.Failed, &spec.Failure{Reason: spec.Exited, Terminal: terminal, RetryAt: t0.Add(again)})
	}
	for name, tc := range map[string]struct {
		replicas []spec.Replica
		want     time.Duration // 0 for never
	}{
		"far away":               {[]spec.Replica{failed(time.Minute, false)}, time.Minute - soon + time.Millisecond},
		"the nearest of two":     {[]spec.Replica{failed(time.Minute, false), failed(20*time.Second, false)}, 20*time.Second - soon + time.Millisecond},
		"near already":           {[]spec.Replica{failed(time.Second, false)}, 0},
		"one that can't run":     {[]spec.Replica{failed(time.Minute, true)}, 0},
		"one loads beside it":    {[]spec.Replica{failed(time.Minute, false), replica("r1", spec.Loading, nil)}, 0},
		"nothing is there":       {nil, 0},
		"another revision's end": {[]spec.Replica{replica("r2", spec.Failed, &spec.Failure{RetryAt: t0.Add(time.Minute)})}, 0},
	} {
		f := facts{want: 1, rolledOut: "r1", replicas: tc.replicas}
		at := f.turns(t0)
		if tc.want == 0 && !at.IsZero() || tc.want != 0 && !at.Equal(t0.Add(tc.want)) {
			t.Errorf("%s: %v, want %v later", name, at, tc.want)
		}
		if !at.IsZero() && !f.comes(at) {
			t.Errorf("%s: looked at again at a time when nothing has changed", name)
		}
	}
}

func TestTheTableIsPartialUntilEveryServiceOfTheStartWasSeen(t *testing.T) {
	table := &state.Topic[route.Table]{}
	c := New(Config{Logger: slog.New(slog.DiscardHandler)}, nil, table)
	a, b := spec.ServiceKey{Namespace: "a", Name: "x"}, spec.ServiceKey{Namespace: "b", Name: "x"}
	c.unseen = map[spec.ServiceKey]bool{a: true, b: true}
	c.publishTable()
	if !table.Load().Partial {
		t.Error("the first table isn't partial")
	}
	c.publish(a, &route.Service{Key: a, BareNames: []string{"x"}, Created: t0})
	c.seen(a)
	c.seen(a)
	c.seen(spec.ServiceKey{Namespace: "c", Name: "new"}) // came after the start: nobody waits for it
	if !table.Load().Partial {
		t.Error("the table isn't partial though b/x wasn't looked at")
	}
	c.seen(b)
	if table.Load().Partial {
		t.Error("the table stays partial though all were looked at")
	}
	c.publish(b, nil)
	if table.Load().Partial {
		t.Error("a later table is partial")
	}
}

func TestServicesOfTheStartAreExpectedFromTheAPIItself(t *testing.T) {
	b := newBench(t)
	b.service("there")
	b.ready("there")
	table := &state.Topic[route.Table]{}
	c := New(b.cfg, b.platform, table)
	if err := c.expectAll(t.Context(), api.server.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	key := b.key("there")
	if len(c.unseen) != 1 || !c.unseen[key] || !table.Load().Partial {
		t.Errorf("expects %v, partial %v; want %v alone and a partial table", c.unseen, table.Load().Partial, key)
	}
}

func TestAnOperatorWaitsForAnAPIThatRefusesAtFirst(t *testing.T) {
	b := newBench(t)
	b.service("there")
	b.ready("there")
	var refusals atomic.Int64
	config := api.server.RESTConfig()
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/inferenceservices") && refusals.Add(1) == 1 {
				return nil, errors.New("the API server starts")
			}
			return next.RoundTrip(r)
		})
	}
	c := New(b.cfg, b.platform, &state.Topic[route.Table]{})
	if !c.awaitAll(t.Context(), config) || !c.unseen[b.key("there")] || refusals.Load() != 2 {
		t.Errorf("it expects %v after %d requests", c.unseen, refusals.Load())
	}
	refusals.Store(0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if c.awaitAll(ended, config) {
		t.Error("it goes on though it was told to end")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
