//go:build !scratch

package ort

import "golang.org/x/sys/windows"

// open loads a library and returns its OrtGetApiBase.
func open(path string) (uintptr, error) {
	handle, err := windows.LoadLibrary(path)
	if err != nil {
		return 0, err
	}
	return windows.GetProcAddress(handle, "OrtGetApiBase")
}
