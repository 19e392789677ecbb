// Package crd holds the CRDs that tools/crdgen makes from the types under api/: full/ for
// clusters, and slim/ for the embedded API. In the slim ones pod parts are
// open objects; internal/manifest.DecodeStrict checks those at admission.
package crd

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

//go:embed slim/*.json
var slim embed.FS

// Slim returns the CRDs for the embedded API, in order of their names; the caller owns them.
// An error means that the binary was built from a broken tree.
func Slim() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return read(slim, "slim", json.Unmarshal)
}

//go:embed full/*.yaml
var full embed.FS

// Full returns the CRDs for a cluster, each a YAML document, in the order of their names.
func Full() ([][]byte, error) {
	names, err := fs.Glob(full, "full/*.yaml")
	if err != nil {
		return nil, err
	}
	docs := make([][]byte, len(names))
	for i, name := range names {
		if docs[i], err = fs.ReadFile(full, name); err != nil {
			return nil, fmt.Errorf("read CRD %s: %w", name, err)
		}
	}
	return docs, nil
}

// read decodes every file of a directory.
func read(fsys fs.FS, dir string, decode func([]byte, any) error) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(fsys, dir+"/*")
	if err != nil {
		return nil, err
	}
	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(names))
	for _, name := range names {
		raw, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read CRD %s: %w", name, err)
		}
		c := &apiextensionsv1.CustomResourceDefinition{}
		if err := decode(raw, c); err != nil {
			return nil, fmt.Errorf("decode CRD %s: %w", name, err)
		}
		crds = append(crds, c)
	}
	return crds, nil
}
