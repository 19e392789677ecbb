package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// relayed is what a client gets of a stream that an engine sends in two pieces. The request asked for a
// model by the name "mine" where renames are wanted, and for usage on the gateway's own account.
func relayed(tb testing.TB, stream []byte, at int, changes bool) []byte {
	tb.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		tb.Fatal(err)
	}
	w := httptest.NewRecorder()
	x := &exchange{g: &Gateway{metrics: m}, w: w, r: httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil), start: time.Now()}
	x.ask = &asked{call: openai.Call{Op: openai.Chat}, model: "mine"}
	x.target = &target{Target: &route.Target{Revision: "llm-1"}, metrics: m.of(targetKey{Service: spec.ServiceKey{Name: "llm"}, Revision: "llm-1"})}
	if changes {
		x.target.stamp = openai.NewStamp("llm-1@4f2b")
		x.ask.dressed = dress{model: "served", usage: true}
	}
	r := newRelay(x)
	x.ask.relay = r
	r.Header().Set("Content-Type", "text/event-stream")
	r.WriteHeader(http.StatusOK)
	for _, piece := range [][]byte{stream[:at], stream[at:]} {
		if _, err := r.Write(bytes.Clone(piece)); err != nil {
			tb.Fatal(err)
		}
		r.Flush()
	}
	r.end(false)
	return w.Body.Bytes()
}

// streams are such as break clients where a gateway cuts them wrong.
var streams = map[string]string{
	"chunks and the end":        "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n",
	"UTF-8 of every length":     "data: {\"choices\":[{\"delta\":{\"content\":\"aé世🦙\"}}]}\n\n",
	"CRLF":                      "event: x\r\ndata: {\"choices\":[]}\r\n\r\ndata: [DONE]\r\n\r\n",
	"CR alone":                  "data: {}\r\rdata: {}\r\r",
	"no last line end":          "data: {\"choices\":[]}\n\ndata: [DONE]",
	"half a frame at the end":   "data: {\"choices\":[]}\n\ndata: {\"half\":",
	"comments and other fields": ": hello\n\nid: 1\nretry: 5\nevent: message\ndata: {\"a\":1}\n\n: bye\n\n",
	"data in several lines":     "data: {\"choices\":\ndata: []}\n\n",
	"empty lines":               "\n\n\r\n\ndata: {}\n\n\n\n",
	"several choices, tools":    "data: {\"choices\":[{\"index\":1,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
	"big numbers":               "data: {\"created\":12345678901234567890,\"logprob\":-1.0e-3,\"choices\":[]}\n\n",
	"no space behind data":      "data:{\"choices\":[]}\n\ndata:[DONE]\n\n",
	"a byte order mark":         "\xef\xbb\xbfdata: {\"choices\":[]}\n\n",
	"an error within":           "data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n",
	"not JSON":                  "data: {\"choices\":[}\n\ndata: choices\n\n",
}

// TestAnUntouchedStreamIsTheEnginesToTheByte wherever it is cut.
func TestAnUntouchedStreamIsTheEnginesToTheByte(t *testing.T) {
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			for at := range len(stream) + 1 {
				if got := relayed(t, []byte(stream), at, false); string(got) != stream {
					t.Fatalf("cut at %d\n got %q\nwant %q", at, got, stream)
				}
			}
		})
	}
}

// TestAChangedStreamIsTheSameWhereverItIsCut: names, usage and fingerprints are put right in each.
func TestAChangedStreamIsTheSameWhereverItIsCut(t *testing.T) {
	more := map[string]string{
		"all that changes": "data: {\"model\":\"served\",\"choices\":[{\"delta\":{\"content\":\"世\"}}],\"usage\":null}\n\n" +
			"data: {\"model\":\"served\",\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
	}
	for name, stream := range streams {
		more[name] = strings.ReplaceAll(stream, `"choices"`, `"model":"served","choices"`)
	}
	for name, stream := range more {
		t.Run(name, func(t *testing.T) {
			want := relayed(t, []byte(stream), len(stream), true)
			if bytes.Contains(want, []byte(`"served"`)) && !strings.Contains(name, "JSON") && !strings.Contains(name, "lines") && !strings.Contains(name, "byte order") {
				t.Errorf("the engine's name got out: %q", want)
			}
			for at := range len(stream) + 1 {
				if got := relayed(t, []byte(stream), at, true); !bytes.Equal(got, want) {
					t.Fatalf("cut at %d\n got %q\nwant %q", at, got, want)
				}
			}
		})
	}
	const plain = "data: {\"system_fingerprint\":\"llm-1@4f2b\",\"model\":\"mine\",\"choices\":[{\"delta\":{\"content\":\"世\"}}]}\n\ndata: [DONE]\n\n"
	if got := relayed(t, []byte(more["all that changes"]), 10, true); string(got) != plain {
		t.Errorf("got %q\nwant %q", got, plain)
	}
}

