package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/modelstore/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shelf is a registry that keeps what is put there by digest, and a manifest by the tag 1.
type shelf struct {
	blobs map[string][]byte
	tag   string
	// user is who may read; empty means anybody. Bearer has it ask for tokens.
	user   string
	bearer bool
	asked  []string
}

func (s *shelf) put(content []byte) string {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	s.blobs[digest] = content
	return digest
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.URL.Path)
	user, password, _ := r.BasicAuth()
	known := user == s.user && password == "pass"
	switch {
	case r.URL.Path == "/token":
		if !known || r.URL.Query().Get("scope") != "repository:team/iris:pull" || r.URL.Query().Get("service") != "shelf" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"token":"let-me"}`)
		return
	case s.user != "" && s.bearer && r.Header.Get("Authorization") != "Bearer let-me":
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="shelf"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	case s.user != "" && !s.bearer && !known:
		w.Header().Set("WWW-Authenticate", `Basic realm="shelf"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	kind, reference := "", ""
	if rest, ok := strings.CutPrefix(r.URL.Path, "/v2/team/iris/"); ok {
		kind, reference, _ = strings.Cut(rest, "/")
	}
	if kind == "manifests" && reference == "1" {
		reference = s.tag
	}
	content, ok := s.blobs[reference]
	if !ok || kind == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = w.Write(content)
}

