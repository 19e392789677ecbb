package cli

import (
	"testing"

	"github.com/spf13/cobra"
)

func TestTheCommandThatFollowsARolloutAsksTheSameAPI(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing said": {nil, "stationmaster rollout status iris -n default --wait"},
		"all said": {
			[]string{"-n", "team", "--data-dir", "/d", "-c", "predictor"},
			"stationmaster rollout status iris -n team --component predictor --data-dir /d --wait",
		},
		"a cluster": {[]string{"--kubeconfig", "k"}, "stationmaster rollout status iris -n default --kubeconfig k --wait"},
	} {
		var flags rolloutFlags
		cmd := &cobra.Command{}
		flags.add(cmd)
		if err := cmd.ParseFlags(tc.args); err != nil {
			t.Fatal(err)
		}
		if got := flags.follow(cmd, "iris"); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
