package modellist_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/modellist"
)

func TestAListThatIsNoListIsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"no JSON":        {"{", "isn't JSON"},
		"no name":        {`[{"modelSpec":{"storageUri":"x"}}]`, "entry 1"},
		"no place":       {`[{"modelName":"a"}]`, "entry 1"},
		"a name twice":   {`[{"modelName":"a","modelSpec":{"storageUri":"x"}},{"modelName":"a","modelSpec":{"storageUri":"y"}}]`, `"a" twice`},
		"a size in ells": {`[{"modelName":"a","modelSpec":{"storageUri":"x","memory":"3ells"}}]`, "no number of bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := modellist.Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAListIsReadWhole(t *testing.T) {
	got, err := modellist.Parse([]byte(`[{"modelName":"a","modelSpec":{"storageUri":"x","framework":"onnx","memory":"1Mi"}},{"modelName":"b","modelSpec":{"storageUri":"y"}}]`))
	want := []modellist.Model{{Name: "a", URI: "x", Framework: "onnx", Memory: 1 << 20}, {Name: "b", URI: "y"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTheListOfModelsIsKServes(t *testing.T) {
	got, err := modellist.Encode([]modellist.Model{{Name: "b", URI: "https://x/b", Framework: "onnx", Memory: 1 << 20}, {Name: "a", URI: "/a", Framework: "onnx", Memory: 256}})
	want := `[{"modelName":"a","modelSpec":{"storageUri":"/a","framework":"onnx","memory":"256"}},{"modelName":"b","modelSpec":{"storageUri":"https://x/b","framework":"onnx","memory":"1048576"}}]`
	if err != nil || got != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	if got, err := modellist.Encode(nil); err != nil || got != "[]" {
		t.Errorf("no models: %s, %v", got, err)
	}
}

func TestBytesAreReadAsKubernetesWritesThem(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "1Ki": 1024, "64Mi": 64 << 20, "2Gi": 2 << 30, "1Ti": 1 << 40, "3k": 3000, "5M": 5e6, "1G": 1e9, "1T": 1e12} {
		if got, err := modellist.ParseBytes(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "Mi", "1.5Gi", "1Ei", "9000000000Gi", "1KiKi", "1 Mi"} {
		if n, err := modellist.ParseBytes(text); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"modelName":"a","modelSpec":{"storageUri":"x","framework":"onnx","memory":"1Mi"}}]`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		models, err := modellist.Parse(raw)
		seen := map[string]bool{}
		for _, m := range models {
			if err != nil || m.Name == "" || m.URI == "" || m.Memory < 0 || seen[m.Name] {
				t.Errorf("%+v, %v", m, err)
			}
			seen[m.Name] = true
		}
	})
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"models":[{"name":"a","uri":"file:///a","state":"Failed","reason":"ModelNotFetched","message":"gone","serves":true}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := modellist.ParseReport(raw)
		if err != nil {
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := modellist.ParseReport(text); err != nil || len(again.Models) != len(r.Models) {
			t.Errorf("%s reads as %+v, %v", text, again, err)
		}
	})
}
