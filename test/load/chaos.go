package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// disturbed is what a time of chaos showed.
type disturbed struct {
	Seed     uint64           `json:"seed"`
	Minutes  float64          `json:"minutes"`
	Requests map[kind]figures `json:"requests"`
	Acts     map[string]int   `json:"acts"`
	// InHand are requests that an engine had been given when it, or its connections, were killed, and Down those that
	// met a killed control plane, with which the gateway was gone.
	InHand int `json:"lost_in_hand_of_a_killed_engine"`
	Down   int `json:"lost_while_up_was_down"`
	// Refused are those for a service whose engine was killed so often that its next start was too
	// far away to wait for it.
	Refused int  `json:"refused_in_a_crash_loop"`
	Lost    int  `json:"lost_without_excuse"`
	Before  size `json:"up_before"`
	After   size `json:"up_after"`
}

// storm kills at random.
type storm struct {
	u    *up
	l    *load
	rnd  *rand.Rand
	echo shaped
	acts map[string]int
	// killed are engines, and down the times without a control plane.
	killed []death
	down   [][2]time.Time
	// since is when a process of an engine was first seen to listen.
	since map[int]time.Time
}

// death is an engine's, or that of all its connections, from when it was asked for to when it was
// done: until then an engine accepts requests.
type death struct {
	pid      int
	at, done time.Time
}

func disturb(ctx context.Context, u *up, d time.Duration, seed uint64) (*disturbed, error) {
	l, err := newLoad(u.http, u.grpc)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.close() }()
	st := &storm{
		u: u, l: l, rnd: rand.New(rand.NewPCG(seed, seed)), acts: map[string]int{}, since: map[int]time.Time{},
		echo: shaped{name: "echo", shape: 1, replicas: [2]int64{2, 2}, canary: -1},
	}
	nap := shaped{name: "nap", shape: 1, replicas: [2]int64{0, 2}, canary: -1, load: 200 * time.Millisecond,
		settings: map[string]string{"autoscaling.knative.dev/window": "6s"}}
	for _, s := range []shaped{st.echo, nap} {
		if err := settle(ctx, u, l, s); err != nil {
			return nil, err
		}
	}
	r := &disturbed{Seed: seed, Minutes: d.Minutes(), Acts: st.acts}
	if r.Before, err = u.size(); err != nil {
		return nil, err
	}
	log.Printf("chaos for %v with -seed %d", d, seed)
	asking, stop := context.WithCancel(ctx)
	for k, rate := range rates {
		l.run(asking, k, st.echo.name, rate)
	}
	l.wg.Go(func() { naps(asking, l, nap.name) })
	err = st.rage(ctx, d)
	stop()
	l.wait()
	r.Requests = l.figures()
	for _, x := range l.losses() {
		switch {
		case st.inHand(x):
			r.InHand++
		case st.wasDown(x):
			r.Down++
		case looped(x):
			r.Refused++
		default:
			if r.Lost++; r.Lost <= 100 {
				log.Print("lost: ", x)
			}
		}
	}
	if r.Lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d requests were lost without excuse", r.Lost))
	}
	return r, errors.Join(err, st.calm(ctx, r, nap))
}

// naps asks a service now and then, in all three ways at once, so that it wakes and sleeps.
func naps(ctx context.Context, l *load, service string) {
	for {
		for _, k := range []kind{rest, call, stream} {
			l.wg.Go(func() { l.one(k, service) })
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
	}
}

// rage does something bad every half second or so.
func (st *storm) rage(ctx context.Context, d time.Duration) error {
	type act struct {
		name   string
		weight int
		do     func(context.Context) (bool, error)
	}
	acts := []act{
		{"engine killed", 6, st.killEngine},
		{"all engines killed", 1, st.killEngines},
		{"nap's engine killed", 4, st.killNap},
		{"engine's connections reset", 4, st.reset},
		{"engine's idle connections closed", 10, st.closeIdle},
		{"clients gave up", 10, func(context.Context) (bool, error) { return st.l.abandon(10) > 0, nil }},
		{"clients' idle connections closed", 4, func(context.Context) (bool, error) { st.l.http.CloseIdleConnections(); return true, nil }},
		{"control plane killed", 1, st.killUp},
		{"update", 3, st.update},
		{"manifest touched", 3, func(ctx context.Context) (bool, error) {
			return true, st.u.touch(ctx, st.echo.name, strconv.Itoa(st.rnd.Int()))
		}},
	}
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(100+st.rnd.IntN(800)) * time.Millisecond):
		}
		at := st.rnd.IntN(total)
		for _, a := range acts {
			if at -= a.weight; at >= 0 {
				continue
			}
			done, err := a.do(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			if done {
				st.acts[a.name]++
				log.Print(a.name)
			}
			break
		}
	}
	return nil
}

// steady is how long an engine must have listened to count as one that carries the load.
const steady = 3 * time.Second

// listening returns the engines of echo's present shape that have been up for a while.
func (st *storm) listening() []int {
	now := time.Now()
	var out []int
	pids := st.u.engines()
	for _, pid := range pids {
		if environ(pid, shapeVar) != strconv.Itoa(st.echo.shape) || st.isNap(pid) {
			continue
		}
		if _, err := os.Stat(notesOf(st.u.notes(), pid)); err != nil {
			continue
		}
		if st.since[pid].IsZero() {
			st.since[pid] = now
		}
		if now.Sub(st.since[pid]) >= steady {
			out = append(out, pid)
		}
	}
	return out
}

func (st *storm) isNap(pid int) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err != nil || !bytes.Contains(args, []byte("--load=0s"))
}

