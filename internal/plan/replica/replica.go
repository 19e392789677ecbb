// Package replica decides the life of one replica: what to prepare, start, check, stop and
// remove next, given what happened and what time it is. It is pure; a driver carries out the
// actions and reports back with events.
//
//	         ┌──────────────── back-off ────────────────┐
//	         ▼                                          │
//	Waiting ─► Starting ─► Running ─► Stopping ─► ended ┴─► Done (init that succeeded, or drain)
//
// A replica is prepared once (models, volumes, commands), then its init containers run in
// order, then all others together. It is ready when every one of those is.
package replica

import (
	"time"

	"stationmaster.dev/stationmaster/internal/spec"
)

// Place is where a container stands.
type Place string

// The places of a container.
const (
	Waiting  Place = "Waiting"
	Starting Place = "Starting"
	Running  Place = "Running"
	Stopping Place = "Stopping"
	Backoff  Place = "Backoff"
	Done     Place = "Done"
)

// Timing holds the rules' numbers; zero fields mean the defaults.
type Timing struct {
	// FirstBackoff is the wait before the second restart; the first is immediate, as the
	// kubelet's. Zero means 1 s (the kubelet has 10 s: one machine has no image pull to spare).
	FirstBackoff time.Duration
	// MaxBackoff bounds the doubling. Zero means 5 min, the kubelet's.
	MaxBackoff time.Duration
	// Healthy is how long a container must have run for its back-off to start anew. Zero
	// means 10 min, the kubelet's.
	Healthy time.Duration
	// Recheck is how often a terminal failure is looked at again, so that installing what is
	// missing heals the replica. Zero means 30 s.
	Recheck time.Duration
	// Progress is how long a replica may take to be ready once its models are there before
	// that counts as a failure. Zero means 600 s, a Deployment's progressDeadlineSeconds.
	Progress time.Duration
	// FastProbe is the shortest interval between checks of a container that isn't up yet.
	// Zero means 5 ms. A check that starts a command has ten times of it.
	FastProbe time.Duration
}

// WithDefaults returns t with its zero fields filled in.
func (t Timing) WithDefaults() Timing {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	or(&t.FirstBackoff, time.Second)
	or(&t.MaxBackoff, 5*time.Minute)
	or(&t.Healthy, 10*time.Minute)
	or(&t.Recheck, 30*time.Second)
	or(&t.Progress, 600*time.Second)
	or(&t.FastProbe, 5*time.Millisecond)
	return t
}

// defaultGrace is Kubernetes' terminationGracePeriodSeconds.
const defaultGrace = 30 * time.Second

// Container is one container's state; the init containers come first in State.Containers.
type Container struct {
	At Place
	// Incarnation counts the starts, from 1.
	Incarnation int
	StartedAt   time.Time
	// Hooking means that the postStart hook runs; checks wait for it.
	Hooking bool
	// StartedUp means that the startup probe succeeded or there is none.
	StartedUp bool
	Ready     bool
	// WasReady means that this incarnation was ready before; its checks keep to the period.
	WasReady                     bool
	Startup, Readiness, Liveness Counter
	// Delay is the back-off that the next end costs.
	Delay time.Duration
	// Due is when the back-off ends.
	Due time.Time
	// Stop is set while the container is being stopped.
	Stop *Stop
}

// Counter follows one probe.
type Counter struct {
	// Next is when to check again; zero until the first was scheduled.
	Next time.Time
	// Asked means that a check is under way.
	Asked     bool
	Successes int
	Failures  int
	// CountedAt is when a failure counted last.
	CountedAt time.Time
}

// Stop is how far the stopping of a container has come.
type Stop struct {
	// Why it is stopped; nil means drain.
	Why *spec.Failure
	// Deadline is when it is killed.
	Deadline time.Time
	// Hooking means that the preStop hook runs, and SIGTERM comes after it.
	Hooking bool
	Killed  bool
}

