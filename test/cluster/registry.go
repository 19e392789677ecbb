package cluster

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// registryHost is what the nodes call the registry. containerd speaks plain HTTP to localhost.
const registryHost = "localhost:5000"

// registry serves images out of OCI layout tars, read-only, by the OCI distribution protocol's
// pull half: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pull.
type registry struct {
	mux *http.ServeMux

	mu sync.Mutex
	// tags holds a manifest's descriptor by "repository:tag".
	tags map[string]ociDescriptor
	// blobs holds where the bytes of each digest are. A manifest is a blob too.
	blobs map[string]span
}

// span is a stretch of a file.
type span struct {
	path      string
	off, size int64
}

func newRegistry() *registry {
	r := &registry{mux: http.NewServeMux(), tags: map[string]ociDescriptor{}, blobs: map[string]span{}}
	// Go's patterns can't hold a repository's name, which has slashes, in the middle.
	r.mux.HandleFunc("/v2/", r.pull)
	return r
}

// publish adds the images of an OCI layout tar under their names, which begin with the
// registry's own.
func (r *registry) publish(path string) error {
	index, blobs, err := readLayout(path)
	if err != nil {
		return fmt.Errorf("publish %s: %w", path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, manifest := range index.Manifests {
		name, ok := strings.CutPrefix(manifest.Annotations[imageNameAnnotation], registryHost+"/")
		if !ok {
			return fmt.Errorf("publish %s: its name %q doesn't begin with %s/", path, manifest.Annotations[imageNameAnnotation], registryHost)
		}
		if _, ok := blobs[manifest.Digest]; !ok {
			return fmt.Errorf("publish %s: it lacks the manifest %s of %s", path, manifest.Digest, name)
		}
		r.tags[name] = manifest
	}
	for digest, where := range blobs {
		r.blobs[digest] = where
	}
	return nil
}

// readLayout returns a layout's index, and where its blobs are in the tar.
func readLayout(path string) (ociIndex, map[string]span, error) {
	f, err := os.Open(path)
	if err != nil {
		return ociIndex{}, nil, err
	}
	defer f.Close()
	var index ociIndex
	blobs := map[string]span{}
	for layout := tar.NewReader(f); ; {
		header, err := layout.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return ociIndex{}, nil, err
		}
		if header.Name == "index.json" {
			if err := json.NewDecoder(layout).Decode(&index); err != nil {
				return ociIndex{}, nil, fmt.Errorf("read index.json: %w", err)
			}
		}
		if digest, ok := strings.CutPrefix(header.Name, "blobs/"); ok {
			off, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return ociIndex{}, nil, err
			}
			blobs[strings.Replace(digest, "/", ":", 1)] = span{path: path, off: off, size: header.Size}
		}
	}
	if len(index.Manifests) == 0 {
		return ociIndex{}, nil, errors.New("no index.json with an image in it: it isn't an OCI layout")
	}
	return index, blobs, nil
}

func (r *registry) pull(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		http.Error(w, "this registry is read-only", http.StatusMethodNotAllowed)
		return
	}
	rest := strings.TrimPrefix(req.URL.Path, "/v2/")
	if rest == "" {
		return
	}
	kind := "/blobs/"
	i := strings.LastIndex(rest, kind)
	if i < 0 {
		kind = "/manifests/"
		i = strings.LastIndex(rest, kind)
	}
	if i < 0 {
		http.NotFound(w, req)
		return
	}
	repository, reference := rest[:i], rest[i+len(kind):]
	mediaType, code := "application/octet-stream", "BLOB_UNKNOWN"
	digest := reference
	r.mu.Lock()
	if kind == "/manifests/" {
		mediaType, code = ociManifestType, "MANIFEST_UNKNOWN"
		if tagged, ok := r.tags[repository+":"+reference]; ok {
			digest, mediaType = tagged.Digest, tagged.MediaType
		}
	}
	where, ok := r.blobs[digest]
	r.mu.Unlock()
	if !ok {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"no such image here"}]}`, code)
		return
	}
	f, err := os.Open(where.path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", digest)
	http.ServeContent(w, req, "", time.Time{}, io.NewSectionReader(f, where.off, where.size))
}
