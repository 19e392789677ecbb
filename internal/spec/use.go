package spec

import "time"

// Use is what a replica uses of its machine.
type Use struct {
	// CPU is the time that its processes have been given since it started. It never falls, but
	// for a replica that was started again.
	CPU time.Duration
	// Memory is what they hold now, in bytes.
	Memory int64
}
