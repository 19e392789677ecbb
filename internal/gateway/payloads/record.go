package payloads

import (
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway/parquet"
)

// Formats of files, as logger.storage.parameters.format names them.
const (
	JSON    = "json"
	CSV     = "csv"
	Parquet = "parquet"
)

// record is an event in a file, and on its way to a marshaller: KServe's LogRequest
// (pkg/logger/types.go), whose addresses are JSON as Go writes a url.URL, and behind it what this
// gateway knows beside.
type record struct {
	URL              *url.URL            `json:"url,omitempty"`
	Bytes            []byte              `json:"bytes,omitempty"`
	ContentType      string              `json:"contentType,omitempty"`
	ReqType          string              `json:"reqType,omitempty"`
	ID               string              `json:"id,omitempty"`
	SourceURI        *url.URL            `json:"sourceUri,omitempty"`
	InferenceService string              `json:"inferenceService,omitempty"`
	Namespace        string              `json:"namespace,omitempty"`
	Component        string              `json:"component,omitempty"`
	Endpoint         string              `json:"endpoint,omitempty"`
	Metadata         map[string][]string `json:"metadata,omitempty"`
	Annotations      map[string]string   `json:"annotations,omitempty"`
	OccurrenceTime   time.Time           `json:"occurrenceTime"`

	Revision        string `json:"revision,omitempty"`
	RequestID       string `json:"requestId,omitempty"`
	StatusCode      int    `json:"statusCode,omitempty"`
	GRPCStatus      *int   `json:"grpcStatus,omitempty"`
	GRPCMethod      string `json:"grpcMethod,omitempty"`
	ContentEncoding string `json:"contentEncoding,omitempty"`
	HeaderLength    string `json:"inferenceHeaderContentLength,omitempty"`
	Truncated       bool   `json:"truncated,omitempty"`
}

func recordOf(ev *Event) record {
	r := record{
		Bytes: ev.Data, ContentType: ev.ContentType, ReqType: types[ev.Kind], ID: ev.ID, SourceURI: &url.URL{Path: ev.Source},
		InferenceService: ev.Service.Name, Namespace: ev.Service.Namespace, Component: string(ev.Component), Endpoint: ev.Endpoint,
		Metadata: ev.Headers, Annotations: ev.Annotations, OccurrenceTime: ev.Time.UTC(),
		Revision: ev.Revision, RequestID: ev.RequestID, GRPCMethod: ev.Method,
		ContentEncoding: ev.ContentEncoding, HeaderLength: ev.HeaderLength, Truncated: ev.Truncated,
	}
	if u, err := url.Parse(ev.URL); err == nil {
		r.URL = u
	}
	switch {
	case ev.Kind != Response:
	case ev.Method == "":
		r.StatusCode = ev.Status
	default:
		r.GRPCStatus = &ev.Status
	}
	return r
}

// records are events as a JSON array.
func records(events []*Event) []byte {
	all := make([]record, len(events))
	for i, ev := range events {
		all[i] = recordOf(ev)
	}
	return marshal(all)
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: records have no JSON: " + err.Error())
	}
	return b
}

// encode makes a file of events, in KServe's forms (pkg/logger/marshaller_*.go): in JSON a single
// event is an object, and several are an array.
func encode(format string, events []*Event) (data []byte, contentType, extension string) {
	switch format {
	case CSV:
		return table(events), "text/csv", CSV
	case Parquet:
		return parquet.File("logRecord", columns(events)), "application/octet-stream", Parquet
	}
	if len(events) == 1 {
		return marshal(recordOf(events[0])), "application/json", JSON
	}
	return records(events), "application/json", JSON
}

// names are the columns of files that are tables, which certName and tlsSkipVerify are part of
// though there is nothing to say in them here.
var names = []string{
	"url", "bytes", "contentType", "reqType", "id", "sourceUri", "inferenceService", "namespace", "component", "endpoint",
	"metadata", "annotations", "certName", "tlsSkipVerify",
}

// row is an event's values in the columns' order, but for the last, which is always false.
func row(ev *Event) []string {
	r := recordOf(ev)
	text := func(v any, n int) string {
		if n == 0 {
			return ""
		}
		return string(marshal(v))
	}
	out := []string{
		"", base64.StdEncoding.EncodeToString(r.Bytes), r.ContentType, r.ReqType, r.ID, r.SourceURI.String(), r.InferenceService,
		r.Namespace, r.Component, r.Endpoint, text(r.Metadata, len(r.Metadata)), text(r.Annotations, len(r.Annotations)), "",
	}
	if r.URL != nil {
		out[0] = r.URL.String()
	}
	return out
}

func table(events []*Event) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(names) // a buffer takes all
	for _, ev := range events {
		_ = w.Write(append(row(ev), strconv.FormatBool(false)))
	}
	w.Flush()
	return b.Bytes()
}

func columns(events []*Event) []parquet.Column {
	out := make([]parquet.Column, len(names))
	for i, name := range names {
		out[i].Name = name
	}
	for _, ev := range events {
		for i, v := range row(ev) {
			out[i].Strings = append(out[i].Strings, v)
		}
	}
	out[len(names)-1].Booleans = make([]bool, len(events))
	return out
}
