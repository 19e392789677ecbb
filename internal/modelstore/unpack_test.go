package modelstore_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
)

func tarOf(headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			content = h.PAXRecords["T.content"]
			h.PAXRecords = nil
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func file(name, content string) tar.Header {
	return tar.Header{Name: name, PAXRecords: map[string]string{"T.content": content}}
}

func link(kind byte, name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: kind, Linkname: target}
}

func gz(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func zst(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// member is one entry of a zip to make; mode 0 is a plain file.
type member struct {
	name, content string
	mode          fs.FileMode
}

func zipOf(members ...member) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		if m.mode != 0 {
			h.SetMode(m.mode)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			panic(err)
		}
		if _, err := io.WriteString(f, m.content); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// flip returns b with the byte at i changed; i below zero counts from the end.
func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	if i < 0 {
		i += len(b)
	}
	b[i] ^= 0xff
	return b
}

func TestUnpack(t *testing.T) {
	good := tarOf(file("./m/model.onnx", "weights"), file("m/labels.txt", "a\nb"),
		tar.Header{Name: "m/1/", Typeflag: tar.TypeDir, Mode: 0o755})
	want := map[string]string{"m/model.onnx": "weights", "m/labels.txt": "a\nb", "m/1/": ""}
	goodZip := zipOf(member{"m/model.onnx", "weights", 0}, member{"m/labels.txt", "a\nb", 0o600}, member{name: "m/1/"})
	encrypted := zipOf(member{"f", "x", 0})
	for _, sig := range []string{"PK\x03\x04", "PK\x01\x02"} {
		at := bytes.Index(encrypted, []byte(sig)) + 6 + 2*strings.Count(sig, "\x01")
		binary.LittleEndian.PutUint16(encrypted[at:], 1)
	}
	long := strings.Repeat("n", 256)
	cases := map[string]struct {
		name string // of the archive; "" means m.tar
		body []byte
		want map[string]string
		kind error
		says string
	}{
		"a tar":                          {body: good, want: want},
		"a tar.gz":                       {name: "m.tar.gz", body: gz(good), want: want},
		"a tgz":                          {name: "M.TGZ", body: gz(good), want: want},
		"a tar.zst":                      {name: "m.tar.zst", body: zst(good), want: want},
		"a tar that is compressed":       {body: gz(good), want: want},
		"a zip":                          {name: "m.zip", body: goodZip, want: want},
		"a zip format that isn't packed": {name: "m.npz", body: goodZip, want: map[string]string{"m.npz": string(goodZip)}},
		"a gzip that isn't a tar":        {name: "m.json.gz", body: gz([]byte("{}")), want: map[string]string{"m.json.gz": string(gz([]byte("{}")))}},
		"links inside": {body: tarOf(link(tar.TypeSymlink, "d/s", "../f"), link(tar.TypeSymlink, "s2", "d/s"), file("f", "x"), link(tar.TypeLink, "h", "f"), link(tar.TypeSymlink, "dd", "d")),
			want: map[string]string{"f": "x", "d/s": "x", "s2": "x", "h": "x", "dd/s": "x"}},
		"links inside a zip": {name: "m.zip", body: zipOf(member{"f", "x", 0}, member{"s", "f", fs.ModeSymlink | 0o777}), want: map[string]string{"f": "x", "s": "x"}},

		"a path that climbs":           {body: tarOf(file("../evil", "x")), kind: errdef.ErrInvalid, says: "leads out"},
		"a path that climbs later":     {body: tarOf(file("a/../../evil", "x")), kind: errdef.ErrInvalid, says: "leads out"},
		"an absolute path":             {body: tarOf(file("/etc/evil", "x")), kind: errdef.ErrInvalid, says: "absolute"},
		"a climbing zip":               {name: "m.zip", body: zipOf(member{"../evil", "x", 0}), kind: errdef.ErrInvalid, says: "leads out"},
		"an absolute zip":              {name: "m.zip", body: zipOf(member{"/evil", "x", 0}), kind: errdef.ErrInvalid, says: "absolute"},
		"a climbing zip with windows":  {name: "m.zip", body: zipOf(member{`..\evil`, "x", 0}), kind: errdef.ErrInvalid, says: "backslash"},
		"a symlink out":                {body: tarOf(link(tar.TypeSymlink, "a/s", "../../etc")), kind: errdef.ErrInvalid, says: "outside of the archive"},
		"an absolute symlink":          {body: tarOf(link(tar.TypeSymlink, "s", "/etc/passwd")), kind: errdef.ErrInvalid, says: "outside of the archive"},
		"a hard link out":              {body: tarOf(link(tar.TypeLink, "h", "../x")), kind: errdef.ErrInvalid, says: "outside of the archive"},
		"a zip symlink out":            {name: "m.zip", body: zipOf(member{"s", "../x", fs.ModeSymlink | 0o777}), kind: errdef.ErrInvalid, says: "outside of the archive"},
		"a write through a link":       {body: tarOf(link(tar.TypeSymlink, "d", "e"), file("d/f", "x"), file("e/g", "y")), kind: errdef.ErrInvalid, says: "twice"},
		"a link to nothing":            {body: tarOf(file("f", "x"), link(tar.TypeSymlink, "s", "gone")), kind: errdef.ErrInvalid, says: "isn't in the archive"},
		"links in a circle":            {body: tarOf(file("f", "x"), link(tar.TypeSymlink, "a", "b"), link(tar.TypeSymlink, "b", "a")), kind: errdef.ErrInvalid, says: "isn't in the archive"},
		"a link to where it is":        {body: tarOf(file("d/f", "x"), link(tar.TypeSymlink, "d/up", ".")), kind: errdef.ErrInvalid, says: "holds it"},
		"a character device":           {body: tarOf(tar.Header{Name: "d", Typeflag: tar.TypeChar}), kind: errdef.ErrInvalid, says: "device"},
		"a block device":               {body: tarOf(tar.Header{Name: "d", Typeflag: tar.TypeBlock}), kind: errdef.ErrInvalid, says: "device"},
		"a pipe":                       {body: tarOf(tar.Header{Name: "d", Typeflag: tar.TypeFifo}), kind: errdef.ErrInvalid, says: "pipe"},
		"a pipe in a zip":              {name: "m.zip", body: zipOf(member{"p", "", fs.ModeNamedPipe | 0o644}), kind: errdef.ErrInvalid, says: "pipe"},
		"a name twice":                 {body: tarOf(file("f", "x"), file("./f", "y")), kind: errdef.ErrInvalid, says: "twice"},
		"a name twice in a zip":        {name: "m.zip", body: zipOf(member{"f", "x", 0}, member{"f", "y", 0}), kind: errdef.ErrInvalid, says: "twice"},
		"a file that is a directory":   {body: tarOf(file("f", "x"), file("f/g", "y")), kind: errdef.ErrInvalid, says: "also a directory"},
		"a directory that is a file":   {body: tarOf(file("f/g", "x"), file("f", "y")), kind: errdef.ErrInvalid, says: "twice"},
		"a long name":                  {body: tarOf(file(long, "x")), kind: errdef.ErrInvalid, says: "longer than 255"},
		"a long path":                  {body: tarOf(file(strings.Repeat("abcdefg/", 500)+"f", "x")), kind: errdef.ErrInvalid, says: "longer than 3072"},
		"a control character":          {name: "m.zip", body: zipOf(member{"a\nb", "x", 0}), kind: errdef.ErrInvalid, says: "control character"},
		"a bomb":                       {name: "m.tar.gz", body: gz(tarOf(file("zeros", strings.Repeat("\x00", 80<<20)))), kind: errdef.ErrTooLarge, says: "bomb"},
		"a zip bomb":                   {name: "m.zip", body: zipOf(member{"zeros", strings.Repeat("\x00", 80<<20), 0}), kind: errdef.ErrTooLarge, says: "bomb"},
		"too many files":               {body: tarOf(file("a", ""), file("b", ""), file("c/d", ""), file("c/e", ""), file("f", "")), kind: errdef.ErrTooLarge, says: "more than 5 files"},
		"too many bytes":               {body: tarOf(file("f", strings.Repeat("x", 100<<20+1))), kind: errdef.ErrTooLarge, says: "bytes"},
		"an empty archive":             {body: tarOf(), kind: errdef.ErrInvalid, says: "no file"},
		"a tar cut off":                {body: good[:700], kind: errdef.ErrInvalid, says: "the tar archive is broken"},
		"a tar without its end":        {body: good[:1024], kind: errdef.ErrInvalid, says: "cut off"},
		"a tar.gz cut off":             {name: "m.tar.gz", body: gz(good)[:60], kind: errdef.ErrInvalid, says: "broken"},
		"a tar.gz with a wrong sum":    {name: "m.tar.gz", body: flip(gz(good), -6), kind: errdef.ErrInvalid, says: "broken"},
		"a zip cut off":                {name: "m.zip", body: goodZip[:len(goodZip)-30], kind: errdef.ErrInvalid, says: "the zip archive is broken"},
		"a zip with a changed byte":    {name: "m.zip", body: flip(zipOf(member{"f", strings.Repeat("ab", 9), 0}), 32), kind: errdef.ErrInvalid, says: "broken"},
		"a zip with a password":        {name: "m.zip", body: encrypted, kind: errdef.ErrUnsupported, says: "encrypted"},
		"text that is named a tar":     {body: []byte(strings.Repeat("hello ", 200)), kind: errdef.ErrInvalid, says: "broken"},
		"a page that is named a zip":   {name: "m.zip", body: []byte("<html>sign in</html>"), kind: errdef.ErrInvalid, says: "broken"},
		"a tar.gz that is empty":       {name: "m.tar.gz", body: nil, kind: errdef.ErrInvalid, says: "cut off"},
		"an archive in a strange type": {body: tarOf(tar.Header{Name: "x", Typeflag: 'Z'}), kind: errdef.ErrInvalid, says: "unknown kind"},
	}
	limits := modelstore.Limits{MaxBytes: 100 << 20, MaxFiles: 5}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			if tc.name == "" {
				tc.name = "m.tar"
			}
			at := filepath.Join(parent, tc.name)
			if err := os.WriteFile(at, tc.body, 0o644); err != nil {
				t.Fatal(err)
			}
			lim := limits
			if len(tc.want) > 3 {
				lim.MaxFiles = 50
			}
			s := open(t, modelstore.Config{Dir: filepath.Join(parent, "store"), Limits: lim})
			path, _, release, err := s.Fetch(t.Context(), "", at, "")
			if tc.kind != nil {
				if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
					t.Fatalf("error %v, want one of kind %q that says %q", err, tc.kind, tc.says)
				}
				if names, _ := filepath.Glob(filepath.Join(parent, "store", "blobs", "*", "*", "*")); len(names) > 0 {
					t.Errorf("an archive that was refused left %v", names)
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
		})
	}
}

