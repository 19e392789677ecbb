package local_test

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// TestMain makes this binary what a platform's Self is: engine, and control plane that can be
// killed. A launcher it is by itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "engine":
			os.Exit(engine(os.Args[2:]))
		case "control-plane":
			os.Exit(controlPlane(os.Args[2]))
		}
	}
	goleak.VerifyTestMain(m)
}

// engine is a real server with the habits, good and bad, of the engines that people bring.
func engine(args []string) int {
	f := flag.NewFlagSet("engine", flag.ContinueOnError)
	httpPort := f.Int("http", 0, "serve HTTP here")
	grpcPort := f.Int("grpc", 0, "serve gRPC health here")
	delay := f.Duration("delay", 0, "load for so long before listening")
	exitAfter := f.Duration("exit-after", 0, "exit after so long")
	code := f.Int("code", 0, "exit code of exit-after")
	alloc := f.Int("alloc", 0, "MiB to fill")
	ignore := f.Bool("ignore-term", false, "ignore SIGTERM")
	say := f.String("say", "", "print this at start")
	read := f.String("read", "", "serve this file at /")
	if err := f.Parse(args); err != nil {
		return 2
	}
	fmt.Println("engine starts", *say)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	var ballast []byte
	if *alloc > 0 {
		ballast = make([]byte, *alloc<<20)
		for i := range ballast {
			ballast[i] = byte(i)
		}
	}
	if *exitAfter > 0 {
		time.Sleep(*exitAfter)
		fmt.Println("engine gives up")
		return *code
	}
	time.Sleep(*delay)
	if *grpcPort != 0 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", *grpcPort))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		s := grpc.NewServer()
		healthpb.RegisterHealthServer(s, health.NewServer())
		go s.Serve(l)
	}
	well := true
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		if !well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if *read != "" {
			raw, err := os.ReadFile(*read)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Write(raw)
		}
	})
	mux.HandleFunc("/env", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, os.Getenv(r.FormValue("name"))) })
	mux.HandleFunc("/pid", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strconv.Itoa(os.Getpid())) })
	mux.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
		if err := os.WriteFile(r.FormValue("path"), []byte("x"), 0o600); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	})
	mux.HandleFunc("/sick", func(http.ResponseWriter, *http.Request) { well = false })
	mux.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("code"))
		fmt.Println("engine was told to exit")
		os.Exit(n)
	})
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", *httpPort))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go http.Serve(l, mux)
	for range stop {
		fmt.Println("engine got SIGTERM")
		if !*ignore {
			return 0
		}
	}
	_ = ballast
	return 0
}
