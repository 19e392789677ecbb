package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image says what a one-layer image without a base holds.
type Image struct {
	// Name is the reference that it goes by, as localhost:5000/thing:1.
	Name string
	// Entrypoint, Env and User are the image's configuration. A model or other data has none.
	Entrypoint []string
	Env        []string
	User       string
	// Files are its content. Directories above them are made, readable to all.
	Files []File
}

// File is a file of an image.
type File struct {
	// Path is where it stands in the image, without a leading slash.
	Path string
	// From is the file on the host to copy; where empty, Data is the content.
	From string
	Data []byte
	// Mode is its permissions; zero means 0755.
	Mode int64
}

const (
	ociIndexType    = "application/vnd.oci.image.index.v1+json"
	ociManifestType = "application/vnd.oci.image.manifest.v1+json"
	ociConfigType   = "application/vnd.oci.image.config.v1+json"
	ociLayerType    = "application/vnd.oci.image.layer.v1.tar"
)

// The parts of the OCI image format that are written and read here.
type (
	ociDescriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		Platform    *ociPlatform      `json:"platform,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	ociPlatform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	ociIndex struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     []ociDescriptor `json:"manifests"`
	}
	ociManifest struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Config        ociDescriptor   `json:"config"`
		Layers        []ociDescriptor `json:"layers"`
	}
	ociConfig struct {
		ociPlatform
		Config ociProcess `json:"config"`
		RootFS ociRootFS  `json:"rootfs"`
	}
	ociProcess struct {
		Entrypoint []string `json:"Entrypoint,omitempty"`
		Env        []string `json:"Env,omitempty"`
		User       string   `json:"User,omitempty"`
	}
	ociRootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
)

// imageNameAnnotation is where containerd looks for the name of an image in a layout.
const imageNameAnnotation = "io.containerd.image.name"

// BuildImage writes an image as an OCI layout tar to out. The same content gives the same
// bytes: no times, no owners. The layer isn't compressed.
func BuildImage(out string, image Image) (err error) {
	layer, err := os.CreateTemp(path.Dir(out), ".layer-*")
	if err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	defer os.Remove(layer.Name()) //nolint:errcheck // a temporary file
	defer layer.Close()
	digest := sha256.New()
	if err := writeLayer(io.MultiWriter(layer, digest), image.Files); err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	layerDigest := fmt.Sprintf("sha256:%x", digest.Sum(nil))

	platform := ociPlatform{Architecture: runtime.GOARCH, OS: "linux"}
	config, err := json.Marshal(ociConfig{
		ociPlatform: platform,
		Config:      ociProcess{Entrypoint: image.Entrypoint, Env: image.Env, User: image.User},
		RootFS:      ociRootFS{Type: "layers", DiffIDs: []string{layerDigest}},
	})
	if err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	manifest, err := json.Marshal(ociManifest{
		SchemaVersion: 2, MediaType: ociManifestType, Config: describe(ociConfigType, config),
		Layers: []ociDescriptor{{MediaType: ociLayerType, Digest: layerDigest, Size: size}},
	})
	if err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	described := describe(ociManifestType, manifest)
	described.Platform = &platform
	described.Annotations = map[string]string{imageNameAnnotation: image.Name}
	index, err := json.Marshal(ociIndex{SchemaVersion: 2, MediaType: ociIndexType, Manifests: []ociDescriptor{described}})
	if err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	if err := writeLayout(out, index, [][]byte{config, manifest}, layer, layerDigest, size); err != nil {
		return fmt.Errorf("build %s: %w", image.Name, err)
	}
	return nil
}

func describe(mediaType string, content []byte) ociDescriptor {
	return ociDescriptor{MediaType: mediaType, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(content)), Size: int64(len(content))}
}

func writeLayer(w io.Writer, files []File) error {
	layer := tar.NewWriter(w)
	made := map[string]bool{}
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range files {
		for i, char := range f.Path {
			if dir := f.Path[:i]; char == '/' && !made[dir] {
				made[dir] = true
				if err := layer.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
					return err
				}
			}
		}
		if err := writeFile(layer, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return layer.Close()
}

func writeFile(layer *tar.Writer, f File) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: f.Mode, Size: int64(len(f.Data))}
	if header.Mode == 0 {
		header.Mode = 0o755
	}
	var content io.Reader = bytes.NewReader(f.Data)
	if f.From != "" {
		source, err := os.Open(f.From)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		header.Size, content = info.Size(), source
	}
	if err := layer.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(layer, content)
	return err
}

func writeLayout(out string, index []byte, blobs [][]byte, layer io.Reader, layerDigest string, size int64) (err error) {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	layout := tar.NewWriter(file)
	put := func(name string, size int64, content io.Reader) error {
		if err := layout.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(layout, content)
		return err
	}
	for _, small := range []struct {
		name    string
		content []byte
	}{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index}} {
		if err := put(small.name, int64(len(small.content)), bytes.NewReader(small.content)); err != nil {
			return err
		}
	}
	for _, blob := range blobs {
		if err := put(blobPath(describe("", blob).Digest), int64(len(blob)), bytes.NewReader(blob)); err != nil {
			return err
		}
	}
	if err := put(blobPath(layerDigest), size, layer); err != nil {
		return err
	}
	return layout.Close()
}

// blobPath returns where a layout keeps the blob of a digest.
func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
