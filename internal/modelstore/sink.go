package modelstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Limits bound one model. The zero value of a field means its default.
type Limits struct {
	// MaxBytes is the size of all files together, unpacked; default 1 TiB.
	MaxBytes int64
	// MaxFiles counts files and directories; default 100,000.
	MaxFiles int
	// MaxRatio is how many bytes one byte of an archive may unpack to, once 64 MiB came out;
	// default 250 (deflate can reach about 1,030, real weights stay below 20).
	MaxRatio int
}

func (l Limits) withDefaults() Limits {
	if l.MaxBytes <= 0 {
		l.MaxBytes = 1 << 40
	}
	if l.MaxFiles <= 0 {
		l.MaxFiles = 100_000
	}
	if l.MaxRatio <= 0 {
		l.MaxRatio = 250
	}
	return l
}

// ratioFloor is what may come out of an archive before MaxRatio is looked at, in bytes.
const ratioFloor = 64 << 20

// Sink takes the files of one model while a Source reads them. It checks names, duplicates
// and limits, hashes what passes and stages it on disk. It is for one goroutine.
type Sink struct {
	dir      string // staging, removed by whoever made it
	limits   Limits
	have     func(digest string, size int64) bool
	progress func(done, total int64)

	entries map[string]Entry
	// implied are the directories that hold something, dirs those that hold nothing so far.
	implied map[string]bool
	dirs    map[string]bool
	staged  map[string]bool
	bytes   int64
	// input counts archive bytes read and stands against bytes for MaxRatio; nil outside one.
	input *counter
	total int64
	tick  int64

	unchanged bool
	ref       *Ref
}

func newSink(dir string, limits Limits, have func(string, int64) bool, progress func(done, total int64)) *Sink {
	return &Sink{
		dir: dir, limits: limits, have: have, progress: progress,
		entries: map[string]Entry{}, implied: map[string]bool{}, dirs: map[string]bool{},
		staged: map[string]bool{},
	}
}

// Expect tells how many bytes will come, for progress reports; 0 means unknown.
func (s *Sink) Expect(total int64) { s.total = total }

// Unchanged says that the content is still that of the request's Last, in place of any file.
func (s *Sink) Unchanged() { s.unchanged = true }

// Remember keeps a version mark for the next request of the same URI; its Digest is filled
// in by the store.
func (s *Sink) Remember(r Ref) { s.ref = &r }

// AddFile takes a file's bytes from r to its end. The name is relative and
// slash-separated. Errors: errdef.ErrInvalid for a name that can't be or was there before,
// ErrTooLarge past a limit, ErrNoSpace for a full disk, and r's own.
func (s *Sink) AddFile(ctx context.Context, name string, r io.Reader) error {
	if err := s.claim(name); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "in-")
	if err != nil {
		return diskError("stage a file", err)
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	n, err := s.copy(ctx, io.MultiWriter(f, hash), r)
	if err != nil {
		return fmt.Errorf("%s: %w", shortName(name), err)
	}
	return s.keep(name, f, hex.EncodeToString(hash.Sum(nil)), n)
}

// AddUnpacked is AddFile, but what a name's ending says is an archive gives its content.
// Errors besides: errdef.ErrInvalid for an archive that is broken or unsafe, ErrUnsupported for
// one that can't be opened.
func (s *Sink) AddUnpacked(ctx context.Context, name string, r io.Reader) error {
	kind, err := kindOf(name, "")
	if err != nil {
		return err
	}
	return s.add(ctx, kind, name, r)
}

// AddLocal takes a file of this machine: a copy-on-write clone where the file system can,
// else a copy. The source may change afterwards without harm.
func (s *Sink) AddLocal(ctx context.Context, name string, src *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return diskError("look at "+shortName(name), err)
	}
	if info.Size() > s.limits.MaxBytes-s.bytes {
		return s.tooMany()
	}
	f, err := os.CreateTemp(s.dir, "in-")
	if err != nil {
		return diskError("stage a file", err)
	}
	defer func() { _ = f.Close() }()
	if unix.IoctlFileClone(int(f.Fd()), int(src.Fd())) != nil {
		_ = os.Remove(f.Name())
		return s.AddFile(ctx, name, src)
	}
	if err := s.claim(name); err != nil {
		return err
	}
	hash := sha256.New()
	n, err := s.copy(ctx, hash, f)
	if err != nil {
		return fmt.Errorf("%s: %w", shortName(name), err)
	}
	return s.keep(name, f, hex.EncodeToString(hash.Sum(nil)), n)
}

// keep puts a staged file under its digest's name.
func (s *Sink) keep(name string, f *os.File, sum string, n int64) error {
	digest := digestPrefix + sum
	s.entries[name] = Entry{Path: name, Digest: digest, Size: n}
	if s.staged[digest] || s.have(digest, n) {
		return diskError("drop a duplicate", os.Remove(f.Name()))
	}
	if err := f.Chmod(0o444); err != nil {
		return diskError("stage a file", err)
	}
	if err := f.Sync(); err != nil {
		return diskError("sync a file", err)
	}
	if err := os.Rename(f.Name(), s.stagedPath(digest)); err != nil {
		return diskError("stage a file", err)
	}
	s.staged[digest] = true
	return nil
}

func (s *Sink) stagedPath(digest string) string {
	return filepath.Join(s.dir, strings.TrimPrefix(digest, digestPrefix))
}

