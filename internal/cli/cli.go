// Package cli is the command line: it reads flags, calls a room, and turns what came back
// into text and an exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelagent"
	"stationmaster.dev/stationmaster/internal/modelserver"
)

// IO is where a command reads and writes.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exit codes. A command that another program runs (kubectl, the model server) gives its own.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3
	exitBusy     = 4
)

// Main runs the command line and returns the exit code.
func Main(args []string, std IO) int {
	if len(args) > 1 && args[0] == "runtime" && args[1] == "onnx" {
		return modelserver.Main(args[2:], std.Out, std.Err)
	}
	if len(args) > 1 && args[0] == "runtime" && args[1] == "agent" {
		return modelagent.Main(args[2:], std.Err)
	}
	if len(args) > 0 && args[0] == "kubectl" {
		return kubectlMain(args[1:], std)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRoot(std)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(std.Err, "stationmaster: %v\n", err)
	}
	return exitCode(err)
}

// exitCode is the command line's mapping of error kinds.
func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.Is(err, errdef.ErrInvalid):
		return exitUsage
	case errors.Is(err, errdef.ErrNotFound):
		return exitNotFound
	case errors.Is(err, errdef.ErrConflict):
		return exitBusy
	}
	return exitFailed
}

// usageError is a mistake in the command itself.
type usageError struct{ error }

func newRoot(std IO) *cobra.Command {
	root := &cobra.Command{
		Use:   "stationmaster",
		Short: "Serve models from KServe manifests, on one machine or on a cluster",
		Long: `Stationmaster serves models from KServe manifests over the Open Inference Protocol.

  stationmaster up --apply examples/iris     serve on this machine
  stationmaster kubectl get isvc             look at what is served
  stationmaster logs iris                    read an engine's output`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())}
	})
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("there is no command %q; see 'stationmaster --help'", args[0])}
		}
		return nil
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newUp(std), newOperator(std), newGateway(std), newEndpointPicker(std), newInstall(std), newAdopt(std), newLogs(std), newModel(std), newRollout(std), newVersion(std), newKubectlHelp(), newRuntimeHelp())
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q; see '%s --help'", args[0], cmd.CommandPath())}
	}
	return nil
}

func newVersion(std IO) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(std.Out, "stationmaster", Version())
			return err
		},
	}
}

// Version is the module's version as the Go tool stamped it, with the commit where known.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "dev"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v += "-" + s.Value[:12]
			}
		}
	}
	return v + " " + info.GoVersion
}

// newKubectlHelp and newRuntimeHelp stand in the list of commands; Main runs the real ones
// before cobra sees the arguments, since both parse flags of their own.
func newKubectlHelp() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [arguments of kubectl]",
		Short:              "kubectl against the API of the data dir (./.stationmaster, or --data-dir first)",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return nil },
	}
}

func newRuntimeHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "runtime onnx --model_name N --model_dir D --http_port P --grpc_port P",
		Short: "Run the built-in model server",
		RunE: func(_ *cobra.Command, args []string) error {
			return usageError{fmt.Errorf("there is no runtime %q; the built-in one is onnx: stationmaster runtime onnx --help; agent runs beside others", strings.Join(args, " "))}
		},
	}
}

// serves makes a command of a part that runs until its context ends; its errors begin with the
// command's name.
func serves(std IO, level *string, part func(context.Context, *slog.Logger) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		logger, err := newLogger(std.Err, *level)
		if err != nil {
			return err
		}
		if err := part(cmd.Context(), logger); err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		return nil
	}
}

// together refuses one half of a key pair.
func together(cert, key string) error {
	if (cert == "") != (key == "") {
		return usageError{errors.New("--tls-cert and --tls-key go together")}
	}
	return nil
}

func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", level)}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})), nil
}

// dataDirFromEnv is the data dir where no flag names one.
func dataDirFromEnv() string {
	if d := os.Getenv("STATIONMASTER_DATA_DIR"); d != "" {
		return d
	}
	return ".stationmaster"
}
