package route

import (
	"net/url"
	"strings"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Op is what a path asks for.
type Op uint8

// The operations of the V1 and V2 protocols. Other is any path that is none of them.
const (
	Other Op = iota
	ServerMetadata
	ServerLive
	ServerReady
	ListV2
	RepositoryIndex
	ListV1
	// ModelMetadata and what follows name a model.
	ModelMetadata
	ModelReady
	Infer
	Load
	Unload
	StatusV1
	Predict
	Explain
	// Generate and GenerateStream are of the Open Inference Protocol's draft for text.
	Generate
	GenerateStream
	// OtherOfModel is a path below a model that the protocols don't define.
	OtherOfModel
)

// Server reports whether the operation is of a server as a whole.
func (o Op) Server() bool { return o >= ServerMetadata && o <= ListV1 }

// Call is what a path says.
type Call struct {
	// Protocol is V1 or V2, or empty for any other path.
	Protocol spec.Protocol
	Op       Op
	// Model and Version are decoded; empty where the path has none.
	Model   string
	Version string
	// from and to bound the model's name within the path.
	from, to int
}

// ParsePath reads a path of the V1 protocol, of the Open Inference Protocol or its
// repository extension. path has no query; its segments may be percent-encoded.
func ParsePath(path string) Call {
	if len(path) < 3 || path[0] != '/' || path[1] != 'v' {
		return Call{}
	}
	trimmed := path
	if len(path) > 3 && path[len(path)-1] == '/' {
		trimmed = path[:len(path)-1]
	}
	switch {
	case path[2] == '1' && strings.HasPrefix(trimmed, "/v1/models"):
		return parseV1(trimmed)
	case trimmed == "/v2":
		return Call{Protocol: spec.V2, Op: ServerMetadata}
	case strings.HasPrefix(trimmed, "/v2/"):
		return parseV2(trimmed)
	}
	return Call{}
}

func parseV1(path string) Call {
	const root = "/v1/models"
	if path == root {
		return Call{Protocol: spec.V1, Op: ListV1}
	}
	if path[len(root)] != '/' {
		return Call{}
	}
	from := len(root) + 1
	to := segmentEnd(path, from)
	c := Call{Protocol: spec.V1, Op: StatusV1, from: from, to: to}
	tail := path[to:]
	if tail != "" {
		c.Op = OtherOfModel
		if v, ok := strings.CutPrefix(tail, "/versions/"); ok {
			v, verb, _ := strings.Cut(v, ":")
			c.Version = unescape(v)
			c.Op = verbOf(verb, c.Op)
		}
	} else if i := strings.LastIndexByte(path[from:to], ':'); i >= 0 {
		if op := verbOf(path[from+i+1:to], StatusV1); op != StatusV1 {
			c.Op, c.to = op, from+i
		}
	}
	return c.named(path)
}

func verbOf(verb string, otherwise Op) Op {
	switch verb {
	case "predict":
		return Predict
	case "explain":
		return Explain
	case "classify", "regress":
		return OtherOfModel
	}
	return otherwise
}

func parseV2(path string) Call {
	c := Call{Protocol: spec.V2}
	switch path {
	case "/v2/health/live":
		c.Op = ServerLive
	case "/v2/health/ready":
		c.Op = ServerReady
	case "/v2/models":
		c.Op = ListV2
	case "/v2/repository/index":
		c.Op = RepositoryIndex
	}
	if c.Op != Other {
		return c
	}
	if strings.HasPrefix(path, "/v2/repository/models/") {
		c.from = len("/v2/repository/models/")
		c.to = segmentEnd(path, c.from)
		switch path[c.to:] {
		case "/load":
			c.Op = Load
		case "/unload":
			c.Op = Unload
		default:
			c.Op = OtherOfModel
		}
		return c.named(path)
	}
	if !strings.HasPrefix(path, "/v2/models/") {
		return c
	}
	c.from = len("/v2/models/")
	c.to = segmentEnd(path, c.from)
	tail := path[c.to:]
	if v, ok := strings.CutPrefix(tail, "/versions/"); ok {
		end := segmentEnd(v, 0)
		c.Version = unescape(v[:end])
		tail = v[end:]
	}
	switch tail {
	case "":
		c.Op = ModelMetadata
	case "/ready":
		c.Op = ModelReady
	case "/infer":
		c.Op = Infer
	case "/generate":
		c.Op = Generate
	case "/generate_stream":
		c.Op = GenerateStream
	case "/explain":
		c.Op = Explain // an extension: the protocol has no such call
	default:
		c.Op = OtherOfModel
	}
	return c.named(path)
}

func (c Call) named(path string) Call {
	c.Model = unescape(path[c.from:c.to])
	if c.Model == "" {
		return Call{Protocol: c.Protocol}
	}
	return c
}

// Renamed returns path with the model's name replaced. c must be ParsePath(path).
func (c Call) Renamed(path, model string) string {
	if c.Model == "" || model == "" || c.Model == model {
		return path
	}
	return path[:c.from] + url.PathEscape(model) + path[c.to:]
}

func segmentEnd(path string, from int) int {
	if i := strings.IndexByte(path[from:], '/'); i >= 0 {
		return from + i
	}
	return len(path)
}

func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}
