package local

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"stationmaster.dev/stationmaster/internal/spec"
)

// lastWordsBytes bounds the log line that a failure's message quotes.
const lastWordsBytes = 200

// explain adds to the message of a process that ended by itself what its log says of why: its
// last line, and where a port was taken, by whom, and what to do.
func (r *instance) explain(f *spec.Failure, c *spec.Container) {
	if f.Reason != spec.Exited {
		return
	}
	if last := lastWords(f.LogTail); last != "" {
		f.Message += "; its last log line: " + last
	}
	port, found := takenPort(f.LogTail)
	if !found {
		return
	}
	own := map[int]bool{}
	for _, n := range r.ports {
		own[n] = true
	}
	owner := ""
	if port == 0 {
		// The log doesn't say which: one that the container is told to listen on.
		for _, n := range numbers(r.words(c)) {
			if owner = r.p.owner(n); owner != "" {
				port = n
				break
			}
		}
	} else {
		owner = r.p.owner(port)
	}
	switch {
	case own[port]:
		f.Message += fmt.Sprintf("; port %d, which it was given, was taken meanwhile by %s: the next try gets another", port, cmp.Or(owner, "another process"))
		return
	case port == 0:
		f.Message += "; a port that it listens on is taken"
	default:
		f.Message += fmt.Sprintf("; port %d is taken by %s", port, cmp.Or(owner, "another process"))
	}
	f.Message += ": let it listen on $PORT"
	if len(c.Ports) > 0 {
		f.Message += fmt.Sprintf(", or name the containerPort %d in its args, where it is replaced by a free port", c.Ports[0].Number)
	}
}

// words are the command line of a container as its author wrote it.
func (r *instance) words(c *spec.Container) []string {
	words := slices.Concat(c.Command, c.Args)
	if c.Local != nil {
		words = slices.Concat(words, c.Local.Command, c.Local.Args)
	}
	return words
}

// escapes are the colours of a terminal.
var escapes = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// lastWords returns the last line that isn't blank, as a message can carry it: on one line, of
// printable characters, at most lastWordsBytes long.
func lastWords(tail []string) string {
	for _, line := range slices.Backward(tail) {
		line = strings.Map(func(c rune) rune {
			switch {
			case unicode.IsSpace(c):
				return ' '
			case !unicode.IsPrint(c):
				return -1
			}
			return c
		}, escapes.ReplaceAllString(strings.ToValidUTF8(line, ""), ""))
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if len(line) > lastWordsBytes {
			line = strings.ToValidUTF8(line[:lastWordsBytes], "") + "…"
		}
		return line
	}
	return ""
}

var (
	// inUse is how C libraries, Go, Python, Java, Rust and Node word EADDRINUSE, and how
	// gunicorn, Flask and Triton do in words of their own.
	inUse = regexp.MustCompile(`(?i)address (is )?already in use|EADDRINUSE|\b(connection|socket|port)\b.{0,60}\bin use\b`)
	// portIn finds the port beside it: behind a host, as the second of a Python pair, or named.
	portIn = regexp.MustCompile(`(?i)[\w\])*]?:(\d{1,5})\b|', (\d{1,5})\)|\bport[ :=]+(\d{1,5})\b`)
)

// takenPort looks in a log for a server's word that its port is taken. The port is zero where
// no line that says so names it.
func takenPort(tail []string) (port int, found bool) {
	for _, line := range tail {
		if !inUse.MatchString(line) {
			continue
		}
		found = true
		for _, m := range portIn.FindAllStringSubmatch(line, -1) {
			if n, err := strconv.Atoi(cmp.Or(m[1], m[2], m[3])); err == nil && n > 0 && n < 1<<16 {
				port = n // the last one: what comes before may be a time or a line number
			}
		}
		if port != 0 {
			return port, true
		}
	}
	return 0, found
}

// number is a whole word, or what follows '=' or ':' at a word's end.
var number = regexp.MustCompile(`(?:^|[=:\s])(\d{2,5})$`)

// numbers are those of a command line that could be ports.
func numbers(words []string) []int {
	var out []int
	for _, w := range words {
		if m := number.FindStringSubmatch(w); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil && n < 1<<16 {
				out = append(out, n)
			}
		}
	}
	return out
}

// owner says who listens on a port of this machine; empty where nobody does or it can't be
// told, as of other users' processes.
func (p *Platform) owner(port int) string {
	sockets := listening(port)
	if len(sockets) == 0 {
		return ""
	}
	pid := holder(sockets)
	switch {
	case pid == 0:
		return "a process of another user"
	case pid == os.Getpid():
		return "stationmaster itself: see the addresses that 'up' printed"
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err == nil {
		for v := range bytes.SplitSeq(raw, []byte{0}) {
			id, ours := bytes.CutPrefix(v, []byte(markVar+"="+p.mark+"/"))
			if !ours {
				continue
			}
			p.mu.Lock()
			r := p.replicas[string(id)]
			p.mu.Unlock()
			if r != nil {
				return fmt.Sprintf("service %s (replica %s)", r.w.Service, r.id)
			}
		}
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s (pid %d)", bytes.TrimSpace(name), pid)
}

// listening returns the inodes of the sockets that listen on a TCP port (proc_pid_net(5)).
func listening(port int) map[string]bool {
	const listen = "0A"
	out := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		raw, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				out["socket:["+f[9]+"]"] = true
			}
		}
	}
	return out
}

// holder returns a process that has one of the sockets open, 0 where none can be seen.
func holder(sockets map[string]bool) int {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range processes {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + e.Name() + "/fd"
		files, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range files {
			if to, err := os.Readlink(dir + "/" + f.Name()); err == nil && sockets[to] {
				return pid
			}
		}
	}
	return 0
}
