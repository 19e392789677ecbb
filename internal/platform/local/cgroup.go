package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups is the part of the machine's control groups that engines are put in. Version 2
// groups processes (so that a whole container can be killed) and limits them where its
// controllers are delegated; the memory and cpu hierarchies of version 1 limit where those
// are what the machine has.
type cgroups struct {
	name         string // of our subtree
	v2           string
	v2mem, v2cpu bool
	v1mem, v1cpu string
}

// group is one container's place in the control groups.
type group struct {
	V2, V1Mem, V1CPU string
}

func detectCgroups(name string) *cgroups {
	g := &cgroups{name: name}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return g
	}
	own := ownGroups()
	for _, line := range strings.Split(string(mounts), "\n") {
		head, tail, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(f) < 5 || len(kind) < 3 {
			continue
		}
		at := func(controller string) string { return filepath.Join(f[4], own[controller], g.name) }
		switch {
		case kind[0] == "cgroup2":
			parent := filepath.Join(f[4], own[""])
			_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory +cpu"), 0o600)
			if dir := at(""); usable(dir) {
				g.v2 = dir
				_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0o600)
				_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0o600)
				has, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
				g.v2mem, g.v2cpu = bytes.Contains(has, []byte("memory")), bytes.Contains(has, []byte("cpu"))
			}
		case kind[0] == "cgroup" && hasOption(kind[2], "memory"):
			if dir := at("memory"); usable(dir) {
				g.v1mem = dir
			}
		case kind[0] == "cgroup" && hasOption(kind[2], "cpu"):
			if dir := at("cpu"); usable(dir) {
				g.v1cpu = dir
			}
		}
	}
	return g
}

func hasOption(list, name string) bool { return strings.Contains(","+list+",", ","+name+",") }

// usable makes our subtree and reports whether processes can be put there.
func usable(dir string) bool {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false
	}
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// ownGroups returns this process's path by controller; "" is version 2.
func ownGroups() map[string]string {
	out := map[string]string{}
	raw, _ := os.ReadFile("/proc/self/cgroup")
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 {
			for _, c := range strings.Split(f[1], ",") {
				out[c] = f[2]
			}
		}
	}
	return out
}

// limits reports which limits are kept.
func (g *cgroups) limits() (memory, cpu bool) {
	return g.v2mem || g.v1mem != "", g.v2cpu || g.v1cpu != ""
}

// create makes a container's group with its limits; what isn't permitted is left out.
func (g *cgroups) create(leaf string, milliCPU, memory int64) (group, error) {
	var out group
	set := func(dir, file, value string) error {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o600); err != nil {
			return fmt.Errorf("set %s: %w", file, err)
		}
		return nil
	}
	var errs []error
	quota := max(milliCPU*100, 1000) // microseconds of each 100 ms; the kernel's least is 1 ms
	if g.v2 != "" {
		out.V2 = filepath.Join(g.v2, leaf)
		errs = append(errs, os.MkdirAll(out.V2, 0o755))
		if g.v2mem && memory > 0 {
			errs = append(errs, set(out.V2, "memory.max", strconv.FormatInt(memory, 10)))
			_ = set(out.V2, "memory.swap.max", "0")
			_ = set(out.V2, "memory.oom.group", "1")
		}
		if g.v2cpu && milliCPU > 0 {
			errs = append(errs, set(out.V2, "cpu.max", fmt.Sprintf("%d 100000", quota)))
		}
	}
	if g.v1mem != "" && !g.v2mem && memory > 0 {
		out.V1Mem = filepath.Join(g.v1mem, leaf)
		errs = append(errs, os.MkdirAll(out.V1Mem, 0o755), set(out.V1Mem, "memory.limit_in_bytes", strconv.FormatInt(memory, 10)))
		_ = set(out.V1Mem, "memory.memsw.limit_in_bytes", strconv.FormatInt(memory, 10))
	}
	if g.v1cpu != "" && !g.v2cpu && milliCPU > 0 {
		out.V1CPU = filepath.Join(g.v1cpu, leaf)
		errs = append(errs, os.MkdirAll(out.V1CPU, 0o755), set(out.V1CPU, "cpu.cfs_period_us", "100000"), set(out.V1CPU, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)))
	}
	return out, errors.Join(errs...)
}

// procsFiles are what the launcher writes itself into; version 2 is entered at the fork.
func (g group) procsFiles() []string {
	var out []string
	for _, d := range []string{g.V1Mem, g.V1CPU} {
		if d != "" {
			out = append(out, filepath.Join(d, "cgroup.procs"))
		}
	}
	return out
}

// kill ends every process in the group; it reports whether the kernel could.
func (g group) kill() bool {
	return g.V2 != "" && os.WriteFile(filepath.Join(g.V2, "cgroup.kill"), []byte("1"), 0o600) == nil
}

// oomKills counts the processes of the group that the kernel ended for memory.
func (g group) oomKills() int {
	n := 0
	for _, f := range []string{filepath.Join(g.V2, "memory.events"), filepath.Join(g.V1Mem, "memory.oom_control")} {
		raw, err := os.ReadFile(f)
		if err == nil && filepath.IsAbs(f) {
			n += counter(raw, "oom_kill")
		}
	}
	return n
}

// counter returns the number after name on its line.
func counter(raw []byte, name string) int {
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}

// machineOOMKills counts those of the whole machine since it booted.
func machineOOMKills() int {
	raw, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	return counter(raw, "oom_kill")
}

// remove takes the group away; it must be empty.
func (g group) remove() {
	for _, d := range []string{g.V2, g.V1Mem, g.V1CPU} {
		if d != "" {
			_ = os.Remove(d)
		}
	}
}

// sweep ends and removes every container's group that keep doesn't want, and waits a moment
// for the kernel to let go of what was just killed.
func (g *cgroups) sweep(keep func(leaf string) bool) {
	for _, dir := range []string{g.v2, g.v1mem, g.v1cpu} {
		entries, err := os.ReadDir(dir)
		if dir == "" || err != nil {
			continue
		}
		for _, e := range entries {
			if !e.IsDir() || keep(e.Name()) {
				continue
			}
			leaf := filepath.Join(dir, e.Name())
			_ = os.WriteFile(filepath.Join(leaf, "cgroup.kill"), []byte("1"), 0o600)
			for range 50 {
				if err := os.Remove(leaf); !errors.Is(err, unix.EBUSY) {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

// remove takes our subtree away with all that is in it.
func (g *cgroups) remove() {
	g.sweep(func(string) bool { return false })
	group{g.v2, g.v1mem, g.v1cpu}.remove()
}
