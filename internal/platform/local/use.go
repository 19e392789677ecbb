package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// tick is the kernel's unit of processor time in /proc, the same on every Linux.
const tick = 10 * time.Millisecond

// leaders names the processes of a replica that lead sessions of their own; nil where a container
// engine runs one of them, whose processes aren't ours to count.
func leaders(procs []*process) []int {
	var out []int
	for _, p := range procs {
		switch {
		case p == nil:
		case p.Engine != "":
			return nil
		default:
			out = append(out, p.PID)
		}
	}
	return out
}

// Use tells what the replicas of a service use, by their IDs: all that runs in the sessions of
// their containers. Replicas in a container engine are left out.
func (p *Platform) Use(_ context.Context, service spec.ServiceKey) (map[string]spec.Use, error) {
	sessions, err := sessionUse()
	if err != nil {
		return nil, err
	}
	out := map[string]spec.Use{}
	for _, r := range p.all() {
		if r.w.Service != service {
			continue
		}
		r.mu.Lock()
		of := r.leaders
		r.mu.Unlock()
		var sum spec.Use
		for _, pid := range of {
			u, ok := sessions[pid]
			if !ok {
				of = nil
			}
			sum.CPU += u.CPU
			sum.Memory += u.Memory
		}
		if len(of) > 0 {
			out[r.id] = sum
		}
	}
	return out, nil
}

// sessionUse adds up what the processes of each session use.
func sessionUse() (map[int]spec.Use, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read what processes use: %w", err)
	}
	out := map[int]spec.Use{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		raw, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		session, u, ok := parseStat(raw)
		if !ok {
			continue
		}
		sum := out[session]
		sum.CPU += u.CPU
		sum.Memory += u.Memory
		out[session] = sum
	}
	return out, nil
}

// parseStat reads a process's session and use from its line in /proc, with the time of the
// children that it has waited for. The name in brackets may hold anything.
func parseStat(raw []byte) (session int, u spec.Use, ok bool) {
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(f) < 22 {
		return 0, u, false
	}
	var ticks int64
	for _, i := range []int{11, 12, 13, 14} {
		n, err := strconv.ParseInt(string(f[i]), 10, 64)
		if err != nil {
			return 0, u, false
		}
		ticks += n
	}
	session, err := strconv.Atoi(string(f[3]))
	pages, err2 := strconv.ParseInt(string(f[21]), 10, 64)
	if err != nil || err2 != nil {
		return 0, u, false
	}
	return session, spec.Use{CPU: time.Duration(ticks) * tick, Memory: pages * int64(os.Getpagesize())}, true
}
