package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"strconv"
	"sync"
	"time"
)

// updated is what the updates showed.
type updated struct {
	Updates  int                `json:"updates"`
	Seconds  float64            `json:"seconds"`
	Requests map[kind]figures   `json:"requests"`
	Lost     int                `json:"lost"`
	Canary   map[string]float64 `json:"canary_10_percent_got,omitempty"`
	Before   size               `json:"up_before"`
	After    size               `json:"up_after"`
}

// update changes a service under load, every third time back to what it was before, and then
// measures how a canary of 10 % shares the traffic.
func update(ctx context.Context, u *up, n, split int) (*updated, error) {
	s := shaped{name: "echo", shape: 1, replicas: [2]int64{1, 1}, canary: -1}
	l, err := newLoad(u.http, u.grpc)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.close() }()
	if err := settle(ctx, u, l, s); err != nil {
		return nil, err
	}
	r := &updated{Updates: n}
	if r.Before, err = u.size(); err != nil {
		return nil, err
	}
	asking, stop := context.WithCancel(ctx)
	for k, rate := range rates {
		l.run(asking, k, s.name, rate)
	}
	began := time.Now()
	err = func() error {
		newest := s.shape
		for i := range n {
			before := s.shape
			if i%3 == 2 {
				s.shape = max(newest-1, 1) // a rollback: the manifest of before
			} else {
				newest++
				s.shape = newest
			}
			if s.shape == before {
				newest++
				s.shape = newest
			}
			if err := settle(ctx, u, l, s); err != nil {
				return fmt.Errorf("update %d, from shape %d to %d: %w", i+1, before, s.shape, err)
			}
			if (i+1)%10 == 0 {
				log.Printf("%d updates in %v, %d requests lost", i+1, time.Since(began).Round(time.Second), len(l.losses()))
			}
		}
		return nil
	}()
	r.Seconds = math.Round(time.Since(began).Seconds())
	stop()
	l.wait()
	r.Requests, r.Lost = l.figures(), len(l.losses())
	for i, x := range l.losses() {
		if i < 20 {
			log.Print("lost: ", x)
		}
	}
	if r.Lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests were lost", r.Lost))
	}
	if err == nil && split > 0 {
		r.Canary, err = shares(ctx, u, l, s, split)
	}
	var big error
	r.After, big = u.shrunk(ctx, r.Before)
	return r, errors.Join(err, big)
}

// settle applies s and returns once it alone answers and the status says so.
func settle(ctx context.Context, u *up, l *load, s shaped) error {
	if err := u.apply(ctx, s); err != nil {
		return err
	}
	want := strconv.Itoa(s.shape)
	return await(ctx, 2*time.Minute, s.name+" in shape "+want, func() (bool, string) {
		head, err := l.infer(ctx, s.name, strconv.FormatInt(l.next.Add(1), 10))
		if err != nil {
			return false, err.Error()
		}
		if got := head.Get(shapeHeader); got != want {
			return false, "shape " + got + " answers"
		}
		if ok, why := u.ready(ctx, s.name); !ok {
			return false, why
		}
		return u.rolledOut(ctx, s.name), "it isn't rolled out"
	})
}

// shares counts n answers by shape while a canary has 10 %: within one percentage point.
func shares(ctx context.Context, u *up, l *load, s shaped, n int) (map[string]float64, error) {
	s.shape, s.canary = s.shape+1000, 10
	if err := u.apply(ctx, s); err != nil {
		return nil, err
	}
	err := await(ctx, time.Minute, "the canary", func() (bool, string) {
		head, err := l.infer(ctx, s.name, strconv.FormatInt(l.next.Add(1), 10))
		return err == nil && head.Get(shapeHeader) == strconv.Itoa(s.shape), "it doesn't answer"
	})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[string]int{}
	var failed error
	const clients = 4
	for range clients {
		wg.Go(func() {
			for range n / clients {
				head, err := l.infer(ctx, s.name, strconv.FormatInt(l.next.Add(1), 10))
				mu.Lock()
				if err != nil {
					failed = err
				} else {
					seen[head.Get(shapeHeader)]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	out := map[string]float64{}
	for shape, k := range seen {
		out[shape] = math.Round(float64(k)/float64(n)*10000) / 100
	}
	if got := out[strconv.Itoa(s.shape)]; failed == nil && math.Abs(got-10) > 1 {
		failed = fmt.Errorf("a canary of 10 %% got %v %% of %d requests", got, n)
	}
	return out, failed
}
