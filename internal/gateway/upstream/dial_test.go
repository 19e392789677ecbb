package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// dialer makes pipes, when it is let; it counts.
type dialer struct {
	now, most, all atomic.Int64
	gate           chan error
}

func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n := d.now.Add(1)
	defer d.now.Add(-1)
	d.all.Add(1)
	for m := d.most.Load(); n > m && !d.most.CompareAndSwap(m, n); m = d.most.Load() {
	}
	select {
	case err := <-d.gate:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ours, _ := net.Pipe() // of which nobody reads
	return ours, nil
}

func burst(t *testing.T, h *Host, n int, each func(*conn, error)) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { each(h.connect(t.Context(), time.Now().Add(time.Hour), true)) })
	}
	synctest.Wait()
	return &wg
}

func TestABurstDialsATurnAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{gate: make(chan error)}
		h := NewPool(Config{Dial: d.dial, MaxDials: 4}).Host("a:1")
		var had atomic.Int64
		wg := burst(t, h, 100, func(c *conn, err error) {
			if err != nil {
				t.Error(err)
				return
			}
			had.Add(1)
			defer c.close()
		})
		if n := d.now.Load(); n != 4 {
			t.Errorf("%d dial at a time, want 4", n)
		}
		for range 100 {
			d.gate <- nil
			synctest.Wait()
		}
		wg.Wait()
		if d.most.Load() != 4 || had.Load() != 100 || h.dials != 0 || h.waiting.Len() != 0 {
			t.Errorf("%d at a time, %d had one, %d turns are taken, %d wait", d.most.Load(), had.Load(), h.dials, h.waiting.Len())
		}
	})
}

func TestAConnectionThatIsFreeAgainGoesToWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{gate: make(chan error, 1)}
		h := NewPool(Config{Dial: d.dial, MaxDials: 1}).Host("a:1")
		d.gate <- nil
		used, err := h.dial(t.Context(), time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		slow := burst(t, h, 1, func(c *conn, _ error) { c.close() })
		others := burst(t, h, 50, func(c *conn, err error) {
			if c != used || err != nil {
				t.Errorf("got %p, %v; want %p", c, err, used)
				return
			}
			h.put(c)
		})
		used.idleSince = time.Now()
		h.put(used)
		others.Wait()
		if n := d.all.Load(); n != 2 || h.Idle() != 1 {
			t.Errorf("%d dialled, want 2; %d idle, want 1", n, h.Idle())
		}
		d.gate <- nil
		slow.Wait()
		h.close()
	})
}

func TestADialThatHangsHoldsNobodyUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{gate: make(chan error)}
		h := NewPool(Config{Dial: d.dial, MaxDials: 2, DialTimeout: time.Minute}).Host("a:1")
		wg := burst(t, h, 10, func(c *conn, _ error) { c.close() })
		time.Sleep(eager)
		synctest.Wait()
		if n := d.now.Load(); n != 10 {
			t.Errorf("%d dial after %v, want all 10", n, eager)
		}
		for range 10 {
			d.gate <- nil
		}
		wg.Wait()
		if h.dials != 0 || h.waiting.Len() != 0 {
			t.Errorf("%d turns are taken, %d wait", h.dials, h.waiting.Len())
		}
	})
}

func TestWhereADialFailsAllDialAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{gate: make(chan error)}
		h := NewPool(Config{Dial: d.dial, MaxDials: 1}).Host("a:1")
		var failed atomic.Int64
		wg := burst(t, h, 10, func(_ *conn, err error) {
			if err != nil {
				failed.Add(1)
			}
		})
		d.gate <- errors.New("refused")
		synctest.Wait()
		if n := d.now.Load(); n != 9 {
			t.Errorf("%d dial, want the other 9", n)
		}
		for range 9 {
			d.gate <- errors.New("refused")
		}
		wg.Wait()
		if failed.Load() != 10 || h.dials != 0 {
			t.Errorf("%d failed, %d turns are taken", failed.Load(), h.dials)
		}
	})
}

func TestWhoGoesAwayWhileHeWaitsLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{gate: make(chan error)}
		h := NewPool(Config{Dial: d.dial, MaxDials: 1}).Host("a:1")
		wg := burst(t, h, 1, func(c *conn, _ error) { h.put(c) })
		ctx, cancel := context.WithCancel(t.Context())
		var gone sync.WaitGroup
		gone.Go(func() {
			if _, err := h.connect(ctx, time.Now().Add(time.Hour), true); err == nil {
				t.Error("it has a connection though its client is gone")
			}
		})
		synctest.Wait()
		cancel()
		gone.Wait()
		d.gate <- nil
		wg.Wait()
		if h.waiting.Len() != 0 || h.dials != 0 || h.Idle() != 1 {
			t.Errorf("%d wait, %d turns are taken, %d idle", h.waiting.Len(), h.dials, h.Idle())
		}
		h.close()
	})
}

// A turn lasts until the first answer, and no longer than its pace: a slow engine gets connections as
// time passes, a fast one has those that it has used again.
func TestATurnEndsWithItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{gate: make(chan error)}
		close(d.gate) // nothing keeps a dial up
		h := NewPool(Config{Dial: d.dial, MaxDials: 2}).Host("a:1")
		answered := make(chan bool)
		hold := func(c *conn, err error) {
			if err != nil {
				t.Error(err)
				return
			}
			<-answered
			h.put(c)
		}
		all := burst(t, h, 7, hold)
		for _, want := range []int64{2, 4, 6} {
			if n := d.all.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
			if want < 6 {
				time.Sleep(pace)
				synctest.Wait()
			}
		}
		for range 7 { // the last one has the first connection that is free again
			answered <- true
		}
		all.Wait()
		if n := d.all.Load(); n != 6 || h.dials != 0 {
			t.Errorf("%d connections, want 6; %d turns are taken", n, h.dials)
		}
		h.close()
	})
}
