package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/rollout"
)

// rolloutFlags are those of every rollout command.
type rolloutFlags struct {
	where
	namespace, component string
	wait                 bool
	timeout              time.Duration
}

func newRollout(std IO) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Look at a canary, promote it, hold it, go back",
		Long: `Look at and steer the rollout of an InferenceService. Each command changes
canaryTrafficPercent of the manifest in the API, and 'promote' of a guarded rollout an
annotation that names the revision.

  stationmaster rollout status iris          who gets which share
  stationmaster rollout share iris 25        give the newest revision 25 %
  stationmaster rollout promote iris         give it all traffic
  stationmaster rollout pause iris           take its traffic away, let it run
  stationmaster rollout resume iris          let a guarded rollout go on by itself
  stationmaster rollout undo iris            go back to the revision before`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("there is no command %q; see 'stationmaster rollout --help'", "rollout "+args[0])}
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(
		rolloutCommand(std, "status", "Print who gets which share of the traffic", nil),
		rolloutCommand(std, "promote", "Give the newest revision all traffic", promote),
		rolloutCommand(std, "pause", "Take the newest revision's traffic away and let it run", pause),
		rolloutCommand(std, "resume", "Let a guarded rollout that is held go on by itself", resume),
		rolloutCommand(std, "undo", "Go back to the revision that had all traffic before", undo),
		rolloutShare(std),
	)
	return cmd
}

func promote(ctx context.Context, s *rollout.Service) error { return s.Promote(ctx) }

func pause(ctx context.Context, s *rollout.Service) error { return s.Pause(ctx) }

func resume(ctx context.Context, s *rollout.Service) error { return s.Resume(ctx) }

func undo(ctx context.Context, s *rollout.Service) error { return s.Undo(ctx) }

func rolloutCommand(std IO, name, short string, act func(context.Context, *rollout.Service) error) *cobra.Command {
	var flags rolloutFlags
	cmd := &cobra.Command{
		Use:   name + " SERVICE",
		Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("name one service: stationmaster rollout %s SERVICE", name)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return flags.run(cmd, std, args[0], act) },
	}
	flags.add(cmd)
	return cmd
}

func rolloutShare(std IO) *cobra.Command {
	var flags rolloutFlags
	cmd := &cobra.Command{
		Use:   "share SERVICE PERCENT",
		Short: "Give the newest revision a percent of the traffic",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{errors.New("name one service and a percent: stationmaster rollout share SERVICE PERCENT")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			percent, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return usageError{fmt.Errorf("%q: want a percent, 0 to 100", args[1])}
			}
			return flags.run(cmd, std, args[0], func(ctx context.Context, s *rollout.Service) error { return s.Share(ctx, percent) })
		},
	}
	flags.add(cmd)
	return cmd
}

func (r *rolloutFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&r.namespace, "namespace", "n", "default", "the service's namespace")
	f.StringVarP(&r.component, "component", "c", "", "predictor, transformer or explainer; empty means all that it fits")
	f.StringVar(&r.dataDir, "data-dir", dataDirFromEnv(), "the data dir of the 'up' to ask, unless KUBECONFIG is set")
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "a cluster's kubeconfig")
	f.BoolVarP(&r.wait, "wait", "w", false, "wait until the service is as its manifest asks")
	f.DurationVar(&r.timeout, "timeout", 10*time.Minute, "how long to wait")
}

func (r *rolloutFlags) run(cmd *cobra.Command, std IO, name string, act func(context.Context, *rollout.Service) error) error {
	r.dataDirNamed = cmd.Flags().Changed("data-dir")
	switch r.component {
	case "", "predictor", "transformer", "explainer":
	default:
		return usageError{fmt.Errorf("--component %q: want predictor, transformer or explainer", r.component)}
	}
	c, err := r.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	s := &rollout.Service{Client: c, Namespace: r.namespace, Name: name, Component: v1beta1.ComponentType(r.component)}
	if act != nil {
		if err := act(ctx, s); err != nil {
			return err
		}
		if !r.wait {
			_, err := fmt.Fprintf(std.Out, "%s/%s: %s asked for; '%s' follows it\n", r.namespace, name, cmd.Name(), r.follow(cmd, name))
			return err
		}
	}
	var is *v1beta1.InferenceService
	if r.wait {
		ctx, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		is, err = s.Wait(ctx)
	} else {
		is, err = s.Get(ctx)
	}
	if is != nil {
		if _, err := fmt.Fprint(std.Out, rollout.Describe(is, time.Now())); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return err
}

// follow is the command that shows what became of this one: of the same service in the same API.
func (r *rolloutFlags) follow(cmd *cobra.Command, name string) string {
	line := "stationmaster rollout status " + name + " -n " + r.namespace
	for _, flag := range []string{"component", "data-dir", "kubeconfig"} {
		if f := cmd.Flags().Lookup(flag); f.Changed {
			line += " --" + flag + " " + f.Value.String()
		}
	}
	return line + " --wait"
}

// client reaches the API that is meant.
func (w *where) client() (client.Client, error) {
	rules, err := w.rules()
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, errdef.New(errdef.ErrInvalid, "read kubeconfig: "+err.Error())
	}
	sch := runtime.NewScheme()
	if err := v1beta1.AddToScheme(sch); err != nil {
		return nil, fmt.Errorf("build scheme: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: sch})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return c, nil
}
