package route

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"stationmaster.dev/stationmaster/internal/spec"
)

// shared is a service with a stable revision of two replicas and a canary.
func shared(percent int, change ...func(*Backend)) *Table {
	b := Backend{
		Targets: []Target{
			{Revision: "r2", Tag: "latest", Weight: percent, Endpoints: []Endpoint{{Replica: "r2a", HTTP: "2a"}}},
			{Revision: "r1", Tag: "prev", Weight: 100 - percent, Endpoints: []Endpoint{{Replica: "r1a", HTTP: "1a"}, {Replica: "r1b", HTTP: "1b"}}},
		},
		Rules: []HeaderRule{{Header: "X-Tag", Value: "latest", Tag: "latest"}, {Header: "X-Tag", Value: "prev", Tag: "prev"}, {Header: "X-Beta", Tag: "latest"}},
	}
	for _, c := range change {
		c(&b)
	}
	return Compile([]Service{
		{
			Key: spec.ServiceKey{Namespace: "n", Name: "iris"}, BareNames: []string{"iris"},
			Hosts: []Host{
				{Name: "iris-n.localhost"}, {Name: "latest-iris-n.localhost", Tag: "latest"},
				{Name: "gone-iris-n.localhost", Tag: "gone"}, {Name: "prev-iris-n.localhost", Tag: "prev"},
			},
			Components: map[spec.Component]Backend{spec.Predictor: b},
		},
		// A service whose own name looks like another's tag.
		{Key: spec.ServiceKey{Namespace: "n", Name: "prev-iris"}, Hosts: []Host{{Name: "prev-iris-n.localhost"}}},
	})
}

func none(string) string { return "" }

func only(name, value string) func(string) string {
	return func(asked string) string {
		if asked == name {
			return value
		}
		return ""
	}
}

func steered(t *testing.T, table *Table, host string, header func(string) string) *Match {
	t.Helper()
	m, err := table.Match(host, "/v2/models/iris/infer")
	if err != nil {
		t.Fatal(err)
	}
	table.Steer(&m, header)
	return &m
}

func revisionOf(m *Match, rnd uint64) string {
	t, _ := m.Pick(rnd, nil)
	if t == nil {
		return ""
	}
	return t.Revision
}

func TestATagLeadsToItsRevisionWhateverTheWeights(t *testing.T) {
	table := shared(0)
	tests := map[string]struct {
		host   string
		header func(string) string
		want   string
	}{
		"no tag goes by the weights":        {"iris-n.localhost", none, "r1"},
		"the host of a tag":                 {"latest-iris-n.localhost:8080", none, "r2"},
		"a header that names a tag":         {"iris-n.localhost", only("X-Tag", "latest"), "r2"},
		"the header on the bare address":    {"127.0.0.1", only("X-Tag", "latest"), "r2"},
		"a header rule without a value":     {"iris-n.localhost", only("X-Beta", "whatever"), "r2"},
		"a tag that isn't there is ignored": {"iris-n.localhost", only("X-Tag", "gone"), "r1"},
		"a tag's host wins over a header":   {"latest-iris-n.localhost", only("X-Tag", "prev"), "r2"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for rnd := range 16 {
				if got := revisionOf(steered(t, table, tc.host, tc.header), uint64(rnd)<<60); got != tc.want {
					t.Fatalf("revision %q, want %q", got, tc.want)
				}
			}
		})
	}
	m := steered(t, table, "gone-iris-n.localhost", none)
	if revisionOf(m, 0) != "" || m.Backend.NotReady == "" {
		t.Errorf("the host of a tag without a ready revision: %+v", m.Backend)
	}
	if m := steered(t, table, "prev-iris-n.localhost", none); m.Service.Key.Name != "prev-iris" {
		t.Errorf("a tag took the host of service prev-iris: %s", m.Service.Key)
	}
}

func TestAnEndpointOfATagIsKnownToTheView(t *testing.T) {
	table := shared(10)
	m := steered(t, table, "latest-iris-n.localhost", none)
	target, endpoint := m.Pick(0, nil)
	for _, b := range table.Backends {
		for i := range b.Targets {
			if &b.Targets[i] == target && &b.Targets[i].Endpoints[0] == endpoint {
				return
			}
		}
	}
	t.Error("Backends doesn't range over the target of a tag")
}

func TestAStickyClientStaysAndTheWeightsHoldOverMany(t *testing.T) {
	for name, sticky := range map[string]Sticky{"header": {Header: "X-User"}, "cookie": {Cookie: "user"}} {
		t.Run(name, func(t *testing.T) {
			at := func(percent int) *Table { return shared(percent, func(b *Backend) { b.Sticky = sticky }) }
			client := func(i int) func(string) string {
				if sticky.Cookie != "" {
					return only("Cookie", fmt.Sprintf(`a=b; user="u%d"; c`, i))
				}
				return only("X-User", fmt.Sprintf("u%d", i))
			}
			ten, thirty := at(10), at(30)
			const clients = 20000
			canary, replicas := 0, map[string]int{}
			for i := range clients {
				m := steered(t, ten, "iris-n.localhost", client(i))
				target, e := m.Pick(0, nil)
				again, f := m.Pick(1<<63, nil)
				if target != again || e != f {
					t.Fatalf("client %d went to %s and then to %s", i, e.Replica, f.Replica)
				}
				replicas[e.Replica]++
				if target.Revision == "r2" {
					canary++
					if got := revisionOf(steered(t, thirty, "iris-n.localhost", client(i)), 0); got != "r2" {
						t.Fatalf("client %d left the canary when its share grew", i)
					}
				}
			}
			if got := 100 * float64(canary) / clients; got < 9 || got > 11 {
				t.Errorf("%.2f %% of clients went to the canary of 10 %%", got)
			}
			if share := float64(replicas["r1a"]) / float64(replicas["r1a"]+replicas["r1b"]); share < 0.47 || share > 0.53 {
				t.Errorf("replicas of the stable revision got %v", replicas)
			}
		})
	}
}

func TestAClientWithoutTheCookieIsSpread(t *testing.T) {
	table := shared(50, func(b *Backend) { b.Sticky = Sticky{Cookie: "user"} })
	m := steered(t, table, "iris-n.localhost", only("Cookie", "other=1"))
	if revisionOf(m, 0) == revisionOf(m, 1<<63|1<<62) {
		t.Error("all requests without the cookie go to one revision")
	}
}

func TestAStickyClientsSecondTryGoesToAnotherReplicaOfItsRevision(t *testing.T) {
	table := shared(0, func(b *Backend) { b.Sticky = Sticky{Header: "X-User"} })
	m := steered(t, table, "iris-n.localhost", only("X-User", "ann"))
	_, first := m.Pick(0, nil)
	target, second := m.PickExcept(0, nil, first)
	if target.Revision != "r1" || second == first {
		t.Errorf("the second try went to %s of %s", second.Replica, target.Revision)
	}
}

// The shares of requests, which fall by chance, are those asked for within a percentage point.
func TestTenPercentOfTenThousandRequestsGoToACanaryOfTenPercent(t *testing.T) {
	table := shared(10)
	rnd := rand.New(rand.NewPCG(1, 2))
	canary := 0
	for range 10_000 {
		if revisionOf(steered(t, table, "iris-n.localhost", none), rnd.Uint64()) == "r2" {
			canary++
		}
	}
	t.Logf("%d of 10000", canary)
	if canary < 900 || canary > 1100 {
		t.Errorf("%d of 10000 requests went to the canary of 10 %%", canary)
	}
}
