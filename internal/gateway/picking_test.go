package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// fleet is a service of n replicas that say their names, and are picked by a policy.
func fleet(tb testing.TB, name, policy string, n int, h func(replica string) http.HandlerFunc) route.Service {
	tb.Helper()
	var endpoints []route.Endpoint
	for i := range n {
		replica := fmt.Sprintf("%s-%d", name, i)
		endpoints = append(endpoints, route.Endpoint{Replica: replica, HTTP: engine(tb, h(replica))})
	}
	s := llm(name, "/", name, endpoints...)
	s.Components[spec.Predictor].Targets[0].Picking = policy
	return s
}

// speaks says its name.
func speaks(replica string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"index":0,"text":%q}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`, replica)
	}
}

var saidName = regexp.MustCompile(`"m-\d"`)

func TestPoliciesHaveTheirEffect(t *testing.T) {
	words := func(seed string) string { return strings.Repeat(seed+" lorem ipsum ", 60) }
	chat := func(model, text string, turns int) string {
		messages := fmt.Sprintf(`{"role":"system","content":%q}`, text)
		for i := range turns {
			messages += fmt.Sprintf(`,{"role":"user","content":"%d %s"}`, i, text)
		}
		return fmt.Sprintf(`{"model":%q,"messages":[%s],"max_tokens":10}`, model, messages)
	}
	tests := map[string]struct {
		policy string
		// ask is the i-th request of talk.
		ask func(g *running, talk, i int) *http.Request
		// stays says whether each talk is at one replica.
		stays bool
	}{
		"prompts that go on, in chats": {"prefix", func(g *running, talk, i int) *http.Request {
			return request(t, http.MethodPost, g.url("/v1/chat/completions"), chat("m", words(string(rune('a'+talk))), i+1))
		}, true},
		"the default for language models": {"", func(g *running, talk, i int) *http.Request {
			return request(t, http.MethodPost, g.url("/v1/chat/completions"), chat("m", words(string(rune('a'+talk))), i+1))
		}, true},
		"prompts that go on, in completions": {"prefix, least-tokens", func(g *running, talk, i int) *http.Request {
			return request(t, http.MethodPost, g.url("/v1/completions"), fmt.Sprintf(`{"model":"m","prompt":%q}`, strings.Repeat(words(string(rune('a'+talk))), i+1)))
		}, true},
		"prompts that go on, over V2": {"prefix", func(g *running, talk, i int) *http.Request {
			return request(t, http.MethodPost, g.url("/v2/models/m/generate"), fmt.Sprintf(`{"text_input":%q,"parameters":{"max_tokens":5}}`, strings.Repeat(words(string(rune('a'+talk))), i+1)))
		}, true},
		"a session by its header": {"session, header=X-User", func(g *running, talk, i int) *http.Request {
			r := request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"m","prompt":"x"}`)
			r.Header.Set("X-User", fmt.Sprint("user", talk))
			return r
		}, true},
		"a session by its cookie": {"session, cookie=sid", func(g *running, talk, i int) *http.Request {
			r := request(t, http.MethodPost, g.url("/v2/models/m/generate"), `{"text_input":"x"}`)
			r.AddCookie(&http.Cookie{Name: "sid", Value: fmt.Sprint(talk)})
			return r
		}, true},
		"adapters": {"lora", func(g *running, talk, i int) *http.Request {
			r := request(t, http.MethodPost, g.url("/v1/completions"), fmt.Sprintf(`{"model":"adapter%d","prompt":"x"}`, talk))
			r.Host = "m-default.localhost"
			return r
		}, true},
		"one after the other": {"round-robin", func(g *running, talk, i int) *http.Request {
			return request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"m","prompt":"x"}`)
		}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			const talks, turns, replicas = 13, 4, 4
			g := start(t, nil, fleet(t, "m", tc.policy, replicas, speaks))
			c := client(t)
			home, all := map[int]map[string]bool{}, map[string]bool{}
			for i := range turns {
				for talk := range talks {
					a := do(t, c, tc.ask(g, talk, i))
					replica := saidName.FindString(a.body)
					if a.StatusCode != http.StatusOK || replica == "" {
						t.Fatalf("%d %s", a.StatusCode, a.body)
					}
					if home[talk] == nil {
						home[talk] = map[string]bool{}
					}
					home[talk][replica], all[replica] = true, true
				}
			}
			for talk, at := range home {
				if stayed := len(at) == 1; stayed != tc.stays && (tc.stays || len(at) != replicas) {
					t.Errorf("talk %d was at %v", talk, at)
				}
			}
			if len(all) < 2 {
				t.Errorf("all went to %v", all)
			}
		})
	}
}

// What fails is left out, and gets one request when it is time.
func TestAReplicaThatAnswersWithErrorsIsLeftOut(t *testing.T) {
	var bad, good atomic.Int64
	g := start(t, nil, fleet(t, "m", "round-robin", 3, func(replica string) http.HandlerFunc {
		if replica != "m-1" {
			return func(w http.ResponseWriter, r *http.Request) { good.Add(1); speaks(replica)(w, r) }
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			bad.Add(1)
			http.Error(w, `{"error":"no"}`, http.StatusInternalServerError)
		}
	}))
	c := client(t)
	const n = 60
	for range n {
		do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"m","prompt":"x"}`))
	}
	// Five in a row, and a try now and then on a machine that is slow.
	if got := bad.Load(); got < 5 || got > 10 {
		t.Errorf("it got %d of %d requests, and the others %d", got, n, good.Load())
	}
}