// State is everything that is known of a replica's life. It can be stored and resumed.
type State struct {
	Created time.Time
	// Prepared means that models, volumes and commands are at hand.
	Prepared bool
	// Preparing means that the driver was asked to prepare and hasn't answered.
	Preparing bool
	// PrepareDelay is the back-off after the next failure to prepare.
	PrepareDelay time.Duration
	PrepareDue   time.Time
	PreparedAt   time.Time
	StartedAt    time.Time
	Draining     bool
	Removed      bool
	// WasReady tells whether the replica was ready at the last step.
	WasReady   bool
	Restarts   int
	Timings    spec.Timings
	Failure    *spec.Failure
	Containers []Container
}

// Machine is a replica's state with the rules that move it. It isn't safe for concurrent use.
type Machine struct {
	State
	w *spec.Workload
	t Timing
}

// New returns the machine of a replica that nothing was done for yet. The workload must not
// change afterwards.
func New(w *spec.Workload, t Timing, now time.Time) *Machine {
	m := &Machine{w: w, t: t.WithDefaults()}
	m.Created = now
	m.Containers = make([]Container, len(w.Init)+len(w.Containers))
	for i := range m.Containers {
		m.Containers[i].At = Waiting
	}
	return m
}

// Resume returns the machine of a stored state. What was under way when it was stored (a
// preparation, a check, a hook) is asked for again; the driver then reports the end of each
// container that it no longer finds.
func Resume(w *spec.Workload, t Timing, s State, now time.Time) *Machine {
	m := New(w, t, s.Created)
	if len(s.Containers) != len(m.Containers) {
		s.Containers = m.Containers
	}
	m.State = s
	m.Preparing = false
	for i := range m.Containers {
		c := &m.Containers[i]
		for _, k := range []*Counter{&c.Startup, &c.Readiness, &c.Liveness} {
			if k.Asked {
				k.Asked, k.Next = false, now
			}
		}
		c.Hooking = false
		if c.Stop != nil {
			c.Stop.Hooking = false
			c.Stop.Killed = false
		}
	}
	return m
}

// Verb is what a driver shall do.
type Verb string

// The verbs. Each but Remove and Kill is answered by an event.
const (
	// Prepare has the models pulled, volumes made and commands found: Prepared.
	Prepare Verb = "prepare"
	// Start starts the container's process: Started.
	Start Verb = "start"
	// PostStart and PreStop run the hook of that name: Hooked.
	PostStart Verb = "postStart"
	PreStop   Verb = "preStop"
	// Check runs the probe: Checked.
	Check Verb = "check"
	// Terminate sends SIGTERM to the container's processes, Kill SIGKILL: Exited in the end.
	Terminate Verb = "terminate"
	Kill      Verb = "kill"
	// Remove frees all that the replica has; it is the last action.
	Remove Verb = "remove"
)

// ProbeKind names one of a container's probes.
type ProbeKind string

// The kinds of probe.
const (
	StartupProbe   ProbeKind = "startup"
	ReadinessProbe ProbeKind = "readiness"
	LivenessProbe  ProbeKind = "liveness"
)

// Action is one thing to do.
type Action struct {
	Do Verb
	// Container is an index into State.Containers; -1 where the whole replica is meant.
	Container   int
	Incarnation int
	Probe       ProbeKind
}

// Event is what the driver reports: one of Tick, Prepared, Started, Hooked, Checked, Exited
// and Drain.
type Event interface{ event() }

// Tick says only that time passed.
type Tick struct{}

// Prepared answers Prepare. Failure is nil when all is at hand.
type Prepared struct{ Failure *spec.Failure }

// Started answers Start. Failure is nil when the process runs.
type Started struct {
	Container, Incarnation int
	Failure                *spec.Failure
}

// Hooked answers PostStart and PreStop. Err is empty when the hook succeeded.
type Hooked struct {
	Container, Incarnation int
	Err                    string
}

// Checked answers Check. Err is empty when the check succeeded.
type Checked struct {
	Container, Incarnation int
	Probe                  ProbeKind
	Err                    string
}

// Exited says that a container's process ended. Failure tells how (Reason Exited or
// OOMKilled, code, signal, log tail); it is never nil.
type Exited struct {
	Container, Incarnation int
	Failure                *spec.Failure
}

