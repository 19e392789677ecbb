package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/adopt"
)

// Adopt takes a namespace of the cluster that kubeconfig names over from KServe; empty means
// kubectl's usual places. What was done until an error is in the results.
func Adopt(ctx context.Context, kubeconfig string, timeout time.Duration, cfg adopt.Config) ([]adopt.Result, error) {
	ctrllog.SetLogger(logr.Discard())
	config, err := clusterConfig(kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	scheme, err := adopt.Scheme()
	if err != nil {
		return nil, err
	}
	if cfg.API, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return adopt.Run(ctx, cfg)
}