// A body that isn't one is told so by who reads it, whatever replicas are picked by.
func TestBodiesThatCannotBeReadArePassedOn(t *testing.T) {
	g := start(t, nil, fleet(t, "m", "prefix", 2, func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %v", b, err)
		}
	}))
	c := client(t)
	for _, body := range []string{"", "{", `{"text_input":`, `{"text_input":5}`, `[]`, strings.Repeat("x", 100_000)} {
		for _, length := range []int64{int64(len(body)), -1} {
			r := request(t, http.MethodPost, g.url("/v2/models/m/generate"), body)
			r.Host = "m-default.localhost"
			if body != "" {
				r.ContentLength = length
			}
			if a := do(t, c, r); a.StatusCode != http.StatusBadRequest {
				t.Errorf("%.20q: %d %.100s", body, a.StatusCode, a.body)
			}
		}
	}
}

// A request that got nothing from an engine that died over it is made once at another replica, and
// no answer that has begun is.
func TestWhatAnEngineDiedOverIsMadeElsewhereOnce(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 20_000)
	tests := map[string]struct {
		path, body, reply string
		want              int
		tries             int64
	}{
		"a chat":                 {"/v1/chat/completions", `{"model":"m","messages":[]}`, "", http.StatusOK, 1},
		"one with a long prompt": {"/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[%q]}`, long), "", http.StatusOK, 1},
		"an infer request":       {"/v2/models/m/infer", `{}`, "", http.StatusOK, 1},
		"a translated one":       {"/v2/models/m/generate", fmt.Sprintf(`{"text_input":%q}`, long), "", http.StatusOK, 1},
		"in the midst of a head": {"/v1/completions", `{"model":"m"}`, "HTTP/1.1 200 OK\r\nConte", http.StatusOK, 1},
		"another path":           {"/serving/default/m/reload", `{}`, "", http.StatusBadGateway, 1},
		"an answer has begun":    {"/v1/completions", `{"model":"m"}`, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", http.StatusBadGateway, 1},
		"an answer with errors":  {"/v1/completions", `{"model":"m"}`, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno", http.StatusServiceUnavailable, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var dead, alive atomic.Int64
			s := fleet(t, "m", "round-robin", 1, func(replica string) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					alive.Add(1)
					b, err := io.ReadAll(r.Body)
					if err != nil || int64(len(b)) != r.ContentLength {
						t.Errorf("%d bytes of %d came: %v", len(b), r.ContentLength, err)
					}
					speaks(replica)(w, r)
				}
			})
			target := &s.Components[spec.Predictor].Targets[0]
			target.Endpoints = append([]route.Endpoint{{Replica: "dying", HTTP: rawEngine(t, func(c net.Conn, in *bufio.Reader) {
				if readRequest(in) == nil {
					dead.Add(1)
					_, _ = io.WriteString(c, tc.reply)
				}
			})}}, target.Endpoints...)
			if strings.HasSuffix(tc.path, "infer") {
				target.OpenAI = ""
			}
			g := start(t, nil, s)
			// The first one's turn is the dying one's.
			a := do(t, client(t), request(t, http.MethodPost, g.url(tc.path), tc.body))
			if a.StatusCode != tc.want || dead.Load() != tc.tries {
				t.Errorf("%d after %d tries at what died, want %d: %.200s", a.StatusCode, dead.Load(), tc.want, a.body)
			}
			if tc.want == http.StatusOK && alive.Load() != 1 {
				t.Errorf("it was made %d times elsewhere", alive.Load())
			}
			if tc.want != http.StatusOK && alive.Load() != 0 {
				t.Errorf("it was made elsewhere, too")
			}
		})
	}
}

func TestWhatEveryReplicaDiesOverIsMadeTwice(t *testing.T) {
	var tries atomic.Int64
	dying := func() string {
		return rawEngine(t, func(_ net.Conn, in *bufio.Reader) {
			if readRequest(in) == nil {
				tries.Add(1)
			}
		})
	}
	s := llm("m", "/", "m", route.Endpoint{Replica: "a", HTTP: dying()}, route.Endpoint{Replica: "b", HTTP: dying()}, route.Endpoint{Replica: "c", HTTP: dying()})
	g := start(t, nil, s)
	a := do(t, client(t), request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"m"}`))
	if a.StatusCode != http.StatusBadGateway || tries.Load() != 2 {
		t.Errorf("%d after %d tries: %s", a.StatusCode, tries.Load(), a.body)
	}
}

func TestWhatEnginesTellIsHeeded(t *testing.T) {
	s := fleet(t, "m", "kv-cache, queue", 2, speaks)
	var samples state.Topic[pick.Samples]
	g := start(t, func(c *gateway.Config) { c.Samples = &samples }, s)
	c := client(t)
	ends := s.Components[spec.Predictor].Targets[0].Endpoints
	for full := range ends {
		samples.Publish(&pick.Samples{
			ends[full].HTTP:   {At: time.Now(), KVUse: .9, Waiting: 3},
			ends[1-full].HTTP: {At: time.Now(), KVUse: .1},
		})
		// It takes the gateway a moment to read it.
		for right, tries := 0, 0; right < 20; tries++ {
			a := do(t, c, request(t, http.MethodPost, g.url("/v1/completions"), `{"model":"m"}`))
			if right++; !strings.Contains(a.body, fmt.Sprintf("m-%d\"", 1-full)) {
				right = 0
			}
			if tries > 20_000 {
				t.Fatal("the one with more in its cache still gets requests")
			}
		}
	}
}
