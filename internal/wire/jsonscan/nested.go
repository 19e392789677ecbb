package jsonscan

// MaxRank is how deeply an array of elements may nest; numpy's limit is 64.
const MaxRank = 64

// Elements are the leaves of a nested array in row-major order, and the array's dimensions.
type Elements[T any] struct {
	Values []T
	// Dims has one entry for each level of nesting; none for a bare value.
	Dims []int64

	leafDepth int
}

// Nested reads an array, nested or not, whose leaves read reads, or a bare value. Arrays of
// one level must be equally long. hint is how many elements to expect; no more are allocated
// at once than the rest of the text can hold.
func Nested[T any](s *Scanner, hint int, read func(*Scanner) (T, error)) (Elements[T], error) {
	return nested(s, hint, read, nil)
}

func nested[T any](s *Scanner, hint int, read func(*Scanner) (T, error), fast run[T]) (Elements[T], error) {
	e := Elements[T]{leafDepth: -1}
	if s.Peek() != '[' {
		v, err := read(s)
		e.Values = []T{v}
		return e, err
	}
	// An element takes two bytes at least, itself and what separates it.
	e.Values = make([]T, 0, max(0, min(hint, s.Rest()/2)))
	err := e.array(s, 0, read, fast)
	return e, err
}

func (e *Elements[T]) array(s *Scanner, depth int, read func(*Scanner) (T, error), fast run[T]) error {
	s.pos++ // the bracket
	if depth >= MaxRank {
		return s.Errorf("nested deeper than %d", MaxRank)
	}
	if depth == len(e.Dims) {
		e.Dims = append(e.Dims, -1)
	}
	var count int64
	if !s.Eat(']') {
		for {
			if fast != nil && e.leafDepth == depth {
				before := len(e.Values)
				e.Values = fast(s, e.Values)
				count += int64(len(e.Values) - before)
			}
			if !s.atDigit() && s.Peek() == '[' {
				if e.leafDepth >= 0 && depth >= e.leafDepth {
					return s.Errorf("an array where a value should be, as at the same depth before")
				}
				if err := e.array(s, depth+1, read, fast); err != nil {
					return err
				}
			} else {
				if e.leafDepth != depth {
					if e.leafDepth >= 0 || len(e.Dims) > depth+1 {
						return s.Errorf("a value where an array should be, as at the same depth before")
					}
					e.leafDepth = depth
				}
				v, err := read(s)
				if err != nil {
					return err
				}
				e.Values = append(e.Values, v)
			}
			count++
			if s.Eat(',') {
				continue
			}
			if s.Eat(']') {
				break
			}
			return s.Errorf("%s where ',' or ']' should follow", s.what())
		}
	}
	if e.Dims[depth] < 0 {
		e.Dims[depth] = count
	} else if e.Dims[depth] != count {
		return s.Errorf("an array of %d where others at the same depth have %d", count, e.Dims[depth])
	}
	return nil
}
