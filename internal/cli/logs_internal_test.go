package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
)

func TestLogsAskTheAPIThatTheOtherCommandsAsk(t *testing.T) {
	kubeconfig := func(dir string) string {
		path := filepath.Join(dir, "kubeconfig")
		const content = "apiVersion: v1\nkind: Config\ncurrent-context: it\ncontexts: [{name: it, context: {cluster: it, user: it}}]\nclusters: [{name: it, cluster: {server: https://127.0.0.1:1}}]\n"
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	up, cluster, nowhere := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(up, "admin.json"), []byte(`{"address":"127.0.0.1:1","token":"t"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ofUp, ofCluster := kubeconfig(up), kubeconfig(cluster)
	const asks = "nothing answers at 127.0.0.1:1, the admin address of "
	for name, tc := range map[string]struct {
		env  string
		args []string
		kind error
		says string
	}{
		"KUBECONFIG of an up":            {env: ofUp, kind: errdef.ErrUnavailable, says: asks + up},
		"KUBECONFIG of several, an up's": {env: ofUp + ":" + ofCluster, kind: errdef.ErrUnavailable, says: asks + up},
		"a data dir that is named":       {env: ofCluster, args: []string{"--data-dir", up}, kind: errdef.ErrUnavailable, says: asks + up},
		"a kubeconfig that is named":     {env: ofCluster, args: []string{"--kubeconfig", ofUp}, kind: errdef.ErrUnavailable, says: asks + up},
		"a data dir where nothing ran":   {args: []string{"--data-dir", nowhere}, kind: errdef.ErrUnavailable, says: "no 'stationmaster up' has run on the data dir " + nowhere},
		"a kubeconfig that isn't there":  {args: []string{"--kubeconfig", filepath.Join(nowhere, "x")}, kind: errdef.ErrInvalid, says: "read kubeconfig"},
		"KUBECONFIG of a cluster":        {env: ofCluster, kind: errdef.ErrUnsupported, says: ": kubectl logs -n default -l serving.kserve.io/inferenceservice=iris --tail=-1 -c kserve-container ("},
		"a cluster, and all that is asked": {
			args: []string{"--kubeconfig", ofCluster, "-n", "team", "-c", "transformer", "--container", "side", "--tail", "5", "-f", "-p"}, kind: errdef.ErrUnsupported,
			says: ": kubectl logs -n team -l serving.kserve.io/inferenceservice=iris,component=transformer -c side --tail=5 -f --previous --kubeconfig " + ofCluster + " (",
		},
		"a cluster, and one replica": {env: ofCluster, args: []string{"--replica", "iris-1"}, kind: errdef.ErrUnsupported, says: ": kubectl logs -n default iris-1 -c kserve-container ("},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tc.env)
			var out, errs strings.Builder
			cmd := newLogs(IO{Out: &out, Err: &errs})
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(append([]string{"iris"}, tc.args...))
			if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %v with %q", err, tc.kind, tc.says)
			}
		})
	}
}
