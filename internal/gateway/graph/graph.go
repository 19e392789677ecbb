// Package graph runs an InferenceGraph for one request: which steps are taken, with what, and
// what their answers come to. It does no I/O of its own: whoever uses it makes the calls.
package graph

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Message is a body with the fields of its head that say how to read it (Content-Type,
// Inference-Header-Content-Length). Neither is changed once it is handed on.
type Message struct {
	Header http.Header
	Body   []byte
}

// Answer is what a step answered, whatever its status.
type Answer struct {
	Message
	Status int
}

// ok reports whether a step did what it was asked for.
func (a Answer) ok() bool { return a.Status >= 200 && a.Status <= 299 }

// Step is a step about to be taken: a call of a service or a URL, never of a node.
type Step struct {
	spec.GraphStep
	// Node is the name of the node that the step belongs to, and Key the step's own name there, or
	// its place, counted from 0, where it has none.
	Node, Key string
}

// Caller calls services. Its methods may be called from several goroutines at once.
type Caller interface {
	// Call makes a step's call and returns its answer, an error status included. An error means
	// that there is none. It returns soon after ctx has ended.
	Call(ctx context.Context, step Step, in Message) (Answer, error)
}

// Limits bound what one request may cost.
type Limits struct {
	// Parallel is the most calls at one time; 0 means 16.
	Parallel int
	// Bytes is the most that the answers of one Ensemble may have together; 0 means no bound.
	Bytes int64
}

const (
	defaultParallel = 16
	// maxCalls is the most that one request may lead to: nodes that lead to one node several times
	// multiply.
	maxCalls = 1000
	// maxDepth is how deep nodes may lead to each other.
	maxDepth = 64
)

// ErrNoMatch is that none of a Switch's conditions was met. Its words are KServe's.
var ErrNoMatch = errors.New("None of the routes matched with the switch condition") //nolint:staticcheck // clients compare it

// Run takes a request through a graph and returns the answer. rnd returns a number from 0 to
// n-1. Errors mean that there is no answer: ErrNoMatch itself where that is the root's, and the
// context's cause where it ended; all else is the graph's failure, with words for the client.
func Run(ctx context.Context, g *spec.Graph, in Message, c Caller, rnd func(n int) int, l Limits) (Answer, error) {
	if l.Parallel <= 0 {
		l.Parallel = defaultParallel
	}
	r := &run{graph: g, caller: c, rnd: rnd, limits: l, places: make(chan struct{}, l.Parallel)}
	return r.node(ctx, spec.GraphRoot, in, 0)
}

// run is one request's way through a graph.
type run struct {
	graph  *spec.Graph
	caller Caller
	limits Limits
	places chan struct{}

	mu    sync.Mutex // guards what follows
	rnd   func(n int) int
	calls int
}

func (r *run) node(ctx context.Context, name string, in Message, depth int) (Answer, error) {
	n, ok := r.graph.Nodes[name]
	switch {
	case !ok:
		return Answer{}, fmt.Errorf("the graph has no node %q", name)
	case depth > maxDepth:
		return Answer{}, fmt.Errorf("the graph's nodes lead to each other more than %d deep", maxDepth)
	case len(n.Steps) == 0:
		return Answer{}, fmt.Errorf("node %q has no steps", name)
	}
	switch n.Kind {
	case spec.Sequence:
		return r.sequence(ctx, name, n.Steps, in, depth)
	case spec.Splitter:
		at := r.split(n.Steps)
		if at < 0 {
			return Answer{}, fmt.Errorf("the weights of node %q don't sum to 100", name)
		}
		return r.step(ctx, name, n.Steps, at, in, depth)
	case spec.Ensemble:
		return r.ensemble(ctx, name, n.Steps, in, depth)
	case spec.Switch:
		for i := range n.Steps {
			if met, valid := meets(in, n.Steps[i].Condition); valid && met {
				return r.step(ctx, name, n.Steps, i, in, depth)
			}
		}
		return Answer{}, ErrNoMatch
	}
	return Answer{}, fmt.Errorf("node %q is of an unknown type, %q", name, n.Kind)
}

// split chooses a step by weight, -1 for none.
func (r *run) split(steps []spec.GraphStep) int {
	r.mu.Lock()
	point := r.rnd(100)
	r.mu.Unlock()
	for i, end := 0, 0; i < len(steps); i++ {
		if end += steps[i].Weight; point < end {
			return i
		}
	}
	return -1
}

// nested is an error of a node that another one led to. It reads like the error, but isn't it:
// a Switch without a match is an answer of its own only at the root.
type nested struct{ error }

// step takes one step of a node.
func (r *run) step(ctx context.Context, node string, steps []spec.GraphStep, at int, in Message, depth int) (Answer, error) {
	s := steps[at]
	if s.Node != "" {
		a, err := r.node(ctx, s.Node, in, depth+1)
		if errors.Is(err, ErrNoMatch) {
			err = nested{err}
		}
		return a, err
	}
	r.mu.Lock()
	r.calls++
	many := r.calls > maxCalls
	r.mu.Unlock()
	if many {
		return Answer{}, fmt.Errorf("the graph led to more than %d calls for one request", maxCalls)
	}
	select {
	case r.places <- struct{}{}:
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	}
	defer func() { <-r.places }()
	key := keyOf(steps, at)
	called := ctx
	if r.graph.StepTimeout > 0 {
		var cancel context.CancelFunc
		called, cancel = context.WithTimeoutCause(ctx, r.graph.StepTimeout, fmt.Errorf("no answer within %v", r.graph.StepTimeout))
		defer cancel()
	}
	a, err := r.caller.Call(called, Step{GraphStep: s, Node: node, Key: key}, in)
	switch {
	case ctx.Err() != nil:
		return Answer{}, context.Cause(ctx)
	case called.Err() != nil && err != nil:
		err = context.Cause(called)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("step %s of node %s: %w", key, node, err)
	}
	return a, nil
}

// keyOf is a step's name, or its place where it has none.
func keyOf(steps []spec.GraphStep, at int) string {
	if name := steps[at].Name; name != "" {
		return name
	}
	return strconv.Itoa(at)
}

func (r *run) sequence(ctx context.Context, node string, steps []spec.GraphStep, in Message, depth int) (Answer, error) {
	var last Answer
	for i := range steps {
		s := &steps[i]
		given := in
		if s.FromResponse && i > 0 {
			given = last.Message
			if s.MapPredictions {
				given = mapPredictions(given)
			}
		}
		if s.Condition != "" {
			met, valid := meets(last.Message, s.Condition)
			if !valid {
				return Answer{}, fmt.Errorf("step %s of node %s has a condition, and the answer before it isn't JSON", keyOf(steps, i), node)
			}
			if !met {
				last.Status = http.StatusOK
				return last, nil
			}
		}
		var err error
		if last, err = r.step(ctx, node, steps, i, given, depth); err != nil {
			return Answer{}, err
		}
		if s.Hard && !last.ok() {
			return last, nil
		}
	}
	return last, nil
}

// errDecided ends steps whose answers don't matter any more.
var errDecided = errors.New("another step decided the answer")

// branch is the life of one of several steps that are taken at once.
type branch struct {
	ctx context.Context //nolint:containedctx // it lives as long as its node
	end context.CancelCauseFunc
}

func branchOf(ctx context.Context) branch {
	ctx, cancel := context.WithCancelCause(ctx)
	return branch{ctx, cancel}
}

// ensemble takes all steps at once. A Hard step that fails decides the answer, the first one in
// order if there are several, and so does a step without an answer: what can't change that any
// more is ended.
func (r *run) ensemble(ctx context.Context, node string, steps []spec.GraphStep, in Message, depth int) (Answer, error) {
	type result struct {
		answer  Answer
		err     error
		decides bool
	}
	results := make([]result, len(steps))
	branches := make([]branch, len(steps))
	for i := range steps {
		branches[i] = branchOf(ctx)
		defer branches[i].end(nil)
	}
	var wg sync.WaitGroup
	for i := range steps {
		wg.Go(func() {
			a, err := r.step(branches[i].ctx, node, steps, i, in, depth)
			if errors.Is(err, errDecided) {
				return // its answer is of no use
			}
			if err == nil && (a.ok() || !steps[i].Hard) && !mergeable(a.Message) {
				err = fmt.Errorf("step %s of node %s answered with something else than JSON, which an Ensemble can't merge", keyOf(steps, i), node)
			}
			results[i] = result{a, err, err != nil || steps[i].Hard && !a.ok()}
			if results[i].decides {
				for other := range steps {
					if other > i || other < i && !steps[other].Hard {
						branches[other].end(errDecided)
					}
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}
	size := int64(0)
	answers := make([][]byte, len(steps))
	for i := range results {
		if results[i].decides {
			return results[i].answer, results[i].err
		}
		answers[i] = results[i].answer.Body
		size += int64(len(answers[i]))
	}
	if r.limits.Bytes > 0 && size > r.limits.Bytes {
		return Answer{}, fmt.Errorf("the answers of node %s are larger than %d bytes together", node, r.limits.Bytes)
	}
	return Answer{Status: http.StatusOK, Message: merge(steps, answers)}, nil
}
