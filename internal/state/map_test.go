package state_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"stationmaster.dev/stationmaster/internal/state"
)

func TestMapHoldsTheLatestValueOfEachKey(t *testing.T) {
	var m state.Map[string, int]
	if _, ok := m.Load("a"); ok || len(m.All()) != 0 {
		t.Fatal("the zero map holds something")
	}
	var wg sync.WaitGroup
	for _, k := range []string{"a", "b"} {
		wg.Go(func() {
			for i := range 100 {
				m.Store(k, i)
				m.Load(k)
				m.All()
			}
		})
	}
	wg.Wait()
	all := m.All()
	if v, ok := m.Load("a"); !ok || v != 99 || all["b"] != 99 {
		t.Errorf("a is %d, all are %v", v, all)
	}
	m.Delete("a")
	if _, ok := m.Load("a"); ok || all["a"] != 99 {
		t.Errorf("deleted: %v there, a copy made before says %v", ok, all)
	}
}

func TestFeedTellsAKeyOnceWhileNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f state.Feed[string]
		ctx, cancel := context.WithCancel(t.Context())
		keys := f.Subscribe(ctx)
		f.Notify("a")
		synctest.Wait() // the reader's goroutine offers a
		for range 3 {
			f.Notify("b")
			f.Notify("a")
		}
		var got []string
		for range 3 {
			got = append(got, <-keys)
		}
		synctest.Wait()
		select {
		case k := <-keys:
			t.Errorf("%q was told though it hasn't changed since", k)
		default:
		}
		if got[0] != "a" || got[1] != "b" || got[2] != "a" {
			t.Errorf("told %v, want the one on offer and then each key once", got)
		}
		cancel()
		if _, open := <-keys; open {
			t.Error("the channel stays open after its context")
		}
	})
}