// killEngine kills one of two or more that are ready.
func (st *storm) killEngine(context.Context) (bool, error) {
	pids := st.listening()
	if len(pids) < 2 {
		return false, nil
	}
	pid := pids[st.rnd.IntN(len(pids))]
	return true, st.kill(pid)
}

// kill returns when the engines have ended.
func (st *storm) kill(pids ...int) error {
	began := time.Now()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	for _, pid := range pids {
		for !ended(pid) {
			time.Sleep(time.Millisecond)
		}
		st.killed = append(st.killed, death{pid, began, time.Now()})
	}
	return nil
}

// closing is how long the other threads of a process may take to end, and its connections with
// them, once its first one is a zombie.
const closing = 200 * time.Millisecond

// ended reports whether a process is none any more, or a zombie.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	return bytes.HasPrefix(rest, []byte(" Z"))
}

// killEngines kills all that are ready, so that requests have to wait for their return.
func (st *storm) killEngines(context.Context) (bool, error) {
	pids := st.listening()
	if len(pids) < 2 {
		return false, nil
	}
	return true, st.kill(pids...)
}

// killNap kills the engine that comes and goes, while it loads or later.
func (st *storm) killNap(context.Context) (bool, error) {
	for _, pid := range st.u.engines() {
		if st.isNap(pid) {
			return true, st.kill(pid)
		}
	}
	return false, nil
}

// handling is how long an engine may take to hear of a signal and do as it says.
const handling = time.Second

// reset breaks off all connections of an engine, with what is under way on them.
func (st *storm) reset(context.Context) (bool, error) {
	pids := st.listening()
	if len(pids) == 0 {
		return false, nil
	}
	pid := pids[st.rnd.IntN(len(pids))]
	now := time.Now()
	st.killed = append(st.killed, death{pid, now, now.Add(handling)})
	err := syscall.Kill(pid, syscall.SIGUSR2)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	return true, err
}

func (st *storm) closeIdle(context.Context) (bool, error) {
	pids := st.listening()
	if len(pids) == 0 {
		return false, nil
	}
	err := syscall.Kill(pids[st.rnd.IntN(len(pids))], syscall.SIGUSR1)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	return true, err
}

// update changes the service and waits until the new shape has taken over, so that there are
// engines to kill again.
func (st *storm) update(ctx context.Context) (bool, error) {
	st.echo.shape++
	return true, settle(ctx, st.u, st.l, st.echo)
}

func (st *storm) killUp(context.Context) (bool, error) {
	began := time.Now()
	if err := st.u.kill(); err != nil {
		return true, err
	}
	if err := st.u.start(); err != nil {
		return true, err
	}
	st.down = append(st.down, [2]time.Time{began, time.Now()})
	return true, nil
}

// inHand reports whether a killed engine had been given the request: it noted it, or what came
// back says that it had it when its connections broke.
func (st *storm) inHand(x lost) bool {
	broke := slices.ContainsFunc([]string{"502 Bad Gateway", "error reading from server", "transport is closing", "a stream ended"}, func(s string) bool { return strings.Contains(x.Why, s) })
	return slices.ContainsFunc(st.killed, func(d death) bool {
		if x.Began.After(d.done.Add(closing)) || x.End.Before(d.at) {
			return false
		}
		if broke {
			return true
		}
		notes, err := os.ReadFile(notesOf(st.u.notes(), d.pid))
		return err == nil && bytes.Contains(append([]byte("\n"), notes...), []byte("\n"+x.ID+"\n"))
	})
}

// nextTry is when an engine starts again, as a refusal tells it, and far how far away that must be
// for requests not to wait.
var nextTry = regexp.MustCompile(`restarted \d+ times; next try at (\d\d:\d\d:\d\dZ)`)

const far = 3 * time.Second

// looped reports whether a request was refused, for an engine that ends again and again waits
// long for its next start.
func looped(x lost) bool {
	m := nextTry.FindStringSubmatch(x.Why)
	if m == nil {
		return false
	}
	at, err := time.Parse("15:04:05Z", m[1])
	if err != nil {
		return false
	}
	end := x.End.UTC()
	at = time.Date(end.Year(), end.Month(), end.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.UTC)
	return at.Sub(end) > far
}

// wasDown reports whether there was a time without a gateway while the request was under way.
func (st *storm) wasDown(x lost) bool {
	return slices.ContainsFunc(st.down, func(t [2]time.Time) bool { return x.Began.Before(t[1]) && x.End.After(t[0]) })
}

// calm looks at what is left when nothing is killed any more.
func (st *storm) calm(ctx context.Context, r *disturbed, nap shaped) error {
	if err := settle(ctx, st.u, st.l, st.echo); err != nil {
		return fmt.Errorf("after the chaos: %w", err)
	}
	if err := settle(ctx, st.u, st.l, nap); err != nil {
		return fmt.Errorf("after the chaos: %w", err)
	}
	err := await(ctx, time.Minute, "two engines of echo and none of nap", func() (bool, string) {
		pids := st.u.engines()
		return len(pids) == 2, fmt.Sprint("engines: ", pids)
	})
	if err != nil {
		return err
	}
	if r.After, err = st.u.shrunk(ctx, r.Before); err != nil {
		return err
	}
	for _, name := range []string{st.echo.name, nap.name} {
		if err := st.u.delete(ctx, name); err != nil {
			return err
		}
	}
	return await(ctx, time.Minute, "no engine of a deleted service", func() (bool, string) {
		pids := st.u.engines()
		return len(pids) == 0, fmt.Sprint("engines: ", pids)
	})
}
