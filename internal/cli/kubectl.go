package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"stationmaster.dev/stationmaster/internal/kubeapi/kubectl"
)

// kubectlMain runs the embedded kubectl against the API of a data dir: --data-dir as the first
// argument, else STATIONMASTER_DATA_DIR, else ./.stationmaster. KUBECONFIG wins over the latter
// two, and --kubeconfig over all.
func kubectlMain(args []string, std IO) int {
	dataDir, named := dataDirFromEnv(), false
	if len(args) > 1 && args[0] == "--data-dir" {
		dataDir, args, named = args[1], args[2:], true
	} else if len(args) > 0 {
		if d, ok := strings.CutPrefix(args[0], "--data-dir="); ok {
			dataDir, args, named = d, args[1:], true
		}
	}
	config := filepath.Join(dataDir, "kubeconfig")
	if named {
		// Whoever names a data dir must not reach another cluster by a variable set long ago.
		if err := os.Setenv("KUBECONFIG", config); err != nil {
			fmt.Fprintf(std.Err, "stationmaster: %v\n", err)
			return exitFailed
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	code := kubectl.Run(ctx, args, config, kubectl.Streams{In: std.In, Out: std.Out, ErrOut: std.Err})
	if code != exitOK && (named || os.Getenv("KUBECONFIG") == "") {
		if _, err := os.Stat(config); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(std.Err, "stationmaster: no 'stationmaster up' has run on the data dir %s: start it, or name another with --data-dir before kubectl's own arguments\n", dataDir)
		}
	}
	return code
}
