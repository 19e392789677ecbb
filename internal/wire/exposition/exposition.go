// Package exposition reads pages of metrics in Prometheus' text format, and the selectors that
// choose some of their series.
package exposition

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

// Sample is one line of a page: a series and its value, which may be NaN or infinite.
type Sample struct {
	Name   string
	Labels []Label
	Value  float64
}

// Label is a name and a value. In a selector it may be one that a series hasn't.
type Label struct {
	Name, Value string
	not         bool
}

// Label returns the value of a label, empty where the series doesn't have it.
func (s *Sample) Label(name string) string { return valueOf(s.Labels, name) }

func valueOf(labels []Label, name string) string {
	value := ""
	for _, l := range labels {
		if l.Name == name {
			value = l.Value
		}
	}
	return value
}

// Selector tells which series of a page count.
type Selector struct {
	Name   string
	labels []Label
}

// Plain says that it is a name alone, without labels.
func (s *Selector) Plain() bool { return len(s.labels) == 0 }

// matches says whether labels are chosen; a label that isn't there has the empty value.
func (s *Selector) matches(labels []Label) bool {
	for _, m := range s.labels {
		if (valueOf(labels, m.Name) == m.Value) == m.not {
			return false
		}
	}
	return true
}

// ParseSelector reads a metric's name, with labels in braces or without. Anything else of PromQL
// is an error of kind errdef.ErrInvalid.
func ParseSelector(text string) (Selector, error) {
	name, labels, rest, ok := parseSeries(strings.TrimSpace(text))
	if !ok || strings.TrimSpace(rest) != "" {
		return Selector{}, errdef.New(errdef.ErrInvalid, fmt.Sprintf(
			"an engine's own page answers for a name with labels such as queue_length{model=\"iris\"}, and not for %q; name a Prometheus server in serverAddress for that", text))
	}
	return Selector{Name: name, labels: labels}, nil
}

// parseSeries reads a series from the start of a line and returns what follows it. In a page
// labels are equal to their values alone; in a selector they may be unequal, too.
func parseSeries(line string) (name string, labels []Label, rest string, ok bool) {
	name, rest = word(line, true)
	if name == "" {
		return "", nil, "", false
	}
	labels, rest, ok = parseLabels(rest)
	return name, labels, rest, ok
}

// parseLabels reads the labels that stand after a name, if any do.
func parseLabels(s string) (labels []Label, rest string, ok bool) {
	inside, open := strings.CutPrefix(strings.TrimLeft(s, " \t"), "{")
	if !open {
		return nil, s, true
	}
	for {
		inside = strings.TrimLeft(inside, " \t")
		if after, closed := strings.CutPrefix(inside, "}"); closed {
			return labels, after, true
		}
		var m Label
		m.Name, inside = word(inside, false)
		inside = strings.TrimLeft(inside, " \t")
		switch {
		case m.Name == "":
			return nil, "", false
		case strings.HasPrefix(inside, "!="):
			m.not, inside = true, inside[2:]
		case strings.HasPrefix(inside, "="):
			inside = inside[1:]
		default:
			return nil, "", false
		}
		if m.Value, inside, ok = quoted(strings.TrimLeft(inside, " \t")); !ok {
			return nil, "", false
		}
		labels = append(labels, m)
		inside = strings.TrimLeft(inside, " \t")
		if after, more := strings.CutPrefix(inside, ","); more {
			inside = after
		} else if !strings.HasPrefix(inside, "}") {
			return nil, "", false
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
	if end := strings.IndexAny(s[1:], `"\`); end >= 0 && s[1+end] == '"' {
		return s[1 : 1+end], s[2+end:], true
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

// Errors of pages.
var (
	// ErrNotTold says that a page doesn't have what was asked for.
	ErrNotTold = errors.New("its page doesn't have the metric")
	// ErrFormat says that a page isn't one of Prometheus' text format.
	ErrFormat = errors.New("its page isn't in Prometheus' text format")
)

// Read hands the samples of a page to each, in the page's order, leaving out those whose name isn't
// wanted; a sample is each's own only until it returns. It reads to the page's end, which the
// caller bounds. The error is ErrFormat for a wanted sample that can't be read, or the reader's.
func Read(page io.Reader, wanted func(name string) bool, each func(*Sample)) error {
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, maxLine)
	var s Sample
	for lines.Scan() {
		if raw := lines.Bytes(); len(raw) == 0 || raw[0] == '#' {
			continue
		}
		name, rest := word(strings.TrimSpace(lines.Text()), true)
		if name == "" || !wanted(name) {
			continue
		}
		labels, rest, ok := parseLabels(rest)
		if !ok {
			return ErrFormat
		}
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return ErrFormat
		}
		s = Sample{Name: name, Labels: labels, Value: v}
		each(&s)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read its page: %w", err)
	}
	return nil
}

// Sum adds up the series of a page that a selector chooses; those without a value (NaN) don't
// count. Where there are none, the error is ErrNotTold.
func Sum(page io.Reader, which Selector) (float64, error) {
	sum, found := 0.0, false
	err := Read(page, func(name string) bool { return name == which.Name }, func(s *Sample) {
		if !math.IsNaN(s.Value) && which.matches(s.Labels) {
			sum, found = sum+s.Value, true
		}
	})
	if err == nil && !found {
		err = ErrNotTold
	}
	return sum, err
}
