// Package probe asks an engine whether it is well, as the kubelet would: by HTTP, TCP, gRPC
// health or a command.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// bodyLimit is how much of an answer is read, the kubelet's 10 KiB; messages show far less.
const bodyLimit = 10 << 10

// Target says how to reach what is probed.
type Target struct {
	// Port maps a container's port number to the one that it listens on; nil means itself.
	Port func(int) int
	// Exec runs a command beside the container and returns its output and an error if it
	// didn't succeed. Nil means that commands can't be run (errdef.ErrUnsupported).
	Exec func(ctx context.Context, argv []string) (output string, err error)
}

func (t Target) port(n int) string {
	if t.Port != nil {
		n = t.Port(n)
	}
	return strconv.Itoa(n)
}

// Do carries out the action within timeout (zero means one second, Kubernetes' default) and
// returns nil when it succeeded. Otherwise the error says what was asked and what came back;
// it is of kind ErrUnavailable, ErrTimeout, or ErrUnsupported. A host that isn't given is
// the loopback address. Do blocks and is safe for concurrent use.
func Do(ctx context.Context, a spec.Action, t Target, timeout time.Duration) error {
	if timeout <= 0 {
		timeout = time.Second
	}
	what := fmt.Sprintf("no answer within %v", timeout)
	if a.Sleep > 0 {
		timeout += a.Sleep
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errdef.New(errdef.ErrTimeout, what))
	defer cancel()
	err := do(ctx, a, t)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name(a, t), context.Cause(ctx))
	}
	return err
}

func do(ctx context.Context, a spec.Action, t Target) error {
	switch {
	case a.HTTP != nil:
		return get(ctx, a.HTTP, t)
	case a.TCP != nil:
		return dial(ctx, a.TCP, t)
	case a.GRPC != nil:
		return health(ctx, a.GRPC, t)
	case len(a.Exec) > 0:
		if t.Exec == nil {
			return errdef.New(errdef.ErrUnsupported, "exec probes can't run here; use an http, tcp or grpc probe")
		}
		if out, err := t.Exec(ctx, a.Exec); err != nil {
			return fmt.Errorf("%s: %w: %s", name(a, t), err, clip(out))
		}
		return nil
	case a.Sleep > 0:
		select {
		case <-time.After(a.Sleep):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errdef.New(errdef.ErrInvalid, "the probe has no action")
}

func name(a spec.Action, t Target) string {
	switch {
	case a.HTTP != nil:
		return "GET " + address(a.HTTP, t)
	case a.TCP != nil:
		return "tcp port " + t.port(a.TCP.Port)
	case a.GRPC != nil:
		return "gRPC health on port " + t.port(a.GRPC.Port)
	case len(a.Exec) > 0:
		return "command " + a.Exec[0]
	}
	return "wait"
}

func host(h string) string {
	if h == "" {
		return "127.0.0.1"
	}
	return h
}

func address(a *spec.HTTPAction, t Target) string {
	scheme := "http"
	if a.TLS {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host(a.Host), t.port(a.Port)) + "/" + strings.TrimPrefix(a.Path, "/")
}

// client follows redirects on the same host only, keeps no connection, uses no proxy and
// doesn't check certificates: the kubelet's rules
// (https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/).
var client = &http.Client{
	Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the kubelet's rule: probes skip verification
	},
	CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
			return http.ErrUseLastResponse
		}
		return nil
	},
}

func get(ctx context.Context, a *spec.HTTPAction, t Target) error {
	url := address(a, t)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("probe %s: %w: %w", url, errdef.ErrInvalid, err)
	}
	req.Header.Set("User-Agent", "kube-probe/stationmaster")
	req.Header.Set("Accept", "*/*")
	for k, v := range a.Headers {
		if http.CanonicalHeaderKey(k) == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	if resp.StatusCode >= 200 && resp.StatusCode < 400 {
		if err != nil {
			return fmt.Errorf("GET %s: %w: %w", url, errdef.ErrUnavailable, err)
		}
		return nil
	}
	return errdef.New(errdef.ErrUnavailable, fmt.Sprintf("GET %s answered %d: %s", url, resp.StatusCode, clip(string(body))))
}

func dial(ctx context.Context, a *spec.TCPAction, t Target) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host(a.Host), t.port(a.Port)))
	if err != nil {
		return fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	return conn.Close()
}

func health(ctx context.Context, a *spec.GRPCAction, t Target) error {
	addr := net.JoinHostPort("127.0.0.1", t.port(a.Port))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent("kube-probe/stationmaster"), grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("gRPC health %s: %w: %w", addr, errdef.ErrInternal, err)
	}
	defer conn.Close()
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: a.Service})
	if err != nil {
		return fmt.Errorf("gRPC health %s: %w: %w", addr, errdef.ErrUnavailable, err)
	}
	if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return errdef.New(errdef.ErrUnavailable, fmt.Sprintf("gRPC health %s says %s for service %q", addr, resp.GetStatus(), a.Service))
	}
	return nil
}

// ErrExit is wrapped by Target.Exec for a command that ended with a code other than zero.
var ErrExit = errors.New("command failed")

func clip(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
