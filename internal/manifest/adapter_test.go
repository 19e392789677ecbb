package manifest_test

import (
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/manifest"
)

func TestWhereAnAdaptersBytesMayBe(t *testing.T) {
	const no = "no"
	for uri, want := range map[string]struct{ here, cluster string }{
		"adapters/sql":             {"", no},
		"/models/sql":              {"", no},
		"file:///models/sql":       {"", ""},
		"pvc://claim/sql":          {"", no},
		"https://host/sql.tgz":     {"", no},
		"hf://org/sql":             {"", ""},
		"hf://org":                 {no, no},
		"hf://org/sql/deeper":      {no, no},
		"s3://bucket/sql":          {no, no},
		"HF://org/sql":             {"", ""},
		"gs://bucket/adapters/sql": {no, no},
	} {
		for platform, tc := range map[string]struct {
			oneMachine bool
			want       string
		}{"one machine": {true, want.here}, "a cluster": {false, want.cluster}} {
			why := manifest.CanFetchAdapter(uri, tc.oneMachine)
			if (why == "") != (tc.want == "") {
				t.Errorf("%s on %s: %q", uri, platform, why)
			}
			if why != "" && !strings.Contains(why, "hf://") {
				t.Errorf("%s on %s: %q doesn't say what there is", uri, platform, why)
			}
		}
	}
}
