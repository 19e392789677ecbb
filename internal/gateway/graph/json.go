package graph

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"

	"stationmaster.dev/stationmaster/internal/spec"
)

// lengthHeader holds the length of the JSON that binary tensors follow.
const lengthHeader = "Inference-Header-Content-Length"

// parts cuts a message into its JSON and the binary tensors behind it, which most have none of.
// ok is false where the head's length is none.
func (m Message) parts() (text, tail []byte, ok bool) {
	v := m.Header.Get(lengthHeader)
	if v == "" {
		return m.Body, nil, true
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > len(m.Body) {
		return nil, nil, false
	}
	return m.Body[:n], m.Body[n:], true
}

// meets reports whether a condition's path exists in a message's JSON; valid is false where that
// isn't JSON.
func meets(m Message, condition string) (met, valid bool) {
	text, _, ok := m.parts()
	if !ok || !json.Valid(text) { // which bounds how deep it is, as gjson's own check doesn't
		return false, false
	}
	return condition != "" && gjson.GetBytes(text, condition).Exists(), true
}

// mergeable reports whether a message is JSON and nothing else.
func mergeable(m Message) bool {
	return m.Header.Get(lengthHeader) == "" && m.Header.Get("Content-Encoding") == "" && json.Valid(m.Body)
}

// merge makes one object of the steps' answers, by their keys. The answers stay byte for byte what
// they were, so that no number loses digits.
func merge(steps []spec.GraphStep, answers [][]byte) Message {
	var b bytes.Buffer
	for i := range steps {
		b.WriteByte("{,"[min(i, 1)])
		key, err := json.Marshal(keyOf(steps, i))
		if err != nil {
			panic("BUG: a string can't be written as JSON: " + err.Error())
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(bytes.TrimSpace(answers[i]))
	}
	b.WriteByte('}')
	return Message{Header: jsonHead(), Body: b.Bytes()}
}

func jsonHead() http.Header { return http.Header{"Content-Type": {"application/json"}} }

// mapPredictions makes a request of an answer: V1's predictions become instances, and V2's outputs
// inputs, without what only an answer has. What is neither comes back as it is.
func mapPredictions(m Message) Message {
	text, tail, ok := m.parts()
	if !ok || m.Header.Get("Content-Encoding") != "" || !json.Valid(text) {
		return m
	}
	answer := gjson.ParseBytes(text)
	v1, v2 := answer.Get("predictions").Exists(), answer.Get("outputs").Exists()
	if !answer.IsObject() || v1 == v2 {
		return m
	}
	var b bytes.Buffer
	answer.ForEach(func(key, value gjson.Result) bool {
		name := key.Raw
		switch word := key.String(); {
		case v1 && word == "predictions":
			name = `"instances"`
		case v2 && word == "outputs":
			name = `"inputs"`
		case v2 && word != "id":
			return true
		}
		b.WriteByte("{,"[min(b.Len(), 1)])
		b.WriteString(name)
		b.WriteByte(':')
		b.WriteString(value.Raw)
		return true
	})
	b.WriteByte('}')
	head := m.Header.Clone()
	if head == nil {
		head = http.Header{}
	}
	if m.Header.Get(lengthHeader) != "" {
		head.Set(lengthHeader, strconv.Itoa(b.Len()))
	}
	return Message{Header: head, Body: append(b.Bytes(), tail...)}
}

// ProtocolOf returns the protocol that a request's body is of, as it looks: V2 where it carries
// binary tensors, or its inputs are tensors, V1 where it has instances, and empty for neither.
func ProtocolOf(m Message) spec.Protocol {
	if m.Header.Get(lengthHeader) != "" {
		return spec.V2
	}
	switch found := gjson.GetManyBytes(m.Body, "instances", "inputs.0.datatype"); {
	case found[0].Exists():
		return spec.V1
	case found[1].Exists():
		return spec.V2
	}
	return ""
}
