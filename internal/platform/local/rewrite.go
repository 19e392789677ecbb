package local

import (
	"sort"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/platform/local/launch"
	"stationmaster.dev/stationmaster/internal/spec"
)

// expand replaces $(NAME) by what lookup has, as Kubernetes does: an unknown name stays as
// written, and $$ is a literal $, so that $$(NAME) is never expanded.
// https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-container/
func expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			if v, ok := lookup(s[i+2 : i+end]); ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// elsewhere are flags whose value is another server's address.
var elsewhere = []string{"--predictor_host", "--explainer_host"}

// argPorts puts the allocated ports into an argument list. An argument that names another
// server (--predictor_host) keeps its port, unless that is one of neighbours: of the other
// containers of the replica, which a transformer in the predictor's pod calls localhost.
func argPorts(args []string, ports, neighbours map[int]int) []string {
	out := make([]string, len(args))
	for i, a := range args {
		known := ports
		for _, flag := range elsewhere {
			if strings.HasPrefix(a, flag+"=") || i > 0 && args[i-1] == flag {
				known = neighbours
			}
		}
		out[i] = swapPorts(a, known)
	}
	return out
}

// neighbours are those of a replica's ports that only other containers than c have.
func neighbours(c *spec.Container, containers []spec.Container, ports map[int]int) map[int]int {
	out := map[int]int{}
	for _, other := range containers {
		for _, p := range other.Ports {
			if other.Name != c.Name && ports[p.Number] != 0 {
				out[p.Number] = ports[p.Number]
			}
		}
	}
	for _, p := range c.Ports {
		delete(out, p.Number)
	}
	return out
}

// swapPorts replaces the container ports in s. A number counts as a port where it is a
// whole word, or ends a word after '=', or follows ':' right behind a host that means this
// machine (none, *, localhost, 127.0.0.1, 0.0.0.0, [::], [::1]). Words end at white space, quotes, commas and
// semicolons; after a host's port a '/' may follow.
func swapPorts(s string, ports map[int]int) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] < '0' || s[i] > '9' {
			b.WriteByte(s[i])
			i++
			continue
		}
		end := i
		for end < len(s) && s[end] >= '0' && s[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(s[i:end])
		to, known := ports[n]
		if err == nil && known && s[i] != '0' && portAt(s, i, end) {
			b.WriteString(strconv.Itoa(to))
		} else {
			b.WriteString(s[i:end])
		}
		i = end
	}
	return b.String()
}

const wordEnds = " \t\n\"'`,;"

func portAt(s string, from, to int) bool {
	ends := to == len(s) || strings.IndexByte(wordEnds, s[to]) >= 0
	begins := from == 0 || strings.IndexByte(wordEnds, s[from-1]) >= 0
	switch {
	case begins || s[from-1] == '=':
		return ends
	case s[from-1] != ':':
		return false
	case !ends && s[to] != '/' && s[to] != '?':
		return false
	}
	host := s[:from-1]
	if i := strings.LastIndexAny(host, wordEnds+"=/@"); i >= 0 {
		host = host[i+1:]
	}
	switch host {
	case "", "*", "localhost", "127.0.0.1", "0.0.0.0", "[::]", "[::1]":
		return true
	}
	return false
}

// swapPaths replaces mount paths by the directories behind them, where mounts aren't
// permitted. A path counts where no path character comes before it and '/' or no path
// character after it; the longest matching mount wins.
func swapPaths(s string, binds []launch.Mount) string {
	if len(binds) == 0 || !strings.Contains(s, "/") {
		return s
	}
	byLength := append([]launch.Mount(nil), binds...)
	sort.SliceStable(byLength, func(i, j int) bool { return len(byLength[i].Target) > len(byLength[j].Target) })
	var b strings.Builder
	for i := 0; i < len(s); {
		hit := false
		if s[i] == '/' && (i == 0 || !pathByte(s[i-1]) || strings.HasSuffix(s[:i], "file://")) {
			for _, m := range byLength {
				end := i + len(m.Target)
				if strings.HasPrefix(s[i:], m.Target) && (end == len(s) || s[end] == '/' || !pathByte(s[end])) {
					b.WriteString(m.Source)
					i, hit = end, true
					break
				}
			}
		}
		if !hit {
			b.WriteByte(s[i])
			i++
		}
	}
	return b.String()
}

func pathByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/._-+~@%", c) >= 0
}
