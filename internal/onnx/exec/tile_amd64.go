package exec

import "golang.org/x/sys/cpu"

// hasTiles says whether this processor runs the tiles below.
var hasTiles = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// tile4x16 adds 4 rows of a times 16 columns of b to out. Strides are in bytes; k, the width of
// a, must be at least 1, and all elements must exist.
//
//go:noescape
func tile4x16(out *float32, outStride int, a *float32, aStride int, b *float32, bStride, k int)

// tile1x16 is tile4x16 for one row.
//
//go:noescape
func tile1x16(out, a, b *float32, bStride, k int)