// Drain asks for the replica's end.
type Drain struct{}

// Restart asks for the container to be stopped and started anew at once, without a failure.
type Restart struct{ Container int }

func (Tick) event()     {}
func (Prepared) event() {}
func (Started) event()  {}
func (Hooked) event()   {}
func (Checked) event()  {}
func (Exited) event()   {}
func (Drain) event()    {}
func (Restart) event()  {}

// Handle takes note of an event and returns what to do now, in order. Events of an earlier
// incarnation are ignored.
func (m *Machine) Handle(ev Event, now time.Time) []Action {
	if m.Removed {
		return nil
	}
	var acts []Action
	switch e := ev.(type) {
	case Prepared:
		m.prepared(e, now)
	case Started:
		if c := m.of(e.Container, e.Incarnation); c != nil && c.At == Starting {
			acts = m.started(e, c, now)
		}
	case Hooked:
		if c := m.of(e.Container, e.Incarnation); c != nil {
			acts = m.hooked(e, c, now)
		}
	case Checked:
		if c := m.of(e.Container, e.Incarnation); c != nil {
			acts = m.checked(e, c, now)
		}
	case Exited:
		if c := m.of(e.Container, e.Incarnation); c != nil {
			m.exited(e.Container, c, e.Failure, now)
		}
	case Drain:
		m.Draining = true
	case Restart:
		if c := &m.Containers[e.Container]; c.At == Running {
			acts = m.stop(e.Container, c, &spec.Failure{}, now)
		}
	}
	return append(acts, m.advance(now)...)
}

// of returns the container if its incarnation is still the one meant.
func (m *Machine) of(i, incarnation int) *Container {
	if i < 0 || i >= len(m.Containers) || m.Containers[i].Incarnation != incarnation {
		return nil
	}
	return &m.Containers[i]
}

// Spec returns the i-th container as the workload has it, init containers first, and whether
// it is an init container.
func (m *Machine) Spec(i int) (c *spec.Container, isInit bool) {
	if i < len(m.w.Init) {
		return &m.w.Init[i], true
	}
	return &m.w.Containers[i-len(m.w.Init)], false
}

func (m *Machine) prepared(e Prepared, now time.Time) {
	if !m.Preparing {
		return
	}
	m.Preparing = false
	if e.Failure == nil {
		m.Prepared, m.PreparedAt, m.PrepareDelay = true, now, 0
		m.Timings.Pull = now.Sub(m.PrepareDue)
		return
	}
	f := *e.Failure
	f.At = now
	if f.Terminal {
		m.PrepareDue = now.Add(m.t.Recheck)
	} else {
		m.PrepareDelay = m.next(m.PrepareDelay)
		m.PrepareDue = now.Add(m.PrepareDelay)
		f.RetryAt = m.PrepareDue
	}
	m.Failure = &f
}

// next doubles a back-off, from FirstBackoff up to MaxBackoff.
func (m *Machine) next(d time.Duration) time.Duration {
	if d == 0 {
		return m.t.FirstBackoff
	}
	return min(2*d, m.t.MaxBackoff)
}

func (m *Machine) started(e Started, c *Container, now time.Time) []Action {
	if e.Failure != nil {
		m.exited(e.Container, c, e.Failure, now)
		return nil
	}
	s, isInit := m.Spec(e.Container)
	c.At, c.StartedAt = Running, now
	c.StartedUp = s.Startup == nil
	c.Ready = !isInit && c.StartedUp && s.Readiness == nil && s.PostStart == nil
	if !isInit && s.PostStart != nil {
		c.Hooking = true
		return []Action{{Do: PostStart, Container: e.Container, Incarnation: c.Incarnation}}
	}
	return nil
}

func (m *Machine) hooked(e Hooked, c *Container, now time.Time) []Action {
	switch {
	case c.At == Running && c.Hooking:
		c.Hooking = false
		if e.Err != "" {
			return m.stop(e.Container, c, m.failure(e.Container, spec.StartFailed, "the postStart hook failed: "+e.Err, now), now)
		}
		s, _ := m.Spec(e.Container)
		c.Ready = c.StartedUp && s.Readiness == nil
	case c.At == Stopping && c.Stop.Hooking:
		c.Stop.Hooking = false
		return []Action{{Do: Terminate, Container: e.Container, Incarnation: c.Incarnation}}
	}
	return nil
}

