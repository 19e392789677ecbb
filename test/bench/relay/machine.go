package main

import (
	"fmt"
	"os"
	"path/filepath"

	"stationmaster.dev/stationmaster/test/bench/proc"
)

// machine starts what is compared.
type machine struct {
	profile string
	// profiles is how many gateways have written one.
	profiles int
}

// kind is one way to the engines.
type kind struct {
	name string
	// picking is the gateway's policy; empty for what isn't the gateway.
	picking string
}

var (
	direct       = kind{name: "direct"}
	gatewayOwn   = kind{"stationmaster", "default"}
	gatewayPlain = kind{"stationmaster, no affinity", "least-requests"}
	nginx        = kind{name: "nginx"}
	bare         = kind{name: "reverse proxy"}
	floor        = kind{name: "bytes alone"}
)

func (m *machine) engines(n int) (*proc.Process, error) {
	return proc.Spawn("engine", back, os.Args[0], "-role", "engine", "-count", fmt.Sprint(n))
}

// start has a way to engines, whose addresses have spaces between.
func (m *machine) start(k kind, engines string) (*proc.Process, error) {
	switch k {
	case direct:
		return &proc.Process{Name: k.name, Addr: engines, Stop: func() {}}, nil
	case nginx:
		return proc.SpawnNginx(front, engines, proc.NginxStreams)
	case floor:
		return proc.Spawn(k.name, front, os.Args[0], "-role", "copy", "-addr", engines)
	case bare:
		return proc.Spawn(k.name, front, os.Args[0], "-role", "reverseproxy", "-addr", engines)
	}
	args := []string{os.Args[0], "-role", "gateway", "-addr", engines, "-picking", k.picking}
	if m.profile != "" {
		m.profiles++
		args = append(args, "-cpuprofile", filepath.Join(m.profile, fmt.Sprintf("gateway-%d.prof", m.profiles)))
	}
	return proc.Spawn(k.name, front, args...)
}

// startAll has several; the caller calls stop, also after an error.
func (m *machine) startAll(kinds []kind, engines string) (all []*proc.Process, stop func(), err error) {
	stop = func() {
		for _, p := range all {
			p.Stop()
		}
	}
	for _, k := range kinds {
		p, err := m.start(k, engines)
		if err != nil {
			return all, stop, fmt.Errorf("%s: %w", k.name, err)
		}
		all = append(all, p)
	}
	return all, stop, nil
}