func TestTreeDigestIsOrderlessAndTellsTreesApart(t *testing.T) {
	entry := rapid.Custom(func(t *rapid.T) modelstore.Entry {
		e := modelstore.Entry{Path: rapid.StringMatching(`[a-c ]{1,3}(/[a-c.]{1,2}x){0,2}`).Draw(t, "path")}
		if rapid.Bool().Draw(t, "file") {
			e.Size = rapid.Int64Range(0, 1<<40).Draw(t, "size")
			e.Digest = "sha256:" + strings.Repeat(rapid.SampledFrom([]string{"0a", "ff", "12"}).Draw(t, "digest"), 32)
		}
		return e
	})
	rapid.Check(t, func(t *rapid.T) {
		tree := rapid.SliceOfNDistinct(entry, 1, 8, func(e modelstore.Entry) string { return e.Path }).Draw(t, "tree")
		d := modelstore.TreeDigest(tree)
		mixed := rapid.Permutation(tree).Draw(t, "mixed")
		if got := modelstore.TreeDigest(mixed); got != d {
			t.Fatalf("digest depends on the order: %s, %s", d, got)
		}
		text := modelstore.Manifest(tree)
		back, err := modelstore.ParseManifest(text)
		if err != nil {
			t.Fatalf("can't read back %q: %v", text, err)
		}
		if modelstore.TreeDigest(back) != d {
			t.Fatalf("digest changed by way of the manifest %q", text)
		}
		i := rapid.IntRange(0, len(mixed)-1).Draw(t, "i")
		if mixed[i].Digest != "" {
			mixed[i].Size++
		} else {
			mixed[i].Path += "y"
		}
		if modelstore.TreeDigest(mixed) == d {
			t.Fatal("another tree has the same digest")
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add("stationmaster tree v1\n" + strings.Repeat("ab", 32) + " 4 a/b\n- 0 c/\n")
	f.Add("stationmaster tree v1\n- 0 ../\n")
	f.Add("stationmaster tree v1\n" + strings.Repeat("AB", 32) + " 04 a\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := modelstore.ParseManifest(text)
		if err == nil && modelstore.Manifest(entries) != text {
			t.Errorf("%q was read but isn't what would be written", text)
		}
		if err != nil && !errors.Is(err, errdef.ErrInvalid) {
			t.Errorf("error %v, want invalid", err)
		}
	})
}

// fuzzUnpack holds for any bytes: what comes is a tree whose names are safe and whose manifest
// reads back, or an error of a kind that speaks of the content, and nothing outside of the
// staging directory is touched.
func fuzzUnpack(f *testing.F, name string) {
	f.Helper()
	memory := "/dev/shm" // where there is one, syncing costs nothing
	if info, err := os.Stat(memory); err != nil || !info.IsDir() {
		memory = ""
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		parent, err := os.MkdirTemp(memory, "fuzz-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(parent)
		entries, err := modelstore.Unpack(t.Context(), filepath.Join(parent, "staging"), name, body)
		if err == nil {
			if _, err := modelstore.ParseManifest(modelstore.Manifest(entries)); err != nil {
				t.Errorf("a tree that can't be: %v", err)
			}
		} else if !errors.Is(err, errdef.ErrInvalid) && !errors.Is(err, errdef.ErrTooLarge) && !errors.Is(err, errdef.ErrUnsupported) {
			t.Errorf("error %v, want one about the content", err)
		}
		if names, _ := os.ReadDir(parent); len(names) != 1 {
			t.Errorf("the archive reached out of the staging directory: %v", names)
		}
	})
}

func FuzzTar(f *testing.F) {
	f.Add(tarOf(file("a/b", "x"), link(tar.TypeSymlink, "s", "a"), link(tar.TypeLink, "h", "a/b")))
	f.Add(tarOf(file("../b", "x")))
	f.Add(gz(tarOf(file("b", "x"))))
	f.Add(zst(tarOf(file("b", "x"))))
	f.Add([]byte("BZh91AY&SY"))
	fuzzUnpack(f, "m.tar")
}

func FuzzZip(f *testing.F) {
	f.Add(zipOf(member{"a/b", "x", 0}, member{"s", "a/b", fs.ModeSymlink | 0o777}))
	f.Add(zipOf(member{"../b", "x", 0}))
	f.Add([]byte("PK\x05\x06"))
	fuzzUnpack(f, "m.zip")
}
