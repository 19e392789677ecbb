// Command gatewaycost measures what the gateway costs per request, beside nginx's proxy_pass
// and a bare httputil.ReverseProxy, all before the same engine. Each proxy is a process of
// its own on one core; the engine and the client share the other. It writes JSON.
//
// Rounds are interleaved (direct, gateway, nginx, reverse proxy, again in another order), so
// that what else the machine does falls on all alike; the medians over rounds are reported.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
	"stationmaster.dev/stationmaster/test/bench/proc"
)

func main() {
	var (
		role     = flag.String("role", "", "internal: engine, gateway or reverseproxy")
		addr     = flag.String("addr", "", "internal: the engine's address")
		out      = flag.String("out", "bench/results/gateway.json", "where the result goes")
		rounds   = flag.Int("rounds", 15, "rounds per proxy and size")
		requests = flag.Int("requests", 1500, "requests per round")
		size     = flag.Int("size", 0, "measure this body size only, in bytes")
		profile  = flag.String("cpuprofile", "", "file for a CPU profile of the gateway")
	)
	flag.Parse()
	bodies := []int{1 << 10, 128 << 10}
	if *size > 0 {
		bodies = []int{*size}
	}
	var err error
	switch *role {
	case "":
		err = measure(*out, *rounds, *requests, *profile, bodies)
	case "engine":
		err = proc.Serve(echo(), 1)
	case "gateway":
		err = serveGateway(*addr, *profile)
	case "reverseproxy":
		err = proc.Serve(reverseProxy(*addr), 1)
	default:
		err = fmt.Errorf("unknown role %q", *role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gatewaycost:", err)
		os.Exit(1)
	}
}

// echo answers with the body that came, as an inference on a tensor of equal size would.
func echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
}

// reverseProxy is the bare one. Full duplex keeps net/http from closing a large body while the
// transport still looks for its end, which fails requests on one core.
func reverseProxy(engine string) http.Handler {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		p.ServeHTTP(w, r)
	})
}

