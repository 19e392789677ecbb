// Package spec holds the platform-free values that flow through Stationmaster: what a
// service is made of, what a revision runs, and what was observed of it. It knows no
// Kubernetes types, does no I/O and keeps no state, so every other room can speak it.
package spec

import (
	"slices"
	"time"
)

// ServiceKey names one InferenceService.
type ServiceKey struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Name }

// RevisionKey names one Revision; its namespace is that of the service it belongs to.
type RevisionKey struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (k RevisionKey) String() string { return k.Namespace + "/" + k.Name }

// Component is the part of an InferenceService that a revision implements.
type Component string

// The components KServe knows (reference: InferenceServiceSpec).
const (
	Predictor   Component = "predictor"
	Transformer Component = "transformer"
	Explainer   Component = "explainer"
)

// Protocol is an inference protocol as KServe spells it in protocolVersion and
// protocolVersions.
type Protocol string

// The protocols KServe names. V1 and V2 travel over HTTP; the grpc ones over HTTP/2.
const (
	V1     Protocol = "v1"
	V2     Protocol = "v2"
	GRPCV1 Protocol = "grpc-v1"
	GRPCV2 Protocol = "grpc-v2"
)

// Workload is one revision's process shape: everything a platform needs to run a replica
// of it. It is immutable once made; Hash changes exactly when a running replica would have
// to be replaced.
type Workload struct {
	Service   ServiceKey
	Revision  RevisionKey
	Component Component
	// ModelName is the name under which the engine serves its model; empty means unknown.
	ModelName string
	// Protocols are those that the engine speaks; empty means not declared.
	Protocols []Protocol
	// Init run to completion, in order, before Containers start.
	Init []Container
	// Containers run together; the first is the server that traffic goes to.
	Containers []Container
	Models     []Model
	// Volumes are directories that containers share or that a manifest mounts.
	Volumes []Volume
	// GracePeriod is how long a replica may take to stop after SIGTERM. Zero means 30 s.
	GracePeriod time.Duration
	// Hash identifies the shape: replicas with another hash are stale.
	Hash string
}

// Server returns the container that receives traffic. It panics on an empty workload,
// which no compiler of workloads produces.
func (w *Workload) Server() *Container {
	if len(w.Containers) == 0 {
		panic("BUG: workload " + w.Revision.String() + " has no container")
	}
	return &w.Containers[0]
}

// ModelsPortName is the name of the port on which a container tells of the models of the server
// beside it.
const ModelsPortName = "models"

// ModelsPort returns the port of that name, and whether there is one.
func (w *Workload) ModelsPort() (Port, bool) {
	for i := range w.Containers {
		for _, p := range w.Containers[i].Ports {
			if p.Name == ModelsPortName {
				return p, true
			}
		}
	}
	return Port{}, false
}

// Speaks reports whether the engine declared p.
func (w *Workload) Speaks(p Protocol) bool { return slices.Contains(w.Protocols, p) }

// Model is one set of model bytes that a workload needs on disk.
type Model struct {
	// URI as the manifest gives it, e.g. file:///m, pvc://claim/dir, https://host/m.tar.gz.
	URI string
	// Digest ("sha256:…") pins the content; empty until it was first resolved.
	Digest string
	// MountPath is where containers expect the bytes, e.g. /mnt/models.
	MountPath string
}

// Volume is a directory that containers mount by name.
type Volume struct {
	Name string
	Kind VolumeKind
	// Source is a host path for VolumeHostPath, "claim[/sub/path]" for VolumeClaim, and the
	// object's name for VolumeConfigMap and VolumeSecret. Empty for VolumeEmptyDir.
	Source string
	// Optional says whether a missing config map or secret is no error.
	Optional bool
	// Items maps keys to relative paths; nil means every key under its own name.
	Items map[string]string
}

// VolumeKind is the origin of a volume's content.
type VolumeKind string

// The volume kinds that a process on one machine can have.
const (
	VolumeEmptyDir  VolumeKind = "emptyDir"
	VolumeHostPath  VolumeKind = "hostPath"
	VolumeClaim     VolumeKind = "persistentVolumeClaim"
	VolumeConfigMap VolumeKind = "configMap"
	VolumeSecret    VolumeKind = "secret"
)

