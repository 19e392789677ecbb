package modelserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Find returns the model file of a directory, and its version: model.onnx, or the only *.onnx
// file, both of which have no version; or N/model.onnx for the largest whole number N, as
// Triton lays out its repositories. dir may also be the file itself.
func Find(dir string) (path, version string, err error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", errdef.New(errdef.ErrNotFound, fmt.Sprintf("model directory %s doesn't exist; check --model_dir and the storage of the model", dir))
	}
	if err != nil {
		return "", "", fmt.Errorf("model directory: %w", err)
	}
	if !info.IsDir() {
		return dir, "", nil
	}
	if path := filepath.Join(dir, "model.onnx"); isFile(path) {
		return path, "", nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", "", fmt.Errorf("model directory: %w", err)
	}
	var found, seen []string
	var newest uint64
	for _, e := range entries {
		name := e.Name()
		seen = append(seen, name)
		if strings.EqualFold(filepath.Ext(name), ".onnx") && isFile(filepath.Join(dir, name)) {
			found = append(found, name)
		}
		if n, err := strconv.ParseUint(name, 10, 63); err == nil && n >= newest {
			if file := filepath.Join(dir, name, "model.onnx"); isFile(file) {
				newest, path, version = n, file, name
			}
		}
	}
	switch {
	case len(found) == 1:
		return filepath.Join(dir, found[0]), "", nil
	case len(found) > 1:
		return "", "", errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s holds several ONNX files (%s); name one model.onnx or leave only one", dir, strings.Join(found, ", ")))
	case path != "":
		return path, version, nil
	case len(seen) == 0:
		return "", "", errdef.New(errdef.ErrNotFound, fmt.Sprintf("%s is empty; it must hold model.onnx, one *.onnx file, or a version folder such as 1/model.onnx", dir))
	}
	const most = 8
	if len(seen) > most {
		seen = append(seen[:most:most], "…")
	}
	return "", "", errdef.New(errdef.ErrNotFound, fmt.Sprintf("%s holds no ONNX model, only %s; it must hold model.onnx, one *.onnx file, or a version folder such as 1/model.onnx", dir, strings.Join(seen, ", ")))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
