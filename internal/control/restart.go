package control

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// soon is how far away a replica's next start may be for requests to wait for it. The gateway
// holds them for 10 s, which has to be enough for loading too.
const soon = 5 * time.Second

// returning reports whether a component that served and has no ready replica will have one in
// a moment, so that requests had better wait than fail.
func (f *facts) returning(now time.Time) bool {
	if f.stopped || f.want == 0 || f.rolledOut == "" || f.serving != "" {
		return false
	}
	return len(f.of(f.rolledOut)) > 0 && f.comes(now)
}

// comes reports whether nothing is known to be in the way of the rolled-out revision's next
// replica: none is there, or one may be ready in a moment.
func (f *facts) comes(now time.Time) bool {
	replicas := f.of(f.rolledOut)
	for _, r := range replicas {
		if r.Failure == nil || (!r.Failure.Terminal && !r.Failure.RetryAt.IsZero() && r.Failure.RetryAt.Before(now.Add(soon))) {
			return true
		}
	}
	return len(replicas) == 0
}

// turns is when comes will begin to be true by itself, for the next start draws near; zero means
// that time alone changes nothing.
func (f *facts) turns(now time.Time) time.Time {
	var at time.Time
	if f.comes(now) {
		return at
	}
	for _, r := range f.of(f.rolledOut) {
		if r.Failure == nil || r.Failure.Terminal || r.Failure.RetryAt.IsZero() {
			continue
		}
		// A moment later than the first, so that it is true then.
		if next := r.Failure.RetryAt.Add(time.Millisecond - soon); at.IsZero() || next.Before(at) {
			at = next
		}
	}
	return at
}

// again is when a service has to be looked at though nothing happens.
func (c *Controller) again(s *service, now time.Time) time.Time {
	at := s.plan.Again
	for _, comp := range s.comps {
		if next := s.facts(comp).turns(now); !next.IsZero() && (at.IsZero() || next.Before(at)) {
			at = next
		}
	}
	if next := now.Add(lookAgain); s.named && (at.IsZero() || next.Before(at)) {
		at = next
	}
	return at
}

// lookAgain is how long a change of a config map that a service names may take to be seen.
const lookAgain = 30 * time.Second

// awaitAll calls expectAll until the API answers, which one that has just come back may refuse to do
// for a moment, and returns false where ctx ends before.
func (c *Controller) awaitAll(ctx context.Context, config *rest.Config) bool {
	for first := true; ; first = false {
		err := c.expectAll(ctx, config)
		if err == nil {
			return true
		}
		if first && ctx.Err() == nil {
			c.log.WarnContext(ctx, "the services can't be listed yet; trying until they can", "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return false
		}
	}
}

// expectAll notes the services that exist, so that the table counts as partial until each was
// looked at once. It is called before anything is reconciled.
func (c *Controller) expectAll(ctx context.Context, config *rest.Config) error {
	sch, err := Scheme()
	if err != nil {
		return err
	}
	direct, err := client.New(config, client.Options{Scheme: sch})
	if err != nil {
		return fmt.Errorf("make API client: %w", err)
	}
	var list v1beta1.InferenceServiceList
	if err := direct.List(ctx, &list); err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	var known v1alpha1.InferenceGraphList
	if err := direct.List(ctx, &known); err != nil {
		return fmt.Errorf("list graphs: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expectGraphs(known.Items)
	for i := range list.Items {
		c.unseen[spec.ServiceKey{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}] = true
	}
	c.publishTable()
	return nil
}

// seen notes that a service was looked at, whatever came of it.
func (c *Controller) seen(key spec.ServiceKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unseen[key] {
		return
	}
	if delete(c.unseen, key); len(c.unseen) == 0 {
		c.publishTable()
	}
}

// publishTable publishes all routes. The caller holds mu.
func (c *Controller) publishTable() {
	all := make([]route.Service, 0, len(c.routes)+len(c.graphs))
	for _, r := range c.routes {
		all = append(all, r)
	}
	for _, g := range c.graphs {
		all = append(all, g)
	}
	t := route.Compile(all)
	t.Partial = len(c.unseen) > 0
	c.table.Publish(t)
}
