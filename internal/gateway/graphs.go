package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/peer"

	pb "stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/graph"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// graphView is what the gateway keeps for each graph of a table.
type graphView struct {
	metrics *targetMetrics
	// propagate are the graph's patterns; nil where it has none.
	propagate []*regexp.Regexp
}

// viewGraphs makes the views of a table's graphs, and keeps their metrics alive.
func (g *Gateway) viewGraphs(table *route.Table, live map[targetKey]bool) map[*route.Service]*graphView {
	out := map[*route.Service]*graphView{}
	for _, s := range table.Services() {
		if s.Graph == nil {
			continue
		}
		key := targetKey{Service: s.Key}
		live[key] = true
		v := &graphView{metrics: g.metrics.of(key)}
		if s.Graph.Propagate != nil {
			v.propagate = []*regexp.Regexp{}
		}
		for _, p := range s.Graph.Propagate {
			if re, err := regexp.Compile(p); err == nil { // one that isn't any was told of by whoever made the graph
				v.propagate = append(v.propagate, re)
			}
		}
		out[s] = v
	}
	return out
}

// graphReadiness says whether every service that a graph names can answer.
func graphReadiness(table *route.Table, s *route.Service) (bool, string) {
	if s.Graph.NotReady != "" {
		return false, s.Graph.NotReady
	}
	for _, node := range slices.Sorted(maps.Keys(s.Graph.Nodes)) {
		for _, step := range s.Graph.Nodes[node].Steps {
			if step.Service == "" {
				continue
			}
			m, ok := table.Named(spec.ServiceKey{Namespace: s.Key.Namespace, Name: step.Service}, "/")
			if !ok || m.Service.Graph != nil {
				return false, fmt.Sprintf("there is no service %s/%s, which node %s of the graph names", s.Key.Namespace, step.Service, node)
			}
			if ready, why := readiness(table, m.Service); !ready {
				return false, of("service "+m.Service.Key.String(), m.Service.Key, why)
			}
		}
	}
	return true, ""
}

// serveGraph answers a request for a graph, whatever its path, as KServe's router does.
func (x *exchange) serveGraph(s *route.Service) {
	v := x.view.graphs[s]
	x.metric, x.began = v.metrics, true
	x.metric.begin()
	call := x.match.Call
	switch read := x.r.Method == http.MethodGet || x.r.Method == http.MethodHead; {
	case x.ask != nil:
		x.fail(errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
			"%s is a graph, which isn't found by the model's name in a body: send the request to its host, or to %s", s.Key, s.PathPrefix)))
		return
	case read && call.Op.Server(), call.Op == route.RepositoryIndex:
		x.serveBare()
		return
	case read && (call.Op == route.ModelReady || call.Op == route.StatusV1 || x.match.Path == "/readyz"):
		if ready, why := readiness(x.view.table, s); !ready {
			x.fail(errdef.New(errdef.ErrUnavailable, of("graph "+s.Key.String(), s.Key, why)))
			return
		}
		x.answer(oip.ModelReady{Name: s.Key.Name, Ready: true})
		return
	case x.r.Method != http.MethodPost:
		x.refuseMethod(http.MethodPost)
		return
	}
	body, err := x.readBody()
	if err != nil {
		x.fail(err)
		return
	}
	c := &graphCaller{g: x.g, view: x.view, graph: s, id: x.id, header: x.r.Header, remote: x.r.RemoteAddr, host: x.r.Host, tls: x.r.TLS}
	answer, err := c.run(x.r.Context(), graph.Message{Header: describing(x.r.Header), Body: body})
	if err != nil {
		x.failGraph(err)
		return
	}
	h := x.w.Header()
	for _, name := range answerFields {
		if values := answer.Header[name]; len(values) > 0 {
			h[name] = values
		}
	}
	x.answerBytes(answer.Status, answer.Header.Get("Content-Type"), answer.Body)
}

// answerFields are the fields of the answer that a graph came to which the client gets, beside the
// content's type and length.
var answerFields = []string{"Content-Encoding", oip.HeaderLength, "Retry-After", "X-Stationmaster-Revision", "X-Model-Digest"}

