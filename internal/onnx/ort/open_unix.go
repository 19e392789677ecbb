//go:build !windows && !scratch

package ort

import "github.com/ebitengine/purego"

// open loads a library and returns its OrtGetApiBase.
func open(path string) (uintptr, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, err
	}
	return purego.Dlsym(handle, "OrtGetApiBase")
}
