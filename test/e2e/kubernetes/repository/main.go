// Command repository stands in for an engine that keeps a repository of models, as MLServer does,
// and loads from it over the repository API of the Open Inference Protocol: enough of one for an
// agent beside it. What it has of a model is the text of its file, which it answers with.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// root is where MLServer's image looks for models by the runtime that ships.
const root = "/mnt/models"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	e := &engine{models: map[string]string{}}
	server := &http.Server{Addr: ":8080", Handler: e.routes(), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		server.Close() //nolint:errcheck // the program ends with it
	}()
	err := server.ListenAndServe()
	stop()
	if !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, "repository:", err)
		os.Exit(1)
	}
}

type engine struct {
	mu     sync.Mutex
	models map[string]string // what each is
}

func (e *engine) routes() http.Handler {
	mux := http.NewServeMux()
	alive := func(http.ResponseWriter, *http.Request) {}
	mux.HandleFunc("GET /v2/health/live", alive)
	mux.HandleFunc("GET /v2/health/ready", alive)
	mux.HandleFunc("POST /v2/repository/index", e.index)
	mux.HandleFunc("POST /v2/repository/models/{name}/load", e.load)
	mux.HandleFunc("POST /v2/repository/models/{name}/unload", e.unload)
	mux.HandleFunc("POST /v2/models/{name}/infer", e.infer)
	return mux
}

func (e *engine) index(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	lines := []map[string]string{}
	for name := range e.models {
		lines = append(lines, map[string]string{"name": name, "state": "READY"})
	}
	answer(w, http.StatusOK, lines)
}

// load reads the file of a model that its settings name, as MLServer's do.
func (e *engine) load(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	text, err := read(filepath.Join(root, name), name)
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	e.mu.Lock()
	e.models[name] = text
	e.mu.Unlock()
}

func read(dir, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "model-settings.json"))
	if err != nil {
		return "", err
	}
	var settings struct {
		Name           string
		Implementation string
		Parameters     struct{ URI string }
	}
	if err := json.Unmarshal(text, &settings); err != nil {
		return "", err
	}
	if settings.Name != name || settings.Implementation == "" {
		return "", fmt.Errorf("the settings of %s are %s", name, text)
	}
	text, err = os.ReadFile(filepath.Join(dir, settings.Parameters.URI))
	if err != nil {
		return "", err
	}
	if string(text) == "broken" {
		return "", errors.New("this model can't be read")
	}
	return string(text), nil
}

func (e *engine) unload(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.models[r.PathValue("name")]; !ok {
		answer(w, http.StatusNotFound, map[string]string{"error": "there is no such model"})
		return
	}
	delete(e.models, r.PathValue("name"))
}

func (e *engine) infer(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	e.mu.Lock()
	text, ok := e.models[name]
	e.mu.Unlock()
	if !ok {
		answer(w, http.StatusNotFound, map[string]string{"error": "Model " + name + " not found"})
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"model_name": name,
		"outputs":    []any{map[string]any{"name": "is", "datatype": "BYTES", "shape": []int{1}, "data": []string{text}}},
	})
}

func answer(w http.ResponseWriter, status int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(what) //nolint:errcheck // the client sees a short answer
}
