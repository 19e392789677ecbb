package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestThroughputAtABound(t *testing.T) {
	ps := []outcome{{Rate: 10, P99TTFT: 500}, {Rate: 20, P99TTFT: 1500}, {Rate: 24, P99TTFT: 5500}}
	for most, want := range map[float64]float64{100: 0, 500: 10, 1000: 15, 1500: 20, 3500: 22, 9000: 24} {
		if got := rateAt(ps, most); got != want {
			t.Errorf("with a p99 of %v: %v, want %v", most, got, want)
		}
	}
}

func TestATurnBeginsWithWhatWentBefore(t *testing.T) {
	next := conversation(rand.New(rand.NewPCG(1, 1)), 0)
	said := func(q ask) string {
		var all strings.Builder
		for _, m := range q.messages {
			all.WriteString(m.Role + m.Content)
		}
		return all.String()
	}
	before, turns := said(next("")), 0
	for range 40 {
		now := said(next("an answer"))
		if strings.HasPrefix(now, before+"assistantan answer") {
			turns++
		} else if !strings.HasPrefix(now, "system"+common) {
			t.Fatal("a conversation doesn't begin with what all share")
		}
		before = now
	}
	if turns < 25 || turns > 39 {
		t.Errorf("of 40 requests %d go on with a conversation", turns)
	}
}

func TestARunAgainstTheRealGateway(t *testing.T) {
	l := load{name: "apart", users: 8, user: apart}
	o, err := measure(l, 200*time.Millisecond, "round-robin", 0.02, 100*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if o.Errors > 0 || o.Answers == 0 || o.MeanTTFT <= 0 {
		t.Errorf("%+v", o)
	}
}
