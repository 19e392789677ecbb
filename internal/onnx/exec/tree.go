package exec

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// branch is how a node compares a feature with its value.
type branch uint8

const (
	branchLessEq branch = iota
	branchLess
	branchGreaterEq
	branchGreater
	branchEqual
	branchNotEqual
	leaf
)

var branches = map[string]branch{
	"BRANCH_LEQ": branchLessEq, "BRANCH_LT": branchLess, "BRANCH_GTE": branchGreaterEq, "BRANCH_GT": branchGreater,
	"BRANCH_EQ": branchEqual, "BRANCH_NEQ": branchNotEqual, "LEAF": leaf,
}

// treeNode is one node; the nodes of a tree lie in the order in which a walk that always says
// yes meets them, so that the likely next node is the next in memory. A leaf's yes and no are
// the range of its weights.
type treeNode struct {
	value   float64
	feature int32
	yes, no int32
	mode    branch
	// missing says that a value that isn't a number goes to yes.
	missing bool
}

type treeWeight struct {
	id     int32
	weight float64
}

// ensemble is a forest laid out for walking. Values are float64, which holds float32
// thresholds exactly, so that comparing widened inputs gives what float32 gives.
type ensemble struct {
	nodes   []treeNode
	weights []treeWeight
	roots   []int32
	// features is how many columns an input must have at least.
	features int
	// simple is set when every inner node is "at most" without missing values, the usual case.
	simple bool
}

type nodeKey struct{ tree, node int64 }

// treeAttrs are the parallel lists in which a file keeps a forest.
type treeAttrs struct {
	trees, ids, features, yes, no, missing []int64
	values                                 []float64
	modes                                  []string
	leafTrees, leafNodes, leafIDs          []int64
	leafWeights                            []float64
}

// doubles reads a list of numbers that newer opsets may keep as a tensor of doubles.
func doubles(n *graph.Node, name string) ([]float64, error) {
	if a, ok := n.Attrs[name+"_as_tensor"]; ok && a.T != nil {
		t, err := castTo(a.T, graph.FP64)
		if err != nil {
			return nil, err
		}
		return t.Data.([]float64), nil
	}
	return castSlice[float32, float64](n.Floats(name)), nil
}

func treeAttrsOf(n *graph.Node, leaves string) (a treeAttrs, err error) {
	a = treeAttrs{
		trees: n.Ints("nodes_treeids"), ids: n.Ints("nodes_nodeids"), features: n.Ints("nodes_featureids"),
		yes: n.Ints("nodes_truenodeids"), no: n.Ints("nodes_falsenodeids"), missing: n.Ints("nodes_missing_value_tracks_true"),
		modes:     n.Strings("nodes_modes"),
		leafTrees: n.Ints(leaves + "_treeids"), leafNodes: n.Ints(leaves + "_nodeids"), leafIDs: n.Ints(leaves + "_ids"),
	}
	if a.values, err = doubles(n, "nodes_values"); err != nil {
		return a, err
	}
	if a.leafWeights, err = doubles(n, leaves+"_weights"); err != nil {
		return a, err
	}
	count := len(a.trees)
	for _, l := range []int{len(a.ids), len(a.features), len(a.yes), len(a.no), len(a.values), len(a.modes)} {
		if l != count {
			return a, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the lists of tree nodes differ in length (%d and %d)", count, l))
		}
	}
	if l := len(a.leafTrees); l != len(a.leafNodes) || l != len(a.leafIDs) || l != len(a.leafWeights) {
		return a, errdef.New(errdef.ErrInvalid, "the lists of leaf weights differ in length")
	}
	return a, nil
}

