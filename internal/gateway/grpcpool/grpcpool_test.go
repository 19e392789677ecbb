package grpcpool_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/grpcpool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine serves on a port of its own until the test ends or stop is called.
func engine(t *testing.T) (addr string, stop func()) {
	t.Helper()
	// An address of this process alone: on the common one, another's server may take the port of an
	// engine that has just stopped.
	pid := os.Getpid()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+pid>>16&0x7f, pid>>8&0xff, 1+pid&0x7f))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = func() { s.Stop(); <-done }
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func call(p *grpcpool.Pool, addr string) error {
	c, err := p.Begin(context.Background(), grpcpool.Place{Addr: addr})
	if err != nil {
		return err
	}
	defer c.End()
	_, err = healthpb.NewHealthClient(c).Check(context.Background(), &healthpb.HealthCheckRequest{})
	return err
}

// A call that begins once the engine has ended mustn't go out on its connection: then nobody
// could tell whether the engine had it in hand.
func TestCallsDoNotBeginOnConnectionsThatEnded(t *testing.T) {
	for range 50 {
		p := grpcpool.New(1 << 20) // a port may come again, which an old pool knows as closed
		addr, stop := engine(t)
		if err := call(p, addr); err != nil {
			t.Fatal(err)
		}
		stop()
		c, err := p.Begin(t.Context(), grpcpool.Place{Addr: addr})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.NewStream(t.Context(), &grpc.StreamDesc{}, "/grpc.health.v1.Health/Check")
		c.End()
		if status.Code(err) != codes.Unavailable {
			t.Fatalf("the call began: %v", err)
		}
		p.Close()
	}
}

func TestPruneKeepsWhatIsInUse(t *testing.T) {
	p := grpcpool.New(1 << 20)
	defer p.Close()
	addr, _ := engine(t)
	none := func(grpcpool.Place) bool { return false }
	c, err := p.Begin(t.Context(), grpcpool.Place{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Calls(grpcpool.Place{Addr: addr}).Load(); n != 1 {
		t.Errorf("%d calls are counted", n)
	}
	p.Prune(none)
	if _, err := healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a call under way when its address was dropped: %v", err)
	}
	c.End()
	p.Prune(none)
	if _, err := healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("the connection of a dropped address is open: %v", err)
	}
	p.Close()
	if err := call(p, addr); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}