// AddDir takes a directory, which may be empty or get files before or after.
func (s *Sink) AddDir(name string) error {
	if err := checkPath(name); err != nil {
		return err
	}
	if _, file := s.entries[name]; file {
		return twice(name)
	}
	if err := s.parents(name); err != nil {
		return err
	}
	if s.dirs[name] || s.implied[name] {
		return nil
	}
	if err := s.count(); err != nil {
		return err
	}
	s.dirs[name] = true
	return nil
}

// alias makes name the same as target, a file or a directory of the tree so far. It reports
// false when target isn't there (yet).
func (s *Sink) alias(name, target string) (bool, error) {
	if e, ok := s.entries[target]; ok {
		if err := s.claim(name); err != nil {
			return true, err
		}
		s.entries[name] = Entry{Path: name, Digest: e.Digest, Size: e.Size}
		return true, s.grow(e.Size)
	}
	if target != "." && !s.dirs[target] && !s.implied[target] {
		return false, nil
	}
	if target == "." || name == target || strings.HasPrefix(name, target+"/") {
		return true, fmt.Errorf("%w: the link %s points at a directory that holds it", errdef.ErrInvalid, shortName(name))
	}
	if s.dirs[name] || s.implied[name] {
		return true, twice(name)
	}
	if err := s.AddDir(name); err != nil {
		return true, err
	}
	var below []Entry
	for p, e := range s.entries {
		if rest, ok := strings.CutPrefix(p, target+"/"); ok {
			below = append(below, Entry{Path: path.Join(name, rest), Digest: e.Digest, Size: e.Size})
		}
	}
	for d := range s.dirs {
		if rest, ok := strings.CutPrefix(d, target+"/"); ok {
			below = append(below, Entry{Path: path.Join(name, rest)})
		}
	}
	for _, e := range below {
		if e.Digest == "" {
			if err := s.AddDir(e.Path); err != nil {
				return true, err
			}
			continue
		}
		if err := s.claim(e.Path); err != nil {
			return true, err
		}
		s.entries[e.Path] = e
		if err := s.grow(e.Size); err != nil {
			return true, err
		}
	}
	return true, nil
}

// claim checks that a file may have this name and counts it.
func (s *Sink) claim(name string) error {
	if err := checkPath(name); err != nil {
		return err
	}
	if _, file := s.entries[name]; file || s.dirs[name] || s.implied[name] {
		return twice(name)
	}
	if err := s.parents(name); err != nil {
		return err
	}
	return s.count()
}

func (s *Sink) parents(name string) error {
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		if _, file := s.entries[p]; file {
			return fmt.Errorf("%w: %s is a file and, by %s, also a directory",
				errdef.ErrInvalid, shortName(p), shortName(name))
		}
		if s.implied[p] {
			break
		}
		if s.dirs[p] {
			delete(s.dirs, p)
		} else if err := s.count(); err != nil {
			return err
		}
		s.implied[p] = true
	}
	return nil
}

func (s *Sink) count() error {
	if len(s.entries)+len(s.dirs)+len(s.implied) >= s.limits.MaxFiles {
		return fmt.Errorf("%w: the model has more than %d files and directories; raise the store's limit if that is meant",
			errdef.ErrTooLarge, s.limits.MaxFiles)
	}
	return nil
}

func (s *Sink) grow(n int64) error {
	s.bytes += n
	if s.bytes > s.limits.MaxBytes {
		return s.tooMany()
	}
	if s.input != nil && s.bytes > ratioFloor && s.bytes/int64(s.limits.MaxRatio) > s.input.n {
		return fmt.Errorf("%w: the archive unpacks to more than %d times its size, as an archive bomb does",
			errdef.ErrTooLarge, s.limits.MaxRatio)
	}
	const every = 1 << 20
	if s.progress != nil && s.bytes-s.tick >= every {
		s.tick = s.bytes
		s.progress(s.bytes, s.total)
	}
	return nil
}

func (s *Sink) tooMany() error {
	return fmt.Errorf("%w: the model has more than %d bytes; raise the store's limit if that is meant",
		errdef.ErrTooLarge, s.limits.MaxBytes)
}

func twice(name string) error {
	return fmt.Errorf("%w: %s is there twice", errdef.ErrInvalid, shortName(name))
}

// copy moves r to w within the limits, and ends early with ctx.
func (s *Sink) copy(ctx context.Context, w io.Writer, r io.Reader) (int64, error) {
	buf := make([]byte, 256<<10)
	var n int64
	for {
		if err := context.Cause(ctx); err != nil {
			return n, err
		}
		m, err := r.Read(buf)
		if m > 0 {
			n += int64(m)
			if gerr := s.grow(int64(m)); gerr != nil {
				return n, gerr
			}
			if _, werr := w.Write(buf[:m]); werr != nil {
				return n, diskError("write", werr)
			}
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// tree returns what was taken: files, and directories with nothing in them.
func (s *Sink) tree() []Entry {
	out := make([]Entry, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, e)
	}
	for d := range s.dirs {
		out = append(out, Entry{Path: d})
	}
	return out
}

// counter counts the bytes read through it.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// diskError gives an error of the file system its kind. Nil stays nil.
func diskError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s: free some space on the disk of the data directory: %w", errdef.ErrNoSpace, what, err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %s: %w", errdef.ErrNotFound, what, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %s: %w", errdef.ErrDenied, what, err)
	}
	return fmt.Errorf("%w: %s: %w", errdef.ErrInternal, what, err)
}
