package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func build(t *testing.T, image Image) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := BuildImage(out, image); err != nil {
		t.Fatal(err)
	}
	return out
}

var echo = Image{
	Name: "localhost:5000/team/echo:1", Entrypoint: []string{"/bin/echo"}, User: "65532",
	Files: []File{
		{Path: "bin/echo", Data: []byte("program")},
		{Path: "etc/deep/er/file", Data: []byte("x"), Mode: 0o644},
	},
}

func TestTheSameImageIsTheSameBytes(t *testing.T) {
	first, err := os.ReadFile(build(t, echo))
	if err != nil {
		t.Fatal(err)
	}
	turned := echo
	turned.Files = []File{echo.Files[1], echo.Files[0]}
	second, err := os.ReadFile(build(t, turned))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two builds of an image differ")
	}
}

func TestAnImageNamesWhatItLacks(t *testing.T) {
	err := BuildImage(filepath.Join(t.TempDir(), "image.tar"), Image{Name: "x", Files: []File{{Path: "bin/x", From: "absent"}}})
	if err == nil || !strings.Contains(err.Error(), "bin/x") {
		t.Errorf("the error is %v, and doesn't name the file", err)
	}
}

// TestANodePullsWhatWasPublished walks the way of a pull: tag, manifest, config and layer, each
// of which must be what its digest says.
func TestANodePullsWhatWasPublished(t *testing.T) {
	r := newRegistry()
	if err := r.publish(build(t, echo)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.mux)
	defer server.Close()
	get := func(path string) ([]byte, http.Header) {
		t.Helper()
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("GET %s answers %s: %s", path, resp.Status, body)
		}
		return body, resp.Header
	}
	get("/v2/")
	raw, header := get("/v2/team/echo/manifests/1")
	if got := header.Get("Content-Type"); got != ociManifestType {
		t.Errorf("the manifest's type is %q, want %q", got, ociManifestType)
	}
	digest := header.Get("Docker-Content-Digest")
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(raw)); got != digest {
		t.Errorf("the manifest is %s, and is served as %s", got, digest)
	}
	if again, _ := get("/v2/team/echo/manifests/" + digest); !bytes.Equal(again, raw) {
		t.Error("by digest the manifest is another")
	}
	var manifest ociManifest
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		blob, _ := get("/v2/team/echo/blobs/" + d.Digest)
		if got := describe(d.MediaType, blob); got.Digest != d.Digest || got.Size != d.Size {
			t.Errorf("the blob is %v, and is told to be %v", got, d)
		}
	}
	layer, _ := get("/v2/team/echo/blobs/" + manifest.Layers[0].Digest)
	var names []string
	for files := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := files.Next()
		if err != nil {
			break
		}
		names = append(names, fmt.Sprintf("%s %o", h.Name, h.Mode))
	}
	want := []string{"bin/ 755", "bin/echo 755", "etc/ 755", "etc/deep/ 755", "etc/deep/er/ 755", "etc/deep/er/file 644"}
	if !slices.Equal(names, want) {
		t.Errorf("the layer holds %q, want %q", names, want)
	}
}

func TestTheRegistryRefusesWhatItDoesntHave(t *testing.T) {
	r := newRegistry()
	if err := r.publish(build(t, echo)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.mux)
	defer server.Close()
	for path, want := range map[string]int{
		"/v2/team/echo/manifests/2":      http.StatusNotFound,
		"/v2/other/manifests/1":          http.StatusNotFound,
		"/v2/team/echo/blobs/sha256:abc": http.StatusNotFound,
		"/v2/team/echo/tags/list":        http.StatusNotFound,
	} {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s answers %d, want %d", path, resp.StatusCode, want)
		}
	}
	resp, err := http.Post(server.URL+"/v2/team/echo/blobs/uploads/", "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a push is answered %d, want %d", resp.StatusCode, http.StatusMethodNotAllowed)
	}
}

func TestOnlyNamesOfTheRegistryArePublished(t *testing.T) {
	elsewhere := echo
	elsewhere.Name = "example.com/echo:1"
	if err := newRegistry().publish(build(t, elsewhere)); err == nil || !strings.Contains(err.Error(), "example.com/echo:1") {
		t.Errorf("publishing an image of another registry gives %v", err)
	}
	file := filepath.Join(t.TempDir(), "not.tar")
	if err := os.WriteFile(file, []byte("not a tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newRegistry().publish(file); err == nil {
		t.Error("a file that is no tar is published")
	}
}
