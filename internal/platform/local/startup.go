package local

import (
	"slices"
	"time"

	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/spec"
)

// granted returns a workload whose engine's startup probe waits long enough for a start like the
// ones before, and never shorter than it is written. An engine whose liveness is probed from the
// start gets one; where neither probe would end it, none is needed.
func granted(w spec.Workload, startup time.Duration) spec.Workload {
	server := *w.Server()
	if startup == 0 || server.Startup == nil && server.Liveness == nil {
		return w
	}
	var p spec.Probe
	if server.Startup != nil {
		p = *server.Startup
	} else {
		p = *server.Liveness
		p.FailureThreshold += int(p.InitialDelay / max(p.Period, time.Second))
		p.InitialDelay, p.SuccessThreshold = 0, 1
	}
	every := max(p.Period, time.Second)
	p.FailureThreshold = max(p.FailureThreshold, int((platform.Granted(startup)-p.InitialDelay+every-1)/every))
	server.Startup = &p
	w.Containers = slices.Clone(w.Containers)
	w.Containers[0] = server
	return w
}