func (m *Machine) failure(i int, reason spec.FailureReason, message string, now time.Time) *spec.Failure {
	s, _ := m.Spec(i)
	return &spec.Failure{Reason: reason, Container: s.Name, Message: message, ExitCode: -1, At: now}
}

// exited takes note of a container's end and sets its back-off.
func (m *Machine) exited(i int, c *Container, f *spec.Failure, now time.Time) {
	if c.At != Running && c.At != Stopping && c.At != Starting {
		return
	}
	_, isInit := m.Spec(i)
	stop := c.Stop
	ran := c.At != Starting
	up := now.Sub(c.StartedAt)
	*c = Container{At: Backoff, Incarnation: c.Incarnation, Delay: c.Delay, Due: now}
	switch {
	case m.Draining:
		c.At = Done
		return
	case isInit && f.ExitCode == 0 && f.Signal == "" && stop == nil && ran:
		c.At, c.Delay = Done, 0
		return
	case stop != nil && stop.Why != nil && stop.Why.Reason == "": // asked for by Restart
		return
	}
	if ran && up >= m.t.Healthy {
		c.Delay = 0
	}
	if !ran {
		c.Delay = max(c.Delay, m.t.FirstBackoff)
	}
	c.Due = now.Add(c.Delay)
	c.Delay = m.next(c.Delay)
	m.Restarts++
	told := *f
	if stop != nil && stop.Why != nil {
		told.Reason, told.Message = stop.Why.Reason, stop.Why.Message
	}
	s, _ := m.Spec(i)
	told.Container, told.At, told.RetryAt = s.Name, now, c.Due
	if told.Terminal {
		c.Due, told.RetryAt = now.Add(m.t.Recheck), time.Time{}
	}
	m.Failure = &told
}

// stop begins to end a running container.
func (m *Machine) stop(i int, c *Container, why *spec.Failure, now time.Time) []Action {
	grace := m.w.GracePeriod
	if grace == 0 {
		grace = defaultGrace
	}
	s, _ := m.Spec(i)
	c.At, c.Ready, c.Hooking = Stopping, false, false
	c.Stop = &Stop{Why: why, Deadline: now.Add(grace)}
	if s.PreStop != nil {
		c.Stop.Hooking = true
		return []Action{{Do: PreStop, Container: i, Incarnation: c.Incarnation}}
	}
	return []Action{{Do: Terminate, Container: i, Incarnation: c.Incarnation}}
}

// advance does what is due.
func (m *Machine) advance(now time.Time) []Action {
	var acts []Action
	for i := range m.Containers {
		c := &m.Containers[i]
		if c.At == Stopping && !c.Stop.Killed && !now.Before(c.Stop.Deadline) {
			c.Stop.Killed = true
			acts = append(acts, Action{Do: Kill, Container: i, Incarnation: c.Incarnation})
		}
	}
	if m.Draining {
		return append(acts, m.drain(now)...)
	}
	if !m.Prepared {
		if !m.Preparing && !now.Before(m.PrepareDue) {
			m.Preparing, m.PrepareDue = true, now
			acts = append(acts, Action{Do: Prepare, Container: -1})
		}
		return acts
	}
	for i := range m.Containers {
		c := &m.Containers[i]
		_, isInit := m.Spec(i)
		if c.At == Waiting || c.At == Backoff && !now.Before(c.Due) {
			*c = Container{At: Starting, Incarnation: c.Incarnation + 1, Delay: c.Delay}
			acts = append(acts, Action{Do: Start, Container: i, Incarnation: c.Incarnation})
		}
		if isInit && c.At != Done {
			return acts // the next waits for this one
		}
		if c.At == Running && !isInit {
			acts = append(acts, m.checks(i, c, now)...)
		}
	}
	m.judge(now)
	return acts
}

