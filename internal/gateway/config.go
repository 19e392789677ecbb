// Package gateway is the front door: it accepts HTTP and gRPC, finds the service that a
// request is for, and passes it to one of that service's replicas, converting between REST
// and gRPC where the engine speaks only one of them.
package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/gateway/upstream"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// Config is what a gateway needs. HTTP and Table are required, all else has a default.
type Config struct {
	// HTTP takes HTTP/1.1 and, with prior knowledge, HTTP/2, both without TLS; gRPC calls
	// are served on it too. The gateway closes its listeners.
	HTTP net.Listener
	// GRPC takes gRPC without TLS. Nil serves none.
	GRPC net.Listener
	// HTTPS and GRPCS take the same with TLS, and need TLS. Nil serves none.
	HTTPS net.Listener
	GRPCS net.Listener
	TLS   *tls.Config
	// Table is what to route by. Until one is published every request gets 503.
	Table *state.Topic[route.Table]
	// Logger gets one debug record per request, never with bodies. Nil discards.
	Logger *slog.Logger
	// Metrics takes the gateway's metrics; nil means none are kept.
	Metrics prometheus.Registerer
	// MaxBody bounds an HTTP request's body in bytes; 0 means 256 MiB, negative none.
	MaxBody int64
	// MaxMessage bounds a gRPC message in bytes, each way; 0 means 256 MiB.
	MaxMessage int
	Timeouts   Timeouts
	OpenAI     OpenAI
	// MaxHeld is how many places there are for requests that wait for a replica; 0 means 8192. One
	// takes a place, or one for each 32 KiB of its body that is in memory meanwhile, if that is more.
	// They are shared fairly among namespaces, services and callers (package fair).
	MaxHeld int
	// Samples are what engines tell of themselves, which picks of their replicas heed. Nil means that
	// nobody looks.
	Samples *state.Topic[pick.Samples]
	// Demand gets a report of the load each second, and when a request begins to wait for something
	// to be started. Nil means that nobody wants to know.
	Demand *state.Topic[demand.Report]
	// Objects takes what loggers store in buckets. Nil stores nothing: those entries count as rejected.
	Objects payloads.Objects
	// Adapters are the LoRA adapters that replicas have: what asks for one goes only there. Nil leaves
	// that to engines.
	Adapters *state.Topic[lora.Known]
	// ContextLengths are how many tokens engines tell that they take, by revision, for the list of models. Nil
	// leaves that to what their command lines say.
	ContextLengths *state.Topic[map[spec.RevisionKey]int]
	// TrustForwarded keeps the Forwarded and X-Forwarded fields that clients send and adds
	// to them. By default they are replaced.
	TrustForwarded bool
	// Upstream bounds the connections to engines.
	Upstream upstream.Config
	// Version is told in server metadata; empty means "dev".
	Version string
}

// Timeouts bound the parts of an exchange. Zero fields mean the default given.
type Timeouts struct {
	// Response is the wait for an engine's response head, where the service sets none; 60 s,
	// as in KServe's routes.
	Response time.Duration
	// Idle is the wait for more of a response that has begun; 5 min.
	Idle time.Duration
	// Body is the wait for more of a client's body; 60 s.
	Body time.Duration
	// Head is the time that a client has to send a request's head; 10 s.
	Head time.Duration
	// KeepAlive is how long a client's connection may be unused; 2 min.
	KeepAlive time.Duration
	// Hold is how long a request may wait for a replica that is on its way back; 10 s,
	// negative for not at all.
	Hold time.Duration
	// Wake is how long a request may wait for a service to be started that has no replica, for
	// there was nothing to do; 10 min, as a large model may take. A service's own time-out bounds
	// it, too.
	Wake time.Duration
	// Drain is how long requests may go on after Run's context has ended; 30 s.
	Drain time.Duration
}

func (t Timeouts) withDefaults() Timeouts {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Response, 60 * time.Second},
		{&t.Idle, 5 * time.Minute},
		{&t.Body, 60 * time.Second},
		{&t.Head, 10 * time.Second},
		{&t.KeepAlive, 2 * time.Minute},
		{&t.Hold, 10 * time.Second},
		{&t.Wake, 10 * time.Minute},
		{&t.Drain, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return t
}

const (
	defaultMaxBody    = 256 << 20
	defaultMaxMessage = 256 << 20
	// defaultMaxHeld is for 160 MB at the 20 KB that a held request may cost, its body apart.
	defaultMaxHeld = 8192
	// maxHead bounds a request's head, and a call's metadata, in bytes.
	maxHead = 64 << 10
	// maxHeaderBytes is what net/http and grpc read of a head before they end the exchange in
	// their own ways: so much more than maxHead that the gateway itself refuses most.
	maxHeaderBytes = 1 << 20
)

func (c Config) validated() (Config, error) {
	switch {
	case c.HTTP == nil:
		return c, fmt.Errorf("gateway: %w: no HTTP listener", errdef.ErrInvalid)
	case c.Table == nil:
		return c, fmt.Errorf("gateway: %w: no table", errdef.ErrInvalid)
	case c.TLS == nil && (c.HTTPS != nil || c.GRPCS != nil):
		return c, fmt.Errorf("gateway: %w: a TLS listener without a TLS configuration", errdef.ErrInvalid)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = defaultMaxMessage
	}
	if c.MaxHeld == 0 {
		c.MaxHeld = defaultMaxHeld
	}
	switch root := "/" + strings.Trim(c.OpenAI.Root, "/"); {
	case c.OpenAI.Root == "":
		c.OpenAI.Root = openai.DefaultRoot
	case root == "/":
		c.OpenAI.Root = ""
	default:
		c.OpenAI.Root = root
	}
	if c.OpenAI.MaxRead <= 0 {
		c.OpenAI.MaxRead = defaultMaxRead
	}
	if c.OpenAI.Silence == 0 {
		c.OpenAI.Silence = defaultSilence
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	c.Timeouts = c.Timeouts.withDefaults()
	return c, nil
}

// errClientGone is the cause given to what is ended because nobody waits for it.
var errClientGone = errors.New("the client is gone")
