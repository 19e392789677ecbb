// Package payloads tells collectors what went through the gateway, as CloudEvents over HTTP, or
// stores it as files of a bucket, and never makes a request wait for that.
package payloads

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Kind is what an event tells of.
type Kind uint8

// The kinds of event.
const (
	Request Kind = iota
	Response
)

// types are the kinds as KServe's logger names them (pkg/logger/worker.go).
var types = [...]string{Request: "org.kubeflow.serving.inference.request", Response: "org.kubeflow.serving.inference.response"}

// Event is a request or an answer on its way to a collector or a bucket. An event isn't changed
// once it was given to an Emitter.
type Event struct {
	// URL is the collector's or, with Store, the bucket's.
	URL string
	// Store says how the event is stored; nil means that it is told to a collector.
	Store *spec.PayloadStore
	Kind  Kind
	// ID is the same for a request and its answer; it stands in a header field as it is.
	ID string
	// Source names the replica that answers, or what stands for it.
	Source string
	// Time is when the request came, or its answer ended; it isn't zero.
	Time      time.Time
	Service   spec.ServiceKey
	Component spec.Component
	// Endpoint is "default", or the tag of the revision that answers. Revision is its name; empty
	// where none was chosen.
	Endpoint, Revision string
	// RequestID is what the client got in X-Request-Id.
	RequestID string
	// Method is a gRPC call's full name; empty for a request over HTTP.
	Method string
	// Status is the answer's, an HTTP status or, for a gRPC call, a code.
	Status int
	// Headers and Annotations are those that the service wants to be told; nil for none.
	Headers     map[string][]string
	Annotations map[string]string
	ContentType string
	// ContentEncoding and HeaderLength say how Data is to be read, as the message's own fields
	// did; empty where it had none.
	ContentEncoding, HeaderLength string
	// Data is the body, cut at a bound if Truncated.
	Data      []byte
	Truncated bool
}

// attributes are the event's names and values beside the ones that every event has.
func (e *Event) attributes(set func(name, value string)) {
	set("inferenceservicename", e.Service.Name)
	set("namespace", e.Service.Namespace)
	set("component", string(e.Component))
	set("endpoint", e.Endpoint)
	// KServe has this beside time, and both say the same.
	set("recordedtime", e.Time.UTC().Format(time.RFC3339Nano))
	set("metadata", jsonOf(e.Headers, len(e.Headers)))
	set("annotations", jsonOf(e.Annotations, len(e.Annotations)))
	set("revision", e.Revision)
	set("requestid", e.RequestID)
	set("grpcmethod", percent(e.Method))
	if e.Kind == Response {
		if e.Method == "" {
			set("statuscode", strconv.Itoa(e.Status))
		} else {
			set("grpcstatus", strconv.Itoa(e.Status))
		}
	}
	if e.Truncated {
		set("truncated", "true")
	}
}

// jsonOf is a map as JSON that reads the same whether or not a receiver decodes what the binding
// has percent-encoded: the SDKs for Go, which KServe's logger uses, Java and Python neither encode
// nor decode (cloudevents/spec#1397). So quotes stay, and what would need it is escaped as JSON does.
func jsonOf(v any, n int) string {
	if n == 0 {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a map of strings has no JSON: " + err.Error())
	}
	var b strings.Builder
	for _, r := range string(text) {
		if r != '%' && r < 0x7f {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// request is the event in binary mode (CloudEvents HTTP protocol binding 1.0.2, section 3.1): a
// field for each attribute, and the data as the body.
func (e *Event) request(ctx context.Context) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, bytes.NewReader(e.Data))
	if err != nil {
		return nil, err
	}
	set := func(name, value string) {
		if value != "" {
			r.Header["Ce-"+strings.ToUpper(name[:1])+name[1:]] = []string{value}
		}
	}
	set("specversion", "1.0")
	set("type", types[e.Kind])
	set("id", e.ID)
	set("source", percent(e.Source))
	set("time", e.Time.UTC().Format(time.RFC3339Nano))
	e.attributes(set)
	for name, value := range map[string]string{
		"Content-Type": e.ContentType, "Content-Encoding": e.ContentEncoding, headerLength: e.HeaderLength,
	} {
		if value != "" {
			r.Header[name] = []string{textproto.TrimString(value)}
		}
	}
	return r, nil
}

// headerLength is the field of the binary tensor extension that says where JSON ends.
const headerLength = "Inference-Header-Content-Length"

// percent encodes a value for a header field: space, quote, percent and whatever isn't printable
// ASCII (the same binding, section 3.1.3.2).
func percent(value string) string {
	plain := true
	for i := range len(value) {
		plain = plain && !escaped(value[i])
	}
	if plain {
		return value
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; escaped(c) {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func escaped(c byte) bool { return c <= ' ' || c == '"' || c == '%' || c >= 0x7f }
