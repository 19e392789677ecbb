package llmsim

import (
	"encoding/json"
	"net/http"
)

// Fault is what is wrong with an engine. The zero value is nothing.
type Fault struct {
	// Crash ends the engine: connections break, and Run returns ErrCrashed.
	Crash bool `json:"crash,omitempty"`
	// Hang has it take requests and do nothing for them; its health check goes on to answer.
	Hang bool `json:"hang,omitempty"`
	// Slow multiplies the time of each step; 0 means 1.
	Slow float64 `json:"slow,omitempty"`
	// Status refuses requests with it, such as 500.
	Status int `json:"status,omitempty"`
	// CutAfter breaks the connection of an answer after so many tokens.
	CutAfter int `json:"cut_after,omitempty"`
	// Times is how many requests Status and CutAfter hit, after which nothing is wrong with the
	// rest; 0 means all.
	Times int `json:"times,omitempty"`
}

// Break makes something wrong with the engine from now on, in place of what was before.
func (e *Engine) Break(f Fault) {
	e.mu.Lock()
	e.fault = f
	e.mu.Unlock()
	if f.Crash {
		e.die()
	}
	e.nudge()
}

func (e *Engine) putFault(w http.ResponseWriter, r *http.Request) {
	var f Fault
	if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
		refuse(w, http.StatusBadRequest, "BadRequestError", err.Error())
		return
	}
	e.Break(f)
}

// strike has a fault hit a request. It reports false where that answered it.
func (e *Engine) strike(w http.ResponseWriter) (Fault, bool) {
	e.mu.Lock()
	f := e.fault
	if f.Times > 0 {
		if e.fault.Times--; e.fault.Times == 0 {
			e.fault = Fault{}
		}
	}
	dead := e.dead
	e.mu.Unlock()
	if dead {
		panic(http.ErrAbortHandler)
	}
	if f.Status != 0 {
		refuse(w, f.Status, "InternalServerError", "the simulated engine was told to fail")
		return f, false
	}
	return f, true
}
