package cli

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"stationmaster.dev/stationmaster/internal/app"
)

func newUp(std IO) *cobra.Command {
	cfg := app.Config{Out: std.Out, Version: Version()}
	var level string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Serve on this machine: API, controllers, engines and gateway, in the foreground",
		Long: `Serve on this machine, in the foreground.

It prints one line beginning with "ready" when it serves; with --apply, when the services,
graphs and trained models of those manifests are ready as well. SIGTERM or Ctrl-C drains: requests in flight end, then the
engines stop. Killed in any other way, engines go on and are taken over by the next 'up'.`,
		Args: noArgs,
		RunE: serves(std, &level, func(ctx context.Context, log *slog.Logger) error {
			cfg.Logger = log
			return app.Standalone(ctx, cfg)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&cfg.DataDir, "data-dir", dataDirFromEnv(), "where objects, models and logs are kept")
	f.StringVar(&cfg.HTTP, "http", "127.0.0.1:8080", "address of the gateway for REST (HTTP/1.1 and HTTP/2)")
	f.StringVar(&cfg.GRPC, "grpc", "127.0.0.1:8081", "address of the gateway for gRPC")
	f.StringVar(&cfg.API, "api", "127.0.0.1:6443", "address of the Kubernetes API")
	f.StringVar(&cfg.Admin, "admin", "127.0.0.1:9090", "address for metrics, health and profiles")
	f.StringArrayVar(&cfg.Apply, "apply", nil, "a manifest or a folder of them to apply at start; repeatable")
	f.StringVar(&cfg.Domain, "domain", "localhost", "domain of service hosts")
	f.Int64Var(&cfg.MaxBodyBytes, "max-request-bytes", 256<<20, "largest request body that the gateway takes")
	f.DurationVar(&cfg.RequestTimeout, "request-timeout", 0, "longest time to an answer's first byte where a service sets none (default 1m)")
	f.StringVar(&cfg.OpenAIPrefix, "openai-prefix", "/openai", "what may stand before /v1 in paths of the OpenAI API; / for nothing")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "PEM certificate; with --tls-key the gateway serves TLS as well")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "PEM key for --tls-cert")
	f.StringVar(&cfg.HTTPS, "https", "127.0.0.1:8443", "address for REST over TLS, with --tls-cert")
	f.StringVar(&cfg.GRPCS, "grpcs", "127.0.0.1:8444", "address for gRPC over TLS, with --tls-cert")
	f.StringArrayVar(&cfg.Path, "runtime-path", nil, "a folder to look in for engines, before PATH; repeatable")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	cmd.PreRunE = func(*cobra.Command, []string) error { return together(cfg.TLSCert, cfg.TLSKey) }
	return cmd
}
