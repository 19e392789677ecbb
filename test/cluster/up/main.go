// Command up brings a cluster up in the foreground, to try things by hand.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"stationmaster.dev/stationmaster/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var (
		dir     = flag.String("dir", "", "empty or absent `directory` for state and logs (default: a temporary one, removed at the end)")
		nodes   = flag.Int("nodes", 1, "number of nodes, 1 or 2")
		publish []string
	)
	flag.Func("publish", "OCI layout `tar` to serve from the cluster's registry; may be repeated", func(tar string) error {
		publish = append(publish, tar)
		return nil
	})
	flag.Parse()
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "stationmaster-cluster-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(*dir)) }()
	} else if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	began := time.Now()
	c, err := cluster.Start(ctx, cluster.Config{Dir: *dir, Nodes: *nodes, DNS: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	for _, tar := range publish {
		if err := c.Publish(tar); err != nil {
			return err
		}
	}
	fmt.Printf(`# ready in %.1f s; Ctrl-C ends it; logs in %s
export KUBECONFIG=%s
# in the cluster's network (pods, services, node ports on %s; there KUBECONFIG=%s):
nsenter --net=%s COMMAND
# an image onto node1, for pods with imagePullPolicy: Never
%s/ctr -a %s/node1/containerd.sock -n k8s.io images import IMAGE.tar
`, time.Since(began).Seconds(), c.Logs(), c.Kubeconfig(), c.NodeIP(1), c.KubeconfigInside(), c.Network(), os.Getenv(cluster.BinEnv), c.Dir())
	<-ctx.Done()
	return nil
}