// plant lays out a forest. ids is how many classes or targets weights may be for.
func plant(a treeAttrs, ids int) (*ensemble, error) {
	at := make(map[nodeKey]int, len(a.trees))
	child := make([]bool, len(a.trees))
	for i := range a.trees {
		at[nodeKey{a.trees[i], a.ids[i]}] = i
	}
	weights := map[int][]treeWeight{}
	for i := range a.leafTrees {
		node, ok := at[nodeKey{a.leafTrees[i], a.leafNodes[i]}]
		if !ok || a.leafIDs[i] < 0 || a.leafIDs[i] >= int64(ids) {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("a weight is for node %d of tree %d and for %d of %d outputs, which don't exist", a.leafNodes[i], a.leafTrees[i], a.leafIDs[i], ids))
		}
		weights[node] = append(weights[node], treeWeight{int32(a.leafIDs[i]), a.leafWeights[i]})
	}
	e := &ensemble{simple: true}
	for i := range a.trees {
		if m, ok := branches[a.modes[i]]; !ok {
			return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the node mode %q isn't built in", a.modes[i]))
		} else if m == leaf {
			continue
		}
		for _, id := range []int64{a.yes[i], a.no[i]} {
			to, ok := at[nodeKey{a.trees[i], id}]
			if !ok || child[to] {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("node %d of tree %d leads to node %d, which is missing or has another parent", a.ids[i], a.trees[i], id))
			}
			child[to] = true
		}
	}
	for i := range a.trees {
		if !child[i] {
			e.roots = append(e.roots, int32(len(e.nodes)))
			if err := e.grow(&a, at, weights, i); err != nil {
				return nil, err
			}
		}
	}
	if len(e.nodes) != len(a.trees) {
		return nil, errdef.New(errdef.ErrInvalid, "the nodes of a tree form a circle")
	}
	return e, nil
}

// grow appends the subtree at node i in walking order, without recursion: trees may be deep.
func (e *ensemble) grow(a *treeAttrs, at map[nodeKey]int, weights map[int][]treeWeight, root int) error {
	type pending struct {
		node   int
		parent int32 // whose no it becomes; -1 for the root and for yes children
	}
	stack := []pending{{root, -1}}
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		here := int32(len(e.nodes))
		if p.parent >= 0 {
			e.nodes[p.parent].no = here
		}
		mode := branches[a.modes[p.node]]
		n := treeNode{mode: mode, value: a.values[p.node], feature: int32(a.features[p.node])}
		if mode == leaf {
			n.yes = int32(len(e.weights))
			e.weights = append(e.weights, weights[p.node]...)
			n.no = int32(len(e.weights))
			e.nodes = append(e.nodes, n)
			continue
		}
		if n.feature < 0 {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("a tree looks at feature %d", n.feature))
		}
		n.missing = p.node < len(a.missing) && a.missing[p.node] != 0
		e.simple = e.simple && mode == branchLessEq && !n.missing
		e.features = max(e.features, int(n.feature)+1)
		n.yes = here + 1
		e.nodes = append(e.nodes, n)
		stack = append(stack,
			pending{at[nodeKey{a.trees[p.node], a.no[p.node]}], here},
			pending{at[nodeKey{a.trees[p.node], a.yes[p.node]}], -1})
	}
	return nil
}

// leafOf walks one tree and returns the weights of the leaf it ends in.
func leafOf[T float32 | float64](e *ensemble, root int32, x []T) []treeWeight {
	nodes := e.nodes
	at := root
	if e.simple {
		for nodes[at].mode != leaf {
			n := &nodes[at]
			if float64(x[n.feature]) <= n.value {
				at++
			} else {
				at = n.no
			}
		}
		return e.weights[nodes[at].yes:nodes[at].no]
	}
	for nodes[at].mode != leaf {
		n := &nodes[at]
		if n.takes(float64(x[n.feature])) {
			at++
		} else {
			at = n.no
		}
	}
	return e.weights[nodes[at].yes:nodes[at].no]
}

func (n *treeNode) takes(x float64) bool {
	if n.missing && math.IsNaN(x) {
		return true
	}
	switch n.mode {
	case branchLessEq:
		return x <= n.value
	case branchLess:
		return x < n.value
	case branchGreaterEq:
		return x >= n.value
	case branchGreater:
		return x > n.value
	case branchEqual:
		return x == n.value
	}
	return x != n.value
}

