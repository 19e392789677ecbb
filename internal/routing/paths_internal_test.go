package routing

import "testing"

func TestReasonsForClientsTellNoPlacesOfAMachine(t *testing.T) {
	for reason, want := range map[string]string{
		"the process exited with code 1": "the process exited with code 1",
		"model file:///srv/secret/iris: open /srv/secret/iris/model.onnx: no such file or directory": "model …/iris: open …/model.onnx: no such file or directory",
		"found none of [python3] on PATH (/usr/local/bin:/opt/venv/bin)":                             "found none of [python3] on PATH (…/bin:…/bin)",
		`cannot read "/data/pvc/team/claim/": denied`:                                                `cannot read "…/claim": denied`,
		"GET http://127.0.0.1:8080/v2/health/ready: connection refused":                              "GET http://127.0.0.1:8080/v2/health/ready: connection refused",
		"model https://models.example/a/b.onnx: 404":                                                 "model https://models.example/a/b.onnx: 404",
		"no model under /mnt/models/iris":                                                            "no model under /mnt/models/iris",
		"8/10 replicas of team/iris; /tmp is full":                                                   "8/10 replicas of team/iris; /tmp is full",
	} {
		if got := withoutPaths(reason); got != want {
			t.Errorf("%q became %q, want %q", reason, got, want)
		}
	}
}
