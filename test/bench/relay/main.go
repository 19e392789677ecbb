// Command relay measures what the gateway costs on the way of language models' requests, beside
// nginx's proxy_pass and a bare httputil.ReverseProxy, and going straight to the engine:
//
//   - frames: what is added to the first byte of a stream, and each frame's cost, one client at a time;
//   - streams: thousands of streams at once, how many of them are whole, and the memory of each;
//   - prompts: chat requests of 220 KB to four engines that take no time, at growing numbers of clients;
//   - idle: the gateway's CPU with a hundred replicas that it knows and looks at.
//
// Each proxy is a process of its own on one core; engines and clients share the other. What is
// compared is measured in turns, in an order that changes, and medians over rounds are told. It
// writes JSON, and a table to standard output.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/test/bench/proc"
)

// plan is how much is measured.
type plan struct {
	Rounds int `json:"rounds"`
	// Requests and Frames are those of a round of "frames": requests of one frame for the first byte,
	// and the length of the stream that tells the cost of a frame.
	Requests int `json:"requests"`
	Frames   int `json:"frames"`
	// Streams of Paced frames each come within Ramp of each other, a frame each Pace. They are
	// measured StreamRounds times.
	Streams      int           `json:"streams"`
	StreamRounds int           `json:"stream_rounds"`
	Paced        int           `json:"paced_frames"`
	Pace         time.Duration `json:"pace_ns"`
	Ramp         time.Duration `json:"ramp_ns"`
	// Clients are the numbers of those that send prompts of Prompt bytes for Window.
	Clients []int         `json:"clients"`
	Prompt  int           `json:"prompt_bytes"`
	Window  time.Duration `json:"window_ns"`
	// Replicas are known to the gateway for Idle.
	Replicas int           `json:"replicas"`
	Idle     time.Duration `json:"idle_ns"`
}

func planned(quick bool) plan {
	p := plan{
		Rounds: 5, Requests: 400, Frames: 5000, StreamRounds: 2, Paced: 20, Pace: 250 * time.Millisecond, Ramp: 2 * time.Second,
		Clients: []int{20, 50, 200}, Prompt: 220_000, Window: time.Second, Replicas: 100, Idle: 30 * time.Second,
	}
	if quick {
		p.Rounds, p.Requests, p.Frames, p.StreamRounds, p.Paced, p.Window, p.Idle = 3, 200, 2000, 1, 14, 500*time.Millisecond, 12*time.Second
	}
	return p
}

// report is what is written.
type report struct {
	Time  time.Time `json:"time"`
	Go    string    `json:"go"`
	CPUs  int       `json:"cpus"`
	Nginx string    `json:"nginx"`
	// Load averages over a minute before and after: a busy machine makes all of it dear.
	LoadBefore string         `json:"load_before"`
	LoadAfter  string         `json:"load_after"`
	Plan       plan           `json:"plan"`
	Frames     []frameResult  `json:"frames,omitempty"`
	Streams    []streamResult `json:"streams,omitempty"`
	Prompts    []promptResult `json:"prompts,omitempty"`
	Idle       *idleResult    `json:"idle,omitempty"`
}