// treeBatch is the number of tree walks above which a batch is worth a second core.
const treeBatch = 4096

// eachRow calls f for ranges of rows, on several cores when there is enough to do.
func (e *ensemble) eachRow(n int, f func(from, to int)) {
	workers := min(runtime.GOMAXPROCS(0), n)
	if n*len(e.roots) < treeBatch || workers < 2 {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	per := (n + workers - 1) / workers
	for from := 0; from < n; from += per {
		wg.Go(func() { f(from, min(from+per, n)) })
	}
	wg.Wait()
}

// forRows calls f with the rows of a numeric tensor in its own precision.
func (e *ensemble) forRows(t *tensor, n, cols int, f32 func(from, to int, x []float32), f64 func(from, to int, x []float64)) error {
	if cols < e.features {
		return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the trees look at %d features and %d came", e.features, cols))
	}
	if d, ok := t.Data.([]float64); ok {
		e.eachRow(n, func(from, to int) { f64(from, to, d) })
		return nil
	}
	d, err := floats(t)
	if err != nil {
		return err
	}
	e.eachRow(n, func(from, to int) { f32(from, to, d) })
	return nil
}

type forestClassifier struct {
	*ensemble
	classes classes
	base    []float64
	post    func([]float32)
	// transform is post's name.
	transform string
	// one is set when all weights are for one of two classes; positive when none is negative.
	one, positive bool
}

func buildTreeClassifier(n *graph.Node, _ int64) (kernel, error) {
	a, err := treeAttrsOf(n, "class")
	if err != nil {
		return nil, err
	}
	known, err := classesOf(n, "classlabels_int64s", "classlabels_strings")
	if err != nil {
		return nil, err
	}
	c := &forestClassifier{classes: known, positive: true, transform: n.Text("post_transform", "NONE")}
	if c.post, err = postTransform(c.transform); err != nil {
		return nil, err
	}
	if c.base, err = doubles(n, "base_values"); err != nil {
		return nil, err
	}
	if c.ensemble, err = plant(a, max(c.classes.count(), 1)); err != nil {
		return nil, err
	}
	if len(c.base) != 0 && len(c.base) != 1 && len(c.base) != c.classes.count() {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d base values for %d classes", len(c.base), c.classes.count()))
	}
	used := map[int32]bool{}
	for _, w := range c.weights {
		used[w.id] = true
		c.positive = c.positive && w.weight >= 0
	}
	c.one = c.classes.count() == 2 && len(used) == 1
	return func(in []*tensor) ([]*tensor, error) {
		n, cols := rows(in[0])
		width := c.classes.count()
		out, found := make([]float32, n*width), make([]int32, n)
		err := c.forRows(in[0], n, cols,
			func(from, to int, x []float32) { classify(c, from, to, cols, x, out, found) },
			func(from, to int, x []float64) { classify(c, from, to, cols, x, out, found) })
		if err != nil {
			return nil, err
		}
		return []*tensor{c.classes.labels(found), newTensor([]int64{int64(n), int64(width)}, out)}, nil
	}, nil
}

func classify[T float32 | float64](c *forestClassifier, from, to, cols int, x []T, out []float32, found []int32) {
	width := c.classes.count()
	sums, scored := make([]float64, width), make([]bool, width)
	for r := from; r < to; r++ {
		clear(sums)
		clear(scored)
		row := x[r*cols : (r+1)*cols]
		for _, root := range c.roots {
			for _, w := range leafOf(c.ensemble, root, row) {
				sums[w.id] += w.weight
				scored[w.id] = true
			}
		}
		into := out[r*width : (r+1)*width]
		if width == 2 {
			found[r] = c.two(sums, scored, into)
		} else {
			found[r] = c.many(sums, scored, into)
		}
	}
}

func (c *forestClassifier) many(sums []float64, scored []bool, into []float32) int32 {
	best := -1
	for k := range sums {
		if k < len(c.base) {
			sums[k] += c.base[k]
			scored[k] = true
		}
		into[k] = float32(sums[k])
		if scored[k] && (best < 0 || sums[k] > sums[best]) {
			best = k
		}
	}
	c.post(into)
	return int32(max(best, 0))
}

// two finishes the case of two classes, whose weights may all be for one of them. The standard
// is silent on what then becomes of the other; this is what onnxruntime does.
func (c *forestClassifier) two(sums []float64, scored []bool, into []float32) int32 {
	both := scored[1]
	switch {
	case len(c.base) == 2 && both:
		sums[1] += c.base[1]
		sums[0] += c.base[0]
	case len(c.base) == 2:
		sums[1] = c.base[1] + sums[0]
		sums[0] = -sums[1]
		both = true
	case len(c.base) == 1:
		sums[0] += c.base[0]
	}
	if !both {
		return binaryScores(float32(sums[0]), c.positive, c.transform, into)
	}
	class := int32(0)
	switch {
	case !c.one:
		// Both classes have scores of their own: the greater wins.
		if sums[1] > sums[0] {
			class = 1
		}
	case sums[1] > 0.5 || (!c.positive && sums[1] > 0):
		class = 1
	}
	into[0], into[1] = float32(sums[0]), float32(sums[1])
	c.post(into)
	return class
}

type aggregate uint8

const (
	aggregateSum aggregate = iota
	aggregateAverage
	aggregateMin
	aggregateMax
)

var aggregates = map[string]aggregate{"SUM": aggregateSum, "AVERAGE": aggregateAverage, "MIN": aggregateMin, "MAX": aggregateMax}

func buildTreeRegressor(n *graph.Node, _ int64) (kernel, error) {
	a, err := treeAttrsOf(n, "target")
	if err != nil {
		return nil, err
	}
	post, err := postTransform(n.Text("post_transform", "NONE"))
	if err != nil {
		return nil, err
	}
	how, ok := aggregates[n.Text("aggregate_function", "SUM")]
	if !ok {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("aggregate_function %q isn't built in", n.Text("aggregate_function", "")))
	}
	targets := int(n.Int("n_targets", 1))
	base, err := doubles(n, "base_values")
	if err != nil {
		return nil, err
	}
	if targets < 1 || targets > 1<<20 || (len(base) != 0 && len(base) != targets) {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d base values for %d targets", len(base), targets))
	}
	e, err := plant(a, targets)
	if err != nil {
		return nil, err
	}
	return func(in []*tensor) ([]*tensor, error) {
		n, cols := rows(in[0])
		out := make([]float32, n*targets)
		err := e.forRows(in[0], n, cols,
			func(from, to int, x []float32) { regress(e, how, base, post, from, to, cols, x, out, targets) },
			func(from, to int, x []float64) { regress(e, how, base, post, from, to, cols, x, out, targets) })
		if err != nil {
			return nil, err
		}
		return one(newTensor([]int64{int64(n), int64(targets)}, out)), nil
	}, nil
}

func regress[T float32 | float64](e *ensemble, how aggregate, base []float64, post func([]float32), from, to, cols int, x []T, out []float32, targets int) {
	sums, seen := make([]float64, targets), make([]bool, targets)
	for r := from; r < to; r++ {
		clear(sums)
		clear(seen)
		row := x[r*cols : (r+1)*cols]
		for _, root := range e.roots {
			for _, w := range leafOf(e, root, row) {
				switch {
				case how == aggregateMin && seen[w.id]:
					sums[w.id] = min(sums[w.id], w.weight)
				case how == aggregateMax && seen[w.id]:
					sums[w.id] = max(sums[w.id], w.weight)
				default:
					sums[w.id] += w.weight
				}
				seen[w.id] = true
			}
		}
		into := out[r*targets : (r+1)*targets]
		for k, s := range sums {
			if how == aggregateAverage {
				s /= float64(len(e.roots))
			}
			if k < len(base) {
				s += base[k]
			}
			into[k] = float32(s)
		}
		post(into)
	}
}
