package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/convert"
	"stationmaster.dev/stationmaster/internal/gateway/graph"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// graphDepth counts how many graphs led to a request, so that graphs that lead to each other end.
const (
	graphDepth    = "Stationmaster-Graph-Depth"
	maxGraphDepth = 8
)

func depthOf(h http.Header) (int, error) {
	v := h.Get(graphDepth)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n >= maxGraphDepth {
		return 0, fmt.Errorf("graphs lead to each other more than %d deep", maxGraphDepth)
	}
	return n, nil
}

// graphCaller makes the calls of one request to a graph: to our own services as if the client had
// asked them, without a connection between.
type graphCaller struct {
	g     *Gateway
	view  *view
	graph *route.Service
	depth int
	// id, header, remote, host and tls are the client's.
	id, remote, host string
	header           http.Header
	tls              *tls.ConnectionState
}

// Call implements graph.Caller.
func (c *graphCaller) Call(ctx context.Context, step graph.Step, in graph.Message) (graph.Answer, error) {
	start := time.Now()
	answer, err := c.call(ctx, step, in)
	c.g.metrics.steps.end(c.graph.Key, step, answer.Status, err, time.Since(start))
	return answer, err
}

func (c *graphCaller) call(ctx context.Context, step graph.Step, in graph.Message) (graph.Answer, error) {
	if step.Service != "" {
		key := spec.ServiceKey{Namespace: c.graph.Key.Namespace, Name: step.Service}
		m, ok := c.g.view().table.Named(key, "/")
		if !ok || m.Service.Graph != nil {
			return graph.Answer{Status: http.StatusServiceUnavailable, Message: graph.Message{
				Header: http.Header{"Content-Type": {"application/json"}},
				Body:   encode(map[string]string{"error": fmt.Sprintf("there is no service %s, which graph %s names", key, c.graph.Key)}),
			}}, nil
		}
		h := c.head(true, in)
		h[ServiceHeader] = []string{key.String()}
		return c.inside(ctx, c.host, pathFor(&m, in), h, in)
	}
	u, err := url.Parse(step.URL)
	if err != nil {
		return graph.Answer{}, fmt.Errorf("read serviceUrl: %w", err)
	}
	if _, ours := c.g.view().table.Host(u.Host); ours || u.Host == c.g.Addrs().HTTP {
		return c.inside(ctx, u.Host, u.RequestURI(), c.head(true, in), in)
	}
	return c.outside(ctx, step.URL, in)
}

// pathFor is where a service answers a message: by the path of the protocol that the message looks
// to be of, which is translated where the engine doesn't speak it. What looks like none goes to
// V1's, as in KServe, unless the engine speaks V2 alone.
func pathFor(m *route.Match, in graph.Message) string {
	name, v2 := m.Service.Key.Name, false
	switch graph.ProtocolOf(in) {
	case spec.V2:
		v2 = true
	case "":
		for i := range m.Backend.Targets {
			t := &m.Backend.Targets[i]
			v2 = v2 || !speaks(t, spec.V1) && tensors(t)
		}
	}
	if v2 {
		return convert.ModelPath("", "/infer")(name)
	}
	return "/v1/models/" + url.PathEscape(name) + ":predict"
}

// head makes a step's head. own says that it is for one of our services, which gets what the
// client sent.
func (c *graphCaller) head(own bool, in graph.Message) http.Header {
	h := http.Header{}
	propagate := c.view.graphs[c.graph].propagate
	for name, values := range c.header {
		switch {
		case ofConnection(name):
		case propagate == nil && own, name == "Traceparent", name == "Tracestate":
			h[name] = values
		default:
			for _, p := range propagate {
				if p.MatchString(name) {
					h[name] = values
					break
				}
			}
		}
	}
	for name, values := range describing(in.Header) {
		h[name] = values
	}
	if len(h["Content-Type"]) == 0 {
		h["Content-Type"] = []string{"application/json"}
	}
	h["X-Request-Id"] = []string{c.id}
	h[graphDepth] = []string{strconv.Itoa(c.depth)}
	return h
}

// ofConnection reports fields that are about a connection, a body or the way to a service, which
// no step inherits.
func ofConnection(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Expect", "Host", "Content-Length", "Content-Type", "Content-Encoding",
		"Accept-Encoding", "Range", oip.HeaderLength, ServiceHeader, graphDepth:
		return true
	}
	return false
}

