// Command load keeps 500 requests a second going, over REST, gRPC and as streams, while a real
// `stationmaster up` is updated and rolled back many times (-updates), or while its engines, its
// connections and it itself are killed at random (-chaos). It ends with code 1 if a request was
// lost that need not have been, or if something was left behind. Its engines are this program.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// rates are requests a second; a stream takes a fifth of one.
var rates = map[kind]float64{rest: 200, call: 200, stream: 100}

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if len(os.Args) > 1 && os.Args[1] == "engine" {
		if err := engineMain(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	o := options{}
	flag.StringVar(&o.binary, "binary", "bin/stationmaster", "the binary to test")
	flag.IntVar(&o.updates, "updates", 0, "so many updates and rollbacks, one after another")
	flag.IntVar(&o.split, "split", 10_000, "after the updates, requests to a canary of 10 % to count")
	flag.DurationVar(&o.chaos, "chaos", 0, "how long to kill at random")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of what is killed when")
	rate := flag.Float64("rate", 1, "of the load: 1 is 500 requests a second")
	flag.StringVar(&o.out, "out", "", "write the figures as JSON to this file, too")
	flag.BoolVar(&o.keep, "keep", false, "keep the data directory")
	flag.Parse()
	for k := range rates {
		rates[k] *= *rate
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, &o)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

type options struct {
	binary, out    string
	updates, split int
	chaos          time.Duration
	seed           uint64
	keep           bool
}

// run does what was asked for and writes the figures; its error says what went wrong in each.
func run(ctx context.Context, o *options) error {
	dir, err := os.MkdirTemp("", "sm-load-")
	if err != nil {
		return err
	}
	report := map[string]any{}
	var failed error
	in := func(name string, f func(context.Context, *up) (any, error)) {
		got, err := within(ctx, o.binary, filepath.Join(dir, name), f)
		if got != nil {
			report[name] = got
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	if o.updates > 0 {
		in("updates", func(ctx context.Context, u *up) (any, error) { return update(ctx, u, o.updates, o.split) })
	}
	if o.chaos > 0 {
		in("chaos", func(ctx context.Context, u *up) (any, error) { return disturb(ctx, u, o.chaos, o.seed) })
	}
	raw, err := json.MarshalIndent(report, "", "  ")
	if err == nil && o.out != "" {
		err = os.WriteFile(o.out, append(raw, '\n'), 0o644)
	}
	fmt.Printf("%s\n", raw)
	if failed = errors.Join(failed, err); failed != nil || o.keep {
		log.Printf("logs are in %s", dir)
		return failed
	}
	return os.RemoveAll(dir)
}

// within runs f against a new `up`, and looks for what outlives its end.
func within(ctx context.Context, binary, dir string, f func(context.Context, *up) (any, error)) (any, error) {
	if err := os.MkdirAll(filepath.Join(dir, "notes"), 0o700); err != nil {
		return nil, err
	}
	u, err := newUp(binary, dir)
	if err != nil {
		return nil, err
	}
	if err := u.start(); err != nil {
		return nil, err
	}
	got, err := f(ctx, u)
	if stopped := u.stop(); stopped != nil && err == nil {
		err = fmt.Errorf("up's end: %w", stopped)
	}
	if left := u.engines(); len(left) > 0 {
		if err == nil {
			err = fmt.Errorf("engines outlived up: %v", left)
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return got, err
}

// await asks until the answer is yes, and returns why it wasn't within the time.
func await(ctx context.Context, limit time.Duration, what string, yes func() (bool, string)) error {
	end := time.Now().Add(limit)
	for {
		ok, why := yes()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("%s: not within %v: %s", what, limit, why)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
