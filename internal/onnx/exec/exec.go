// Package exec runs graphs in pure Go: all of ai.onnx.ml that the exporters of scikit-learn,
// XGBoost and LightGBM emit, text included, and the operators of ai.onnx that such graphs and
// neural networks use: dense, convolutional, recurrent, and encoders of text.
package exec

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// kernel computes a node's outputs from its inputs, which it must not change; an optional
// input left out is nil.
type kernel func(in []*graph.Tensor) ([]*graph.Tensor, error)

// builder makes a node's kernel once, at load: it reads attributes and lays out constants.
// opset is the version of the node's domain.
type builder func(n *graph.Node, opset int64) (kernel, error)

// Program is a graph made ready to run. It is immutable and safe for concurrent use.
type Program struct {
	steps   []step
	slots   int
	consts  []slotConst
	inputs  []slotOf
	outputs []slotOf
}

type step struct {
	node   graph.Node
	kernel kernel
	in     []int // -1 for an optional input left out
	out    []int
}

type slotConst struct {
	slot  int
	value *graph.Tensor
}

type slotOf struct {
	name string
	slot int
}

// missing describes the operators that a model uses and that this package lacks, subgraphs
// included: each once, with its domain, the version of that and the first node of it, sorted.
func missing(m *graph.Model) []string {
	seen := map[string]bool{}
	var out []string
	var look func(g *graph.Graph)
	look = func(g *graph.Graph) {
		for i := range g.Nodes {
			n := &g.Nodes[i]
			op := operatorOf(n)
			if _, ok := operators[op]; !ok && !seen[op] {
				seen[op] = true
				domain := n.Domain
				if domain == "" {
					domain = "ai.onnx"
				}
				out = append(out, fmt.Sprintf("%s of %s version %d (%s)", n.Op, domain, m.Opsets[n.Domain], place(n)))
			}
			for _, name := range slices.Sorted(maps.Keys(n.Attrs)) {
				if g := n.Attrs[name].G; g != nil {
					look(g)
				}
			}
		}
	}
	look(m.Graph)
	slices.Sort(out)
	return out
}

// place says which node it is; exporters may leave the name out.
func place(n *graph.Node) string {
	if n.Name != "" {
		return "node " + n.Name
	}
	if len(n.Outputs) > 0 {
		return "the node that makes " + n.Outputs[0]
	}
	return "a node without a name"
}

// operatorOf is a node's key in operators.
func operatorOf(n *graph.Node) string {
	if n.Domain == "" {
		return n.Op
	}
	return n.Domain + "." + n.Op
}

// Operators lists the operators of this package, sorted.
func Operators() []string {
	out := make([]string, 0, len(operators))
	for op := range operators {
		out = append(out, op)
	}
	slices.Sort(out)
	return out
}

// Compile makes a graph ready. Errors are errdef.ErrUnsupported, naming the operators that are
// missing, with domain, version and node, or the attribute that isn't known, and ErrInvalid for a graph that makes no sense.
func Compile(m *graph.Model) (*Program, error) {
	g := m.Graph
	if lacking := missing(m); len(lacking) > 0 {
		return nil, errdef.New(errdef.ErrUnsupported, "operators that aren't built in: "+strings.Join(lacking, ", "))
	}
	p := &Program{}
	slots := map[string]int{}
	slot := func(name string) int {
		s, ok := slots[name]
		if !ok {
			s = p.slots
			slots[name] = s
			p.slots++
		}
		return s
	}
	made := map[string]bool{}
	for name, c := range g.Consts {
		p.consts = append(p.consts, slotConst{slot(name), c})
		made[name] = true
	}
	for _, in := range g.Inputs {
		if !made[in.Name] {
			p.inputs = append(p.inputs, slotOf{in.Name, slot(in.Name)})
			made[in.Name] = true
		}
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		k, err := build(n, m.Opsets[n.Domain])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		s := step{node: *n, kernel: k}
		for _, name := range n.Inputs {
			if name == "" {
				s.in = append(s.in, -1)
				continue
			}
			if !made[name] {
				return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s uses %q before any node makes it", n, name))
			}
			s.in = append(s.in, slot(name))
		}
		for _, name := range n.Outputs {
			if name == "" {
				s.out = append(s.out, -1)
				continue
			}
			made[name] = true
			s.out = append(s.out, slot(name))
		}
		p.steps = append(p.steps, s)
	}
	for _, out := range g.Outputs {
		if !made[out.Name] {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("no node makes the output %q", out.Name))
		}
		p.outputs = append(p.outputs, slotOf{out.Name, slot(out.Name)})
	}
	return p, nil
}

// build makes a node's kernel. Attributes that contradict each other surface as index errors
// deep in a builder; they are the model's fault, not a reason to end the process.
func build(n *graph.Node, opset int64) (_ kernel, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errdef.New(errdef.ErrInvalid, fmt.Sprintf("its attributes make no sense: %v", r))
		}
	}()
	return operators[operatorOf(n)](n, opset)
}

// Run computes outputs by name. Inputs are those of the graph, all of them, by name; checking
// that they fit is the caller's part. It blocks for the computation and looks at ctx between
// nodes.
func (p *Program) Run(ctx context.Context, inputs map[string]*graph.Tensor, outputs []string) ([]*graph.Tensor, error) {
	values := make([]*graph.Tensor, p.slots)
	for _, c := range p.consts {
		values[c.slot] = c.value
	}
	for _, in := range p.inputs {
		v, ok := inputs[in.name]
		if !ok {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the input %q is missing", in.name))
		}
		values[in.slot] = v
	}
	for i := range p.steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := p.steps[i].run(values); err != nil {
			return nil, err
		}
	}
	out := make([]*graph.Tensor, 0, len(outputs))
	for _, name := range outputs {
		at := slices.IndexFunc(p.outputs, func(o slotOf) bool { return o.name == name })
		if at < 0 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("there is no output %q", name))
		}
		v := *values[p.outputs[at].slot]
		v.Name = name
		out = append(out, &v)
	}
	return out, nil
}

func (s *step) run(values []*graph.Tensor) (err error) {
	var few [4]*graph.Tensor
	in := few[:0]
	for _, slot := range s.in {
		if slot < 0 {
			in = append(in, nil)
		} else {
			in = append(in, values[slot])
		}
	}
	defer func() {
		// Shapes that don't fit each other surface as index errors deep in a kernel; they are the
		// request's or the graph's fault, not a reason to end the process.
		if r := recover(); r != nil {
			err = errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s can't work on inputs of the shapes %s: %v", &s.node, shapes(in), r))
		}
	}()
	out, err := s.kernel(in)
	if err != nil {
		return fmt.Errorf("%s: %w", &s.node, err)
	}
	for i, slot := range s.out {
		if slot >= 0 {
			if i >= len(out) {
				return errdef.New(errdef.ErrUnsupported, fmt.Sprintf("%s: output %d isn't built in", &s.node, i))
			}
			values[slot] = out[i]
		}
	}
	return nil
}

func shapes(in []*graph.Tensor) string {
	parts := make([]string, len(in))
	for i, t := range in {
		if t == nil {
			parts[i] = "none"
		} else {
			parts[i] = fmt.Sprintf("%s%v", t.Type, t.Shape)
		}
	}
	return strings.Join(parts, ", ")
}