// Container is one process of a replica, in Kubernetes' words.
type Container struct {
	Name  string
	Image string
	// Command and Args may hold $(VAR) references to Env, expanded as Kubernetes does
	// ($$(VAR) escapes; an unknown name stays as written).
	Command    []string
	Args       []string
	WorkingDir string
	Env        []EnvVar
	Ports      []Port
	Mounts     []Mount
	Startup    *Probe
	Readiness  *Probe
	Liveness   *Probe
	// PreStop runs before SIGTERM; PostStart right after start. Nil means none.
	PreStop   *Action
	PostStart *Action
	Resources Resources
	// Local says how this container runs as a process where its image can't be used. Nil
	// means: run Command as written, or the image through a container engine.
	Local *LocalCommand
}

// LocalCommand is what the runtime catalogue knows about running an engine without its image.
// A platform takes the first of {itself, Alternatives...} that is installed: one whose
// Requires are all on PATH and whose Check, if any, exits 0. Where none is, the failure is
// RuntimeNotInstalled and its message carries Install.
type LocalCommand struct {
	// Command replaces Command and Args of the container; Args replaces its Args when Command
	// is empty. Where both are empty there is no local way to run it, and only Install counts.
	// In both, and in Env values, the literal container ports are replaced by the allocated
	// ones just as they are in ordinary args. A manifest's own args are already in it.
	// Command[0] "stationmaster" means this very executable.
	Command []string
	Args    []string
	// Env is set on top of the container's, by name.
	Env []EnvVar
	// Requires names the executables that have to be on PATH; empty means Command[0].
	Requires []string
	// Check is a quick command that exits 0 when the engine is installed, for engines that
	// are no executable of their own (a Python module, say). Empty means Requires suffices.
	Check []string
	// Alternatives are other ways to run the same engine, tried in order after this one.
	// Their own Alternatives and Install are empty.
	Alternatives []LocalCommand
	// Install tells a person how to get the command, e.g. "pip install mlserver".
	Install string
}

// EnvVar is one environment variable. From is set when the value lives elsewhere.
type EnvVar struct {
	Name  string
	Value string
	From  *EnvSource
}

// EnvSource points at a value that is looked up when a replica starts.
type EnvSource struct {
	// Kind is "secret", "configMap", "field" (Key is a field path such as metadata.name) or
	// "resource" (Key is e.g. limits.cpu). A secret or configMap with an empty Key stands
	// for all its keys (envFrom), each prefixed with EnvVar.Name.
	Kind     string
	Name     string
	Key      string
	Optional bool
}

// Port is a port that a container listens on.
type Port struct {
	Name   string
	Number int
	Scheme PortScheme
}

// PortScheme tells what is spoken on a port.
type PortScheme string

// HTTP covers HTTP/1.1 (and whatever an engine upgrades to); H2C is HTTP/2 without TLS,
// which gRPC servers use.
const (
	HTTP PortScheme = "http"
	H2C  PortScheme = "h2c"
)

// HTTPPort returns the port that HTTP traffic goes to and whether there is one: the first
// with scheme HTTP. A container without any port listens on 8080 (reference kserve.md 1.6);
// manifest.Compile adds that port, so a workload has it spelled out.
func (c *Container) HTTPPort() (Port, bool) { return c.port(HTTP) }

// GRPCPort returns the first H2C port, and whether there is one.
func (c *Container) GRPCPort() (Port, bool) { return c.port(H2C) }

func (c *Container) port(s PortScheme) (Port, bool) {
	for _, p := range c.Ports {
		if p.Scheme == s {
			return p, true
		}
	}
	return Port{}, false
}

// Mount puts a volume at a path of the container.
type Mount struct {
	Volume   string
	Path     string
	SubPath  string
	ReadOnly bool
}

// Action is what a probe or a lifecycle hook does. Exactly one field is set.
type Action struct {
	Exec []string
	HTTP *HTTPAction
	TCP  *TCPAction
	GRPC *GRPCAction
	// Sleep waits; only for lifecycle hooks.
	Sleep time.Duration
}

// HTTPAction asks for Path; 200 to 399 is success (Kubernetes' rule).
type HTTPAction struct {
	Port    int
	Host    string
	Path    string
	TLS     bool
	Headers map[string]string
}

// TCPAction succeeds when a connection opens.
type TCPAction struct {
	Port int
	Host string
}

// GRPCAction asks grpc.health.v1.Health/Check for Service.
type GRPCAction struct {
	Port    int
	Service string
}

// Probe is a check of a container's health; durations and thresholds are Kubernetes' own,
// with its defaults filled in (period 10 s, timeout 1 s, success 1, failure 3).
type Probe struct {
	Action           Action
	InitialDelay     time.Duration
	Period           time.Duration
	Timeout          time.Duration
	SuccessThreshold int
	FailureThreshold int
}

// Resources are a container's limits. Zero means no limit.
type Resources struct {
	MilliCPU    int64
	MemoryBytes int64
}
