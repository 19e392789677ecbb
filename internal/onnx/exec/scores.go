package exec

import (
	"fmt"
	"math"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// postTransform returns what a post_transform does to a row of scores, in place.
func postTransform(name string) (func([]float32), error) {
	switch name {
	case "NONE", "":
		return func([]float32) {}, nil
	case "LOGISTIC":
		return func(s []float32) {
			for i, x := range s {
				s[i] = float32(sigmoid(float64(x)))
			}
		}, nil
	case "SOFTMAX":
		return func(s []float32) { softmaxRow(s, false) }, nil
	case "SOFTMAX_ZERO":
		return func(s []float32) { softmaxRow(s, true) }, nil
	case "PROBIT":
		return func(s []float32) {
			for i, x := range s {
				s[i] = float32(math.Sqrt2 * math.Erfinv(2*float64(x)-1))
			}
		}, nil
	}
	return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the post transform %q isn't built in", name))
}

// softmaxRow is softmax; keepZero leaves scores of (nearly) zero out and as they are.
func softmaxRow(s []float32, keepZero bool) {
	if len(s) == 0 {
		return
	}
	top := s[0]
	for _, x := range s {
		top = max(top, x)
	}
	sum := 0.0
	for i, x := range s {
		if keepZero && x < 1e-7 && x > -1e-7 {
			s[i] = 0
			continue
		}
		e := math.Exp(float64(x - top))
		s[i] = float32(e)
		sum += e
	}
	if sum > 0 {
		for i := range s {
			s[i] = float32(float64(s[i]) / sum)
		}
	}
}

// classes are the labels of a classifier: one of the two lists.
type classes struct {
	ints  []int64
	texts []string
}

func classesOf(n *graph.Node, ints, texts string) (classes, error) {
	c := classes{ints: n.Ints(ints), texts: n.Strings(texts)}
	if (len(c.ints) > 0) == (len(c.texts) > 0) {
		return c, errdef.New(errdef.ErrInvalid, "class labels must be either integers or strings")
	}
	return c, nil
}

func (c *classes) count() int { return max(len(c.ints), len(c.texts)) }

// labels is a tensor of the labels at the given places.
func (c *classes) labels(at []int32) *tensor {
	shape := []int64{int64(len(at))}
	if len(c.texts) > 0 {
		return newTensor(shape, mapped(at, func(i int32) string { return c.texts[i] }))
	}
	return newTensor(shape, mapped(at, func(i int32) int64 { return c.ints[i] }))
}

// binaryScores fills the scores of two classes from a single one and returns the class.
// positive says that the score is a probability of the second class already; it is decided at
// one half then, at zero otherwise. The standard is silent on the other class's score; this is
// what onnxruntime gives.
func binaryScores(s float32, positive bool, transform string, scores []float32) int32 {
	threshold := float32(0)
	switch {
	case positive:
		threshold = 0.5
		scores[0], scores[1] = 1-s, s
	case transform == "LOGISTIC":
		scores[0], scores[1] = float32(sigmoid(-float64(s))), float32(sigmoid(float64(s)))
	default:
		scores[0], scores[1] = -s, s
	}
	if s > threshold {
		return 1
	}
	return 0
}
