package manifest_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestNamesAreKServes(t *testing.T) {
	for got, want := range map[string]string{
		manifest.ComponentName("iris", spec.Predictor):                     "iris-predictor",
		manifest.ComponentName("iris", spec.Transformer):                   "iris-transformer",
		manifest.ComponentName("iris", spec.Explainer):                     "iris-explainer",
		manifest.PredictorName("iris", "blue"):                             "iris-blue-predictor",
		manifest.PredictorName("iris", ""):                                 "iris-predictor",
		manifest.WorkerName("iris"):                                        "iris-predictor-worker",
		manifest.HeadServiceName("iris", 3):                                "iris-head-3",
		manifest.WorkersServiceName("iris", 3):                             "iris-predictor-workers-3",
		manifest.RevisionName("iris", spec.Predictor, 1):                   "iris-predictor-00001",
		manifest.AppLabel("iris", spec.Predictor):                          "isvc.iris-predictor",
		manifest.Host("iris", "default", "example.com"):                    "iris-default.example.com",
		manifest.Host("iris-predictor", "default", "localhost"):            "iris-predictor-default.localhost",
		manifest.ClusterHost("iris", spec.Predictor, "default"):            "iris-predictor.default.svc.cluster.local",
		manifest.PathPrefix("default", "iris"):                             "/serving/default/iris",
		manifest.RevisionName("iris", spec.Predictor, 123456):              "iris-predictor-123456",
		strings.SplitN(manifest.Host("iris", "default", "a.b"), ".", 2)[1]: "a.b",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func TestLongNamesStayValidAndDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z][a-z0-9-]{0,70}[a-z0-9]`)
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		ga, gb := rapid.Int64Range(1, 200_000).Draw(t, "generation"), rapid.Int64Range(1, 200_000).Draw(t, "generation")
		of := func(n string, g int64) []string {
			return []string{
				manifest.ComponentName(n, spec.Transformer), manifest.RevisionName(n, spec.Predictor, g), manifest.Host(n, "team-a", ""),
				manifest.WorkerName(n), manifest.HeadServiceName(n, g), manifest.WorkersServiceName(n, g),
			}
		}
		first, second := of(a, ga), of(b, gb)
		for i, n := range first {
			if !label.MatchString(n) {
				t.Fatalf("%q (%d bytes) is no DNS label", n, len(n))
			}
			if a != b && n == second[i] {
				t.Fatalf("services %s and %s share the name %s", a, b, n)
			}
		}
		if ga != gb && manifest.RevisionName(a, spec.Predictor, ga) == manifest.RevisionName(a, spec.Predictor, gb) {
			t.Fatalf("generations %d and %d share a name", ga, gb)
		}
		if v := manifest.AppLabel(a, spec.Predictor); len(v) > 63 {
			t.Fatalf("label value %q is too long", v)
		}
	})
}
