package cli

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stationmaster.dev/stationmaster/internal/app"
)

func newOperator(std IO) *cobra.Command {
	cfg := app.OperatorConfig{Out: std.Out}
	var level string
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Reconcile the services of a Kubernetes cluster",
		Long: `Reconcile the services of a Kubernetes cluster: InferenceServices become Revisions, Routes and
Deployments, and their status says how they are. The gateway is a command of its own.

The manifest of 'stationmaster install' runs it in the cluster.`,
		Args: noArgs,
		RunE: serves(std, &level, func(ctx context.Context, log *slog.Logger) error {
			cfg.Logger = log
			return app.Operator(ctx, cfg)
		}),
	}
	f := cmd.Flags()
	clusterFlags(f, &cfg.Kubeconfig, &cfg.Watch, &level)
	f.StringVar(&cfg.Namespace, "namespace", envOr("POD_NAMESPACE", "stationmaster-system"), "where operator and gateway run")
	f.StringVar(&cfg.Gateway, "gateway", "stationmaster-gateway", "name of the gateway's Service, and the label app of its pods")
	f.StringVar(&cfg.Operator, "operator", "stationmaster-operator", "the label app of the operators' own pods, and the name of their Service")
	f.StringVar(&cfg.Image, "image", os.Getenv("STATIONMASTER_IMAGE"), "image of stationmaster itself, for pulling models and for the built-in runtime")
	f.StringVar(&cfg.OCIDelivery, "oci-delivery", "image-volume", "how models of oci:// reach pods: image-volume, modelcar or fetch; pods that run keep what they have")
	f.StringVar(&cfg.Domain, "domain", "example.com", "domain of service hosts")
	f.StringVar(&cfg.DirectGateway, "direct-gateway", "", "namespace/name of a Gateway (Gateway API) for the HTTPRoutes of services that ask for one past our gateway")
	f.StringVar(&cfg.DirectFrom, "direct-from", "", "namespace of the pods that make up that Gateway, which may then reach engines (default the Gateway's)")
	f.IntVar(&cfg.HTTPPort, "http-port", 80, "the gateway's port for REST as clients outside reach it")
	f.IntVar(&cfg.GRPCPort, "grpc-port", 8081, "the gateway's port for gRPC as clients outside reach it")
	f.BoolVar(&cfg.LeaderElect, "leader-elect", true, "let one of several operators work")
	f.StringVar(&cfg.Admin, "admin", ":9090", "address for metrics and health")
	f.StringVar(&cfg.Webhook, "webhook", "", "address where the API server asks about manifests, such as :9443; empty means it doesn't")
	return cmd
}

func newGateway(std IO) *cobra.Command {
	cfg := app.GatewayConfig{Out: std.Out, Version: Version()}
	var level string
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Serve the requests of a Kubernetes cluster",
		Long: `Serve the requests for a cluster's services. It builds its routing table from what it
watches, so any number may run side by side, and one that loses the API server goes on with
what it knew. SIGTERM lets requests in flight end.`,
		Args: noArgs,
		RunE: serves(std, &level, func(ctx context.Context, log *slog.Logger) error {
			cfg.Logger = log
			return app.Gateway(ctx, cfg)
		}),
	}
	f := cmd.Flags()
	clusterFlags(f, &cfg.Kubeconfig, &cfg.Watch, &level)
	f.StringVar(&cfg.Domain, "domain", "example.com", "domain of service hosts; the operator's")
	f.StringVar(&cfg.HTTP, "http", ":8080", "address for REST (HTTP/1.1 and HTTP/2)")
	f.StringVar(&cfg.GRPC, "grpc", ":8081", "address for gRPC")
	f.StringVar(&cfg.Admin, "admin", ":9090", "address for metrics and health")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "PEM certificate; with --tls-key the gateway serves TLS as well")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "PEM key for --tls-cert")
	f.StringVar(&cfg.HTTPS, "https", ":8443", "address for REST over TLS, with --tls-cert")
	f.StringVar(&cfg.GRPCS, "grpcs", ":8444", "address for gRPC over TLS, with --tls-cert")
	f.Int64Var(&cfg.MaxBodyBytes, "max-request-bytes", 256<<20, "largest request body that the gateway takes")
	f.DurationVar(&cfg.RequestTimeout, "request-timeout", 0, "longest time to an answer's first byte where a service sets none (default 1m)")
	f.StringVar(&cfg.OpenAIPrefix, "openai-prefix", "/openai", "what may stand before /v1 in paths of the OpenAI API; / for nothing")
	f.DurationVar(&cfg.ShutdownDelay, "shutdown-delay", 5*time.Second, "how long to go on accepting after SIGTERM, until those who send here have heard")
	pickerFlags(f, &cfg.Pickers, "endpoint-")
	cmd.PreRunE = func(*cobra.Command, []string) error { return together(cfg.TLSCert, cfg.TLSKey) }
	return cmd
}

func clusterFlags(f *pflag.FlagSet, kubeconfig *string, watch *[]string, level *string) {
	f.StringVar(kubeconfig, "kubeconfig", "", "the cluster's kubeconfig; by default the pod's account, then kubectl's usual places")
	f.StringArrayVar(watch, "watch-namespace", nil, "heed only services of this namespace; repeatable")
	f.StringVar(level, "log-level", "info", "debug, info, warn or error")
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