// describing returns the fields of a head that say how to read its body.
func describing(head http.Header) http.Header {
	out := http.Header{}
	for _, name := range []string{"Content-Type", "Content-Encoding", oip.HeaderLength} {
		if values := head[name]; len(values) > 0 {
			out[name] = values
		}
	}
	return out
}

// failGraph answers for a graph that came to no answer: in KServe's words and with its statuses,
// but for a client that is gone and a time-out.
func (x *exchange) failGraph(err error) {
	if x.r.Context().Err() != nil || errors.Is(err, errdef.ErrTimeout) || errors.Is(err, errdef.ErrUnavailable) {
		x.fail(err)
		return
	}
	status := http.StatusInternalServerError
	if errors.Is(err, graph.ErrNoMatch) {
		status = http.StatusNotFound
	}
	x.answerBytes(status, "application/json", encode(struct {
		Error string `json:"error"`
		Cause string `json:"cause"`
	}{"Failed to process request", err.Error()}))
}

// serveGraph answers a call for a graph: an inference as REST's would be, by way of V2.
func (c *call) serveGraph(s *route.Service) error {
	v := c.view.graphs[s]
	c.metric, c.began = v.metrics, true
	c.metric.begin()
	switch c.oip {
	case "ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex":
		return c.serveWhole()
	case "ModelReady":
		c.identify(nil)
		ready, _ := readiness(c.view.table, s)
		return c.stream.SendMsg(&pb.ModelReadyResponse{Ready: ready})
	case "ModelInfer":
	default:
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
			"%s is a graph, which answers ModelInfer and ModelReady over gRPC, not %.200q: name one of its services instead", s.Key, c.method))
	}
	in := new(pb.ModelInferRequest)
	if err := c.decode(c.first.Take(), in); err != nil {
		return err
	}
	infer, err := convert.NewToREST(in)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	infer.Body.Describe(header)
	caller := &graphCaller{g: c.g, view: c.view, graph: s, id: c.id, header: http.Header{}, host: s.Key.Name}
	for k, values := range c.md {
		if !reservedMetadata(k) && !strings.HasSuffix(k, "-bin") {
			caller.header[canonicalKey(k)] = values
		}
	}
	if p, ok := peer.FromContext(c.ctx); ok {
		caller.remote = p.Addr.String()
	}
	answer, err := caller.run(c.ctx, graph.Message{Header: header, Body: infer.Body.Bytes})
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case errors.Is(err, graph.ErrNoMatch):
		return errdef.New(errdef.ErrNotFound, err.Error())
	case err != nil:
		return err
	}
	if oip.KindOfStatus(answer.Status) != nil {
		return engineRefused(answer.Status, answer.Header, answer.Body)
	}
	out, err := infer.Answer(answer.Header, answer.Body, s.Key.Name)
	if err != nil {
		return errdef.New(errdef.ErrUnsupported, fmt.Sprintf(
			"the answer of graph %s isn't one of the Open Inference Protocol, so gRPC can't carry it: call the graph over HTTP at %s (%v)", s.Key, s.PathPrefix, err))
	}
	c.identify(nil)
	return c.stream.SendMsg(out)
}

// run takes a request through the caller's graph.
func (c *graphCaller) run(ctx context.Context, in graph.Message) (graph.Answer, error) {
	g := c.graph.Graph
	if g.NotReady != "" {
		return graph.Answer{}, errdef.New(errdef.ErrUnavailable, of("graph "+c.graph.Key.String(), c.graph.Key, g.NotReady))
	}
	depth, err := depthOf(c.header)
	if err != nil {
		return graph.Answer{}, err
	}
	c.depth = depth + 1
	if g.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, g.Timeout, errdef.New(errdef.ErrTimeout, fmt.Sprintf(
			"graph %s had no answer within its time-out of %v", c.graph.Key, g.Timeout)))
		defer cancel()
	}
	return graph.Run(ctx, g, in, c, rand.IntN, graph.Limits{Bytes: max(c.g.cfg.MaxBody, 0)})
}
