package upstream

import (
	"bytes"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// headEnd returns the length of a head that ends with an empty line, or 0.
func headEnd(b []byte, from int) int {
	for {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return 0
		}
		from += i + 1
		if from < len(b) && b[from] == '\n' {
			return from + 1
		}
		if from+1 < len(b) && b[from] == '\r' && b[from+1] == '\n' {
			return from + 2
		}
	}
}

func parseStatus(block string) (status int, http11 bool, rest string, err error) {
	line, rest, _ := strings.Cut(block, "\n")
	line = strings.TrimSuffix(line, "\r")
	version, tail, _ := strings.Cut(line, " ")
	switch version {
	case "HTTP/1.1":
		http11 = true
	case "HTTP/1.0":
	default:
		return 0, false, "", protocolError("status line %q", clip(line))
	}
	code, _, _ := strings.Cut(tail, " ")
	if len(code) != 3 || code[0] < '1' || code[0] > '9' || code[1] < '0' || code[1] > '9' || code[2] < '0' || code[2] > '9' {
		return 0, false, "", protocolError("status line %q", clip(line))
	}
	return int(code[0]-'0')*100 + int(code[1]-'0')*10 + int(code[2]-'0'), http11, rest, nil
}

// framing is what a head says about the body and the connection.
type framing struct {
	length     int64 // -1 when not given
	chunked    bool
	connection []string
	trailer    []string
	upgrade    string
}

// parseFields reads header fields up to an empty line into h, without those that concern the
// connection only; these it returns. block's strings stay referenced by h.
func parseFields(block string, h http.Header) (framing, error) {
	f := framing{length: -1}
	seen := ""
	values := make([]string, 0, 16)
	for {
		line, rest, ok := strings.Cut(block, "\n")
		if !ok {
			return f, protocolError("a header line doesn't end")
		}
		block = rest
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			break
		}
		if line[0] == ' ' || line[0] == '\t' {
			return f, protocolError("a folded header line")
		}
		colon := strings.IndexByte(line, ':')
		if colon <= 0 {
			return f, protocolError("header line %q", clip(line))
		}
		name, ok := canonical(line[:colon])
		if !ok {
			return f, protocolError("header name %q", clip(line[:colon]))
		}
		value := textproto.TrimString(line[colon+1:])
		if !validValue(value) {
			return f, protocolError("the value of header %s holds a control character", name)
		}
		switch name {
		case "Content-Length":
			if seen != "" && seen != value {
				return f, protocolError("two lengths, %q and %q", clip(seen), clip(value))
			}
			if seen == value && seen != "" {
				continue
			}
			seen = value
			n, err := parseLength(value)
			if err != nil {
				return f, err
			}
			f.length = n
		case "Transfer-Encoding":
			if f.chunked || !strings.EqualFold(value, "chunked") {
				return f, protocolError("transfer encoding %q", clip(value))
			}
			f.chunked = true
			continue
		case "Connection":
			f.connection = append(f.connection, value)
			continue
		case "Trailer":
			f.trailer = append(f.trailer, value)
			continue
		case "Upgrade":
			f.upgrade = value
			continue
		default:
			if hopByHop(name) {
				continue
			}
		}
		if old, ok := h[name]; ok {
			h[name] = append(old[:len(old):len(old)], value)
			continue
		}
		if len(values) == cap(values) {
			values = make([]string, 0, 16)
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if f.chunked && seen != "" {
		return f, protocolError("both a length and chunks")
	}
	for _, v := range f.connection {
		for token := range strings.SplitSeq(v, ",") {
			if name, ok := canonical(textproto.TrimString(token)); ok && name != "Content-Length" {
				delete(h, name)
			}
		}
	}
	return f, nil
}

func parseLength(s string) (int64, error) {
	if s == "" || len(s) > 18 {
		return 0, protocolError("length %q", clip(s))
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, protocolError("length %q", clip(s))
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, protocolError("length %q", clip(s))
	}
	return n, nil
}

// canonical returns the canonical form of a field name, and whether it is one.
func canonical(name string) (string, bool) {
	if name == "" {
		return "", false
	}
	upper, same := true, true
	for i := range len(name) {
		c := name[i]
		if !tokenChar(c) {
			return "", false
		}
		if upper && 'a' <= c && c <= 'z' || !upper && 'A' <= c && c <= 'Z' {
			same = false
		}
		upper = c == '-'
	}
	if same {
		return name, true
	}
	return textproto.CanonicalMIMEHeaderKey(name), true
}

// tokenChar is RFC 9110's tchar.
func tokenChar(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func validValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

func chunkSize(line []byte) (int64, error) {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	digits = bytes.TrimRight(digits, " \t")
	if len(digits) == 0 || len(digits) > 15 {
		return 0, protocolError("chunk size %q", clip(string(line)))
	}
	var n int64
	for _, d := range digits {
		switch {
		case '0' <= d && d <= '9':
			d -= '0'
		case 'a' <= d && d <= 'f':
			d -= 'a' - 10
		case 'A' <= d && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, protocolError("chunk size %q", clip(string(line)))
		}
		n = n<<4 | int64(d)
	}
	return n, nil
}

// forbiddenTrailer reports fields that must not come late (RFC 9110, section 6.5.1).
func forbiddenTrailer(name string) bool {
	return hopByHop(name) || slices.Contains([]string{
		"Content-Length", "Content-Encoding", "Content-Type", "Content-Range", "Host",
		"Cache-Control", "Authorization", "Set-Cookie", "Max-Forwards",
	}, name)
}
