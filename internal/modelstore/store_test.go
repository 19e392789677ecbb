package modelstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, cfg modelstore.Config) *modelstore.Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s, err := modelstore.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(cfg.Dir, "tmp", "*")); len(left) > 0 {
			t.Errorf("left in tmp after Close: %v", left)
		}
	})
	return s
}

// plant writes files below dir; a name that ends in / is a directory, content "-> x" a link.
func plant(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, full)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(full, 0o755)
		} else {
			err = os.WriteFile(full, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// contents reads back what a fetched directory holds; links and modes that may be written
// are errors.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		if d.IsDir() {
			if kids, _ := os.ReadDir(p); len(kids) == 0 {
				got[name+"/"] = ""
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode() != 0o444 {
			t.Errorf("%s has mode %v, want a plain file that only reads", name, info.Mode())
		}
		b, err := os.ReadFile(p)
		got[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestFetchLocal(t *testing.T) {
	dir := plant(t, t.TempDir(), map[string]string{
		"m/model.onnx": "weights", "m/1/": "", "m/sub/a.txt": "a", "m/again": "-> sub/a.txt", "m/link": "-> sub",
		"one file.bin": "one", "100%25": "literal", "elsewhere": "-> m/model.onnx",
		"out/x": "-> ../one file.bin", "abs/x": "-> /etc/hostname", "loop/a/up": "-> ..", "self/x": "-> x", "dangling/x": "-> y",
		"pvc/ns/claim/hub/blob": "b", "pvc/ns/claim/snap/f": "-> ../hub/blob", "pvc/ns/claim/one": "1",
		"pvc/other/claim2/f": "secret", "pvc/ns/bad/f": "-> ../../other/claim2/f", "empty/": "",
	})
	if err := syscall.Mkfifo(filepath.Join(plant(t, filepath.Join(dir, "pipe"), map[string]string{"f": "x"}), "p"), 0o644); err != nil {
		t.Fatal(err)
	}
	whole := map[string]string{"model.onnx": "weights", "1/": "", "sub/a.txt": "a", "again": "a", "link/a.txt": "a"}
	cases := map[string]struct {
		uri  string
		want map[string]string
		kind error
		says string
	}{
		"a directory by file URL, links inside followed": {uri: "file://" + dir + "/m", want: whole},
		"a directory by path":                            {uri: dir + "/m", want: whole},
		"a directory by path with a slash":               {uri: dir + "/m/", want: whole},
		"a relative path":                                {uri: "m", want: whole},
		"a relative path with dots":                      {uri: "./out/../m", want: whole},
		"a relative file URL, as KServe takes it":        {uri: "file://m", want: whole},
		"localhost as host":                              {uri: "file://localhost" + dir + "/m", want: whole},
		"one file":                                       {uri: "file://" + dir + "/one file.bin", want: map[string]string{"one file.bin": "one"}},
		"one file, spelled with percent signs":           {uri: "file://" + dir + "/one%20file.bin", want: map[string]string{"one file.bin": "one"}},
		"percent signs that are the name":                {uri: "file://" + dir + "/100%25", want: map[string]string{"100%25": "literal"}},
		"one file that is a link":                        {uri: dir + "/elsewhere", want: map[string]string{"elsewhere": "weights"}},
		"a claim, its links free inside it":              {uri: "pvc://claim/snap", want: map[string]string{"f": "b"}},
		"a whole claim":                                  {uri: "pvc://claim", want: map[string]string{"hub/blob": "b", "snap/f": "b", "one": "1"}},
		"one file of a claim":                            {uri: "pvc://claim/one", want: map[string]string{"one": "1"}},

		"a link out of the directory":     {uri: dir + "/out", kind: errdef.ErrInvalid, says: "out of the model's directory"},
		"an absolute link":                {uri: dir + "/abs", kind: errdef.ErrInvalid, says: "abs/x"},
		"a link back up":                  {uri: dir + "/loop", kind: errdef.ErrInvalid, says: "leads back"},
		"a link to itself":                {uri: dir + "/self", kind: errdef.ErrInvalid, says: "leads back to itself"},
		"a link to nothing":               {uri: dir + "/dangling", kind: errdef.ErrNotFound, says: "dangling/x"},
		"a pipe":                          {uri: dir + "/pipe", kind: errdef.ErrInvalid, says: "pipe"},
		"a device outright":               {uri: "/dev/zero", kind: errdef.ErrInvalid, says: "device"},
		"nothing there":                   {uri: dir + "/no", kind: errdef.ErrNotFound, says: "doesn't exist on this machine"},
		"nothing in it":                   {uri: dir + "/empty", kind: errdef.ErrInvalid, says: "no file"},
		"no path at all":                  {uri: "file://", kind: errdef.ErrInvalid, says: "names no file"},
		"an empty URI":                    {uri: "", kind: errdef.ErrInvalid, says: "names no file"},
		"a claim that isn't there":        {uri: "pvc://nope/x", kind: errdef.ErrNotFound, says: "put its files under"},
		"a claim of another namespace":    {uri: "pvc://claim2", kind: errdef.ErrNotFound, says: "claim2"},
		"a claim by a path":               {uri: "pvc://../other/claim2", kind: errdef.ErrInvalid, says: "pvc://"},
		"a path out of a claim":           {uri: "pvc://claim/../../other/claim2", kind: errdef.ErrInvalid, says: "leads out"},
		"a link out of a claim":           {uri: "pvc://bad", kind: errdef.ErrInvalid, says: "out of the model's directory"},
		"a claim without a name":          {uri: "pvc://", kind: errdef.ErrInvalid, says: "no claim"},
		"a scheme that comes later":       {uri: "s3://b/k", kind: errdef.ErrUnsupported, says: "file://, http://, https://, pvc://"},
		"a scheme with a sign in it":      {uri: "oci+native://r/i", kind: errdef.ErrUnsupported, says: "oci+native://"},
		"an archive that can't be opened": {uri: plant(t, t.TempDir(), map[string]string{"m.tar.xz": "x"}) + "/m.tar.xz", kind: errdef.ErrUnsupported, says: ".tar.xz"},
	}
	s := open(t, modelstore.Config{Base: dir, PVCDir: filepath.Join(dir, "pvc")})
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path, digest, release, err := s.For("ns").Fetch(t.Context(), tc.uri, "")
			if tc.kind != nil {
				if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
					t.Fatalf("error %v, want one of kind %v that says %q", err, tc.kind, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if diff := cmp.Diff(tc.want, contents(t, path)); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
			if err := s.Verify(t.Context(), digest); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDigestIsThatOfTheContent(t *testing.T) {
	dir := plant(t, t.TempDir(), map[string]string{"a/m": "x", "b/m": "x", "c/m": "y", "d/n": "x"})
	s := open(t, modelstore.Config{Base: dir})
	digests := map[string]string{}
	for _, d := range []string{"a", "b", "c", "d"} {
		_, digest, release, err := s.Fetch(t.Context(), "", d, "")
		if err != nil {
			t.Fatal(err)
		}
		release()
		digests[d] = digest
	}
	// Written out by hand, so that the format can't change unnoticed.
	sum := sha256.Sum256([]byte("x"))
	text := fmt.Sprintf("stationmaster tree v1\n%x 1 m\n", sum)
	all := sha256.Sum256([]byte(text))
	if want := "sha256:" + hex.EncodeToString(all[:]); digests["a"] != want {
		t.Errorf("digest %s, want %s", digests["a"], want)
	}
	if digests["a"] != digests["b"] || digests["a"] == digests["c"] || digests["a"] == digests["d"] {
		t.Errorf("digests %v: want a and b alike, c and d each other", digests)
	}
}

func TestLaterChangesOfTheSourceDontReachTheStore(t *testing.T) {
	dir := plant(t, t.TempDir(), map[string]string{"m/f": "first"})
	s := open(t, modelstore.Config{Base: dir})
	path, digest, release, err := s.Fetch(t.Context(), "", "m", "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	plant(t, dir, map[string]string{"m/f": "second"})
	if got := contents(t, path); got["f"] != "first" {
		t.Errorf("the store has %v after the source changed", got)
	}
	again, got, release2, err := s.Fetch(t.Context(), "", "m", digest)
	if err != nil || again != path || got != digest {
		t.Errorf("pinned fetch gave %s %s %v, want what is there without a look at the source", again, got, err)
	}
	release2()
	_, other, release3, err := s.Fetch(t.Context(), "", "m", "")
	if err != nil || other == digest {
		t.Errorf("fetch without a pin gave %s %v, want the new content's digest", other, err)
	}
	release3()
}

func TestPinnedDigestMismatchNamesBoth(t *testing.T) {
	store := t.TempDir()
	dir := plant(t, t.TempDir(), map[string]string{"m/f": "x"})
	s := open(t, modelstore.Config{Dir: store, Base: dir})
	pin := "sha256:" + strings.Repeat("ab", 32)
	_, _, _, err := s.Fetch(t.Context(), "", "m", pin)
	sum := sha256.Sum256([]byte("x"))
	is := modelstore.TreeDigest([]modelstore.Entry{{Path: "f", Size: 1, Digest: "sha256:" + hex.EncodeToString(sum[:])}})
	if !errors.Is(err, errdef.ErrUnverified) || !strings.Contains(err.Error(), pin) || !strings.Contains(err.Error(), is) {
		t.Errorf("error %v, want unverified with %s and %s", err, pin, is)
	}
	if blobs, _ := filepath.Glob(filepath.Join(store, "blobs", "*", "*", "*")); len(blobs) != 0 {
		t.Errorf("kept %v of content that wasn't the pinned one", blobs)
	}
	if _, _, _, err := s.Fetch(t.Context(), "", "m", "sha256:short"); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a digest that is none gave %v", err)
	}
}

func TestBlobsAreStoredOnceAndBrokenTreesMended(t *testing.T) {
	store := t.TempDir()
	dir := plant(t, t.TempDir(), map[string]string{"m/a": "same", "m/b": "same", "n/c": "same"})
	s := open(t, modelstore.Config{Dir: store, Base: dir})
	path, digest, release, err := s.Fetch(t.Context(), "", "m", "")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if _, _, release, err = s.Fetch(t.Context(), "", "n", ""); err != nil {
		t.Fatal(err)
	}
	release()
	blobs, _ := filepath.Glob(filepath.Join(store, "blobs", "sha256", "*", "*"))
	if len(blobs) != 1 {
		t.Errorf("blobs %v, want one", blobs)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(path, "b")); err != nil {
		t.Fatal(err)
	}
	if _, _, release, err = s.Fetch(t.Context(), "", "m", digest); err != nil {
		t.Fatalf("a tree with a file missing wasn't mended from its blobs: %v", err)
	}
	release()
	if diff := cmp.Diff(map[string]string{"a": "same", "b": "same"}, contents(t, path)); diff != "" {
		t.Error(diff)
	}
	// An engine that runs as root can write through the modes; Verify tells.
	if err := os.Chmod(filepath.Join(path, "a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "a"), []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), digest); !errors.Is(err, errdef.ErrUnverified) {
		t.Errorf("Verify of changed bytes: %v", err)
	}
	if _, _, _, err = s.Fetch(t.Context(), "", "m", digest); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("after Verify the bad bytes are still served: %v", err)
	}
}

// slowSource blocks until it is let go, and counts.
type slowSource struct {
	reads   atomic.Int32
	started chan struct{} // gets one value for each read
	let     chan struct{} // closed to let reads go on
}

func (s *slowSource) Read(ctx context.Context, _ modelstore.Request, sink *modelstore.Sink) error {
	s.reads.Add(1)
	s.started <- struct{}{}
	select {
	case <-s.let:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return sink.AddFile(ctx, "m", strings.NewReader("bytes"))
}

func TestConcurrentFetchesShareOne(t *testing.T) {
	src := &slowSource{started: make(chan struct{}, 8), let: make(chan struct{})}
	s := open(t, modelstore.Config{Sources: map[string]modelstore.Source{"slow": src}})
	first, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, _, err := s.Fetch(first, "", "slow://m", ""); !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled caller got %v", err)
		}
	})
	<-src.started
	const callers = 8
	for range callers {
		wg.Go(func() {
			_, _, release, err := s.Fetch(t.Context(), "", "slow://m", "")
			if err != nil {
				t.Errorf("a caller that waited got %v", err)
				return
			}
			release()
			release()
		})
	}
	for modelstore.Waiters(s, "slow://m") < callers+1 {
	}
	cancel() // the one that began it leaves; the others are still served by it
	for modelstore.Waiters(s, "slow://m") > callers {
	}
	close(src.let)
	wg.Wait()
	if n := src.reads.Load(); n != 1 {
		t.Errorf("the source was read %d times, want once", n)
	}
	if used := s.InUse(); len(used) != 0 {
		t.Errorf("in use after all released: %v", used)
	}
}

func TestLastCallerLeavingEndsTheFetchAndCloseEndsAll(t *testing.T) {
	src := &slowSource{started: make(chan struct{}, 8), let: make(chan struct{})}
	s := open(t, modelstore.Config{Sources: map[string]modelstore.Source{"slow": src}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _, _, _ = s.Fetch(ctx, "", "slow://m", "") })
	<-src.started
	cancel()
	wg.Wait()
	var err error
	wg.Go(func() { _, _, _, err = s.Fetch(t.Context(), "", "slow://m", "") })
	<-src.started
	if cerr := s.Close(); cerr != nil {
		t.Fatal(cerr)
	}
	wg.Wait()
	if !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("a fetch that Close ended gave %v", err)
	}
	if _, _, _, err := s.Fetch(t.Context(), "", "slow://m", ""); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("a fetch after Close gave %v", err)
	}
}

func TestOpenRemovesLeftoversOfTheDeadOnly(t *testing.T) {
	dir := t.TempDir()
	living, err := modelstore.Open(modelstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	plant(t, dir, map[string]string{"tmp/s-1.lock": "", "tmp/s-1/fetch-2/in-3": "half a model"})
	second, err := modelstore.Open(modelstore.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "tmp", "*"))
	if len(names) != 4 {
		t.Errorf("tmp holds %v, want the places and locks of the two that live", names)
	}
	if err := errors.Join(living.Close(), second.Close()); err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	dir := plant(t, t.TempDir(), map[string]string{"m/a": "12345", "m/b": "67890"})
	for name, tc := range map[string]modelstore.Limits{
		"bytes": {MaxBytes: 9},
		"files": {MaxFiles: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, modelstore.Config{Base: dir, Limits: tc})
			if _, _, _, err := s.Fetch(t.Context(), "", "m", ""); !errors.Is(err, errdef.ErrTooLarge) {
				t.Errorf("got %v, want too large", err)
			}
		})
	}
}

// TestFullDisk needs to mount a small file system, which takes root.
func TestFullDisk(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("can't mount a small file system here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	dir := plant(t, t.TempDir(), map[string]string{"big": strings.Repeat("x", 4<<20), "small": "x"})
	s, err := modelstore.Open(modelstore.Config{Dir: small, Base: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, _, _, err = s.Fetch(t.Context(), "", "big", "")
	if !errors.Is(err, errdef.ErrNoSpace) {
		t.Fatalf("got %v, want no space", err)
	}
	if got, want := err.Error(), "fetch big: no space left for the model in "+small+": the disk is full; free some space there, or start with a data directory on a larger disk"; got != want {
		t.Errorf("says %q, want %q", got, want)
	}
	if left, _ := filepath.Glob(filepath.Join(small, "tmp", "*", "*")); len(left) > 0 {
		t.Errorf("half a file stayed: %v", left)
	}
	_, _, release, err := s.Fetch(t.Context(), "", "small", "")
	if err != nil {
		t.Fatalf("a small model after the full disk: %v", err)
	}
	release()
	if err := syscall.Mount("tmpfs", small, "tmpfs", syscall.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatalf("make room: %v", err)
	}
	if _, _, release, err = s.Fetch(t.Context(), "", "big", ""); err != nil {
		t.Fatalf("once there is room: %v", err)
	}
	release()
}
