package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"stationmaster.dev/stationmaster/internal/admin"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

func newLogs(std IO) *cobra.Command {
	var q admin.LogQuery
	var at where
	var namespace, component string
	cmd := &cobra.Command{
		Use:   "logs SERVICE",
		Short: "Print what a service's engine wrote",
		Long: `Print the output of the newest replica of a service.

  stationmaster logs iris                      the predictor's (or transformer's) newest replica
  stationmaster logs iris -c transformer -f    follow one component
  stationmaster logs iris --previous           the run before the last restart

It asks the 'up' that KUBECONFIG or --kubeconfig leads to, or that of the data dir. On a cluster
it tells the kubectl command that prints the same.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("name one service: stationmaster logs SERVICE")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Service = spec.ServiceKey{Namespace: namespace, Name: args[0]}
			q.Component = spec.Component(component)
			if q.Tail < 0 {
				return usageError{errors.New("--tail: want a number of lines")}
			}
			at.dataDirNamed = cmd.Flags().Changed("data-dir")
			dataDir, ok, err := at.up()
			switch {
			case err != nil:
				return err
			case !ok:
				return onCluster(q, at.kubeconfig)
			}
			log, err := admin.OpenLogs(cmd.Context(), dataDir, q)
			if err != nil {
				return err
			}
			defer log.Close()
			_, err = io.Copy(std.Out, log)
			switch {
			case err == nil, cmd.Context().Err() != nil:
			case errors.Is(err, admin.ErrStopped):
				fmt.Fprintln(std.Err, "stationmaster: the control plane stopped, so the log isn't followed any longer")
			default:
				return errdef.New(errdef.ErrUnavailable, "the log ended early: "+err.Error())
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&namespace, "namespace", "n", "default", "the service's namespace")
	f.StringVarP(&component, "component", "c", "", "predictor, transformer or explainer; empty means the newest replica of any")
	f.StringVar(&q.Container, "container", "", "a container other than the server")
	f.StringVar(&q.Replica, "replica", "", "one replica")
	f.IntVar(&q.Tail, "tail", 0, "only the last lines; 0 means all that is kept")
	f.BoolVarP(&q.Follow, "follow", "f", false, "go on until interrupted, the replica is gone or the control plane stops")
	f.BoolVarP(&q.Previous, "previous", "p", false, "the run before the last restart")
	f.StringVar(&at.dataDir, "data-dir", dataDirFromEnv(), "the data dir of the 'up' to ask, unless KUBECONFIG is set")
	f.StringVar(&at.kubeconfig, "kubeconfig", "", "the kubeconfig of the 'up' to ask")
	return cmd
}

// onCluster says how to read the same on a cluster, whose logs are with its nodes: they aren't
// passed on by us.
func onCluster(q admin.LogQuery, kubeconfig string) error {
	of := q.Replica
	if of == "" {
		of = "-l serving.kserve.io/inferenceservice=" + q.Service.Name
		if q.Component != "" {
			of += ",component=" + string(q.Component)
		}
		if q.Tail == 0 {
			of += " --tail=-1" // by label kubectl prints ten lines
		}
	}
	line := fmt.Sprintf("kubectl logs -n %s %s -c %s", q.Service.Namespace, of, cmp.Or(q.Container, "kserve-container"))
	for _, flag := range []struct {
		set  bool
		text string
	}{
		{q.Tail > 0, fmt.Sprintf(" --tail=%d", q.Tail)},
		{q.Follow, " -f"},
		{q.Previous, " --previous"},
		{kubeconfig != "", " --kubeconfig " + kubeconfig},
	} {
		if flag.set {
			line += flag.text
		}
	}
	return errdef.New(errdef.ErrUnsupported, "the kubeconfig is that of a cluster, whose logs kubectl reads: "+line+
		" (if it is that of an 'up', name its data dir with --data-dir)")
}
