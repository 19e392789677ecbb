package spec

import "time"

// GraphRoot is the name of the node that a request meets first.
const GraphRoot = "root"

// Graph is how several services answer one request together. It is immutable.
type Graph struct {
	// Nodes by name. The node GraphRoot is met first; where there is none the graph answers
	// nothing.
	Nodes map[string]GraphNode
	// Timeout bounds one request, and StepTimeout each call of a step; zero means no bound here.
	Timeout, StepTimeout time.Duration
	// Propagate are regular expressions for the names of the request's headers that steps get.
	// Nil means that the platform's own services get all of them, and other URLs none.
	Propagate []string
	// NotReady says, in words for a client, why the graph can't be asked; empty when it can.
	NotReady string
}

// NodeKind says what a node does with its steps.
type NodeKind string

// The kinds of nodes.
const (
	Sequence NodeKind = "Sequence"
	Splitter NodeKind = "Splitter"
	Ensemble NodeKind = "Ensemble"
	Switch   NodeKind = "Switch"
)

// GraphNode is one node of a graph.
type GraphNode struct {
	Kind  NodeKind
	Steps []GraphStep
}

// GraphStep is one step of a node. One of Node, Service and URL says where it goes.
type GraphStep struct {
	// Name is unique within the node, or empty.
	Name string
	// Node is a node of the same graph, Service a service of the graph's namespace.
	Node, Service, URL string
	// FromResponse gives the step of a Sequence the answer before it instead of the request, and
	// MapPredictions hands that answer's predictions on as instances.
	FromResponse, MapPredictions bool
	// Weight is the percent of a Splitter's requests that the step gets.
	Weight int
	// Condition is a GJSON path that has to exist; empty means none.
	Condition string
	// Hard says that an answer that isn't a 2xx ends the node.
	Hard bool
}
