//go:build !amd64

package exec

const hasTiles = false

func tile4x16(out *float32, outStride int, a *float32, aStride int, b *float32, bStride, k int) {
	panic("BUG: no tiles on this processor")
}

func tile1x16(out, a, b *float32, bStride, k int) { panic("BUG: no tiles on this processor") }
