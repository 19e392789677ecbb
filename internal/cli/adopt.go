package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"stationmaster.dev/stationmaster/internal/adopt"
	"stationmaster.dev/stationmaster/internal/app"
)

func newAdopt(std IO) *cobra.Command {
	var kubeconfig string
	var timeout time.Duration
	cfg := adopt.Config{}
	cmd := &cobra.Command{
		Use:   "adopt --namespace NAMESPACE",
		Short: "Take the services of a namespace over from KServe, without restarting pods",
		Long: `Take the services of a namespace over from KServe. Where a service's pods are as Stationmaster
would make them, they run on and pass to it; where they aren't, or it isn't possible, the service
is left as it is and the fields or the reason are told. docs/migration.md has the whole way.

KServe's controller has to be stopped before, and 'adopt' run before the operator is installed,
which otherwise makes pods of its own. --dry-run looks and changes nothing.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Namespace == "" {
				return usageError{errors.New("--namespace is missing: name the namespace whose services are taken over")}
			}
			results, err := app.Adopt(cmd.Context(), kubeconfig, timeout, cfg)
			if printErr := printAdopted(std.Out, results, cfg.DryRun); printErr != nil {
				return printErr
			}
			if err != nil {
				return fmt.Errorf("adopt: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&cfg.Namespace, "namespace", "n", "", "the namespace whose services are taken over")
	f.StringVar(&cfg.Image, "image", "", "image of stationmaster that the operator is, or will be, installed with (default that of the installed one)")
	f.StringVar(&cfg.OCIDelivery, "oci-delivery", "", "how that operator has models of oci:// reach pods (default as the installed one does)")
	f.BoolVar(&cfg.DryRun, "dry-run", false, "tell what would become of each service, and change nothing")
	f.StringVar(&kubeconfig, "kubeconfig", "", "the cluster's kubeconfig; by default kubectl's usual places")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "how long it may take")
	return cmd
}

// printAdopted prints a table, and below it what differs in pods that start later.
func printAdopted(out io.Writer, results []adopt.Result, dry bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tCOMPONENT\tVERDICT\tWHY")
	for _, r := range results {
		verdict := string(r.Verdict)
		if dry && (r.Verdict == adopt.Adopted || r.Verdict == adopt.CleanedUp) {
			verdict = "would be " + verdict
		}
		why := strings.Join(r.Why, ", ")
		if r.Verdict == adopt.Adopted && len(r.Later) > 0 {
			why = "pods that start later differ in " + strings.Join(r.Later, ", ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Service, r.Component, verdict, why)
	}
	return w.Flush()
}
