package wait_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"stationmaster.dev/stationmaster/internal/gateway/fair"
	"stationmaster.dev/stationmaster/internal/gateway/wait"
)

func called(t *wait.Ticket) bool {
	select {
	case <-t.Turn():
		t.Called()
		return true
	default:
		return false
	}
}

func TestPlacesHaveAnEnd(t *testing.T) {
	p := wait.NewPlaces(2)
	taken := 0
	for p.Take() {
		taken++
	}
	if taken != 2 || p.Limit() != 2 {
		t.Errorf("%d of two places were taken", taken)
	}
	if p.Give(); !p.Take() {
		t.Error("a place that was given back is taken")
	}
	if none := (*wait.Places)(nil); !none.Take() {
		t.Error("where there is no limit there was no place")
	}
}

func TestATurnThatIsntUsedIsPassedOn(t *testing.T) {
	for name, leave := range map[string]func(first *wait.Ticket){
		"taken":     func(first *wait.Ticket) { called(first) },
		"not taken": func(*wait.Ticket) {},
	} {
		t.Run(name, func(t *testing.T) {
			var q wait.Queue
			first, second := q.Join(1), q.Join(2)
			if q.May(nil) || q.May(second) || !q.May(first) {
				t.Error("another than the first may try")
			}
			q.Next()
			leave(first)
			if called(second) {
				t.Error("two have their turn")
			}
			q.Leave(first)
			if !called(second) {
				t.Error("nobody has a turn")
			}
			second.Used()
			q.Leave(second)
			if !q.May(nil) {
				t.Error("nobody waits, and a newcomer may not try")
			}
		})
	}
}

func TestATurnInVainMakesItTheNext(t *testing.T) {
	var q wait.Queue
	first, second := q.Join(1), q.Join(2)
	q.Next()
	if !called(first) {
		t.Fatal("it has no turn")
	}
	q.Again(first)
	q.Next()
	if called(second) || !called(first) {
		t.Error("the other one came before it")
	}
}

// Whoever waits gets a place in the end, and there are never more of them than places.
func TestEverybodyGetsAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, requests = 3, 200
		p, q := wait.NewPlaces(places), &wait.Queue{}
		var at, most atomic.Int64
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				var ticket *wait.Ticket
				for !q.May(ticket) || !p.Take() {
					if ticket == nil {
						ticket = q.Join(fair.Flow(i % 7))
					} else {
						q.Again(ticket)
					}
					if q.May(ticket) && p.Take() { // it may have come between
						break
					}
					<-ticket.Turn()
					ticket.Called()
				}
				if ticket != nil {
					ticket.Used()
					q.Leave(ticket)
					q.Next()
				}
				n := at.Add(1)
				for {
					if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
						break
					}
				}
				at.Add(-1)
				p.Give()
				q.Next()
			})
		}
		wg.Wait()
		if most.Load() > places {
			t.Errorf("%d were at %d places", most.Load(), places)
		}
	})
}

func TestACrowdSendsAwayWhoHasMoreThanItsPart(t *testing.T) {
	c := wait.NewCrowd(2)
	mine := fair.Key{Namespace: "a", Service: "s", Flow: 1}
	first, second := c.Enter(mine, 0), c.Enter(mine, 0)
	if first == nil || second == nil || c.Size() != 2 {
		t.Fatalf("%d wait", c.Size())
	}
	if c.Enter(mine, 0) != nil {
		t.Error("it has a third place of two")
	}
	other := c.Enter(fair.Key{Namespace: "b", Service: "s", Flow: 2}, 0)
	if other == nil || first.IsOut() == second.IsOut() || other.IsOut() {
		t.Fatal("nobody, or the wrong one, was sent away")
	}
	if second.IsOut() {
		first, second = second, first
	}
	<-first.Out()
	c.Leave(first)
	c.Leave(second)
	c.Leave(other)
	if c.Size() != 0 {
		t.Errorf("%d wait", c.Size())
	}
	if c.Enter(mine, 70<<10) != nil {
		t.Error("a body of three units has two places")
	}
}
