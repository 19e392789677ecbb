package openai_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"stationmaster.dev/stationmaster/internal/wire/openai"
)

func TestAPromptIsReadElsewhere(t *testing.T) {
	const remote = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	for name, tc := range map[string]struct{ body, model, want string }{
		"a stream with its options": {
			` { "model":"m", "stream": true,"stream_options":{"include_usage":true},"messages":[{"content":"{"}],"max_completion_tokens":90,"min_tokens":5}`, "",
			`{"model":"m","stream":false,"stream_options":null,"messages":[{"content":"{"}],"max_completion_tokens":1,"min_tokens":0,` + remote + `}`,
		},
		"no bound, and another name":                {`{"prompt":"x","model":"m"}`, "p", `{"prompt":"x","model":"p","max_tokens":1,` + remote + `}`},
		"what is to be transferred is said already": {`{"prompt":"x","kv_transfer_params":null}`, "", ""},
		"no object":     {`[1]`, "", ""},
		"an empty one":  {`{ }`, "", ""},
		"cut off":       {`{"prompt":"x"`, "", ""},
		"more behind":   {`{"prompt":"x"} 1`, "", ""},
		"bound by both": {`{"max_tokens":7,"max_completion_tokens":8,"prompt":"x"}`, "", `{"max_tokens":1,"max_completion_tokens":1,"prompt":"x",` + remote + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := openai.Prefill([]byte(tc.body), tc.model)
			if ok != (tc.want != "") || ok && !equal(t, string(got), tc.want) {
				t.Errorf("%v %s", ok, got)
			}
		})
	}
}

func TestAnEngineGoesOnFromWhatAnotherRead(t *testing.T) {
	params := openai.Transferred([]byte(`{"id":"1","kv_transfer_params": {"remote_block_ids":[1,2],"remote_port":5} ,"choices":[]}`))
	got := openai.Decode([]byte(" { \"prompt\":\"x\",\"stream\":true}"), params)
	if want := `{"prompt":"x","stream":true,"kv_transfer_params":{"remote_block_ids":[1,2],"remote_port":5}}`; !equal(t, string(got), want) {
		t.Errorf("%s", got)
	}
	for _, nothing := range []string{`{}`, `{"kv_transfer_params":null}`, `{"kv_transfer_params":"x"}`, `{"kv_transfer_params":{}`, `no`} {
		if p := openai.Transferred([]byte(nothing)); p != nil {
			t.Errorf("of %s: %s", nothing, p)
		}
	}
}

func equal(tb testing.TB, a, b string) bool {
	tb.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		tb.Errorf("%s: %v", a, err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		tb.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

func FuzzPrefill(f *testing.F) {
	f.Add([]byte(`{"model":"m","stream":true,"max_tokens":3}`), []byte(`{"kv_transfer_params":{"a":1}}`))
	f.Fuzz(func(t *testing.T, body, answer []byte) {
		got, ok := openai.Prefill(body, "")
		if !ok {
			return
		}
		if _, again := openai.Prefill(got, ""); again {
			t.Errorf("%s has nothing to transfer", got)
		}
		if params := openai.Transferred(answer); params != nil {
			if back := openai.Transferred(openai.Decode(body, params)); string(back) != string(params) {
				t.Errorf("%s became %s", params, back)
			}
		}
	})
}
