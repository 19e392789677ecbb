package route

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestPathsAreReadAsTheProtocolsSay(t *testing.T) {
	tests := map[string]Call{
		"/v2":                           {Protocol: spec.V2, Op: ServerMetadata},
		"/v2/":                          {Protocol: spec.V2, Op: ServerMetadata},
		"/v2/health/live":               {Protocol: spec.V2, Op: ServerLive},
		"/v2/health/ready":              {Protocol: spec.V2, Op: ServerReady},
		"/v2/models":                    {Protocol: spec.V2, Op: ListV2},
		"/v2/repository/index":          {Protocol: spec.V2, Op: RepositoryIndex},
		"/v2/models/m":                  {Protocol: spec.V2, Op: ModelMetadata, Model: "m"},
		"/v2/models/m/ready":            {Protocol: spec.V2, Op: ModelReady, Model: "m"},
		"/v2/models/m/infer":            {Protocol: spec.V2, Op: Infer, Model: "m"},
		"/v2/models/m/versions/7":       {Protocol: spec.V2, Op: ModelMetadata, Model: "m", Version: "7"},
		"/v2/models/m/explain":          {Protocol: spec.V2, Op: Explain, Model: "m"},
		"/v2/models/m/versions/7/infer": {Protocol: spec.V2, Op: Infer, Model: "m", Version: "7"},
		"/v2/models/m/generate":         {Protocol: spec.V2, Op: Generate, Model: "m"},
		"/v2/models/m/versions/2/generate_stream": {Protocol: spec.V2, Op: GenerateStream, Model: "m", Version: "2"},
		"/v2/models/a%2Fb/infer":                  {Protocol: spec.V2, Op: Infer, Model: "a/b"},
		"/v2/models//infer":                       {Protocol: spec.V2},
		"/v2/repository/models/m/load":            {Protocol: spec.V2, Op: Load, Model: "m"},
		"/v2/repository/models/m/unload":          {Protocol: spec.V2, Op: Unload, Model: "m"},
		"/v2/other":                               {Protocol: spec.V2},
		"/v1/models":                              {Protocol: spec.V1, Op: ListV1},
		"/v1/models/m":                            {Protocol: spec.V1, Op: StatusV1, Model: "m"},
		"/v1/models/m:predict":                    {Protocol: spec.V1, Op: Predict, Model: "m"},
		"/v1/models/m:explain":                    {Protocol: spec.V1, Op: Explain, Model: "m"},
		"/v1/models/llama3:8b":                    {Protocol: spec.V1, Op: StatusV1, Model: "llama3:8b"},
		"/v1/models/llama3:8b:predict":            {Protocol: spec.V1, Op: Predict, Model: "llama3:8b"},
		"/v1/models/m/versions/2:predict":         {Protocol: spec.V1, Op: Predict, Model: "m", Version: "2"},
		"/v1/models/m/versions/2":                 {Protocol: spec.V1, Op: OtherOfModel, Model: "m", Version: "2"},
		"/v1/modelsx":                             {},
		"/v1/chat/completions":                    {},
		"/":                                       {},
		"":                                        {},
		"/v2x":                                    {},
		"/v2/models/m/versions/7/infer/further":   {Protocol: spec.V2, Op: OtherOfModel, Model: "m", Version: "7"},
	}
	for path, want := range tests {
		got := ParsePath(path)
		got.from, got.to = 0, 0
		if got != want {
			t.Errorf("%q: got %+v, want %+v", path, got, want)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, p := range []string{"/v2/models/m/versions/7/infer", "/v1/models/a:b:predict", "/v2/repository/models/x/load", "/v1/models/", "/v2/models/%zz", "/v2/models/"} {
		f.Add(p, "new name")
	}
	f.Fuzz(func(t *testing.T, path, name string) {
		c := ParsePath(path)
		// A verb follows a colon, so a name that ends like one can't be told from it.
		if c.Model == "" || name == "" || strings.Contains(name, ":") {
			return
		}
		renamed := c.Renamed(path, name)
		again := ParsePath(renamed)
		if again.Model != name || again.Op != c.Op || again.Version != c.Version {
			t.Errorf("%q renamed to %q reads %+v, before %+v", path, renamed, again, c)
		}
	})
}

func TestOlderServicesKeepTheirNames(t *testing.T) {
	at := func(sec int64) time.Time { return time.Unix(sec, 0) }
	service := func(ns string, created time.Time) Service {
		return Service{
			Key: spec.ServiceKey{Namespace: ns, Name: "m"}, BareNames: []string{"m"}, Created: created,
			Hosts: []Host{{Name: "M.example."}}, PathPrefix: "/m/",
		}
	}
	tests := map[string]struct {
		services []Service
		want     string // namespace, or empty for a conflict
	}{
		"the older, listed last":    {[]Service{service("a", at(9)), service("b", at(5))}, "b"},
		"with an age before none":   {[]Service{service("a", time.Time{}), service("b", at(5))}, "b"},
		"of one age":                {[]Service{service("b", at(5)), service("a", at(5))}, ""},
		"both without age":          {[]Service{service("b", time.Time{}), service("a", time.Time{})}, ""},
		"alone":                     {[]Service{service("b", time.Time{})}, "b"},
		"older than two of one age": {[]Service{service("a", at(5)), service("b", at(5)), service("c", at(1))}, "c"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			table := Compile(tc.services)
			m, err := table.Match("unknown", "/v2/models/m/infer")
			if tc.want == "" {
				if !errors.Is(err, errdef.ErrConflict) || !strings.Contains(err.Error(), "a/m, b/m") {
					t.Fatalf("got %v", err)
				}
			} else if err != nil || m.Service.Key.Namespace != tc.want {
				t.Fatalf("got %+v, %v", m, err)
			}
			for _, r := range [][2]string{{"m.EXAMPLE:80", "/"}, {"", "/m"}, {"", "/m/v2"}} {
				m, err := table.Match(r[0], r[1])
				if err != nil || (tc.want != "" && m.Service.Key.Namespace != tc.want) || (tc.want == "" && m.Service.Key.Namespace != "a") {
					t.Errorf("%v: %+v, %v", r, m, err)
				}
			}
		})
	}
}

func TestLongestPrefixWins(t *testing.T) {
	s := func(name, prefix string) Service {
		return Service{Key: spec.ServiceKey{Name: name}, PathPrefix: prefix}
	}
	table := Compile([]Service{s("short", "/a"), s("long", "/a/b/c"), s("middle", "/a/b")})
	for path, want := range map[string]string{
		"/a": "short /", "/a/": "short /", "/a/x": "short /x", "/a/b": "middle /", "/a/bc": "short /bc",
		"/a/b/c": "long /", "/a/b/c/": "long /", "/a/b/cd/e": "middle /cd/e", "/a/b/c/v2": "long /v2", "/b": "", "/ab": "",
	} {
		m, err := table.Match("", path)
		got := ""
		if err == nil {
			got = m.Service.Key.Name + " " + m.Path
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestAbsentTablesRouteNothing(t *testing.T) {
	for name, table := range map[string]*Table{"nil": nil, "zero": {}, "empty": Compile(nil)} {
		if _, err := table.Match("x", "/v2/models/m/infer"); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := table.Match("x", "/foo"); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if m, err := table.Match("x", "/v2"); err != nil || m.Service != nil || m.Call.Op != ServerMetadata {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		if _, ok := table.Host("x"); ok {
			t.Errorf("%s has a host", name)
		}
		if _, ok := table.Named(spec.ServiceKey{}, "/"); ok {
			t.Errorf("%s has a service", name)
		}
	}
}

func TestErrorsListABoundedNumberOfNames(t *testing.T) {
	var services []Service
	for i := range 500 {
		services = append(services, Service{Key: spec.ServiceKey{Namespace: "n", Name: fmt.Sprintf("s%03d", i)}})
	}
	_, err := Compile(services).Match(strings.Repeat("h", 1000), "/"+strings.Repeat("p", 1000))
	if len(err.Error()) > 1000 || !strings.Contains(err.Error(), "n/s009 and 490 more") {
		t.Errorf("%d bytes: %v", len(err.Error()), err)
	}
}

// backend makes a backend at random: weights, and how many endpoints each target has.
func backend(t *rapid.T) *Backend {
	b := &Backend{}
	for i := range rapid.IntRange(0, 4).Draw(t, "targets") {
		target := Target{Revision: fmt.Sprint(i), Weight: rapid.SampledFrom([]int{0, 1, 20, 50, 100}).Draw(t, "weight")}
		for j := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			target.Endpoints = append(target.Endpoints, Endpoint{Replica: fmt.Sprintf("%d-%d", i, j)})
		}
		b.Targets = append(b.Targets, target)
	}
	return b
}

func TestPicksAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := backend(t)
		loads := map[string]int64{}
		load := func(e *Endpoint) int64 { return loads[e.Replica] }
		for i := range b.Targets {
			for j := range b.Targets[i].Endpoints {
				loads[b.Targets[i].Endpoints[j].Replica] = rapid.Int64Range(0, 3).Draw(t, "load")
			}
		}
		rnd := rapid.Uint64().Draw(t, "rnd")
		target, e := b.Pick(rnd, load)
		if (target != nil) != b.Ready() || (target == nil) != (e == nil) {
			t.Fatalf("ready %v, picked %v %v", b.Ready(), target, e)
		}
		if target == nil {
			return
		}
		if target.Weight == 0 || !target.holds(e) {
			t.Fatalf("picked %v of %v", e, target)
		}
		other, oe := b.PickExcept(rnd, load, e)
		if oe == e || (oe != nil && (other.Weight == 0 || !other.holds(oe))) {
			t.Fatalf("instead of %v: %v of %v", e, oe, other)
		}
		if len(target.Endpoints) > 1 && other != target {
			t.Fatalf("the share of %v went to %v", target, other)
		}
		// With two endpoints both are looked at, so the idler one is chosen.
		if len(target.Endpoints) == 2 {
			for i := range target.Endpoints {
				if load(&target.Endpoints[i]) < load(e) {
					t.Fatalf("chose load %d over %d", load(e), load(&target.Endpoints[i]))
				}
			}
		}
	})
}

func TestSharesFollowWeights(t *testing.T) {
	b := &Backend{Targets: []Target{
		{Revision: "old", Weight: 80, Endpoints: make([]Endpoint, 2)},
		{Revision: "new", Weight: 20, Endpoints: make([]Endpoint, 1)},
		{Revision: "dark", Weight: 0, Endpoints: make([]Endpoint, 1)},
	}}
	const n = 10_000
	got := map[string]int{}
	ends := map[*Endpoint]int{}
	for i := range uint64(n) {
		target, e := b.Pick(i*(^uint64(0)/n)^(i*2654435761)&0xffffffff, nil) // evenly spread
		got[target.Revision]++
		ends[e]++
	}
	if got["old"] < 7900 || got["old"] > 8100 || got["dark"] != 0 {
		t.Errorf("shares %v", got)
	}
	if a := ends[&b.Targets[0].Endpoints[0]]; a < 3500 || a > 4500 {
		t.Errorf("one of two equal endpoints got %d of %d", a, got["old"])
	}
}

// Each request that names its model on the bare address asks for a route that isn't there, however many
// services there are.
func TestNoRouteCostsNothingUntilItIsTold(t *testing.T) {
	services := make([]Service, 200)
	for i := range services {
		services[i] = Service{Key: spec.ServiceKey{Namespace: "n", Name: fmt.Sprint("s", i)}, Entry: spec.Predictor}
	}
	table := Compile(services)
	var err error
	if n := testing.AllocsPerRun(100, func() { _, err = table.Match("gateway", "/v1/chat/completions") }); n > 2 {
		t.Errorf("%v allocations", n)
	}
	if !errors.Is(err, errdef.ErrNotFound) || !strings.Contains(err.Error(), `host "gateway"`) || !strings.Contains(err.Error(), "and 190 more") {
		t.Errorf("it says %v", err)
	}
}