func main() {
	var (
		role    = flag.String("role", "", "internal: engine, pages, gateway, copy or reverseproxy")
		addr    = flag.String("addr", "", "internal: the engines' addresses")
		picking = flag.String("picking", "default", "internal: how the gateway picks")
		pages   = flag.Bool("pages", false, "internal: have the gateway look at the engines' pages")
		count   = flag.Int("count", 1, "internal: how many listeners")
		out     = flag.String("out", "bench/results/relay.json", "where the result goes")
		quick   = flag.Bool("quick", false, "measure less, in a minute and a half")
		only    = flag.String("only", "frames,streams,prompts,idle", "what to measure")
		profile = flag.String("cpuprofile", "", "folder for CPU profiles of the gateway")
	)
	rounds := flag.Int("rounds", 0, "rounds of all that is compared; 0 for as many as there is time for")
	streams := flag.Int("streams", 2000, "streams at once")
	replicas := flag.Int("replicas", 100, "replicas that the idle gateway looks at")
	flag.Parse()
	p := planned(*quick)
	p.Streams, p.Replicas = *streams, *replicas
	if *rounds > 0 {
		p.Rounds, p.StreamRounds = *rounds, *rounds
	}
	var err error
	switch *role {
	case "":
		err = compare(p, *out, *profile, strings.Split(*only, ","))
	case "engine":
		err = proc.Serve(newEngine(), *count)
	case "pages":
		err = proc.Serve(pagesOfEngines(), *count)
	case "gateway":
		err = serveGateway(strings.Fields(*addr), *picking, *pages, *profile)
	case "copy":
		err = copyBytes(*addr)
	case "reverseproxy":
		err = proc.Serve(reverseProxy(strings.Fields(*addr)), 1)
	default:
		err = fmt.Errorf("unknown role %q", *role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// front and back are the cores of what is measured, and of all else.
const front, back = 0, 1

func compare(p plan, out, profile string, only []string) error {
	if err := proc.PinAll(os.Getpid(), back); err != nil {
		return err
	}
	runtime.GOMAXPROCS(1)
	rep := report{Time: time.Now().UTC(), Go: runtime.Version(), CPUs: runtime.NumCPU(), LoadBefore: proc.Load(), Plan: p}
	m := &machine{profile: profile}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"frames", func() (err error) { rep.Frames, err = measureFrames(m, p); return err }},
		{"streams", func() (err error) { rep.Streams, err = measureStreams(m, p); return err }},
		{"prompts", func() (err error) { rep.Prompts, err = measurePrompts(m, p); return err }},
		{"idle", func() (err error) { rep.Idle, err = measureIdle(m, p); return err }},
	} {
		if !slices.Contains(only, part.name) {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	rep.Nginx, rep.LoadAfter = proc.NginxVersion(), proc.Load()
	rep.print()
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644) //nolint:gosec // a result that all may read
}

func (r *report) print() {
	fmt.Printf("load %s before, %s after\n", r.LoadBefore, r.LoadAfter)
	if len(r.Frames) > 0 {
		fmt.Printf("\n%-28s %10s %10s %12s %12s\n", "one stream at a time", "added p50", "added p99", "added/frame", "CPU/frame")
	}
	for _, f := range r.Frames {
		fmt.Printf("%-28s %7.1f µs %7.1f µs %9.2f µs %9.2f µs\n", f.Proxy, f.AddedP50, f.AddedP99, f.AddedPerFrame, f.CPUPerFrame)
	}
	if len(r.Streams) > 0 {
		fmt.Printf("\n%-28s %10s %10s %12s %12s\n", fmt.Sprint(r.Plan.Streams, " streams"), "whole", "at once", "KB/stream", "CPU/frame")
	}
	for _, s := range r.Streams {
		fmt.Printf("%-28s %10d %10d %12.1f %9.2f µs\n", s.Proxy, s.Clean, s.AtOnce, s.KBPerStream, s.CPUPerFrame)
	}
	if len(r.Prompts) > 0 {
		fmt.Printf("\n%-28s %10s %10s %12s %12s %12s\n", fmt.Sprint("prompts of ", r.Plan.Prompt/1000, " KB"), "clients", "a second", "added p50", "added p99", "CPU")
	}
	for _, q := range r.Prompts {
		fmt.Printf("%-28s %10d %10.0f %9.2f ms %9.2f ms %9.0f µs\n", q.Proxy, q.Clients, q.Rate, q.AddedP50, q.AddedP99, q.CPU)
	}
	if r.Idle != nil {
		fmt.Printf("\nidle with %d replicas: %.1f millicores, %.1f MB, %d looks at pages\n", r.Idle.Replicas, r.Idle.Millicores, r.Idle.MB, r.Idle.Looks)
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return math.Round(v[len(v)/2]*1000) / 1000
}

// quantile is the value below which a share of the durations is, which it sorts.
func quantile(d []time.Duration, share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(share*float64(len(d))), len(d)-1)]
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
