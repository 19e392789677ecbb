package exec

import (
	"runtime"
	"slices"
	"sync"
)

// parallelRuns is the number of elements from which a second core pays for a cheap operation.
const parallelRuns = 1 << 15

// parallel is inParts when there is enough to do for it.
func parallel(n, unit int, f func(from, to int)) {
	if n < parallelRuns {
		f(0, n)
		return
	}
	inParts(n, unit, f)
}

// inParts calls f for parts of 0 … n that together are all of it, one for each core, and returns
// when all have; each part but the last is a multiple of unit.
func inParts(n, unit int, f func(from, to int)) {
	workers := min(runtime.GOMAXPROCS(0), n/unit)
	if workers < 2 {
		f(0, n)
		return
	}
	per := (n/unit + workers - 1) / workers * unit
	var wg sync.WaitGroup
	var failed any
	var once sync.Once
	for from := 0; from < n; from += per {
		wg.Go(func() {
			// What a kernel panics with is the caller's to recover, in its own goroutine.
			defer func() {
				if r := recover(); r != nil {
					once.Do(func() { failed = r })
				}
			}()
			f(from, min(from+per, n))
		})
	}
	wg.Wait()
	if failed != nil {
		panic(failed)
	}
}

// runs is an operation on rows of float32, without a call for each element: on two rows of one
// length, and on a row and a single number.
type runs struct {
	rows        func(out, a, b []float32)
	by          func(out, a []float32, b float32)
	commutative bool
}

var (
	runsAdd = &runs{func(out, a, b []float32) {
		a, b = a[:len(out)], b[:len(out)]
		for i := range out {
			out[i] = a[i] + b[i]
		}
	}, func(out, a []float32, b float32) {
		a = a[:len(out)]
		for i := range out {
			out[i] = a[i] + b
		}
	}, true}
	runsSub = &runs{func(out, a, b []float32) {
		a, b = a[:len(out)], b[:len(out)]
		for i := range out {
			out[i] = a[i] - b[i]
		}
	}, func(out, a []float32, b float32) {
		a = a[:len(out)]
		for i := range out {
			out[i] = a[i] - b
		}
	}, false}
	runsMul = &runs{func(out, a, b []float32) {
		a, b = a[:len(out)], b[:len(out)]
		for i := range out {
			out[i] = a[i] * b[i]
		}
	}, func(out, a []float32, b float32) {
		a = a[:len(out)]
		for i := range out {
			out[i] = a[i] * b
		}
	}, true}
	runsDiv = &runs{func(out, a, b []float32) {
		a, b = a[:len(out)], b[:len(out)]
		for i := range out {
			out[i] = a[i] / b[i]
		}
	}, func(out, a []float32, b float32) {
		a = a[:len(out)]
		for i := range out {
			out[i] = a[i] / b
		}
	}, false}
)

// apply works when one shape repeats within the other in whole rows or for whole rows; false
// where it doesn't.
func (r *runs) apply(a []float32, as []int64, b []float32, bs []int64) ([]float32, []int64, bool) {
	if len(a) < len(b) && r.commutative {
		a, as, b, bs = b, bs, a, as
	}
	if len(bs) > len(as) || len(b) == 0 || len(a) == 0 {
		return nil, nil, false
	}
	out := make([]float32, len(a))
	if slices.Equal(as, bs) {
		parallel(len(a), 1, func(from, to int) { r.rows(out[from:to], a[from:to], b[from:to]) })
		return out, as, true
	}
	if len(b) == 1 {
		parallel(len(a), 1, func(from, to int) { r.by(out[from:to], a[from:to], b[0]) })
		return out, as, true
	}
	if isSuffix(bs, as) {
		n := len(b)
		parallel(len(a), n, func(from, to int) {
			for i := from; i < to; i += n {
				r.rows(out[i:i+n], a[i:i+n], b)
			}
		})
		return out, as, true
	}
	if isPrefix(bs, as) {
		n := len(a) / len(b)
		parallel(len(a), n, func(from, to int) {
			for i := from; i < to; i += n {
				r.by(out[i:i+n], a[i:i+n], b[i/n])
			}
		})
		return out, as, true
	}
	return nil, nil, false
}

// isPrefix reports whether b, less its trailing ones, begins a, which is of the same length.
func isPrefix(b, a []int64) bool {
	if len(b) != len(a) {
		return false
	}
	for len(b) > 0 && b[len(b)-1] == 1 {
		b = b[:len(b)-1]
	}
	return slices.Equal(b, a[:len(b)])
}

// stretched is d walked by strides, row by row.
func stretched(d []float32, shape []int64, by []int, first int) []float32 {
	last := len(shape) - 1
	n, step := int(shape[last]), by[last]
	rows := count(shape[:last])
	out := make([]float32, rows*n)
	walk(shape[:last], by[:last], make([]int, last), func(i, a, _ int) {
		row, from := out[i*n:(i+1)*n], first+a
		if step == 1 {
			copy(row, d[from:from+n])
			return
		}
		for j := range row {
			row[j] = d[from]
			from += step
		}
	})
	return out
}
