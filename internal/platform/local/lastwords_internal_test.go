package local

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLastWordsAreTheLastLineThatSaysSomething(t *testing.T) {
	tests := map[string]struct {
		tail []string
		want string
	}{
		"none":              {nil, ""},
		"only blank lines":  {[]string{"", "  ", "\t"}, ""},
		"blank lines after": {[]string{"first", "KeyError: 'model'", "", " "}, "KeyError: 'model'"},
		"colours and bells": {[]string{"\x1b[31mERROR\x1b[0m\tno\amodel"}, "ERROR nomodel"},
		"broken UTF-8":      {[]string{"caf\xff\xfee"}, "cafe"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := lastWords(tc.tail); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	long := lastWords([]string{strings.Repeat("é", 500)})
	if len(long) > lastWordsBytes+len("…") || !utf8.ValidString(long) || !strings.HasSuffix(long, "é…") {
		t.Errorf("a long line became %d bytes: %q", len(long), long)
	}
}

func TestATakenPortIsReadInEveryonesWording(t *testing.T) {
	tests := map[string]struct {
		line  string
		port  int
		found bool
	}{
		"Go":             {"2026/11/29 21:26:24 listen tcp 127.0.0.1:8080: bind: address already in use", 8080, true},
		"Go, any host":   {"listen tcp :8080: bind: address already in use", 8080, true},
		"Go, IPv6":       {"listen tcp [::1]:9000: bind: address already in use", 9000, true},
		"Python":         {"OSError: [Errno 98] Address already in use", 0, true},
		"asyncio":        {"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use", 8000, true},
		"gunicorn":       {"[2026-11-29 21:26:24 +0000] [12] [ERROR] Connection in use: ('0.0.0.0', 8000)", 8000, true},
		"Flask":          {"Port 5000 is in use by another program. Either identify and stop that program, or start the server with a different port.", 5000, true},
		"C":              {"bind: Address already in use", 0, true},
		"nginx":          {"nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)", 80, true},
		"Node":           {"Error: listen EADDRINUSE: address already in use :::3000", 3000, true},
		"Node, old":      {"Error: listen EADDRINUSE 127.0.0.1:3000", 3000, true},
		"Java":           {"java.net.BindException: Address already in use", 0, true},
		"Rust":           {`Error: Os { code: 98, kind: AddrInUse, message: "Address already in use" }`, 0, true},
		"Triton":         {"failed to start HTTP service: Unavailable - Socket '0.0.0.0:8000' already in use ", 8000, true},
		"another reason": {"FileNotFoundError: [Errno 2] No such file or directory: 'model.joblib'", 0, false},
		"memory":         {"12 MiB of 16 MiB in use", 0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			port, found := takenPort([]string{"loading", tc.line, "bye"})
			if port != tc.port || found != tc.found {
				t.Errorf("got port %d, found %v; want %d, %v", port, found, tc.port, tc.found)
			}
		})
	}
	if port, found := takenPort([]string{"Error: listen EADDRINUSE: address already in use :::3000", "  code: 'EADDRINUSE',", "  port: 3000", "Node.js v20.1.0"}); port != 3000 || !found {
		t.Errorf("of Node's whole report: %d, %v", port, found)
	}
}
