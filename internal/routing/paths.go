package routing

import (
	"path"
	"regexp"
	"strings"
)

// aPath is an absolute path, or a file's URI, that isn't part of another URI.
var aPath = regexp.MustCompile(`(^|[\s"'(\[=:])((?:file://)?/[^/\s:;,()'"\[\]]+(?:/[^\s:;,()'"\[\]]*)?)`)

// withoutPaths takes out of a reason where things lie on a machine: clients are told it, and they
// are no concern of theirs. The last name of a path stays, which tells what it is about, and so do
// the paths that every container has.
func withoutPaths(reason string) string {
	return aPath.ReplaceAllStringFunc(reason, func(m string) string {
		at := strings.IndexByte(m, '/')
		if i := strings.Index(m, "file://"); i >= 0 {
			at = i
		}
		p := strings.TrimPrefix(m[at:], "file://")
		if p == "/mnt/models" || strings.HasPrefix(p, "/mnt/models/") || strings.Count(strings.TrimSuffix(p, "/"), "/") < 2 {
			return m
		}
		return m[:at] + "…/" + path.Base(p)
	})
}
