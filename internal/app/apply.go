package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// fieldOwner is the field manager of what `up` itself applies.
const fieldOwner = "stationmaster-up"

// readManifests reads the objects of a file, or of the YAML and JSON files of a folder (not
// of its subfolders), in order of file names.
func readManifests(path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("--apply %s: there is no such file or folder", path))
	}
	if err != nil {
		return nil, fmt.Errorf("--apply %s: %w", path, err)
	}
	files := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("--apply %s: %w", path, err)
		}
		files = nil
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		if len(files) == 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("--apply %s: the folder holds no .yaml, .yml or .json file", path))
		}
	}
	var out []*unstructured.Unstructured
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("--apply %s: %w", path, err)
		}
		objects, err := decodeManifests(raw)
		if err != nil {
			return nil, fmt.Errorf("--apply %s: %w: %w", f, errdef.ErrInvalid, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}

func decodeManifests(raw []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	dec := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := dec.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() == "" || o.GetAPIVersion() == "" || o.GetName() == "" {
			return nil, errors.New("an object lacks apiVersion, kind or metadata.name")
		}
		out = append(out, o)
	}
}

// applyAll applies objects server-side and says so, a line each.
func applyAll(ctx context.Context, c client.Client, objects []*unstructured.Unstructured, out io.Writer) error {
	for _, o := range objects {
		namespaced, err := c.IsObjectNamespaced(o)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if namespaced && o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		if err := applyOne(ctx, c, o); err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		fmt.Fprintf(out, "applied %s %s\n", strings.ToLower(o.GetKind()), strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/"))
	}
	return nil
}

func applyOne(ctx context.Context, c client.Client, o *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fieldOwner), client.ForceOwnership)
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return fmt.Errorf("%w: %w", errdef.ErrInvalid, err)
	}
	return err
}
