package pool_test

import (
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/extproc/pool"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestAListOfAddressesIsAPool(t *testing.T) {
	p, err := pool.Static("10.0.0.2:8000, 10.0.0.1:8000,[fd00::1]:8000")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range p.Endpoints {
		got = append(got, e.Address)
	}
	if s := strings.Join(got, " "); s != "10.0.0.1:8000 10.0.0.2:8000 [fd00::1]:8000" || !p.Known {
		t.Errorf("%s, known %t", s, p.Known)
	}
	for _, bad := range []string{"", "host:80", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:80,10.0.0.1:80", "10.0.0.1:80,"} {
		if _, err := pool.Static(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestALineNamesEachEndpointsMetrics(t *testing.T) {
	p, err := pool.Static("10.0.0.1:8000")
	if err != nil {
		t.Fatal(err)
	}
	targets := p.Line().Components[spec.Predictor].Targets
	if len(targets) != 1 || targets[0].Engine != "vllm" || targets[0].Endpoints[0].Metrics != "http://10.0.0.1:8000/metrics" || targets[0].Endpoints[0].HTTP != "10.0.0.1:8000" {
		t.Errorf("%+v", targets)
	}
}
