// Command echo is what the tests run in pods: it tells its name, shows files that it sees, and
// asks other addresses on behalf of whoever asks it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "eat" {
		eat()
	}
	if len(os.Args) == 3 {
		if err := fetch(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "fetch:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", name)
	mux.HandleFunc("GET /file", file)
	mux.HandleFunc("GET /get", get)
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		server.Close() //nolint:errcheck // the program ends with it
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// eat takes memory until the kernel ends it.
func eat() {
	for kept := [][]byte{}; ; {
		piece := make([]byte, 1<<20)
		for i := range piece {
			piece[i] = 1
		}
		kept = append(kept, piece)
	}
}

// fetch brings a model's file into a directory, as KServe's storage-initializer does.
func fetch(url, dir string) error {
	resp, err := http.Get(url) //nolint:noctx // the program does nothing else
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	to, err := os.Create(filepath.Join(dir, path.Base(url)))
	if err != nil {
		return err
	}
	_, err = io.Copy(to, resp.Body)
	return errors.Join(err, to.Close())
}

// name tells the pod's name and the user that it runs as.
func name(w http.ResponseWriter, _ *http.Request) {
	host, err := os.Hostname()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "%s %d\n", host, os.Getuid())
}

// file shows the file at ?path=.
func file(w http.ResponseWriter, r *http.Request) {
	content, err := os.ReadFile(r.FormValue("path"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Write(content)
}

// client makes a connection for each request, so that a Service balances each. One that isn't let
// through fails in seconds.
var client = http.Client{Transport: &http.Transport{
	DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
}}

// get answers what ?url= answers.
func get(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.FormValue("url"), http.NoBody)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.WriteHeader(resp.StatusCode)
	io.Copy(w, resp.Body) //nolint:errcheck // the client sees a short answer
}
