package exec

import (
	"fmt"
	"math"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// svmKernel is the kernel function of a support vector machine.
type svmKernel struct {
	name                 string
	gamma, coef0, degree float64
}

func svmKernelOf(n *graph.Node) (svmKernel, error) {
	k := svmKernel{name: n.Text("kernel_type", "LINEAR")}
	if p := n.Floats("kernel_params"); len(p) == 3 {
		k.gamma, k.coef0, k.degree = float64(p[0]), float64(p[1]), float64(p[2])
	}
	switch k.name {
	case "LINEAR", "POLY", "RBF", "SIGMOID":
		return k, nil
	}
	return k, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("kernel_type %q isn't built in", k.name))
}

func (k svmKernel) of(a, b []float32) float64 {
	sum := 0.0
	if k.name == "RBF" {
		for i, x := range a {
			d := float64(x) - float64(b[i])
			sum += d * d
		}
		return math.Exp(-k.gamma * sum)
	}
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	switch k.name {
	case "POLY":
		return math.Pow(k.gamma*sum+k.coef0, k.degree)
	case "SIGMOID":
		return math.Tanh(k.gamma*sum + k.coef0)
	}
	return sum
}

func buildSVMRegressor(n *graph.Node, _ int64) (kernel, error) {
	k, err := svmKernelOf(n)
	if err != nil {
		return nil, err
	}
	post, err := postTransform(n.Text("post_transform", "NONE"))
	if err != nil {
		return nil, err
	}
	weights, vectors, rho := n.Floats("coefficients"), n.Floats("support_vectors"), n.Floats("rho")
	supports := int(n.Int("n_supports", 0))
	oneClass := n.Int("one_class", 0) == 1
	if len(rho) == 0 {
		return nil, errdef.New(errdef.ErrInvalid, "rho is missing")
	}
	if supports == 0 {
		// A linear machine keeps its weights alone.
		supports, vectors, weights = 1, weights, []float32{1}
	}
	if len(vectors)%supports != 0 || len(weights) != supports {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d coefficients and %d vector elements for %d support vectors", len(weights), len(vectors), supports))
	}
	features := len(vectors) / supports
	return func(in []*tensor) ([]*tensor, error) {
		x, err := floats(in[0])
		if err != nil {
			return nil, err
		}
		n, cols := rows(in[0])
		if cols != features {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d features are needed and %d came", features, cols))
		}
		out := make([]float32, n)
		for r := range n {
			sum := float64(rho[0])
			for s := range supports {
				sum += float64(weights[s]) * k.of(x[r*cols:(r+1)*cols], vectors[s*cols:(s+1)*cols])
			}
			switch {
			case oneClass && sum > 0:
				sum = 1
			case oneClass:
				sum = -1
			}
			out[r] = float32(sum)
			post(out[r : r+1])
		}
		return one(newTensor([]int64{int64(n), 1}, out)), nil
	}, nil
}

// svmClassifier votes between each pair of classes (libsvm's one against one), or scores each
// class by a linear function when it has no support vectors.
type svmClassifier struct {
	kernel       svmKernel
	classes      classes
	post         func([]float32)
	weights      []float32
	vectors      []float32
	rho          []float32
	probA, probB []float32
	perClass     []int64
	starts       []int
	features     int
	supports     int
}

func buildSVMClassifier(n *graph.Node, _ int64) (kernel, error) {
	known, err := classesOf(n, "classlabels_ints", "classlabels_strings")
	if err != nil {
		return nil, err
	}
	c := &svmClassifier{
		classes: known, weights: n.Floats("coefficients"), vectors: n.Floats("support_vectors"),
		rho: n.Floats("rho"), probA: n.Floats("prob_a"), probB: n.Floats("prob_b"), perClass: n.Ints("vectors_per_class"),
	}
	if c.kernel, err = svmKernelOf(n); err != nil {
		return nil, err
	}
	if c.post, err = postTransform(n.Text("post_transform", "NONE")); err != nil {
		return nil, err
	}
	for _, v := range c.perClass {
		c.starts = append(c.starts, c.supports)
		c.supports += int(v)
	}
	k := c.classes.count()
	pairs := k * (k - 1) / 2
	if c.supports == 0 {
		return nil, errdef.New(errdef.ErrUnsupported, "a support vector classifier without support vectors isn't built in; export LinearSVC, which becomes a LinearClassifier")
	}
	if len(c.vectors)%c.supports != 0 || len(c.rho) != pairs || len(c.weights) != c.supports*(k-1) || len(c.perClass) != k {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d coefficients, %d vectors and %d offsets don't fit %d classes", len(c.weights), c.supports, len(c.rho), k))
	}
	if len(c.probA) > 0 && (len(c.probA) != pairs || len(c.probB) != pairs) {
		return nil, errdef.New(errdef.ErrInvalid, "the probability parameters don't fit the classes")
	}
	c.features = len(c.vectors) / c.supports
	return c.run, nil
}

