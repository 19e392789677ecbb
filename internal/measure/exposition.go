package measure

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// selector tells which series of a page count.
type selector struct {
	name   string
	labels []matcher
}

// matcher holds for a label that has, or hasn't, a value; one that isn't there has the empty one.
type matcher struct {
	name, value string
	not         bool
}

func (s *selector) matches(labels []matcher) bool {
	for _, m := range s.labels {
		value := ""
		for _, l := range labels {
			if l.name == m.name {
				value = l.value
			}
		}
		if (value == m.value) == m.not {
			return false
		}
	}
	return true
}

// parseSelector reads a metric's name, with labels in braces or without. Anything else of PromQL
// is an error of kind errdef.ErrInvalid.
func parseSelector(text string) (selector, error) {
	name, labels, rest, ok := parseSeries(strings.TrimSpace(text))
	if !ok || strings.TrimSpace(rest) != "" {
		return selector{}, errdef.New(errdef.ErrInvalid, fmt.Sprintf(
			"an engine's own page answers for a name with labels such as queue_length{model=\"iris\"}, and not for %q; name a Prometheus server in serverAddress for that", text))
	}
	return selector{name: name, labels: labels}, nil
}

// parseSeries reads a series from the start of a line and returns what follows it. In a page
// labels are equal to their values alone; in a selector they may be unequal, too.
func parseSeries(line string) (name string, labels []matcher, rest string, ok bool) {
	name, rest = word(line, true)
	if name == "" {
		return "", nil, "", false
	}
	inside, open := strings.CutPrefix(strings.TrimLeft(rest, " \t"), "{")
	if !open {
		return name, nil, rest, true
	}
	for {
		inside = strings.TrimLeft(inside, " \t")
		if after, closed := strings.CutPrefix(inside, "}"); closed {
			return name, labels, after, true
		}
		var m matcher
		m.name, inside = word(inside, false)
		inside = strings.TrimLeft(inside, " \t")
		switch {
		case m.name == "":
			return "", nil, "", false
		case strings.HasPrefix(inside, "!="):
			m.not, inside = true, inside[2:]
		case strings.HasPrefix(inside, "="):
			inside = inside[1:]
		default:
			return "", nil, "", false
		}
		if m.value, inside, ok = quoted(strings.TrimLeft(inside, " \t")); !ok {
			return "", nil, "", false
		}
		labels = append(labels, m)
		inside = strings.TrimLeft(inside, " \t")
		if after, more := strings.CutPrefix(inside, ","); more {
			inside = after
		} else if !strings.HasPrefix(inside, "}") {
			return "", nil, "", false
		}
	}
}

// word cuts off the name of a metric, which may hold colons, or of a label.
func word(s string, colons bool) (name, rest string) {
	i := 0
	for i < len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || colons && c == ':'
		if !letter && (i == 0 || c < '0' || c > '9') {
			break
		}
		i++
	}
	return s[:i], s[i:]
}

// quoted cuts off a label's value.
func quoted(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
			if s[i] == 'n' {
				b.WriteByte('\n')
			} else {
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}

// maxLine is the longest line of a page that is read.
const maxLine = 64 << 10

var errNotTold = errors.New("its page doesn't have the metric")

// sumOf reads a page in Prometheus' text format and sums up the series that a selector chooses;
// those without a value (NaN) don't count.
func sumOf(page io.Reader, which selector) (float64, error) {
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, maxLine)
	sum, found := 0.0, false
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if !strings.HasPrefix(line, which.name) {
			continue
		}
		name, labels, rest, ok := parseSeries(line)
		if !ok {
			return 0, errors.New("its page isn't in Prometheus' text format")
		}
		if name != which.name || !which.matches(labels) {
			continue
		}
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, errors.New("its page isn't in Prometheus' text format")
		}
		if math.IsNaN(v) {
			continue
		}
		sum, found = sum+v, true
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read its page: %w", err)
	}
	if !found {
		return 0, errNotTold
	}
	return sum, nil
}
