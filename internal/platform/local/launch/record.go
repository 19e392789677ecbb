package launch

import "syscall"

// A record on disk is a sequence of strings, each with a letter before it that says what it is
// and a zero byte after it.
const (
	tagArg      = 'a'
	tagDir      = 'd'
	tagCgroup   = 'c'
	tagScratch  = 's'
	tagSource   = 'm' // its target comes next
	tagTarget   = 't'
	tagReadOnly = 'r' // a target, too
)

// Encode returns the record as the launcher reads it. A string with a zero byte in it, which no
// path and no argument can have, is an error of kind syscall.EINVAL.
func (r *Record) Encode() ([]byte, error) {
	var out []byte
	clean := true
	add := func(tag byte, s string) {
		clean = clean && index(s, 0) < 0
		out = append(append(append(out, tag), s...), 0)
	}
	for _, a := range r.Argv {
		add(tagArg, a)
	}
	add(tagDir, r.Dir)
	for _, c := range r.Cgroups {
		add(tagCgroup, c)
	}
	for _, m := range r.Mounts {
		add(tagSource, m.Source)
		if m.ReadOnly {
			add(tagReadOnly, m.Target)
		} else {
			add(tagTarget, m.Target)
		}
	}
	add(tagScratch, r.Scratch)
	if !clean {
		return nil, failure{"a path or an argument has a zero byte", syscall.EINVAL}
	}
	return out, nil
}

func decode(raw []byte) (*Record, bool) {
	if len(raw) == 0 || raw[len(raw)-1] != 0 {
		return nil, false
	}
	r := &Record{}
	source := false
	for _, s := range split(raw) {
		if s == "" || source != (s[0] == tagTarget || s[0] == tagReadOnly) {
			return nil, false
		}
		source = false
		switch v := s[1:]; s[0] {
		case tagArg:
			r.Argv = append(r.Argv, v)
		case tagDir:
			r.Dir = v
		case tagCgroup:
			r.Cgroups = append(r.Cgroups, v)
		case tagScratch:
			r.Scratch = v
		case tagSource:
			r.Mounts = append(r.Mounts, Mount{Source: v})
			source = true
		case tagTarget, tagReadOnly:
			m := &r.Mounts[len(r.Mounts)-1]
			m.Target, m.ReadOnly = v, s[0] == tagReadOnly
		default:
			return nil, false
		}
	}
	return r, !source
}

// split cuts at zero bytes; one at the end ends the last string.
func split(raw []byte) []string {
	var out []string
	for len(raw) > 0 {
		n := 0
		for n < len(raw) && raw[n] != 0 {
			n++
		}
		out = append(out, string(raw[:n]))
		raw = raw[min(n+1, len(raw)):]
	}
	return out
}

func index(s string, c byte) int {
	for i := range len(s) {
		if s[i] == c {
			return i
		}
	}
	return -1
}
