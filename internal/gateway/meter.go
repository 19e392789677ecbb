package gateway

import (
	"context"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/gateway/wait"
)

// meter measures the load of one revision: the area under the number of its requests over time.
type meter struct {
	key targetKey
	// queue is of the requests that wait for a free place at one of the revision's endpoints.
	queue wait.Queue

	mu    sync.Mutex
	n     int // under way, those that wait included
	held  int
	began int
	area  time.Duration // requests times time, since from
	from  time.Time
	last  time.Time
}

// advance brings the area up to now. The caller holds mu.
func (m *meter) advance(now time.Time) {
	if d := now.Sub(m.last); d > 0 {
		m.area += time.Duration(m.n) * d
		m.last = now
	}
}

// enter counts a request from now on; fresh says that it is new to the gateway.
func (m *meter) enter(now time.Time, fresh bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(now)
	m.n++
	if fresh {
		m.began++
	}
}

func (m *meter) leave(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(now)
	m.n--
}

// hold counts a request as one that waits, and reports whether it is the only one.
func (m *meter) hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held++
	return m.held == 1
}

func (m *meter) unhold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held--
}

func (m *meter) heldNow() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
}

// cut returns the load since the last cut, and begins anew.
func (m *meter) cut(now time.Time) demand.Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(now)
	s := demand.Sample{Service: m.key.service, Revision: m.key.revision, Held: m.held}
	if d := now.Sub(m.from); d > 0 {
		s.Concurrency = float64(m.area) / float64(d)
		s.RPS = float64(m.began) / d.Seconds()
	}
	m.area, m.began, m.from, m.last = 0, 0, now, now
	return s
}

// meters are those of the revisions in the table.
type meters struct {
	mu  sync.Mutex
	all map[targetKey]*meter
}

func (ms *meters) of(key targetKey) *meter {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.all[key]
	if m == nil {
		if ms.all == nil {
			ms.all = map[targetKey]*meter{}
		}
		now := time.Now()
		m = &meter{key: key, from: now, last: now}
		ms.all[key] = m
	}
	return m
}

func (ms *meters) prune(keep func(targetKey) bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for key := range ms.all {
		if !keep(key) {
			delete(ms.all, key)
		}
	}
}

// report makes the report of a whole second that ends now.
func (ms *meters) report(now time.Time, last *demand.Report) *demand.Report {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	r := &demand.Report{Second: 1, Samples: make([]demand.Sample, 0, len(ms.all))}
	if last != nil {
		r.Second = last.Second + 1
	}
	for _, m := range ms.all {
		r.Samples = append(r.Samples, m.cut(now))
	}
	return r
}

// early repeats the averages of the last report with what waits now.
func (ms *meters) early(last *demand.Report) *demand.Report {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	r := &demand.Report{Early: true, Samples: make([]demand.Sample, 0, len(ms.all))}
	averages := map[targetKey]demand.Sample{}
	if last != nil {
		r.Second = last.Second
		for _, s := range last.Samples {
			averages[targetKey{s.Service, s.Revision}] = s
		}
	}
	for key, m := range ms.all {
		s := averages[key]
		s.Service, s.Revision, s.Held = key.service, key.revision, m.heldNow()
		r.Samples = append(r.Samples, s)
	}
	return r
}

// measure publishes a report each second, half way between two seconds of the clock so that
// each falls into one, and one more when a request begins to wait where nothing runs.
func (g *Gateway) measure(ctx context.Context) error {
	next := func() time.Duration {
		now := time.Now()
		return now.Truncate(time.Second).Add(3 * time.Second / 2).Sub(now)
	}
	timer := time.NewTimer(next())
	defer timer.Stop()
	var last *demand.Report
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			last = g.meters.report(time.Now(), last)
			last.Answers = g.witnesses.report(time.Now())
			timer.Reset(next())
		case <-g.cold:
			last = g.meters.early(last)
		}
		g.cfg.Demand.Publish(last)
	}
}