// inside answers a step as if a client had sent it here: canary shares, waking, queues and
// metrics are those of any request.
func (c *graphCaller) inside(ctx context.Context, host, uri string, head http.Header, in graph.Message) (answer graph.Answer, err error) {
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return graph.Answer{}, fmt.Errorf("read path %q: %w", uri, err)
	}
	r := (&http.Request{
		Method: http.MethodPost, URL: u, RequestURI: uri, Host: host, Header: head,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: c.remote, TLS: c.tls,
		Body: io.NopCloser(bytes.NewReader(in.Body)), ContentLength: int64(len(in.Body)),
	}).WithContext(ctx)
	w := &stepAnswer{header: http.Header{}, copied: copied{left: c.mostBytes()}}
	defer func() {
		switch p := recover(); {
		case p == nil && w.status == 0:
			err = errors.New("no answer came")
		case p == nil:
			answer = graph.Answer{Status: w.status, Message: graph.Message{Header: w.header, Body: w.b}}
		case p != http.ErrAbortHandler: //nolint:errorlint // a recovered value is compared as net/http does
			panic(p)
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case w.over:
			err = overlong(c.mostBytes())
		default:
			err = errors.New("the answer broke off")
		}
	}()
	c.g.serveHTTP(w, r)
	return answer, err
}

func (c *graphCaller) mostBytes() int {
	if most := c.g.cfg.MaxBody; most > 0 {
		return int(most)
	}
	return defaultMaxBody
}

func overlong(most int) error {
	return fmt.Errorf("the answer is larger than this gateway's limit of %d bytes", most)
}

// stepAnswer is a response that stays in memory.
type stepAnswer struct {
	header http.Header
	status int
	copied
}

// Header implements http.ResponseWriter.
func (k *stepAnswer) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter; what comes before the final status is passed over.
func (k *stepAnswer) WriteHeader(status int) {
	if k.status == 0 && status >= http.StatusOK {
		k.status = status
	}
}

// Write implements http.ResponseWriter.
func (k *stepAnswer) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	if k.add(p); k.over {
		return 0, errdef.New(errdef.ErrTooLarge, "the answer doesn't fit")
	}
	return len(p), nil
}

// newOutside makes the client for URLs that aren't ours.
func newOutside() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 32
	t.DisableCompression = true // bodies pass as they are
	return &http.Client{Transport: t}
}

// outside calls a URL.
func (c *graphCaller) outside(ctx context.Context, to string, in graph.Message) (graph.Answer, error) {
	if c.graph.Graph.StepTimeout == 0 && c.graph.Graph.Timeout == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.g.cfg.Timeouts.Response)
		defer cancel()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(in.Body))
	if err != nil {
		return graph.Answer{}, fmt.Errorf("make request: %w", err)
	}
	r.Header = c.head(false, in)
	resp, err := c.g.outside.Do(r)
	if err != nil {
		return graph.Answer{}, fmt.Errorf("call serviceUrl: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	most := c.mostBytes()
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		return graph.Answer{}, fmt.Errorf("read the answer of serviceUrl: %w", err)
	case len(body) > most:
		return graph.Answer{}, overlong(most)
	}
	return graph.Answer{Status: resp.StatusCode, Message: graph.Message{Header: resp.Header, Body: body}}, nil
}

// stepMetrics are the series of graphs' steps.
type stepMetrics struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newStepMetrics() stepMetrics {
	return stepMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stationmaster_graph_steps_total",
			Help: "Calls that graphs made for their steps, by node, step and HTTP status; error stands for none.",
		}, []string{"namespace", "graph", "node", "step", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stationmaster_graph_step_duration_seconds",
			Help:    "Time from a step's call to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"namespace", "graph", "node", "step"}),
	}
}

func (m stepMetrics) end(of spec.ServiceKey, step graph.Step, status int, err error, took time.Duration) {
	code := "error"
	if err == nil {
		code = "other"
		if http.StatusText(status) != "" {
			code = strconv.Itoa(status)
		}
	}
	m.total.WithLabelValues(of.Namespace, of.Name, step.Node, step.Key, code).Inc()
	m.seconds.WithLabelValues(of.Namespace, of.Name, step.Node, step.Key).Observe(took.Seconds())
}

// prune drops the series of a graph that is gone.
func (m stepMetrics) prune(of spec.ServiceKey) {
	labels := prometheus.Labels{"namespace": of.Namespace, "graph": of.Name}
	m.total.DeletePartialMatch(labels)
	m.seconds.DeletePartialMatch(labels)
}
