package exec

import (
	"fmt"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// linearModel is a matrix of one row for each target, and what is added.
type linearModel struct {
	coefficients, intercepts []float32
	targets, features        int
}

func newLinear(n *graph.Node, targets int) (*linearModel, error) {
	m := &linearModel{coefficients: n.Floats("coefficients"), intercepts: n.Floats("intercepts"), targets: targets}
	if targets < 1 || len(m.coefficients) == 0 || len(m.coefficients)%targets != 0 || (len(m.intercepts) != 0 && len(m.intercepts) != targets) {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d coefficients and %d intercepts for %d targets", len(m.coefficients), len(m.intercepts), targets))
	}
	m.features = len(m.coefficients) / targets
	return m, nil
}

func (m *linearModel) scores(t *tensor) ([]float32, int, error) {
	x, err := floats(t)
	if err != nil {
		return nil, 0, err
	}
	n, cols := rows(t)
	if cols != m.features {
		return nil, 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("rows have %d features and the model takes %d", cols, m.features))
	}
	out := make([]float32, n*m.targets)
	for i := range n {
		row := x[i*cols : (i+1)*cols]
		for j := range m.targets {
			sum := float32(0)
			for f, c := range m.coefficients[j*cols : (j+1)*cols] {
				sum += c * row[f]
			}
			if len(m.intercepts) > 0 {
				sum += m.intercepts[j]
			}
			out[i*m.targets+j] = sum
		}
	}
	return out, n, nil
}

func buildLinearRegressor(n *graph.Node, _ int64) (kernel, error) {
	m, err := newLinear(n, int(n.Int("targets", 1)))
	if err != nil {
		return nil, err
	}
	post, err := postTransform(n.Text("post_transform", "NONE"))
	if err != nil {
		return nil, err
	}
	return func(in []*tensor) ([]*tensor, error) {
		out, count, err := m.scores(in[0])
		if err != nil {
			return nil, err
		}
		for i := range count {
			post(out[i*m.targets : (i+1)*m.targets])
		}
		return one(newTensor([]int64{int64(count), int64(m.targets)}, out)), nil
	}, nil
}

func buildLinearClassifier(n *graph.Node, _ int64) (kernel, error) {
	labels, err := classesOf(n, "classlabels_ints", "classlabels_strings")
	if err != nil {
		return nil, err
	}
	k := labels.count()
	targets := len(n.Floats("intercepts"))
	if targets == 0 {
		targets = k
	}
	if targets != k && (targets != 1 || k != 2) {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d intercepts for %d classes", targets, k))
	}
	m, err := newLinear(n, targets)
	if err != nil {
		return nil, err
	}
	transform := n.Text("post_transform", "NONE")
	post, err := postTransform(transform)
	if err != nil {
		return nil, err
	}
	return func(in []*tensor) ([]*tensor, error) {
		raw, count, err := m.scores(in[0])
		if err != nil {
			return nil, err
		}
		best, scores := make([]int32, count), raw
		if targets == 1 && k == 2 {
			scores = make([]float32, 2*count)
		}
		for i := range count {
			row := scores[i*k : (i+1)*k]
			if targets == 1 && k == 2 {
				best[i] = binaryScores(raw[i], false, transform, row)
				continue
			}
			for j, s := range row {
				if s > row[best[i]] {
					best[i] = int32(j)
				}
			}
			post(row)
		}
		return []*tensor{labels.labels(best), newTensor([]int64{int64(count), int64(k)}, scores)}, nil
	}, nil
}