func serveGateway(engine, profile string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	table := new(state.Topic[route.Table])
	table.Publish(route.Compile([]route.Service{{
		Key:        spec.ServiceKey{Namespace: "default", Name: "iris"},
		Hosts:      []route.Host{{Name: "iris-default.localhost"}},
		PathPrefix: "/serving/default/iris",
		BareNames:  []string{"iris"},
		Entry:      spec.Predictor,
		Components: map[spec.Component]route.Backend{spec.Predictor: {Targets: []route.Target{{
			Revision: "iris-00001", Weight: 100, Digest: "sha256:" + strings.Repeat("0", 64), ModelName: "iris",
			Protocols: []spec.Protocol{spec.V2}, Endpoints: []route.Endpoint{{Replica: "iris-0", HTTP: engine}},
		}}}},
	}}))
	g, err := gateway.New(gateway.Config{HTTP: l, Table: table, Metrics: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return g.Run(ctx)
}

// result of one proxy at one size.
type result struct {
	Proxy string `json:"proxy"`
	// Microseconds, medians over rounds.
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	// Added over direct rounds beside them.
	AddedP50us float64 `json:"added_p50_us"`
	AddedP99us float64 `json:"added_p99_us"`
	// CPU time of the proxying process per request, user and system.
	CPUus float64 `json:"cpu_us_per_request"`
	// UserShare is the part of it spent outside the kernel, 0 to 1.
	UserShare float64 `json:"cpu_user_share"`
}

type sizeResult struct {
	BodyBytes int      `json:"body_bytes"`
	Results   []result `json:"results"`
	// Ratios of the gateway's numbers to the others'.
	CPUOfNginx        float64 `json:"cpu_of_nginx"`
	CPUOfReverseProxy float64 `json:"cpu_of_reverse_proxy"`
	AddedP50OfNginx   float64 `json:"added_p50_of_nginx"`
	AddedP99OfNginx   float64 `json:"added_p99_of_nginx"`
}

type report struct {
	Time     time.Time `json:"time"`
	Go       string    `json:"go"`
	CPUs     int       `json:"cpus"`
	Pinned   bool      `json:"pinned"`
	Nginx    string    `json:"nginx"`
	Rounds   int       `json:"rounds"`
	Requests int       `json:"requests_per_round"`
	Clients  int       `json:"clients"`
	// Load averages over a minute before and after: a busy machine makes all of them dear.
	LoadBefore string       `json:"load_before"`
	LoadAfter  string       `json:"load_after"`
	Sizes      []sizeResult `json:"sizes"`
}

func measure(out string, rounds, requests int, profile string, bodies []int) error {
	pinned := runtime.NumCPU() >= 2
	front, back := 0, 0
	if pinned {
		back = 1
		if err := proc.Pin(0, back); err != nil {
			return err
		}
	}
	engine, err := proc.Spawn("engine", back, os.Args[0], "-role", "engine")
	if err != nil {
		return err
	}
	defer engine.Stop()
	gw, err := proc.Spawn("stationmaster", front, os.Args[0], "-role", "gateway", "-addr", engine.Addr, "-cpuprofile", profile)
	if err != nil {
		return err
	}
	defer gw.Stop()
	rp, err := proc.Spawn("reverseproxy", front, os.Args[0], "-role", "reverseproxy", "-addr", engine.Addr)
	if err != nil {
		return err
	}
	defer rp.Stop()
	ng, err := proc.SpawnNginx(front, engine.Addr, proc.NginxBuffers)
	if err != nil {
		return err
	}
	defer ng.Stop()
	rep := report{
		Time: time.Now().UTC(), Go: runtime.Version(), CPUs: runtime.NumCPU(), Pinned: pinned,
		Nginx: proc.NginxVersion(), Rounds: rounds, Requests: requests, Clients: 1,
		LoadBefore: proc.Load(),
	}
	direct := &proc.Process{Name: "direct", Addr: engine.Addr}
	for _, size := range bodies {
		n := requests
		if size > 64<<10 {
			n = max(requests/3, 200)
		}
		s, err := compare([]*proc.Process{direct, gw, ng, rp}, size, rounds, n)
		if err != nil {
			return err
		}
		rep.Sizes = append(rep.Sizes, s)
		print(s)
	}
	rep.LoadAfter = proc.Load()
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

func print(s sizeResult) {
	fmt.Printf("%d bytes: gateway/nginx cpu %.2f, added p50 %.2f, added p99 %.2f; gateway/reverseproxy cpu %.2f\n",
		s.BodyBytes, s.CPUOfNginx, s.AddedP50OfNginx, s.AddedP99OfNginx, s.CPUOfReverseProxy)
	for _, r := range s.Results {
		fmt.Printf("  %-14s p50 %7.1f  p99 %7.1f  added %7.1f %7.1f  cpu %6.1f µs, %2.0f %% user\n",
			r.Proxy, r.P50us, r.P99us, r.AddedP50us, r.AddedP99us, r.CPUus, 100*r.UserShare)
	}
}

// compare runs all proxies round by round, in an order that changes.
func compare(proxies []*proc.Process, size, rounds, requests int) (sizeResult, error) {
	type samples struct{ p50, p99, added50, added99, cpu []float64 }
	all := make([]samples, len(proxies))
	clients := make([]*client, len(proxies))
	for i, p := range proxies {
		c, err := dial(p.Addr, size)
		if err != nil {
			return sizeResult{}, err
		}
		defer c.close()
		clients[i] = c
		if _, err := c.round(requests); err != nil { // warm up
			return sizeResult{}, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	ticks := make([][2]float64, len(proxies))
	for i, p := range proxies {
		ticks[i] = p.Ticks()
	}
	for range rounds {
		var p50, p99 [8]float64
		for _, i := range rand.Perm(len(proxies)) {
			before := proxies[i].CPU()
			took, err := clients[i].round(requests)
			if err != nil {
				return sizeResult{}, fmt.Errorf("%s: %w", proxies[i].Name, err)
			}
			cpu := proxies[i].CPU() - before
			slices.Sort(took)
			p50[i], p99[i] = us(took[len(took)/2]), us(took[len(took)*99/100])
			all[i].cpu = append(all[i].cpu, us(cpu)/float64(requests))
		}
		for i := range proxies {
			all[i].p50 = append(all[i].p50, p50[i])
			all[i].p99 = append(all[i].p99, p99[i])
			all[i].added50 = append(all[i].added50, p50[i]-p50[0])
			all[i].added99 = append(all[i].added99, p99[i]-p99[0])
		}
	}
	s := sizeResult{BodyBytes: size}
	for i, p := range proxies {
		s.Results = append(s.Results, result{
			Proxy: p.Name, P50us: median(all[i].p50), P99us: median(all[i].p99),
			AddedP50us: median(all[i].added50), AddedP99us: median(all[i].added99), CPUus: median(all[i].cpu),
			UserShare: userShare(ticks[i], p.Ticks()),
		})
	}
	gw, ng, rp := s.Results[1], s.Results[2], s.Results[3]
	s.CPUOfNginx, s.CPUOfReverseProxy = round2(gw.CPUus/ng.CPUus), round2(gw.CPUus/rp.CPUus)
	s.AddedP50OfNginx, s.AddedP99OfNginx = round2(gw.AddedP50us/ng.AddedP50us), round2(gw.AddedP99us/ng.AddedP99us)
	return s, nil
}

func us(d time.Duration) float64 { return math.Round(float64(d)/100) / 10 }

func round2(f float64) float64 { return math.Round(f*100) / 100 }

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// client is one keep-alive connection that costs little itself.
type client struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
	body    []byte
}

func dial(addr string, size int) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	head := fmt.Sprintf("POST /v2/models/iris/infer HTTP/1.1\r\nHost: %s\r\nUser-Agent: gatewaycost\r\n"+
		"Accept: */*\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", addr, size)
	return &client{conn: conn, r: bufio.NewReaderSize(conn, 256<<10), request: append([]byte(head), body...), body: make([]byte, size)}, nil
}

func (c *client) close() { _ = c.conn.Close() }

func (c *client) round(n int) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	for i := range took {
		start := time.Now()
		if err := c.once(); err != nil {
			return nil, err
		}
		took[i] = time.Since(start)
	}
	return took, nil
}

func (c *client) once() error {
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		return fmt.Errorf("answer %q", line)
	}
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
	}
	_, err = io.ReadFull(c.r, c.body)
	return err
}

func userShare(before, after [2]float64) float64 {
	user, system := after[0]-before[0], after[1]-before[1]
	if user+system == 0 {
		return 0
	}
	return round2(user / (user + system))
}
