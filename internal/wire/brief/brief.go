// Package brief writes messages that quote input of any size, and cuts short what they quote.
// A message that goes back to a client must fit in a header: gRPC sends it as a trailer, whose
// size peers limit, often to 8 KiB.
package brief

import (
	"fmt"
	"io"
	"reflect"
	"unicode/utf8"
)

const (
	// most is how many bytes of a text, and maxItems how many items of a list, are quoted.
	most     = 200
	maxItems = 64
	// maxQuoted bounds a quotation with its quotes and escapes.
	maxQuoted = most + 8

	dots = "…"
)

// Sprintf is fmt.Sprintf, but that texts, errors and lists among the arguments are cut to some
// 200 bytes each. %T must not be used for these: it would name a type of this package.
func Sprintf(format string, args ...any) string {
	for i := range args {
		args[i] = shorten(args[i])
		if err, ok := args[i].(error); ok {
			args[i] = quoted{err}
		}
	}
	return fmt.Sprintf(format, args...)
}

// Errorf is fmt.Errorf with the arguments cut as by Sprintf, but for errors, which are to be
// wrapped and have a brief text already.
func Errorf(format string, args ...any) error {
	for i := range args {
		args[i] = shorten(args[i])
	}
	return fmt.Errorf(format, args...)
}

// Cut returns the first n bytes of s or a little less, so that it stays UTF-8, with dots where
// something is left out.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n -= len(dots); n > 0 && !utf8.RuneStart(s[n]); {
		n--
	}
	return s[:max(n, 0)] + dots
}

// shorten cuts what is long before it is formatted, and marks it, so that what comes of it is
// cut too.
func shorten(arg any) any {
	switch v := arg.(type) {
	case string:
		return quoted{Cut(v, most)}
	case []byte:
		if len(v) > most {
			return quoted{Cut(string(v[:most+utf8.UTFMax]), most)}
		}
		return quoted{v}
	case []int64:
		return quoted{v[:min(len(v), maxItems)]}
	case []string:
		return quoted{v[:min(len(v), maxItems)]}
	}
	if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
		return quoted{Cut(v.String(), most)}
	}
	return arg
}

// quoted is a value whose formatted text is cut.
type quoted struct{ value any }

// Format writes the value as the verb says, cut.
func (q quoted) Format(f fmt.State, verb rune) {
	_, _ = io.WriteString(f, Cut(fmt.Sprintf(fmt.FormatString(f, verb), q.value), maxQuoted)) // a fmt.State takes all
}
