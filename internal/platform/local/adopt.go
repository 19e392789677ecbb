package local

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/plan/replica"
)

// adopt takes over the replicas that a control plane before this one left: those whose
// processes live go on as they are, those whose died are restarted by the rules. Processes of
// ours that no record knows are ended, and directories without a readable record removed.
func (p *Platform) adopt() []*instance {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.log.Error("cannot look for replicas to adopt", "err", err)
		return nil
	}
	var out []*instance
	known := map[int]bool{}
	for _, e := range entries {
		dir := filepath.Join(p.dir, e.Name())
		if !e.IsDir() || e.Name() == "check" {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, recordFile))
		var rec record
		if err == nil {
			err = json.Unmarshal(raw, &rec)
		}
		if err != nil || rec.Workload == nil || len(rec.Workload.Containers) == 0 || rec.ID != e.Name() {
			p.log.Warn("a replica's directory has no usable record; it is removed", "replica", e.Name(), "err", err)
			_ = os.RemoveAll(dir)
			continue
		}
		out = append(out, p.resume(&rec, known))
	}
	p.endStrays(known)
	p.groups.sweep(func(leaf string) bool {
		return slices.ContainsFunc(out, func(r *instance) bool { return strings.HasPrefix(leaf, r.id+"_") })
	})
	p.mu.Lock()
	for _, r := range out {
		p.replicas[r.id] = r
	}
	p.mu.Unlock()
	for _, r := range out {
		p.feed.Notify(r.w.Service)
	}
	return out
}

func (p *Platform) resume(rec *record, known map[int]bool) *instance {
	now := p.cfg.Now()
	m := replica.Resume(rec.Workload, p.cfg.Timing, rec.State, now)
	r := p.instance(rec.ID, rec.Workload, m)
	r.snapshot.Digests, r.snapshot.RuntimeDigest = rec.Digests, rec.RuntimeDigest
	if rec.Ports != nil {
		r.ports = rec.Ports
		p.ports.claim(rec.Ports)
	}
	for _, proc := range rec.Procs {
		if proc == nil || proc.Container < 0 || proc.Container >= len(r.procs) || rec.Boot != bootID() || proc.watch() != nil {
			if proc != nil {
				proc.Group.kill()
				proc.Group.remove()
			}
			continue
		}
		known[proc.PID] = true
		r.procs[proc.Container] = proc
		p.log.Info("process adopted", "service", r.w.Service.String(), "replica", r.id, "pid", proc.PID)
	}
	for i := range m.Containers {
		c := &m.Containers[i]
		if r.procs[i] == nil && (c.At == replica.Starting || c.At == replica.Running || c.At == replica.Stopping) {
			s, _ := m.Spec(i)
			f := (ending{}).failure(false, now)
			f.Container, f.LogTail = s.Name, logTail(r.logPath(s.Name))
			f.Message = "the process ended while no control plane ran"
			r.explain(f, s)
			lost := replica.Exited{Container: i, Incarnation: c.Incarnation, Failure: f}
			r.inbox <- func() replica.Event { return lost } // run hasn't begun; there is room for one from each container
		}
		if c.At == replica.Stopping && r.procs[i] != nil {
			r.procs[i].signal(unix.SIGTERM) // the hook's end, or the signal itself, may have been lost
		}
	}
	if m.Draining {
		r.drain()
	}
	r.publish()
	return r
}

// endStrays ends processes that carry our mark but stand in no record: they were started in
// the instant before a control plane was killed, or left their group.
func (p *Platform) endStrays(known map[int]bool) {
	mark := []byte(markVar + "=" + p.mark + "/")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || known[pid] || pid == os.Getpid() {
			continue
		}
		raw, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !bytes.Contains(raw, mark) {
			continue
		}
		if sid, err := unix.Getsid(pid); err == nil && known[sid] || descends(pid, known) {
			continue // an adopted process's
		}
		p.log.Warn("a process of ours that no record knows is ended", "pid", pid)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// descends reports whether a known process is among pid's ancestors.
func descends(pid int, known map[int]bool) bool {
	for range 64 {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return false
		}
		f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
		if len(f) < 2 {
			return false
		}
		if pid, err = strconv.Atoi(string(f[1])); err != nil || pid <= 1 {
			return false
		}
		if known[pid] {
			return true
		}
	}
	return false
}
