package modelstore

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// treeHeader opens every manifest; its number changes when the format does, and with it all
// digests.
const treeHeader = "stationmaster tree v1\n"

// emptyDirMark stands in a manifest where a file has its digest.
const emptyDirMark = "-"

// Name limits are Linux's own (NAME_MAX and PATH_MAX, less the store's share of a path).
const (
	maxNameBytes = 255
	maxPathBytes = 3072
)

// Entry is one file of a tree, or one directory with nothing in it.
type Entry struct {
	// Path is relative, slash-separated and clean; a directory's has no slash at its end.
	Path string
	// Digest is the file's "sha256:…"; empty for a directory.
	Digest string
	// Size is in bytes.
	Size int64
}

// TreeDigest returns the canonical digest of a tree: "sha256:" and the hash of its manifest,
// which is the line "stationmaster tree v1" and then, for each file in bytewise order of its
// path, the line "<hex of its sha256> <size> <path>". A directory with nothing in it is the
// line "- 0 <path>/"; one with something shows by the paths below it. Modes, owners and times
// don't count. The order of entries doesn't matter.
func TreeDigest(entries []Entry) string {
	return digestOf([]byte(manifest(entries)))
}

// manifest returns the canonical description of a tree.
func manifest(entries []Entry) string {
	lines := slices.Clone(entries)
	for i := range lines {
		if lines[i].Digest == "" {
			lines[i].Path += "/"
		}
	}
	slices.SortFunc(lines, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	var b strings.Builder
	b.WriteString(treeHeader)
	for _, e := range lines {
		mark := emptyDirMark
		if e.Digest != "" {
			mark = strings.TrimPrefix(e.Digest, digestPrefix)
		}
		fmt.Fprintf(&b, "%s %d %s\n", mark, e.Size, e.Path)
	}
	return b.String()
}

// parseManifest reads what manifest wrote. It refuses anything that manifest wouldn't write
// byte for byte, so one tree has one text. Errors are errdef.ErrInvalid.
func parseManifest(text string) ([]Entry, error) {
	rest, ok := strings.CutPrefix(text, treeHeader)
	if !ok {
		return nil, fmt.Errorf("%w: a tree manifest begins with %q", errdef.ErrInvalid, treeHeader)
	}
	var entries []Entry
	lines := bufio.NewScanner(strings.NewReader(rest))
	lines.Buffer(nil, maxPathBytes+256)
	for lines.Scan() {
		mark, rest, ok := strings.Cut(lines.Text(), " ")
		size, name, ok2 := strings.Cut(rest, " ")
		n, err := strconv.ParseInt(size, 10, 64)
		if !ok || !ok2 || err != nil || n < 0 {
			return nil, fmt.Errorf("%w: a tree manifest has the line %q", errdef.ErrInvalid, lines.Text())
		}
		e := Entry{Path: name, Size: n}
		if mark == emptyDirMark {
			e.Path = strings.TrimSuffix(name, "/")
		} else {
			e.Digest = digestPrefix + mark
			if _, err := parseDigest(e.Digest); err != nil {
				return nil, err
			}
		}
		if err := checkPath(e.Path); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: a tree manifest: %w", errdef.ErrInvalid, err)
	}
	if manifest(entries) != text {
		return nil, fmt.Errorf("%w: a tree manifest isn't in its canonical form", errdef.ErrInvalid)
	}
	return entries, nil
}

// checkPath says why a relative path can't be a tree entry's; errors are errdef.ErrInvalid.
func checkPath(p string) error {
	bad := func(why string) error {
		return fmt.Errorf("%w: the file name %s %s", errdef.ErrInvalid, shortName(p), why)
	}
	switch {
	case p == "" || p == ".":
		return bad("is empty")
	case strings.HasPrefix(p, "/"):
		return bad("is an absolute path, which a model may not hold")
	case !utf8.ValidString(p):
		return bad("isn't UTF-8")
	case len(p) > maxPathBytes:
		return bad(fmt.Sprintf("is longer than %d bytes", maxPathBytes))
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return bad("leads out of the model's directory")
		case part == "" || part == ".":
			return bad("isn't a clean path")
		case len(part) > maxNameBytes:
			return bad(fmt.Sprintf("has a part longer than %d bytes", maxNameBytes))
		}
	}
	if strings.ContainsFunc(p, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return bad("has a control character")
	}
	return nil
}

// shortName quotes a name for a message, cut to a length that fits one.
func shortName(p string) string {
	const most = 80
	if len(p) > most {
		return strconv.Quote(p[:most]) + "…"
	}
	return strconv.Quote(p)
}

const digestPrefix = "sha256:"

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return digestPrefix + hex.EncodeToString(sum[:])
}

// parseDigest returns the 64 hex digits of "sha256:<hex>"; else errdef.ErrInvalid.
func parseDigest(d string) (string, error) {
	h, ok := strings.CutPrefix(d, digestPrefix)
	if !ok || len(h) != 2*sha256.Size || strings.Trim(h, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%w: %s isn't a digest of the form sha256:<64 hex digits>",
			errdef.ErrInvalid, shortName(d))
	}
	return h, nil
}
