package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// outageEnv says how long the API server is away, where that isn't a minute.
const outageEnv = "STATIONMASTER_E2E_OUTAGE"

// kill deletes pods of the system without grace.
func kill(t *testing.T, pods ...corev1.Pod) {
	t.Helper()
	for i := range pods {
		if err := api.Delete(t.Context(), &pods[i], client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
}

// running waits until a part of the system has both replicas, and returns its pods.
func running(t *testing.T, name string) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, "both replicas of "+name+" are ready", func() error {
		var err error
		if pods, err = ready(t.Context(), system, name); err == nil && len(pods) != 2 {
			err = fmt.Errorf("%d are", len(pods))
		}
		return err
	})
	return pods
}

// again repeats a request for as long as there is no answer to it, as clients do that know that
// a connection may break.
func again(r request, repeated *atomic.Int64) request {
	return func(ctx context.Context) error {
		const most = 10
		for n := 0; ; n++ {
			err := r(ctx)
			if err == nil || !unanswered(err) || n == most {
				return err
			}
			repeated.Add(1)
		}
	}
}

// unanswered reports that a connection failed, as opposed to an answer that isn't the right one.
func unanswered(err error) bool {
	var broken net.Error
	return errors.As(err, &broken) || status.Code(err) == codes.Unavailable
}

func (s *installation) testGatewayKilled(t *testing.T) {
	ns := namespace(t, restricted)
	s.start(t, iris(t, ns, "oci://"+irisImage))
	var repeated atomic.Int64
	l := startLoad(t, 50, again(s.rest(ns, "iris"), &repeated), again(s.grpc(t, ns, "iris"), &repeated))
	killed := running(t, gateway)[0]
	began := time.Now()
	kill(t, killed)
	eventually(t, "another one has taken its place", func() error {
		pods, err := ready(t.Context(), system, gateway)
		if err != nil {
			return err
		}
		n := 0
		for _, p := range pods {
			if p.Name != killed.Name {
				n++
			}
		}
		if n != 2 {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
	t.Logf("another one is ready after %.1f s", time.Since(began).Seconds())
	l.end(t)
	t.Logf("%d requests were repeated because a connection broke", repeated.Load())
}

// testRestarted restarts all of the system, as an upgrade does. Nothing is lost but, at most once for
// each gateway, a request over a kept connection of HTTP/1.1 that is being closed in that moment, which
// the protocol has its client repeat (RFC 9112, 9.3.1).
func (s *installation) testRestarted(t *testing.T) {
	ns := namespace(t, restricted)
	s.start(t, iris(t, ns, "oci://"+irisImage))
	before, err := ready(t.Context(), ns, "isvc.iris-predictor")
	if err != nil {
		t.Fatal(err)
	}
	var repeated atomic.Int64
	l := startLoad(t, 50, again(s.rest(ns, "iris"), &repeated), s.grpc(t, ns, "iris"))
	began := time.Now()
	s.kubectl(t, nil, "-n", system, "rollout", "restart", "deployment")
	s.kubectl(t, nil, "-n", system, "rollout", "status", "deployment", "--timeout=90s")
	eventually(t, "the old pods are gone", func() error {
		var pods corev1.PodList
		if err := api.List(t.Context(), &pods, client.InNamespace(system)); err != nil || len(pods.Items) != 4 {
			return fmt.Errorf("%d pods: %w", len(pods.Items), err)
		}
		return nil
	})
	t.Logf("restarted in %.1f s", time.Since(began).Seconds())
	l.end(t)
	if n := repeated.Load(); n > 2 {
		t.Errorf("%d requests were repeated because a connection broke, want one for each gateway at most", n)
	}
	after, err := ready(t.Context(), ns, "isvc.iris-predictor")
	if err != nil || len(after) != 1 || after[0].UID != before[0].UID {
		t.Errorf("the engine's pod didn't stay: %d pods, %v", len(after), err)
	}
}

func (s *installation) testOutage(t *testing.T) {
	away := time.Minute
	if text := os.Getenv(outageEnv); text != "" {
		var err error
		if away, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", outageEnv, err)
		}
	}
	ns := namespace(t, restricted)
	service := iris(t, ns, "oci://"+irisImage, shape("1"))
	s.start(t, service)
	// Its pods are there before the outage: after one, Kubernetes' own controllers take up to a
	// minute until they make new ones.
	apply(t, iris(t, ns, "oci://"+irisImage, shape("2"), canary(10)))
	eventually(t, "the canary has a share", func() error {
		if seen := s.tally(t, ns, 80); seen["iris-predictor-00002"] == 0 {
			return fmt.Errorf("answers came of %v", seen)
		}
		return nil
	})
	l := startLoad(t, 50, s.rest(ns, "iris"), s.grpc(t, ns, "iris"))
	if err := shared.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	<-time.After(away)
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("the API server was away for %v", away)
	began := time.Now()
	apply(t, iris(t, ns, "oci://"+irisImage, shape("2")))
	// Operators that lost their lease are started again, after a pause that has grown meanwhile.
	within(t, 2*patience, "the canary is promoted", func() error {
		if seen := s.tally(t, ns, 40); seen["iris-predictor-00002"] != 40 {
			return fmt.Errorf("answers came of %v", seen)
		}
		return nil
	})
	t.Logf("a promotion after that is in effect in %.1f s", time.Since(began).Seconds())
	l.end(t)
	running(t, gateway)
	running(t, operator)
}
