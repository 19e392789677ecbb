package kube

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/platform"
)

// annotationStartup holds on a Deployment or a LeaderWorkerSet the seconds that an engine took to become ready, as its
// pods' startup probes were sized by.
const annotationStartup = "stationmaster.dev/startup-seconds"

// startupOf returns what a revision's startup probe is sized by, in whole seconds: what that of live,
// which runs it, was, so that no pod is replaced for it; what was measured, for a revision that
// doesn't run.
func startupOf(live client.Object, hash string, measured time.Duration) time.Duration {
	if !runs(live, hash) {
		return (measured + time.Second - 1).Truncate(time.Second)
	}
	seconds, err := strconv.Atoi(live.GetAnnotations()[annotationStartup])
	if err != nil || seconds < 0 {
		return 0 // as it was written
	}
	return time.Duration(seconds) * time.Second
}

// grant has an engine's startup probe wait long enough for a start like the ones before, and never
// shorter than it is written. An engine whose liveness is probed from the start gets one; where
// neither probe would end it, none is needed.
func grant(c *corev1.Container, startup time.Duration) {
	if c.StartupProbe == nil {
		if c.LivenessProbe == nil {
			return
		}
		c.StartupProbe = c.LivenessProbe.DeepCopy()
		c.StartupProbe.InitialDelaySeconds = 0
		c.StartupProbe.SuccessThreshold = 0
		c.StartupProbe.FailureThreshold = int32(secondsOf(c.LivenessProbe.InitialDelaySeconds)/every(c.LivenessProbe)) + times(c.LivenessProbe)
	}
	p := c.StartupProbe
	tries := (platform.Granted(startup) - secondsOf(p.InitialDelaySeconds) + every(p) - 1) / every(p)
	p.FailureThreshold = max(times(p), int32(tries))
}

func secondsOf(n int32) time.Duration { return time.Duration(n) * time.Second }

// every and times are a probe's period and how often it may fail, with Kubernetes' defaults.
func every(p *corev1.Probe) time.Duration {
	if p.PeriodSeconds > 0 {
		return secondsOf(p.PeriodSeconds)
	}
	return 10 * time.Second
}

func times(p *corev1.Probe) int32 {
	if p.FailureThreshold > 0 {
		return p.FailureThreshold
	}
	return 3
}
