package gateway

import (
	"context"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
)

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
			last = g.loads.Report(time.Now(), last)
			last.Answers = g.answers.Report(time.Now())
			timer.Reset(next())
		case <-g.cold:
			last = g.loads.Early(last)
		}
		g.cfg.Demand.Publish(last)
	}
}
