// Package graph reads ONNX files: nodes, constants and the types of inputs and outputs, with
// every size that a file claims checked against the bytes it has. The wire numbers are those
// of onnx.proto, IR version 3 to 11.
package graph

import (
	"fmt"
	"math"
)

// DataType is the element type of a tensor.
type DataType uint8

// The element types, as the Open Inference Protocol has them. Undefined is no type.
const (
	Undefined DataType = iota
	Bool
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	BF16
	FP32
	FP64
	String
)

var typeNames = [...]string{"UNDEFINED", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"}

// String returns the type's name in the Open Inference Protocol; strings are BYTES there.
func (t DataType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("DataType(%d)", uint8(t))
}

// FromONNX maps TensorProto.DataType to ours; Undefined for those that have none (complex
// numbers, 8-bit floats, 4-bit integers).
func FromONNX(code int64) DataType {
	return onnxTypes[code]
}

// ONNX returns the TensorProto.DataType of t, 0 for Undefined.
func (t DataType) ONNX() int64 {
	for code, known := range onnxTypes {
		if known == t {
			return code
		}
	}
	return 0
}

var onnxTypes = map[int64]DataType{
	1: FP32, 2: Uint8, 3: Int8, 4: Uint16, 5: Int16, 6: Int32, 7: Int64, 8: String, 9: Bool,
	10: FP16, 11: FP64, 12: Uint32, 13: Uint64, 16: BF16,
}

// TensorInfo describes an input or output of a graph.
type TensorInfo struct {
	Name string
	Type DataType
	// Shape has -1 for each dimension that the graph leaves open. Nil means that even the
	// number of dimensions is open.
	Shape []int64
	// DimNames are the names of open dimensions, such as "batch"; empty for fixed ones. It is
	// nil or as long as Shape.
	DimNames []string
}

// Tensor is a value. Data is a slice of the Go type that fits Type: []bool, []uint8 … []int64,
// []float32, []float64, []string, and []uint16 for the bits of FP16 and BF16; in row-major
// order, as long as the product of Shape.
type Tensor struct {
	Name  string
	Type  DataType
	Shape []int64
	Data  any
}

// Count is the product of a shape, and whether it is a size that fits an int; a negative
// dimension doesn't.
func Count(shape []int64) (int, bool) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || (d > 0 && n > math.MaxInt32*int64(64)/d) {
			return 0, false
		}
		n *= d
	}
	return int(n), true
}

// Model is a decoded file.
type Model struct {
	Producer string
	// Opsets is the version of each operator domain that the graph uses; the standard domain
	// is "".
	Opsets map[string]int64
	Graph  *Graph
}

// Graph is a list of nodes in an order in which they can run.
type Graph struct {
	Name    string
	Nodes   []Node
	Consts  map[string]*Tensor
	Inputs  []Value
	Outputs []Value
}

// Value is a graph's input or output with its type.
type Value struct {
	TensorInfo
	// MapKey is set for a sequence of maps, what ZipMap makes: the type of the maps' keys.
	// Type is then that of the maps' values.
	MapKey DataType
}

// Node is one operation. An empty name among Inputs stands for an optional input left out.
type Node struct {
	Name    string
	Op      string
	Domain  string
	Inputs  []string
	Outputs []string
	Attrs   map[string]Attr
}

// String names a node for a message.
func (n *Node) String() string {
	op := n.Op
	if n.Domain != "" {
		op = n.Domain + "." + op
	}
	if n.Name == "" {
		return op
	}
	return op + " (node " + n.Name + ")"
}

// Attr is a node's attribute; the field that is set depends on the attribute.
type Attr struct {
	F       float32
	I       int64
	S       string
	T       *Tensor
	G       *Graph
	Floats  []float32
	Ints    []int64
	Strings []string
}

// Int returns an integer attribute, or otherwise.
func (n *Node) Int(name string, otherwise int64) int64 {
	if a, ok := n.Attrs[name]; ok {
		return a.I
	}
	return otherwise
}

// Float returns a float attribute, or otherwise.
func (n *Node) Float(name string, otherwise float32) float32 {
	if a, ok := n.Attrs[name]; ok {
		return a.F
	}
	return otherwise
}

// Text returns a string attribute, or otherwise.
func (n *Node) Text(name, otherwise string) string {
	if a, ok := n.Attrs[name]; ok {
		return a.S
	}
	return otherwise
}

// Ints returns a list of integers, nil where it is absent.
func (n *Node) Ints(name string) []int64 { return n.Attrs[name].Ints }

// Floats returns a list of floats, nil where it is absent.
func (n *Node) Floats(name string) []float32 { return n.Attrs[name].Floats }

// Strings returns a list of strings, nil where it is absent.
func (n *Node) Strings(name string) []string { return n.Attrs[name].Strings }

// Has reports whether an attribute is there.
func (n *Node) Has(name string) bool {
	_, ok := n.Attrs[name]
	return ok
}
