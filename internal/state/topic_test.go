package state_test

import (
	"sync"
	"testing"

	"stationmaster.dev/stationmaster/internal/state"
)

func TestTopicGivesTheLatestValueAndWakesWatchers(t *testing.T) {
	var topic state.Topic[int]
	if got := topic.Load(); got != nil {
		t.Fatalf("an unpublished topic holds %d", *got)
	}
	_, changed := topic.Watch()
	one, two := 1, 2
	topic.Publish(&one)
	<-changed
	topic.Publish(&two)
	if got, _ := topic.Watch(); *got != 2 {
		t.Errorf("got %d, want the latest, 2", *got)
	}
}

func TestTopicUnderConcurrentUse(t *testing.T) {
	var topic state.Topic[int]
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 100 {
				topic.Publish(&i)
			}
		})
		wg.Go(func() {
			for range 100 {
				topic.Load()
				topic.Watch()
			}
		})
	}
	wg.Wait()
	if topic.Load() == nil {
		t.Error("nothing was published")
	}
}