func (m *Machine) drain(now time.Time) []Action {
	var acts []Action
	all := !m.Preparing
	for i := range m.Containers {
		c := &m.Containers[i]
		switch c.At {
		case Waiting, Backoff:
			c.At = Done
		case Running:
			acts = append(acts, m.stop(i, c, nil, now)...)
		}
		all = all && c.At == Done
	}
	m.WasReady = false
	if all {
		m.Removed = true
		acts = append(acts, Action{Do: Remove, Container: -1})
	}
	return acts
}

// judge compares readiness with what it was, measures the phases, and looks at the deadline.
func (m *Machine) judge(now time.Time) {
	running, ready := true, true
	for i := len(m.w.Init); i < len(m.Containers); i++ {
		c := &m.Containers[i]
		running = running && c.At == Running
		ready = ready && c.At == Running && c.Ready
	}
	switch {
	case ready && !m.WasReady:
		if m.StartedAt.IsZero() {
			m.mark(now)
		}
		m.Timings.Load = now.Sub(m.StartedAt)
		m.Timings.ReadyAt = now
		m.Failure = nil
	case running && m.StartedAt.IsZero():
		m.mark(now)
	case !running:
		m.StartedAt = time.Time{}
	}
	m.WasReady = ready
	if m.late(now) && m.Failure == nil {
		m.Failure = m.failure(len(m.w.Init), spec.StartupTimeout,
			"not ready within "+m.t.Progress.String()+" of its start; see the log for what it waits for", now)
	}
}

func (m *Machine) mark(now time.Time) {
	m.StartedAt = now
	from := m.PreparedAt
	for i := len(m.w.Init); i < len(m.Containers); i++ {
		if m.Containers[i].Incarnation > 1 {
			from = now // a restart has no start-up phase of its own worth telling
		}
	}
	m.Timings.Start = now.Sub(from)
	m.Timings.Load = 0
}

func (m *Machine) late(now time.Time) bool {
	return m.Prepared && !m.WasReady && m.Timings.ReadyAt.IsZero() && !now.Before(m.PreparedAt.Add(m.t.Progress))
}

// Phase returns where the replica stands.
func (m *Machine) Phase() spec.Phase {
	if m.Draining {
		return spec.Draining
	}
	if !m.Prepared {
		switch {
		case m.Preparing && m.Failure != nil && m.Failure.Terminal:
			return spec.Failed // looking again whether it was mended
		case m.Preparing:
			return spec.Pulling
		case m.Failure != nil:
			return spec.Failed
		}
		return spec.Pending
	}
	phase := spec.Ready
	for i := range m.Containers {
		c := &m.Containers[i]
		if i < len(m.w.Init) && c.At == Done {
			continue
		}
		switch c.At {
		case Backoff:
			return spec.Failed
		case Running, Stopping:
			if i < len(m.w.Init) {
				phase = spec.Starting
			} else if !c.Ready && phase == spec.Ready {
				phase = spec.Loading
			}
		default:
			phase = spec.Starting
		}
	}
	return phase
}

// Wake returns when to call Handle with a Tick if nothing happens before; zero means never.
func (m *Machine) Wake() time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if m.Removed {
		return at
	}
	for i := range m.Containers {
		c := &m.Containers[i]
		if c.At == Stopping && !c.Stop.Killed {
			sooner(c.Stop.Deadline)
		}
	}
	if m.Draining {
		return at
	}
	if !m.Prepared {
		if !m.Preparing {
			sooner(m.PrepareDue)
		}
		return at
	}
	for i := range m.Containers {
		c := &m.Containers[i]
		_, isInit := m.Spec(i)
		switch {
		case c.At == Backoff:
			sooner(c.Due)
		case c.At == Running && !isInit && !c.Hooking:
			for _, k := range []*Counter{&c.Startup, &c.Readiness, &c.Liveness} {
				if !k.Asked {
					sooner(k.Next)
				}
			}
		}
	}
	if !m.WasReady && m.Timings.ReadyAt.IsZero() && m.Failure == nil {
		sooner(m.PreparedAt.Add(m.t.Progress))
	}
	return at
}
