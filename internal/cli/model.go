package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"stationmaster.dev/stationmaster/internal/app"
)

func newModel(std IO) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Fetch models",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("there is no command %q; see 'stationmaster model --help'", "model "+args[0])}
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newModelPull(std))
	return cmd
}

func newModelPull(std IO) *cobra.Command {
	var p app.Pull
	var level string
	cmd := &cobra.Command{
		Use:   "pull URI --to DIR",
		Short: "Fetch a model into a directory",
		Long: `Fetch a model into a directory, as 'up' does into its store: archives are unpacked, and
content that climbs out of the directory or grows without bound is refused.

  stationmaster model pull https://example.com/iris.tar.gz --to ./iris`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("want one URI; see 'stationmaster model pull --help'")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.To == "" {
				return usageError{errors.New("--to is missing: name the directory for the model's files")}
			}
			logger, err := newLogger(std.Err, level)
			if err != nil {
				return err
			}
			p.URI, p.Logger = args[0], logger
			if err := app.PullModel(cmd.Context(), p); err != nil {
				return fmt.Errorf("model pull: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.To, "to", "", "the directory for the model's files")
	f.StringVar(&p.Digest, "digest", "", "refuse content with another digest (sha256:…)")
	f.StringVar(&p.Report, "report", "", "a file that gets what was brought, as JSON")
	f.StringVar(&p.Secrets, "secrets", "", "a directory where secrets are mounted, each in a directory of its name; by default credentials are in the environment")
	f.StringArrayVar(&p.SecretNames, "secret", nil, "a secret in --secrets that may hold the credentials; repeatable")
	f.StringArrayVar(&p.RegistryKeys, "registry-keys", nil, "a file with keys of registries, as Docker's config.json; repeatable")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}
