package frame

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"stationmaster.dev/stationmaster/api/oip"
)

// of is a frame whose bytes came in two buffers.
func of(b []byte, cut int) *Frame {
	cut = min(max(cut, 0), len(b))
	return &Frame{mem.BufferSlice{mem.SliceBuffer(b[:cut]), mem.SliceBuffer(b[cut:])}}
}

func TestTheNameIsFoundWhereverBuffersEnd(t *testing.T) {
	b, err := proto.Marshal(&oip.ModelInferRequest{ModelName: "iris", ModelVersion: "2", Id: "r"})
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(b) + 1 {
		if got, err := of(b, cut).Field(1); got != "iris" || err != nil {
			t.Errorf("cut at %d: %q, %v", cut, got, err)
		}
	}
	if got, err := new(Frame).Field(1); got != "" || err != nil {
		t.Errorf("an empty message: %q, %v", got, err)
	}
	for _, bad := range []string{"\x0a\x04ir", "\xff", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		if _, err := of([]byte(bad), 1).Field(1); err == nil || !strings.Contains(err.Error(), "protobuf") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOverriddenNamesAreWhatEnginesRead(t *testing.T) {
	b, err := proto.Marshal(&oip.ModelInferRequest{ModelName: "public", Id: "r"})
	if err != nil {
		t.Fatal(err)
	}
	f := of(b, 3)
	f.Override(1, "own")
	var got oip.ModelInferRequest
	if err := proto.Unmarshal(f.Take(), &got); err != nil || got.GetModelName() != "own" || got.GetId() != "r" {
		t.Errorf("%v, %v", &got, err)
	}
}

func TestAPeekLeavesTheMessageWhole(t *testing.T) {
	f := of([]byte("abcdef"), 2)
	for most, want := range map[int]string{0: "", 1: "a", 3: "abc", 6: "abcdef", 9: "abcdef"} {
		if got := string(f.Peek(most)); got != want || f.Len() != 6 {
			t.Errorf("the first %d bytes of %d are %q, want %q", most, f.Len(), got, want)
		}
	}
	if got := string(Of([]byte("xy")).Take()); got != "xy" {
		t.Errorf("a frame of bytes has %q", got)
	}
	if f.Free(); f.Len() != 0 {
		t.Errorf("%d bytes are left", f.Len())
	}
}

func FuzzField(f *testing.F) {
	f.Add([]byte("\x0a\x04iris"), "iris", 3)
	f.Add([]byte("\x12\x01a\x0a\x04iris"), "", 0)
	f.Add([]byte("\xff\xff"), "ü", 1)
	f.Fuzz(func(t *testing.T, raw []byte, name string, cut int) {
		_, _ = of(raw, cut).Field(1)
		if !utf8.ValidString(name) {
			return
		}
		b, err := proto.Marshal(&oip.ModelInferRequest{ModelName: name, Id: "r"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := of(b, cut).Field(1); got != name || err != nil {
			t.Errorf("%q cut at %d: %q, %v", name, cut, got, err)
		}
	})
}
