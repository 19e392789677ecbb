package cli

import (
	"context"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"stationmaster.dev/stationmaster/internal/kubeapi/kubectl"
)

// kubectlMain runs the embedded kubectl against the API of a data dir: --data-dir as the first
// argument, else STATIONMASTER_DATA_DIR, else ./.stationmaster. --kubeconfig and KUBECONFIG win
// over all of them.
func kubectlMain(args []string, std IO) int {
	dataDir := dataDirFromEnv()
	if len(args) > 1 && args[0] == "--data-dir" {
		dataDir, args = args[1], args[2:]
	} else if len(args) > 0 {
		if d, ok := strings.CutPrefix(args[0], "--data-dir="); ok {
			dataDir, args = d, args[1:]
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return kubectl.Run(ctx, args, filepath.Join(dataDir, "kubeconfig"), kubectl.Streams{In: std.In, Out: std.Out, ErrOut: std.Err})
}
