package pick

import (
	"errors"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
)

func TestPoliciesAreReadAsTheyAreWritten(t *testing.T) {
	mix := func(bound float64, weights map[Scorer]float64) Policy {
		p := Policy{Bound: bound}
		for s, w := range weights {
			p.Weights[s] = w
		}
		return p
	}
	tests := map[string]struct {
		text     string
		language bool
		want     Policy
	}{
		"nothing, for tensors":           {"", false, mix(DefaultBound, map[Scorer]float64{LeastRequests: 1})},
		"nothing, for a language model":  {" ", true, mix(DefaultBound, map[Scorer]float64{Prefix: 3, LeastTokens: 1, LoRA: 2})},
		"the default by its name":        {"default", true, ForLanguage()},
		"one scorer":                     {"round-robin", true, mix(DefaultBound, map[Scorer]float64{RoundRobin: 1})},
		"a mix with weights and a bound": {" prefix = 3,least-tokens, kv-cache=0.5 ,bound=1.1", false, mix(1.1, map[Scorer]float64{Prefix: 3, LeastTokens: 1, KVCache: .5})},
		"a session by a header":          {"session,header=X-User", false, Policy{Weights: [scorers]float64{Session: 1}, Bound: DefaultBound, Header: "X-User"}},
		"a session by a cookie":          {"queue,session=2,cookie=sid", false, Policy{Weights: [scorers]float64{Session: 2, Queue: 1}, Bound: DefaultBound, Cookie: "sid"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.text, tc.language)
			if err != nil || got != tc.want {
				t.Fatalf("got %+v, %v; want %+v", got, err, tc.want)
			}
			if again, err := Parse(got.String(), !tc.language); err != nil || again != got {
				t.Errorf("read again from %q: %+v, %v", got.String(), again, err)
			}
		})
	}
}

func TestPoliciesThatCannotBeReadSayWhatThereIs(t *testing.T) {
	for text, want := range map[string]string{
		"fastest":                     "round-robin, least-requests, least-tokens, session, prefix, kv-cache, queue, lora",
		"prefix,prefix=2":             `"prefix" is there twice`,
		"prefix=0":                    "must be a number above 0",
		"prefix=NaN":                  "must be a number above 0",
		"prefix=":                     "must be a number above 0",
		"prefix, bound=0.9":           "from 1 to 100",
		"prefix, bound=NaN":           "from 1 to 100",
		"bound=2":                     "name at least one of",
		"prefix, header=X-User":       "name it, too",
		"session, header=a, cookie=b": "not both",
		"session, header=a b":         "needs a name",
		"prefix,,queue":               `there is no ""`,
	} {
		_, err := Parse(text, true)
		if !errors.Is(err, errdef.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want one that has %q", text, err, want)
		}
	}
}

func TestSessionsAreToldApart(t *testing.T) {
	headers := map[string]string{"X-Session-Id": "a", "X-User": "b", "Cookie": "x=1; sid=\"c\""}
	get := func(name string) string { return headers[name] }
	for text, want := range map[string]uint64{
		"session":                  Hash("a"),
		"session, header=X-User":   Hash("b"),
		"session, header=X-Absent": 0,
		"session, cookie=sid":      Hash("c"),
		"session, cookie=id":       0,
		"prefix":                   0,
	} {
		p, err := Parse(text, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.SessionOf(get); got != want {
			t.Errorf("%s: %x, want %x", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("prefix=3, least-tokens, bound=1.25")
	f.Add("session, cookie=a")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text, true)
		if err != nil {
			return
		}
		if again, err := Parse(p.String(), false); err != nil || again != p {
			t.Errorf("%q became %q: %+v, %v", text, p.String(), again, err)
		}
	})
}