// layer is a tar of names and contents. A name with "->" is a link, one that ends with a slash a directory.
func layer(t *testing.T, pairs ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(pairs); i += 2 {
		h := &tar.Header{Name: pairs[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(pairs[i+1]))}
		content := pairs[i+1]
		if from, to, ok := strings.Cut(pairs[i], "->"); ok {
			h.Name, h.Linkname, h.Typeflag, h.Size, content = from, to, tar.TypeSymlink, 0, ""
		} else if strings.HasSuffix(pairs[i], "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func packed(t *testing.T, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// image puts an image of layers, the lowest first, and returns its manifest's digest.
func (s *shelf) image(t *testing.T, layers ...[]byte) string {
	t.Helper()
	var of []map[string]any
	for _, l := range layers {
		of = append(of, map[string]any{"digest": s.put(l), "size": len(l)})
	}
	return s.manifest(t, map[string]any{"layers": of})
}

func (s *shelf) manifest(t *testing.T, m any) string {
	t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	s.tag = s.put(raw)
	return s.tag
}

// pull fetches a URI, in which HOST stands for the registry, by a store of its own.
func pull(t *testing.T, s *shelf, uri string, again bool) (map[string]string, error) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	defer server.Client().CloseIdleConnections()
	sources := map[string]modelstore.Source{}
	for _, scheme := range registry.Schemes() {
		sources[scheme] = registry.Source{Client: server.Client(), Keys: func(namespace, host string) (string, string, error) {
			return registry.KeysIn([]byte(`{"auths":{"https://`+host+`/v2/":{"auth":"bWU6cGFzcw=="}}}`), host)
		}}
	}
	store, err := modelstore.Open(modelstore.Config{Dir: t.TempDir(), Sources: sources})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	uri = strings.ReplaceAll(uri, "HOST", strings.TrimPrefix(server.URL, "http://"))
	dir, _, release, err := store.Fetch(t.Context(), "team", uri, "")
	if err != nil {
		return nil, err
	}
	release()
	if again {
		s.asked = nil
		if _, _, release, err = store.Fetch(t.Context(), "team", uri, ""); err != nil {
			return nil, err
		}
		release()
	}
	files := map[string]string{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		files[rel] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, nil
}

func TestModelsOfImages(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(*testing.T, *shelf)
		uri  string
		want map[string]string
		kind error
	}{
		"the files below models": {
			make: func(t *testing.T, s *shelf) {
				s.image(t, layer(t, "bin/sh", "x", "./models/model.onnx", "m", "models/a/b", "ab", "modelsbeside/c", "no"))
			},
			want: map[string]string{"model.onnx": "m", "a/b": "ab"},
		},
		"upper layers go before lower ones": {
			make: func(t *testing.T, s *shelf) {
				s.image(t, layer(t, "models/a", "old", "models/b", "b", "models/c", "c", "models/d/x", "x", "models/e/y", "y", "models/f/g", "g"),
					packed(t, layer(t, "models/a", "new", "models/.wh.b", "", "models/d/.wh..wh..opq", "", "models/d/z", "z", "models/f", "a file now")))
			},
			want: map[string]string{"a": "new", "c": "c", "d/z": "z", "e/y": "y", "f": "a file now"},
		},
		"what an upper layer deletes, a still higher one may bring": {
			make: func(t *testing.T, s *shelf) {
				s.image(t, layer(t, "models/a", "1", "models/b", "b"), layer(t, ".wh.models", ""), layer(t, "models/a", "3"))
			},
			want: map[string]string{"a": "3"},
		},
		"links within the model": {
			make: func(t *testing.T, s *shelf) {
				s.image(t, layer(t, "models/blobs/1", "one"), layer(t, "models/a->blobs/1", "", "models/b->/models/blobs/1", ""))
			},
			want: map[string]string{"blobs/1": "one", "a": "one", "b": "one"},
		},
		"a link out of the model": {
			make: func(t *testing.T, s *shelf) { s.image(t, layer(t, "models/a->/etc/passwd", "")) }, kind: errdef.ErrInvalid,
		},
		"no model in it":             {make: func(t *testing.T, s *shelf) { s.image(t, layer(t, "a", "b")) }, kind: errdef.ErrInvalid},
		"a layer that is no archive": {make: func(t *testing.T, s *shelf) { s.image(t, bytes.Repeat([]byte("x"), 2048)) }, kind: errdef.ErrInvalid},
		"an index with an image for this machine": {
			make: func(t *testing.T, s *shelf) {
				other, mine := s.image(t, layer(t, "models/a", "other")), s.image(t, layer(t, "models/a", "mine"))
				s.manifest(t, map[string]any{"manifests": []any{
					map[string]any{"digest": other, "platform": map[string]any{"os": "linux", "architecture": "pdp11"}},
					map[string]any{"digest": mine, "platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH}},
				}})
			},
			want: map[string]string{"a": "mine"},
		},
		"an index with one image and its attestation": {
			make: func(t *testing.T, s *shelf) {
				other, mine := s.image(t, layer(t, "models/a", "no")), s.image(t, layer(t, "models/a", "data"))
				s.manifest(t, map[string]any{"manifests": []any{
					map[string]any{"digest": other, "platform": map[string]any{"os": "unknown", "architecture": "unknown"}},
					map[string]any{"digest": mine},
				}})
			},
			want: map[string]string{"a": "data"},
		},
		"an index for others alone": {
			make: func(t *testing.T, s *shelf) {
				of := func(architecture string) any {
					return map[string]any{"digest": s.tag, "platform": map[string]any{"os": "linux", "architecture": architecture}}
				}
				s.image(t, layer(t, "models/a", "no"))
				s.manifest(t, map[string]any{"manifests": []any{of("pdp11"), of("vax")}})
			},
			kind: errdef.ErrNotFound,
		},
		"a layer of other bytes": {
			make: func(t *testing.T, s *shelf) {
				l := layer(t, "models/a", "1")
				s.image(t, l)
				s.blobs[fmt.Sprintf("sha256:%x", sha256.Sum256(l))] = layer(t, "models/a", "2")
			},
			kind: errdef.ErrUnverified,
		},
		"keys that the registry asks for": {
			make: func(t *testing.T, s *shelf) { s.user = "me"; s.image(t, layer(t, "models/a", "a")) }, want: map[string]string{"a": "a"},
		},
		"a token for the keys": {
			make: func(t *testing.T, s *shelf) { s.user, s.bearer = "me", true; s.image(t, layer(t, "models/a", "a")) }, want: map[string]string{"a": "a"},
		},
		"keys that don't do":         {make: func(_ *testing.T, s *shelf) { s.user = "another" }, kind: errdef.ErrDenied},
		"a token that isn't given":   {make: func(_ *testing.T, s *shelf) { s.user, s.bearer = "another", true }, kind: errdef.ErrDenied},
		"an image that isn't there":  {uri: "oci://HOST/team/none:1", make: func(*testing.T, *shelf) {}, kind: errdef.ErrNotFound},
		"a URI without a registry":   {uri: "oci://team/iris:1", make: func(*testing.T, *shelf) {}, kind: errdef.ErrInvalid},
		"a name that can't be one":   {uri: "oci://HOST/../x:1", make: func(*testing.T, *shelf) {}, kind: errdef.ErrInvalid},
		"a digest that can't be one": {uri: "oci://HOST/team/iris@sha256:12", make: func(*testing.T, *shelf) {}, kind: errdef.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{blobs: map[string][]byte{}}
			tc.make(t, s)
			uri := tc.uri
			if uri == "" {
				uri = "oci+fetch://HOST/team/iris:1"
			}
			got, err := pull(t, s, uri, false)
			if tc.kind != nil || err != nil {
				if !errors.Is(err, tc.kind) || tc.kind == nil {
					t.Errorf("error %v, want %v", err, tc.kind)
				}
				if err != nil && strings.Contains(err.Error(), "pass") && !strings.Contains(err.Error(), "passwd") {
					t.Errorf("it tells a secret: %v", err)
				}
				return
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestAPinnedImageIsTheOneThatIsNamed(t *testing.T) {
	s := &shelf{blobs: map[string][]byte{}}
	first := s.image(t, layer(t, "models/a", "first"))
	s.image(t, layer(t, "models/a", "second"))
	got, err := pull(t, s, "oci://HOST/team/iris:1@"+first, false)
	if err != nil || got["a"] != "first" {
		t.Errorf("got %v, %v", got, err)
	}
	s.blobs[first] = s.blobs[s.tag]
	if _, err := pull(t, s, "oci://HOST/team/iris@"+first, false); !errors.Is(err, errdef.ErrUnverified) {
		t.Errorf("another manifest under the digest: %v", err)
	}
}

func TestAnImageThatIsThereIsNotFetchedAgain(t *testing.T) {
	s := &shelf{blobs: map[string][]byte{}}
	s.image(t, layer(t, "models/a", "a"))
	if _, err := pull(t, s, "oci://HOST/team/iris:1", true); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"/v2/team/iris/manifests/1"}, s.asked); d != "" {
		t.Errorf("the second time it asks for (-want +got):\n%s", d)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte(`{"auths":{"h":{"auth":"bWU6cGFzcw=="},"https://h/v1/":{"username":"a","password":"b"}}}`), "h")
	f.Add([]byte(`{"auths":{"h":{"auth":"!"}}}`), "h")
	f.Fuzz(func(t *testing.T, config []byte, host string) {
		if _, password, err := registry.KeysIn(config, host); err != nil && password != "" {
			t.Error("an error with a password")
		}
	})
}
