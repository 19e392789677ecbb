// Package limits asks the engines of revisions, once they are ready, how many tokens a request may have, and
// keeps what they tell for as long as there is the revision.
package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

const (
	// patience bounds one question.
	patience = 5 * time.Second
	// together is how many revisions are asked at once.
	together = 8
	// firstPause is that before an engine that couldn't tell is asked again; each one after is twice as
	// long, up to longestPause.
	firstPause   = 5 * time.Second
	longestPause = 10 * time.Minute
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 4 << 20
)

// Known is how many tokens a request to a revision may have, as its engine tells. It is immutable.
type Known = map[spec.RevisionKey]int

// Asker asks. Make it with New and drive it with Run.
type Asker struct {
	table *state.Topic[route.Table]
	known *state.Topic[Known]
	log   *slog.Logger
	// ask puts one question to an endpoint; tests have another.
	ask func(ctx context.Context, e *route.Endpoint, q adapter.Question, model string) (int, error)
}

// New makes an asker of the revisions of a routing table, which publishes what it learns. It starts nothing.
// Without a log nothing is logged.
func New(table *state.Topic[route.Table], known *state.Topic[Known], log *slog.Logger) *Asker {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Asker{table: table, known: known, log: log, ask: ask}
}

// asked is what came of asking a revision's engine.
type asked struct {
	// told says that it answered; tokens is 0 where it doesn't tell.
	told   bool
	tokens int
	// tries failed in a row; next is when the next is due.
	tries int
	next  time.Time
}

// Run asks until ctx ends, and returns nil; it has joined all it started then.
func (a *Asker) Run(ctx context.Context) error {
	all := map[spec.RevisionKey]*asked{}
	published := Known{}
	for ctx.Err() == nil {
		table, changed := a.table.Watch()
		due, next := follow(all, table, time.Now())
		a.askAll(ctx, due, all)
		if now := told(all); !maps.Equal(now, published) {
			published = now
			a.known.Publish(&now)
		}
		if len(due) > 0 {
			continue // some of them may be due again
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// follow forgets revisions that a table doesn't have, and returns those to be asked now, with the time until
// others are.
func follow(all map[spec.RevisionKey]*asked, t *route.Table, now time.Time) (due map[spec.RevisionKey]*route.Target, next time.Duration) {
	due, next = map[spec.RevisionKey]*route.Target{}, longestPause
	there := map[spec.RevisionKey]bool{}
	if t == nil {
		return due, next
	}
	for service, b := range t.Backends {
		for i := range b.Targets {
			target := &b.Targets[i]
			key := spec.RevisionKey{Namespace: service.Key.Namespace, Name: target.Revision}
			there[key] = true
			if e := engine.ByName(target.Engine); e == nil || len(e.Limits) == 0 || len(target.Endpoints) == 0 {
				continue
			}
			was := all[key]
			switch {
			case was == nil:
				was = &asked{next: now}
				all[key] = was
			case was.told:
				continue
			}
			if left := was.next.Sub(now); left > 0 {
				next = min(next, left)
				continue
			}
			due[key] = target
		}
	}
	maps.DeleteFunc(all, func(key spec.RevisionKey, _ *asked) bool { return !there[key] })
	return due, next
}

func (a *Asker) askAll(ctx context.Context, due map[spec.RevisionKey]*route.Target, all map[spec.RevisionKey]*asked) {
	var asking sync.WaitGroup
	places := make(chan struct{}, together)
	for key, target := range due {
		of := all[key]
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			a.askOne(ctx, key, target, of)
		})
	}
	asking.Wait()
}

// askOne asks one of a revision's replicas, another each time.
func (a *Asker) askOne(ctx context.Context, key spec.RevisionKey, t *route.Target, of *asked) {
	e := &t.Endpoints[of.tries%len(t.Endpoints)]
	var failed error
	for _, q := range engine.ByName(t.Engine).Limits {
		n, err := a.ask(ctx, e, q, t.ModelName)
		if n > 0 {
			of.told, of.tokens = true, n
			return
		}
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		of.told = true // that it doesn't say
		return
	}
	pause := min(firstPause<<min(of.tries, 10), longestPause)
	of.tries, of.next = of.tries+1, time.Now().Add(pause)
	a.log.DebugContext(ctx, "ask an engine how many tokens it takes", "revision", key, "address", e.HTTP, "err", failed)
}

// told is what engines told, those that said nothing apart.
func told(all map[spec.RevisionKey]*asked) Known {
	out := Known{}
	for key, of := range all {
		if of.tokens > 0 {
			out[key] = of.tokens
		}
	}
	return out
}

// ask puts a question over a connection of its own: it is asked once.
func ask(ctx context.Context, e *route.Endpoint, q adapter.Question, model string) (int, error) {
	if e.HTTP == "" {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	method, body := http.MethodGet, []byte(nil)
	if q.Body != nil {
		method, body = http.MethodPost, q.Body(model)
	}
	req, err := http.NewRequestWithContext(ctx, method, e.Security.Scheme()+"://"+e.HTTP+q.Path, bytes.NewReader(body))
	if err != nil {
		return 0, errdef.New(errdef.ErrInvalid, "the engine's address can't be read")
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c := client(e.Security)
	defer c.CloseIdleConnections()
	resp, err := c.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, q.Path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s %s: %w", method, q.Path, err)
	case resp.StatusCode != http.StatusOK:
		return 0, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("the engine answers %d to %s %s", resp.StatusCode, method, q.Path))
	}
	return q.Read(answer, model), nil
}

func client(security enginetls.Security) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: patience}).DialContext, MaxResponseHeaderBytes: 64 << 10,
			TLSClientConfig: security.Config(), TLSHandshakeTimeout: patience,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
