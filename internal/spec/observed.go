package spec

import "time"

// Phase is where a replica stands in its life.
//
//	Pending ─► Pulling ─► Starting ─► Loading ─► Ready ─► Draining ─► (gone)
//	              │           │          │         │
//	              └───────────┴──────────┴─► Failed ─► Starting (after back-off)
type Phase string

// The phases of a replica. Loading means the process runs and isn't ready yet; Failed means
// it ended or couldn't begin, and waits for its back-off.
const (
	Pending  Phase = "Pending"
	Pulling  Phase = "Pulling"
	Starting Phase = "Starting"
	Loading  Phase = "Loading"
	Ready    Phase = "Ready"
	Draining Phase = "Draining"
	Failed   Phase = "Failed"
)

// Replica is one observed instance of a revision.
type Replica struct {
	ID       string
	Revision RevisionKey
	Hash     string
	Phase    Phase
	// HTTP and GRPC are "host:port" addresses of the server container; empty where it has
	// no such port or none is allocated yet.
	HTTP string
	GRPC string
	// Metrics is the "host:port" of the server's page of metrics where it has a port of its own
	// that the platform knows; else empty.
	Metrics string
	// Models is the "host:port" of what tells of a multi-model server's models in its place; empty
	// where there is no such thing, and the server tells itself.
	Models string
	// Digests of the models on disk, by URI; set once they are resolved.
	Digests map[string]string
	// RuntimeDigest identifies what runs: the image digest or the sha256 of the binary
	// ("sha256:…"); empty when unknown.
	RuntimeDigest string
	Restarts      int
	Created       time.Time
	// Timings are the measured start-up phases of the current incarnation.
	Timings Timings
	// Lingers says that a replica which isn't Ready may still answer: it was told to end a moment
	// ago, or its node has gone silent. It is of use where there is no other.
	Lingers bool
	// Failure is the latest failure that the replica hasn't recovered from; nil when healthy.
	Failure *Failure
}

// Timings say how long each start-up phase took; zero means it didn't happen (yet).
type Timings struct {
	Pull  time.Duration
	Start time.Duration
	Load  time.Duration
	// ReadyAt is when the replica last became ready; zero if never.
	ReadyAt time.Time
}

// FailureReason sorts failures by what a person does about them.
type FailureReason string

// Reasons for a replica's failure. The model ones concern bytes, the runtime ones the process.
const (
	// ModelPullFailed: the model's bytes couldn't be had.
	ModelPullFailed FailureReason = "ModelPullFailed"
	// RuntimeNotInstalled: the command isn't on this machine and no container engine answers.
	RuntimeNotInstalled FailureReason = "RuntimeNotInstalled"
	// Unschedulable: no node of the cluster takes the replica (resources, affinity, taints). It
	// waits in phase Pending, and may yet find one.
	Unschedulable FailureReason = "Unschedulable"
	// StartFailed: the process couldn't be started (bad volume, secret, port, permission).
	StartFailed FailureReason = "StartFailed"
	// Exited: the process ended by itself.
	Exited FailureReason = "Exited"
	// OOMKilled: the kernel ended it for memory.
	OOMKilled FailureReason = "OOMKilled"
	// StartupTimeout: the startup probe, or the progress deadline, ran out.
	StartupTimeout FailureReason = "StartupTimeout"
	// LivenessFailed: the liveness probe failed and the process was restarted.
	LivenessFailed FailureReason = "LivenessFailed"
)

// Failure tells what went wrong with a replica, where, and when.
type Failure struct {
	Reason    FailureReason
	Container string
	Message   string
	// ExitCode is the process's; -1 when unknown or ended by a signal (then Signal is set).
	ExitCode int
	Signal   string
	At       time.Time
	// LogTail is the last lines of the container's output, oldest first, at most 20.
	LogTail []string
	// Terminal means trying again can't help until the manifest or machine changes.
	Terminal bool
	// RetryAt is when the next attempt is due; zero when Terminal.
	RetryAt time.Time
}

// Observed is what a platform knows of one service at one moment, sorted by replica ID.
type Observed struct {
	Replicas []Replica
	// Elsewhere tells of the revisions whose replicas somebody else sets, by name.
	Elsewhere map[string]Elsewhere
}

// Elsewhere is what somebody else says of a revision's replicas.
type Elsewhere struct {
	// Asked is how many there should be.
	Asked int
	// Reason and Problem say why the number doesn't follow anything now: a word for machines and
	// a sentence without a stop. Both are empty where all is well.
	Reason, Problem string
}

// Of returns the replicas of one revision.
func (o Observed) Of(rev RevisionKey) []Replica {
	var out []Replica
	for _, r := range o.Replicas {
		if r.Revision == rev {
			out = append(out, r)
		}
	}
	return out
}
