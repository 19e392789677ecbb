package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/platform/memory"
	"stationmaster.dev/stationmaster/internal/platform/platformtest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryIsAPlatform(t *testing.T) {
	platformtest.Run(t, func(*testing.T) platformtest.Fixture {
		return platformtest.Fixture{
			Platform: memory.New(memory.Config{Fails: func(w spec.Workload) *spec.Failure {
				if w.Server().Name == "bad" {
					return &spec.Failure{Reason: spec.Exited, ExitCode: 3, At: time.Now()}
				}
				return nil
			}}),
			Serve: func() []spec.Container { return []spec.Container{{Name: "good"}} },
			Fail:  func() []spec.Container { return []spec.Container{{Name: "bad"}} },
		}
	})
}
