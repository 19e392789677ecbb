package route_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
)

// A table with one service replaced routes as one that was compiled anew, and the one before as it did.
func TestATableWithAnotherLineIsAsOneCompiledAnew(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	backend := func() map[spec.Component]route.Backend {
		var targets []route.Target
		for r := range rnd.IntN(3) {
			target := route.Target{Revision: fmt.Sprintf("r%d", r), Weight: 1 + rnd.IntN(99), Tag: []string{"", "latest", "prev"}[rnd.IntN(3)]}
			for range rnd.IntN(3) {
				target.Endpoints = append(target.Endpoints, route.Endpoint{Replica: fmt.Sprint(rnd.Int()), HTTP: fmt.Sprint("127.0.0.1:", rnd.IntN(9999))})
			}
			targets = append(targets, target)
		}
		return map[spec.Component]route.Backend{spec.Predictor: {Targets: targets, Cold: rnd.IntN(4) == 0, NotReady: fmt.Sprint(rnd.Int())}}
	}
	for range 200 {
		n := 2 + rnd.IntN(6)
		services := make([]route.Service, n)
		for i := range services {
			name := fmt.Sprintf("s%d", i)
			shared := fmt.Sprintf("shared%d", rnd.IntN(2))
			services[i] = route.Service{
				Key: spec.ServiceKey{Namespace: "n", Name: name}, Entry: spec.Predictor, Components: backend(), Created: time.Unix(int64(rnd.IntN(3)), 0),
				Hosts:      []route.Host{{Name: name + ".test"}, {Name: shared + ".test", Component: spec.Predictor}, {Name: "prev-" + shared + ".test", Tag: "prev"}},
				PathPrefix: "/serving/" + []string{name, shared}[rnd.IntN(2)], BareNames: []string{name, shared},
			}
		}
		before := route.Compile(services)
		was := told(before)
		i := rnd.IntN(n)
		services[i].Components = backend()
		got, ok := before.With(services[i])
		if !ok {
			t.Fatalf("%s isn't replaced", services[i].Key)
		}
		if got, want := told(got), told(route.Compile(services)); !reflect.DeepEqual(got, want) {
			t.Fatalf("with %s:\n%v\ncompiled anew:\n%v", services[i].Key, got, want)
		}
		if now := told(before); !reflect.DeepEqual(now, was) {
			t.Fatalf("the table before says\n%v\nand said\n%v", now, was)
		}
	}
}

// told is all that a table says.
func told(t *route.Table) []string {
	var out []string
	say := func(what string, m route.Match, err error) {
		line := fmt.Sprint(what, " ", err)
		if m.Service != nil {
			line += fmt.Sprint(" ", m.Service.Key, m.Service.Components)
		}
		if m.Backend != nil {
			line += fmt.Sprint(" ", *m.Backend)
		}
		out = append(out, line)
	}
	for _, s := range t.Services() {
		m, _ := t.Named(s.Key, "/")
		say("key "+s.Key.Name, m, nil)
		for _, tag := range []string{"latest", "prev", "r0", "r1"} {
			pinned := m
			ok := t.Pin(&pinned, tag)
			say(fmt.Sprint("pin ", tag, ok), pinned, nil)
		}
	}
	for i := range 8 {
		for _, name := range []string{fmt.Sprintf("s%d", i), fmt.Sprintf("shared%d", i)} {
			m, err := t.Model(name, "/")
			say("model "+name, m, err)
			for _, host := range []string{name + ".test", "prev-" + name + ".test", "127.0.0.1"} {
				m, err := t.Match(host, "/serving/"+name+"/v2/models/"+name)
				say("host "+host, m, err)
			}
		}
	}
	return out
}

func TestATableWithOtherNamesHasToBeCompiled(t *testing.T) {
	s := route.Service{Key: spec.ServiceKey{Namespace: "n", Name: "a"}, Hosts: []route.Host{{Name: "a.test"}}, PathPrefix: "/a", BareNames: []string{"a"}, Created: time.Unix(1, 0)}
	table := route.Compile([]route.Service{s})
	for name, change := range map[string]func(*route.Service){
		"a stranger":     func(s *route.Service) { s.Key.Name = "b" },
		"another host":   func(s *route.Service) { s.Hosts = []route.Host{{Name: "b.test"}} },
		"a host's tag":   func(s *route.Service) { s.Hosts = []route.Host{{Name: "a.test", Tag: "x"}} },
		"another prefix": func(s *route.Service) { s.PathPrefix = "/b" },
		"another name":   func(s *route.Service) { s.BareNames = []string{"b"} },
		"another age":    func(s *route.Service) { s.Created = time.Unix(2, 0) },
		"a graph":        func(s *route.Service) { s.Graph = &spec.Graph{} },
	} {
		other := s
		change(&other)
		if _, ok := table.With(other); ok {
			t.Errorf("%s: it was taken as it is", name)
		}
	}
	if _, ok := (*route.Table)(nil).With(s); ok {
		t.Error("a table that isn't there was changed")
	}
}
