package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestAnOperatorThatStartsWaitsForItsAPIServer(t *testing.T) {
	for name, tc := range map[string]struct {
		failures    int
		ends        bool
		tries, told int
	}{
		"it is there":                        {tries: 1},
		"it comes in a while":                {failures: 3, tries: 4, told: 1},
		"the operator is told to end before": {failures: 9, ends: true, tries: 2, told: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				tries, told := 0, 0
				err := untilDone(ctx, func() error {
					if tries++; tc.ends && tries == 2 {
						cancel()
					}
					if tries <= tc.failures {
						return errors.New("forbidden")
					}
					return nil
				}, func(error) { told++ })
				if tries != tc.tries || told != tc.told || errors.Is(err, context.Canceled) != tc.ends {
					t.Errorf("%d tries, told %d times: %v; want %d, %d, ended %v", tries, told, err, tc.tries, tc.told, tc.ends)
				}
			})
		})
	}
}
