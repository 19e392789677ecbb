package compare

import (
	"bytes"
	"reflect"
	"slices"
)

// Drift says whether an answer to a copy can be compared with what the client heard, and whether
// it names other classes. Where the client heard of an error there is nothing to compare with.
func Drift(want, got Answer) (compared, differs bool) {
	switch {
	case want.Status/100 != 2:
		return false, false
	case want.Status != got.Status:
		return true, true
	case want.Over || got.Over:
		return false, false
	case bytes.Equal(want.Body, got.Body):
		return true, false
	}
	a, aok := want.outputs()
	b, bok := got.outputs()
	if !aok || !bok {
		return false, false
	}
	return true, !sameClasses(a, b)
}

// sameClasses reports whether two answers of a classifier choose the same classes: the same labels
// where there are any, else in each row of scores the same greatest one, else the same numbers
// within tolerance. Scores beside labels may differ.
func sameClasses(a, b []output) bool {
	if len(a) != len(b) {
		return false
	}
	labelled := slices.ContainsFunc(a, output.labels)
	for i := range a {
		x, y := &a[i], &b[i]
		switch {
		case x.Name != y.Name || x.labels() != y.labels() || !slices.Equal(x.Shape, y.Shape):
			return false
		case x.labels():
			if !reflect.DeepEqual(x.Data, y.Data) {
				return false
			}
		case !labelled && !sameScores(x, y):
			return false
		}
	}
	return true
}

// labels reports whether an output names classes: whole numbers, strings or booleans. V1 has no
// datatypes, so that only words do there.
func (o output) labels() bool {
	switch o.Datatype {
	case "":
		return words(o.Data)
	case "FP16", "FP32", "FP64", "BF16":
		return false
	}
	return true
}

// words reports whether data has a string or a boolean in a place of its own.
func words(data any) bool {
	switch data := data.(type) {
	case string, bool:
		return true
	case []any:
		return slices.ContainsFunc(data, words)
	}
	return false
}

// sameScores compares scores row by row; what has no rows of two and more is compared as numbers.
func sameScores(x, y *output) bool {
	width, other := x.width(), y.width()
	a, aok := flat(nil, x.Data)
	b, bok := flat(nil, y.Data)
	if width != other || width < 2 || !aok || !bok || len(a) != len(b) || len(a)%width != 0 {
		return nearValues(x.Data, y.Data)
	}
	for i := 0; i < len(a); i += width {
		if greatest(a[i:i+width]) != greatest(b[i:i+width]) {
			return false
		}
	}
	return true
}

// width is how many scores a row has: the last part of the shape, and in V1 the length of the
// lists within the list of instances.
func (o *output) width() int {
	if o.Datatype != "" {
		if len(o.Shape) == 0 {
			return 0
		}
		return o.Shape[len(o.Shape)-1]
	}
	width := 0
	for data, ok := o.Data.([]any); ok && len(data) > 0; {
		inner, deeper := data[0].([]any)
		if !deeper {
			break
		}
		width, data = len(inner), inner
	}
	return width
}

// flat appends the numbers of nested lists; it reports false where there is anything else.
func flat(to []float64, data any) ([]float64, bool) {
	switch data := data.(type) {
	case float64:
		return append(to, data), true
	case []any:
		for _, d := range data {
			var ok bool
			if to, ok = flat(to, d); !ok {
				return nil, false
			}
		}
		return to, true
	}
	return nil, false
}

func greatest(row []float64) int {
	at := 0
	for i, v := range row {
		if v > row[at] {
			at = i
		}
	}
	return at
}
