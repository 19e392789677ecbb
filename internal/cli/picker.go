package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stationmaster.dev/stationmaster/internal/app"
)

func newEndpointPicker(std IO) *cobra.Command {
	cfg := app.PickerConfig{Out: std.Out}
	var level string
	cmd := &cobra.Command{
		Use:   "endpoint-picker",
		Short: "Pick endpoints of an InferencePool for Envoy and other proxies",
		Long: `Serve as the endpoint picker of InferencePools (Gateway API Inference Extension), which Envoy and
what is made of it ask over the external processing protocol (ext_proc). Each pool has an address:

  stationmaster endpoint-picker --pool team-a/llama=:9002

Without a cluster, a pool is a list of addresses:

  stationmaster endpoint-picker --endpoints 10.0.0.1:8000,10.0.0.2:8000=127.0.0.1:9002 --plaintext

The gateway is one, too, with --endpoint-pool. See docs/endpoint-picker.md.`,
		Args: noArgs,
		RunE: serves(std, &level, func(ctx context.Context, log *slog.Logger) error {
			cfg.Logger = log
			return app.EndpointPicker(ctx, cfg)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "the cluster's kubeconfig; by default the pod's account, then kubectl's usual places")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	pickerFlags(f, &cfg.Pickers, "")
	f.StringArrayVar(&cfg.Endpoints, "endpoints", nil, "ip:port,ip:port=address: serve at an address as the endpoint picker of these; repeatable")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "PEM certificate to show, with --tls-key; by default one that is made at the start")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "PEM key for --tls-cert")
	f.Int64Var(&cfg.MaxBodyBytes, "max-request-bytes", 256<<20, "largest request body that is let through")
	f.StringVar(&cfg.Admin, "admin", ":9090", "address for metrics and health")
	f.DurationVar(&cfg.ShutdownDelay, "shutdown-delay", 5*time.Second, "how long to go on accepting after SIGTERM, until those who send here have heard")
	cmd.PreRunE = func(*cobra.Command, []string) error { return together(cfg.TLSCert, cfg.TLSKey) }
	return cmd
}

// pickerFlags are those of all who are endpoint pickers; prefix tells them from others.
func pickerFlags(f *pflag.FlagSet, p *app.Pickers, prefix string) {
	f.StringArrayVar(&p.Pools, prefix+"pool", nil, "namespace/name=address: serve at an address as the endpoint picker of this InferencePool; repeatable")
	f.StringVar(&p.Picking, prefix+"picking", "", "how endpoints are picked of a pool without the annotation stationmaster.dev/picking (default as is best for language models)")
	f.IntVar(&p.Limit, prefix+"limit", 0, "requests that an endpoint may have under way; where all have as many, a request gets 429 (0: no limit)")
	f.BoolVar(&p.Fallback, prefix+"fallback", false, "name a second endpoint for when the first can't be reached; Envoy's clusters of the type ORIGINAL_DST take no more than one")
	f.BoolVar(&p.Plaintext, prefix+"plaintext", false, "serve endpoint picking without TLS")
}
