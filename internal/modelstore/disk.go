package modelstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// path is where a digest's thing of a kind is. The digest has been checked.
func (s *Store) path(kind, digest string) string {
	h := strings.TrimPrefix(digest, digestPrefix)
	return filepath.Join(s.dir, kind, "sha256", h[:2], h)
}

func (s *Store) blobPath(digest string) string { return s.path("blobs", digest) }

// has reports whether a blob is here with its right size.
func (s *Store) has(digest string, size int64) bool {
	info, err := os.Lstat(s.blobPath(digest))
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// lookup returns the directory of a tree that is here whole, mending it from its blobs where
// they are. Sizes are compared; Verify compares bytes.
func (s *Store) lookup(digest string) (string, bool) {
	entries, err := s.entries(digest)
	if err != nil {
		return "", false
	}
	if s.standing(digest, entries) {
		return s.path("trees", digest), true
	}
	s.building.Lock()
	defer s.building.Unlock()
	for _, e := range entries {
		if e.Digest != "" && !s.has(e.Digest, e.Size) {
			return "", false
		}
	}
	path, err := s.build(digest, entries)
	if err != nil {
		s.log.Warn("couldn't mend a model's directory", "digest", digest, "err", err)
		return "", false
	}
	return path, true
}

// entries reads a tree's manifest.
func (s *Store) entries(digest string) ([]Entry, error) {
	text, err := os.ReadFile(s.path("manifests", digest))
	if err != nil {
		return nil, diskError("read the manifest of "+digest, err)
	}
	if digestOf(text) != digest {
		return nil, fmt.Errorf("%w: the manifest of %s has other content", errdef.ErrUnverified, digest)
	}
	return parseManifest(string(text))
}

// standing reports whether a tree's directory has what it should, by names and sizes.
func (s *Store) standing(digest string, entries []Entry) bool {
	dir := s.path("trees", digest)
	for _, e := range entries {
		info, err := os.Lstat(filepath.Join(dir, e.Path))
		if err != nil || info.IsDir() != (e.Digest == "") {
			return false
		}
		if e.Digest != "" && (!info.Mode().IsRegular() || info.Size() != e.Size) {
			return false
		}
	}
	return true
}

// build makes a tree's directory from blobs, in the place of one that isn't whole. The
// caller holds s.building.
func (s *Store) build(digest string, entries []Entry) (string, error) {
	to := s.path("trees", digest)
	if s.standing(digest, entries) {
		return to, nil
	}
	tmp, err := os.MkdirTemp(s.session.dir, "tree-")
	if err != nil {
		return "", diskError("make a model's directory", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	root := filepath.Join(tmp, "tree")
	dirs := map[string]bool{root: true}
	for _, e := range entries {
		full := filepath.Join(root, e.Path)
		dir := full
		if e.Digest != "" {
			dir = filepath.Dir(full)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", diskError("make a model's directory", err)
		}
		for d := dir; !dirs[d]; d = filepath.Dir(d) {
			dirs[d] = true
		}
		if e.Digest == "" {
			continue
		}
		if err := linkOrCopy(s.blobPath(e.Digest), full); err != nil {
			return "", diskError("link a file into a model's directory", err)
		}
	}
	for d := range dirs {
		if err := syncDir(d); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", diskError("make a model's directory", err)
	}
	if _, err := os.Lstat(to); err == nil {
		if err := os.Rename(to, filepath.Join(tmp, "broken")); err != nil {
			return "", diskError("set aside a broken directory", err)
		}
	}
	if err := os.Rename(root, to); err != nil {
		if !s.standing(digest, entries) { // else another process was faster
			return "", diskError("make a model's directory", err)
		}
	}
	return to, syncDir(filepath.Dir(to))
}

// linkOrCopy makes to another name of from, or a copy where the file system won't link (too
// many links, or none at all).
func linkOrCopy(from, to string) error {
	err := os.Link(from, to)
	if err == nil || (!errors.Is(err, syscall.EMLINK) && !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.ENOTSUP)) {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// Verify reads every byte of a tree and compares it with the digest. Errors:
// errdef.ErrNotFound when the store hasn't got it, ErrUnverified naming the file that
// differs. A file that differs is taken out of the store, so that the next Fetch brings it
// anew. It blocks for as long as the disk takes.
func (s *Store) Verify(ctx context.Context, digest string) error {
	if _, err := parseDigest(digest); err != nil {
		return err
	}
	entries, err := s.entries(digest)
	if err != nil {
		return err
	}
	dir := s.path("trees", digest)
	for _, e := range entries {
		if e.Digest == "" {
			continue
		}
		got, err := hashFile(ctx, filepath.Join(dir, e.Path))
		if err != nil {
			return err
		}
		if got != e.Digest {
			_ = os.Remove(filepath.Join(dir, e.Path))
			if b, err := hashFile(ctx, s.blobPath(e.Digest)); err == nil && b != e.Digest {
				_ = os.Remove(s.blobPath(e.Digest))
			}
			return fmt.Errorf("%w: %s of the tree %s has the digest %s and not %s; it was changed on disk",
				errdef.ErrUnverified, shortName(e.Path), digest, got, e.Digest)
		}
	}
	return nil
}

func hashFile(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", diskError("read a file of the store", err)
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 256<<10)
	for {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return digestPrefix + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", diskError("read a file of the store", err)
		}
	}
}

// writeFile puts a small file in place by way of tmp, synced.
func writeFile(tmp, to string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return diskError("write to the store", err)
	}
	f, err := os.CreateTemp(tmp, "write-")
	if err != nil {
		return diskError("write to the store", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o444), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return diskError("write to the store", err)
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return diskError("sync a directory", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return diskError("sync a directory", err)
	}
	return nil
}

// session is one process's place under tmp, held by a lock for as long as it lives.
type session struct {
	dir  string
	lock *os.File
}

// openSession removes the places of processes that are gone and makes one.
func openSession(tmp string) (*session, error) {
	locks, err := filepath.Glob(filepath.Join(tmp, "*.lock"))
	if err != nil {
		return nil, diskError("look for leftovers", err)
	}
	for _, name := range locks {
		if err := removeIfAbandoned(name); err != nil {
			return nil, err
		}
	}
	f, err := os.CreateTemp(tmp, "s-*.lock")
	if err != nil {
		return nil, diskError("make a place for downloads", err)
	}
	s := &session{dir: strings.TrimSuffix(f.Name(), ".lock"), lock: f}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		// Another process opened it in the moment before it was locked and now removes it.
		_ = f.Close()
		return openSession(tmp)
	}
	if _, err := os.Lstat(f.Name()); err != nil {
		_ = f.Close()
		return openSession(tmp)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		_ = f.Close()
		return nil, diskError("make a place for downloads", err)
	}
	return s, nil
}

// removeIfAbandoned removes a place whose lock nobody holds.
func removeIfAbandoned(lock string) error {
	f, err := os.OpenFile(lock, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskError("look for leftovers", err)
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // its process lives
	}
	return diskError("remove leftovers", errors.Join(os.RemoveAll(strings.TrimSuffix(lock, ".lock")), os.Remove(lock)))
}

func (s *session) close() error {
	err := errors.Join(os.RemoveAll(s.dir), os.Remove(s.lock.Name()), s.lock.Close())
	return diskError("close the store", err)
}
