// Command serve is a simulated LLM engine (package llmsim) as a process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stationmaster.dev/stationmaster/test/testkit/llmsim"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "llmsim:", err)
		os.Exit(1)
	}
}

func run() error {
	var cfg llmsim.Config
	host := flag.String("host", "127.0.0.1", "serve on this address")
	port := flag.Int("port", 8000, "serve on this port")
	certificate := flag.String("ssl-certfile", "", "certificate, as PEM, to serve TLS with")
	key := flag.String("ssl-keyfile", "", "its key, as PEM")
	adapters := flag.String("lora-modules", "", "adapters that are loaded at the start, as name=path,...")
	flag.StringVar(&cfg.Model, "served-model-name", "sim", "name of the model")
	flag.IntVar(&cfg.MaxSeqs, "max-num-seqs", 0, "sequences that run at once (0: 16)")
	flag.IntVar(&cfg.Blocks, "num-gpu-blocks", 0, "blocks of the KV cache (0: 4096)")
	flag.IntVar(&cfg.BlockSize, "block-size", 0, "tokens of a block (0: 16)")
	flag.IntVar(&cfg.MaxLen, "max-model-len", 0, "tokens of prompt and answer (0: 32768)")
	flag.IntVar(&cfg.LoRA.Slots, "max-loras", 0, "adapters in one batch (0: LoRA is off)")
	flag.IntVar(&cfg.LoRA.Registered, "max-cpu-loras", 0, "adapters that can be loaded (0: any number)")
	flag.BoolVar(&cfg.LoRA.SGLang, "sglang", false, "take SGLang's calls for adapters")
	flag.BoolVar(&cfg.OldMetrics, "old-metrics", false, "metrics under the names of vLLM's V0")
	flag.Float64Var(&cfg.Timing.Scale, "time-scale", 1, "all times are multiplied by it")
	flag.Uint64Var(&cfg.Seed, "seed", 0, "makes answers and jitter")
	startup := flag.Duration("startup", 0, "time until it listens")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	select {
	case <-time.After(*startup):
	case <-ctx.Done():
		return nil
	}
	engine := llmsim.New(cfg)
	for _, module := range strings.FieldsFunc(*adapters, func(r rune) bool { return r == ',' }) {
		name, path, _ := strings.Cut(module, "=")
		if err := engine.LoadAdapter(name, path); err != nil {
			return err
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(*host, strconv.Itoa(*port)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: engine, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() {
		if *certificate != "" {
			served <- server.ServeTLS(l, *certificate, *key)
			return
		}
		served <- server.Serve(l)
	}()
	worked := make(chan error, 1)
	working, cease := context.WithCancel(context.Background())
	defer cease()
	go func() { worked <- engine.Run(working) }()
	select {
	case <-ctx.Done():
		drain, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		cease()
		return <-worked
	case err := <-worked:
		_ = server.Close()
		return err
	case err := <-served:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve: %w", err)
	}
}
