package buckets_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/modelstore/buckets"
	"stationmaster.dev/stationmaster/internal/objectstore"
)

// memory is a store with one bucket, "shelf", of namespace "team".
type memory struct {
	objects map[string]string
	// breaks is how often a connection ends after two bytes.
	breaks int
	reads  int
	asked  objectstore.Source
}

func (m *memory) Reader(_ context.Context, p objectstore.Place, from objectstore.Source) (objectstore.Reader, error) {
	m.asked = from
	if from.Namespace != "team" {
		return nil, errdef.New(errdef.ErrDenied, "no credentials")
	}
	if p.Bucket != "shelf" || p.Scheme != objectstore.S3 {
		return nil, errdef.New(errdef.ErrNotFound, "no bucket "+p.Bucket)
	}
	return m, nil
}

func (m *memory) Entry(_ context.Context, _, key string) (objectstore.Place, error) {
	switch key {
	case "whole":
		return objectstore.Place{Scheme: objectstore.S3, Bucket: "shelf"}, nil
	case "half":
		return objectstore.Place{}, nil
	}
	return objectstore.Place{}, errdef.New(errdef.ErrNotFound, "no entry "+key)
}

func (m *memory) List(_ context.Context, prefix string, _ int) ([]objectstore.Object, error) {
	var out []objectstore.Object
	for key, text := range m.objects {
		if strings.HasPrefix(key, prefix) {
			out = append(out, objectstore.Object{Key: key, Size: int64(len(text)), ETag: text})
		}
	}
	slices.SortFunc(out, func(a, b objectstore.Object) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

func (m *memory) Get(_ context.Context, o objectstore.Object, offset int64) (io.ReadCloser, error) {
	m.reads++
	text := m.objects[o.Key][offset:]
	if m.breaks > 0 && len(text) > 2 {
		m.breaks--
		return io.NopCloser(io.MultiReader(strings.NewReader(text[:2]), broken{})), nil
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

func (*memory) Close() {}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func packed(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "model.onnx", Mode: 0o644, Size: 4}), func() error { _, err := w.Write([]byte("onnx")); return err }(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func store(t *testing.T, m *memory) *modelstore.Store {
	t.Helper()
	source := buckets.Source{Stores: m, From: func(namespace string) objectstore.Source { return objectstore.Source{Namespace: namespace} }}
	s, err := modelstore.Open(modelstore.Config{Dir: t.TempDir(), Sources: map[string]modelstore.Source{objectstore.S3: source, buckets.Scheme: source}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// filesOf returns the files of a directory with their content.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		out[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestModelsOfBuckets(t *testing.T) {
	objects := map[string]string{
		"iris/": "", "iris/model.onnx": "weights", "iris/labels/a.txt": "a", "iris/empty": "",
		"iris-2/model.onnx": "a neighbour's", "single.bin": "one", "packed.tar": packed(t), "folder.tar/x": "y",
	}
	iris := map[string]string{"model.onnx": "weights", "labels/a.txt": "a", "empty": ""}
	for name, tc := range map[string]struct {
		uri    string
		breaks int
		want   map[string]string
		err    error
	}{
		"all below a key, and no neighbours":            {uri: "s3://shelf/iris", want: iris},
		"a slash at the end is the same":                {uri: "s3://shelf/iris/", want: iris},
		"one object":                                    {uri: "s3://shelf/single.bin", want: map[string]string{"single.bin": "one"}},
		"one that is an archive is unpacked":            {uri: "s3://shelf/packed.tar", want: map[string]string{"model.onnx": "onnx"}},
		"a connection that breaks is taken up again":    {uri: "s3://shelf/iris", breaks: 2, want: iris},
		"an entry of the storage secret names a bucket": {uri: "storage://whole/iris", want: iris},
		"or the service does":                           {uri: "storage://half/single.bin?bucket=shelf&type=s3", want: map[string]string{"single.bin": "one"}},
		"nobody does":                                   {uri: "storage://half/iris", err: errdef.ErrInvalid},
		"there is no such entry":                        {uri: "storage://none/iris", err: errdef.ErrNotFound},
		"nothing has the key":                           {uri: "s3://shelf/iri", err: errdef.ErrNotFound},
		"no bucket":                                     {uri: "s3:///iris", err: errdef.ErrInvalid},
		"no entry":                                      {uri: "storage:///iris", err: errdef.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{objects: objects, breaks: tc.breaks}
			dir, _, release, err := store(t, m).Fetch(t.Context(), "team", tc.uri, "")
			if tc.err != nil {
				if !errors.Is(err, tc.err) {
					t.Fatalf("%v, want %v", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if diff := cmp.Diff(tc.want, filesOf(t, dir)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAModelThatIsThereIsNotFetchedAgain(t *testing.T) {
	m := &memory{objects: map[string]string{"iris/a": "1", "iris/b": "2"}}
	s := store(t, m)
	fetch := func() string {
		t.Helper()
		_, digest, release, err := s.Fetch(t.Context(), "team", "s3://shelf/iris", "")
		if err != nil {
			t.Fatal(err)
		}
		release()
		return digest
	}
	first := fetch()
	if again := fetch(); again != first || m.reads != 2 {
		t.Errorf("%s after %s, with %d reads", again, first, m.reads)
	}
	m.objects["iris/b"] = "3"
	if changed := fetch(); changed == first {
		t.Error("what changed isn't fetched")
	}
}

// A namespace without credentials gets nothing, whoever fetched the model before.
func TestANamespaceFetchesWithItsOwnCredentials(t *testing.T) {
	m := &memory{objects: map[string]string{"iris/a": "1"}}
	s := store(t, m)
	_, _, release, err := s.Fetch(t.Context(), "team", "s3://shelf/iris", "")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if _, _, _, err := s.Fetch(t.Context(), "other", "s3://shelf/iris", ""); !errors.Is(err, errdef.ErrDenied) {
		t.Errorf("another namespace is answered %v", err)
	}
	if m.asked.Namespace != "other" {
		t.Errorf("the credentials of %q were asked for", m.asked.Namespace)
	}
}
