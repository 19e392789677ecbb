//go:build !scratch

package ort

import "github.com/ebitengine/purego"

// canLoad says whether this binary can load libraries at run time. That binds it to the C
// library of the machine, so binaries for images from scratch are built with the tag scratch.
const canLoad = true

// call calls a C function whose parameters and result are all integers or pointers. Pointers
// into Go memory must come from ptr or be pinned.
func call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
