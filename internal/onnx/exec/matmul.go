package exec

import (
	"fmt"
	"slices"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

func buildMatMul(*graph.Node, int64) (kernel, error) {
	return func(in []*tensor) ([]*tensor, error) {
		switch a := in[0].Data.(type) {
		case []float32:
			return matMul(in, a)
		case []float64:
			return matMul(in, a)
		}
		return nil, unsupportedType(in[0])
	}, nil
}

// matMul multiplies stacks of matrices; a vector counts as a row on the left and as a column
// on the right.
func matMul[T float32 | float64](in []*tensor, a []T) ([]*tensor, error) {
	b, ok := in[1].Data.([]T)
	if !ok {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s times %s", in[0].Type, in[1].Type))
	}
	as, bs := slices.Clone(in[0].Shape), slices.Clone(in[1].Shape)
	if len(as) == 1 {
		as = []int64{1, as[0]}
	}
	if len(bs) == 1 {
		bs = []int64{bs[0], 1}
	}
	m, k, n := int(as[len(as)-2]), int(as[len(as)-1]), int(bs[len(bs)-1])
	if int(bs[len(bs)-2]) != k {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%v times %v: the inner dimensions differ", in[0].Shape, in[1].Shape))
	}
	stack, err := broadcastShape(as[:len(as)-2], bs[:len(bs)-2])
	if err != nil {
		return nil, err
	}
	shape := slices.Concat(stack, []int64{int64(m), int64(n)})
	size, err := limited(shape)
	if err != nil {
		return nil, err
	}
	out := make([]T, size)
	if len(bs) == 2 {
		// One matrix on the right: the whole left side is one tall matrix.
		multiply(out, a, b, size/max(n, 1), k, n)
	} else {
		walk(stack, broadcastStrides(as[:len(as)-2], stack), broadcastStrides(bs[:len(bs)-2], stack), func(i, x, y int) {
			multiply(out[i*m*n:(i+1)*m*n], a[x*m*k:(x+1)*m*k], b[y*k*n:(y+1)*k*n], m, k, n)
		})
	}
	if len(in[1].Shape) == 1 {
		shape = shape[:len(shape)-1]
	}
	if len(in[0].Shape) == 1 {
		shape = slices.Delete(shape, len(stack), len(stack)+1)
	}
	return one(newTensor(shape, out)), nil
}

// parallelFrom is the number of multiplications above which a product is worth a second core.
const parallelFrom = 1 << 18

// multiply computes out = a·b for row-major a (m×k) and b (k×n); out starts as zeros.
func multiply[T float32 | float64](out, a, b []T, m, k, n int) {
	if m*k*n < parallelFrom {
		multiplyRows(out, a, b, m, k, n)
		return
	}
	inParts(m, 1, func(from, to int) { multiplyRows(out[from*n:to*n], a[from*k:to*k], b, to-from, k, n) })
}

// multiplyBlock is about how many elements of b are gone through for all rows of a before the
// next are: 256 KiB of float32, which second-level caches hold.
const multiplyBlock = 1 << 16

// multiplyRows adds a·b to out, by tiles where the processor has them.
func multiplyRows[T float32 | float64](out, a, b []T, m, k, n int) {
	done := 0
	if out32, ok := any(out).([]float32); ok && hasTiles && m > 0 && k > 0 {
		done = n / tileWidth * tileWidth
		multiplyTiles(out32[:m*n], any(a).([]float32)[:m*k], any(b).([]float32)[:k*n], m, k, n)
	}
	if done == n {
		return
	}
	// Row by row of b, four at a time, in blocks that stay in the cache.
	block := max(multiplyBlock/max(n, 1)&^3, 4)
	for from := 0; from < k; from += block {
		to := min(from+block, k)
		for i := range m {
			multiplyRow(out[i*n+done:(i+1)*n], a[i*k:(i+1)*k], b[done:], n, from, to)
		}
	}
}

const (
	tileWidth = 16
	tileDepth = 512 // rows of b in a pass: 32 KiB of 16 columns, which first-level caches hold
)

// multiplyTiles is multiplyRows for the columns that fill tiles.
func multiplyTiles(out, a, b []float32, m, k, n int) {
	for from := 0; from < k; from += tileDepth {
		depth := min(tileDepth, k-from)
		for j := 0; j+tileWidth <= n; j += tileWidth {
			under := &b[from*n+j]
			i := 0
			for ; i+4 <= m; i += 4 {
				tile4x16(&out[i*n+j], 4*n, &a[i*k+from], 4*k, under, 4*n, depth)
			}
			for ; i < m; i++ {
				tile1x16(&out[i*n+j], &a[i*k+from], under, 4*n, depth)
			}
		}
	}
}

// multiplyRow adds left[from:to] times these rows of b, whose starts are n apart, to row.
func multiplyRow[T float32 | float64](row, left, b []T, n, from, to int) {
	p := from
	for ; p+4 <= to; p += 4 {
		x0, x1, x2, x3 := left[p], left[p+1], left[p+2], left[p+3]
		b0, b1, b2, b3 := b[p*n:][:len(row)], b[(p+1)*n:][:len(row)], b[(p+2)*n:][:len(row)], b[(p+3)*n:][:len(row)]
		for j := range row {
			row[j] += x0*b0[j] + x1*b1[j] + x2*b2[j] + x3*b3[j]
		}
	}
	for ; p < to; p++ {
		x, line := left[p], b[p*n:][:len(row)]
		for j := range row {
			row[j] += x * line[j]
		}
	}
}

func buildGemm(n *graph.Node, _ int64) (kernel, error) {
	alpha, beta := n.Float("alpha", 1), n.Float("beta", 1)
	ta, tb := n.Int("transA", 0) == 1, n.Int("transB", 0) == 1
	return func(in []*tensor) ([]*tensor, error) {
		if in[0].Type == graph.FP64 {
			return gemm[float64](in, float64(alpha), float64(beta), ta, tb)
		}
		return gemm[float32](in, alpha, beta, ta, tb)
	}, nil
}

func gemm[T float32 | float64](in []*tensor, alpha, beta T, ta, tb bool) ([]*tensor, error) {
	a, am, ak, err := matrix[T](in[0], ta)
	if err != nil {
		return nil, err
	}
	b, bk, bn, err := matrix[T](in[1], tb)
	if err != nil {
		return nil, err
	}
	if ak != bk {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%v times %v: the inner dimensions differ", in[0].Shape, in[1].Shape))
	}
	out := make([]T, am*bn)
	multiply(out, a, b, am, ak, bn)
	if alpha != 1 {
		for i := range out {
			out[i] *= alpha
		}
	}
	t := newTensor([]int64{int64(am), int64(bn)}, out)
	if len(in) < 3 || in[2] == nil || beta == 0 {
		return one(t), nil
	}
	c, ok := in[2].Data.([]T)
	if !ok {
		return nil, unsupportedType(in[2])
	}
	sum, shape, err := zip(out, t.Shape, c, in[2].Shape, func(x, y T) T { return x + beta*y })
	if err != nil {
		return nil, err
	}
	return one(newTensor(shape, sum)), nil
}

// matrix returns a tensor's elements as rows by columns, transposed where asked.
func matrix[T float32 | float64](t *tensor, transposed bool) ([]T, int, int, error) {
	d, ok := t.Data.([]T)
	if !ok || len(t.Shape) != 2 {
		return nil, 0, 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a matrix of floats is needed and %s%v came", t.Type, t.Shape))
	}
	m, n := int(t.Shape[0]), int(t.Shape[1])
	if !transposed {
		return d, m, n, nil
	}
	out := make([]T, len(d))
	for i := range m {
		for j := range n {
			out[j*m+i] = d[i*n+j]
		}
	}
	return out, n, m, nil
}