// TestFramesOfMegabytesPass, at cuts about their borders, and beyond what is kept of one.
func TestFramesOfMegabytesPass(t *testing.T) {
	for name, size := range map[string]int{"more than 1 MB": 1<<20 + 3, "more than is kept of a frame": maxFrame + 3} {
		t.Run(name, func(t *testing.T) {
			stream := []byte("data: {}\n\ndata: {\"a\":\"" + strings.Repeat("世", size/3) + "\"}\n\ndata: [DONE]\n\n")
			for _, at := range []int{0, 1, 9, 10, 11, 64 << 10, 64<<10 + 1, 1 << 20, len(stream) - 16, len(stream) - 15, len(stream) - 14, len(stream)} {
				if got := relayed(t, stream, at, false); !bytes.Equal(got, stream) {
					t.Errorf("cut at %d: %d bytes of %d", at, len(got), len(stream))
				}
			}
		})
	}
}

// FuzzRelay: an untouched stream comes as it was sent wherever it is cut, and a changed one says the same
// wherever it is cut, in frames of JSON where the engine's were.
func FuzzRelay(f *testing.F) {
	for _, stream := range streams {
		f.Add([]byte(stream), 7)
	}
	f.Add([]byte("data: {\"a\":\""+strings.Repeat("世", 400_000)+"\"}\n\n"), 1<<20)
	f.Fuzz(func(t *testing.T, stream []byte, at int) {
		if at < 0 || at > len(stream) {
			at = len(stream)
		}
		if got := relayed(t, stream, at, false); !bytes.Equal(got, stream) {
			t.Fatalf("cut at %d: %q became %q", at, stream, got)
		}
		whole := relayed(t, stream, len(stream), true)
		if got := relayed(t, stream, at, true); !bytes.Equal(got, whole) {
			t.Fatalf("cut at %d: %q, and whole %q", at, got, whole)
		}
		if !framesAreJSON(stream) {
			return
		}
		if !framesAreJSON(whole) {
			t.Fatalf("%q became %q", stream, whole)
		}
	})
}

// framesAreJSON reports whether all data of a stream is JSON, or the end.
func framesAreJSON(stream []byte) bool {
	ok := true
	var frames openai.Frames
	look := func(frame []byte) error {
		data, _ := openai.Data(frame)
		ok = ok && (len(data) == 0 || string(data) == openai.Done || json.Valid(data))
		return nil
	}
	_ = frames.Feed(bytes.Clone(stream), look)
	_ = look(frames.Rest())
	return ok
}

// cutWriter is a client that is gone, whose connection reads on in what it was given.
type cutWriter struct {
	*httptest.ResponseRecorder
	given []byte
}

func (w *cutWriter) Write(p []byte) (int, error) {
	w.given = p
	return 0, http.ErrAbortHandler
}

// TestAFrameThatCouldNotBeWrittenIsLeftAlone, for a server of HTTP/2 may read it a moment later.
func TestAFrameThatCouldNotBeWrittenIsLeftAlone(t *testing.T) {
	w := &cutWriter{ResponseRecorder: httptest.NewRecorder()}
	x := &exchange{g: &Gateway{}, w: w, start: time.Now()}
	x.ask = &asked{call: openai.Call{Op: openai.Chat}, model: "mine", dressed: dress{model: "served"}}
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	x.g.metrics = m
	x.target = &target{Target: &route.Target{}, metrics: m.of(targetKey{})}
	r := newRelay(x)
	if err := r.frame([]byte("data: {\"model\":\"served\",\"choices\":[]}\n\n")); err == nil {
		t.Fatal("the client is gone")
	}
	want := string(w.given)
	for range 8 {
		b := *framesMade.Get().(*[]byte)
		clear(b[:cap(b)])
	}
	if string(w.given) != want || !strings.Contains(want, "mine") {
		t.Errorf("%q became %q", want, w.given)
	}
}