func (c *svmClassifier) run(in []*tensor) ([]*tensor, error) {
	x, err := floats(in[0])
	if err != nil {
		return nil, err
	}
	n, cols := rows(in[0])
	if cols != c.features {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d features are needed and %d came", c.features, cols))
	}
	k := c.classes.count()
	pairs := len(c.rho)
	width := pairs
	if len(c.probA) > 0 {
		width = k
	}
	if width == 1 {
		width = 2
	}
	out, found := make([]float32, n*width), make([]int32, n)
	values, scores := make([]float64, c.supports), make([]float64, pairs)
	for r := range n {
		for s := range c.supports {
			values[s] = c.kernel.of(x[r*cols:(r+1)*cols], c.vectors[s*cols:(s+1)*cols])
		}
		votes := c.decide(values, scores)
		row := out[r*width : (r+1)*width]
		best := 0
		for i, v := range votes {
			if v > votes[best] {
				best = i
			}
		}
		switch {
		case len(c.probA) > 0:
			for i, p := range c.probabilities(scores) {
				row[i] = float32(p)
			}
			// The label stays that of the votes, as in onnxruntime and in libsvm's own predict.
		case pairs == 1:
			row[0], row[1] = float32(-scores[0]), float32(scores[0])
		default:
			for i, s := range scores {
				row[i] = float32(s)
			}
		}
		c.post(row)
		found[r] = int32(best)
	}
	return []*tensor{c.classes.labels(found), newTensor([]int64{int64(n), int64(width)}, out)}, nil
}

// decide scores each pair of classes and counts the votes.
func (c *svmClassifier) decide(values, scores []float64) []int {
	k := c.classes.count()
	votes := make([]int, k)
	p := 0
	for i := range k {
		for j := i + 1; j < k; j++ {
			sum := float64(c.rho[p])
			for s := range int(c.perClass[i]) {
				sum += float64(c.weights[(j-1)*c.supports+c.starts[i]+s]) * values[c.starts[i]+s]
			}
			for s := range int(c.perClass[j]) {
				sum += float64(c.weights[i*c.supports+c.starts[j]+s]) * values[c.starts[j]+s]
			}
			scores[p] = sum
			if sum > 0 {
				votes[i]++
			} else {
				votes[j]++
			}
			p++
		}
	}
	return votes
}

// probabilities couples the pairs' probabilities into one for each class: Wu, Lin and Weng,
// "Probability estimates for multi-class classification by pairwise coupling", 2004, second
// method, as libsvm does it.
func (c *svmClassifier) probabilities(scores []float64) []float64 {
	k := c.classes.count()
	pair := make([]float64, k*k)
	p := 0
	for i := range k {
		for j := i + 1; j < k; j++ {
			v := min(max(1-sigmoid(float64(c.probA[p])*scores[p]+float64(c.probB[p])), 1e-7), 1-1e-7)
			pair[i*k+j], pair[j*k+i] = v, 1-v
			p++
		}
	}
	q := make([]float64, k*k)
	prob, qp := make([]float64, k), make([]float64, k)
	for t := range k {
		prob[t] = 1 / float64(k)
		for j := range k {
			if j != t {
				q[t*k+t] += pair[j*k+t] * pair[j*k+t]
				q[t*k+j] = -pair[j*k+t] * pair[t*k+j]
			}
		}
	}
	for range max(100, k) {
		pqp := 0.0
		for t := range k {
			qp[t] = 0
			for j := range k {
				qp[t] += q[t*k+j] * prob[j]
			}
			pqp += prob[t] * qp[t]
		}
		worst := 0.0
		for t := range k {
			worst = max(worst, math.Abs(qp[t]-pqp))
		}
		if worst < 0.005/float64(k) {
			break
		}
		for t := range k {
			diff := (-qp[t] + pqp) / q[t*k+t]
			prob[t] += diff
			pqp = (pqp + diff*(diff*q[t*k+t]+2*qp[t])) / (1 + diff) / (1 + diff)
			for j := range k {
				qp[j] = (qp[j] + diff*q[t*k+j]) / (1 + diff)
				prob[j] /= 1 + diff
			}
		}
	}
	return prob
}
