package llmsim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// adapterCall is the body of the calls that load and unload an adapter.
type adapterCall struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
	// Inplace loads one of this name anew.
	Inplace bool `json:"load_inplace"`
}

// loaded are the adapters' names in order; the caller holds mu.
func (e *Engine) loaded() []string { return slices.Sorted(maps.Keys(e.adapters)) }

// Adapters are the names of the adapters that are loaded, in order.
func (e *Engine) Adapters() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.loaded()
}

// LoadAdapter loads an adapter, as the call does but at once.
func (e *Engine) LoadAdapter(name, path string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cfg.LoRA.Slots == 0 {
		return fmt.Errorf("load adapter %s: LoRA is off", name)
	}
	e.adapters[name] = path
	return nil
}

func (e *Engine) loadAdapter(w http.ResponseWriter, r *http.Request) {
	call, ok := e.readAdapter(w, r)
	if !ok {
		return
	}
	if call.Path == "" {
		e.refuseAdapter(w, http.StatusBadRequest, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
		return
	}
	select {
	case <-time.After(e.scaled(e.cfg.LoRA.Load)):
	case <-r.Context().Done():
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, again := e.adapters[call.Name]
	switch {
	case again && !call.Inplace || call.Name == e.cfg.Model:
		e.refuseAdapter(w, http.StatusBadRequest, "InvalidUserInput", fmt.Sprintf("The lora adapter '%s' has already been loaded.", call.Name))
	case !again && e.cfg.LoRA.Registered > 0 && len(e.adapters) >= e.cfg.LoRA.Registered:
		e.refuseAdapter(w, http.StatusBadRequest, "BadRequestError", fmt.Sprintf("No room for more than %d adapters.", e.cfg.LoRA.Registered))
	default:
		e.adapters[call.Name] = call.Path
		e.accept(w, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", call.Name))
	}
}

func (e *Engine) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	call, ok := e.readAdapter(w, r)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.adapters[call.Name]; !ok {
		e.refuseAdapter(w, http.StatusNotFound, "NotFoundError", fmt.Sprintf("The lora adapter '%s' cannot be found.", call.Name))
		return
	}
	delete(e.adapters, call.Name)
	e.accept(w, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", call.Name))
}

func (e *Engine) readAdapter(w http.ResponseWriter, r *http.Request) (adapterCall, bool) {
	var call adapterCall
	if e.cfg.LoRA.Slots == 0 {
		http.NotFound(w, r) // as where the engine was started without LoRA
		return call, false
	}
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil || call.Name == "" {
		e.refuseAdapter(w, http.StatusBadRequest, "InvalidUserInput", "'lora_name' must be provided.")
		return call, false
	}
	return call, true
}

// accept answers in the engine's shape: vLLM's is a line of text.
func (e *Engine) accept(w http.ResponseWriter, text string) {
	if !e.cfg.LoRA.SGLang {
		_, _ = fmt.Fprint(w, text)
		return
	}
	reply(w, http.StatusOK, map[string]any{"success": true, "error_message": "", "loaded_adapters": e.adapters})
}

func (e *Engine) refuseAdapter(w http.ResponseWriter, status int, kind, message string) {
	if !e.cfg.LoRA.SGLang {
		refuse(w, status, kind, message)
		return
	}
	reply(w, http.StatusBadRequest, map[string]any{"success": false, "error_message": message})
}
