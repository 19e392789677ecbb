package routing

import (
	"cmp"
	"net"
	"net/url"
	"strconv"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Annotations of KServe's runtimes that tell where the engine's metrics are.
const (
	metricsPort = "prometheus.kserve.io/port"
	metricsPath = "prometheus.kserve.io/path"
)

// EngineOf returns the adapter of what a revision's server is, nil where that isn't known.
func EngineOf(rev *smv1alpha1.Revision) *adapter.Adapter {
	facts := engine.Facts{Declared: rev.Spec.PodTemplate.Annotations[engine.Annotation]}
	if r := rev.Spec.Runtime; r != nil {
		facts.Runtime, facts.Images = r.Name, []string{r.Image}
	}
	if cs := rev.Spec.PodTemplate.Spec.Containers; len(cs) > 0 {
		facts.Images = append(facts.Images, cs[0].Image)
		facts.Command = append(facts.Command, cs[0].Command...)
		facts.Command = append(facts.Command, cs[0].Args...)
	}
	for _, p := range rev.Spec.Protocols {
		facts.Protocols = append(facts.Protocols, spec.Protocol(p))
	}
	return engine.Of(facts)
}

// Pages tells where the replicas of a revision tell their own metrics.
type Pages struct {
	path string
	// port is empty where it is that for HTTP.
	port string
	// security is how the port for HTTP is reached; others are without TLS.
	security enginetls.Security
	// elsewhere says that on one machine the port isn't that for HTTP.
	elsewhere bool
}

// PagesOf returns the pages of a revision. Of a cluster's pods every port is reached; on one machine
// those for HTTP, and those that are named metrics.
func PagesOf(rev *smv1alpha1.Revision, inCluster bool) Pages {
	annotations := rev.Spec.PodTemplate.Annotations
	given, path := annotations[metricsPort], annotations[metricsPath]
	own := 0
	if a := EngineOf(rev); a != nil {
		if a.Page.Path == "" && given == "" && path == "" {
			return Pages{}
		}
		path, own = cmp.Or(path, a.Page.Path), a.Page.Port
	}
	p := Pages{path: cmp.Or(path, "/metrics"), security: Security(rev)}
	switch {
	case given != "" && (inCluster && own == 0 || given != serverPort(rev)):
		p.port = given
	case own != 0:
		// KServe's annotation names the port for inference for engines that have another.
		p.port = strconv.Itoa(own)
	}
	p.elsewhere = p.port != "" && !inCluster
	return p
}

// Security is how a revision's engine is reached for HTTP and gRPC. What can't be read was refused
// when it was applied; should it come here all the same, it trusts nobody.
func Security(rev *smv1alpha1.Revision) enginetls.Security {
	component := manifest.ComponentName(rev.Spec.Service, spec.Component(rev.Spec.Component))
	name := component + "." + rev.Namespace + ".svc"
	s, err := enginetls.Parse(rev.Spec.PodTemplate.Annotations, name)
	if err != nil {
		return enginetls.Of(enginetls.TLS{ServerName: name, Roots: "none"})
	}
	return s
}

// Of returns the URL of a replica's page, empty where it has none that is reached.
func (p Pages) Of(r spec.Replica) string {
	address := r.HTTP
	if r.Metrics != "" {
		address = r.Metrics
	} else if p.elsewhere {
		return ""
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || p.path == "" {
		return ""
	}
	if r.Metrics == "" {
		port = cmp.Or(p.port, port)
	}
	scheme := "http"
	if r.Metrics == "" && p.port == "" {
		scheme = p.security.Scheme()
	}
	at := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}
	return at.JoinPath(p.path).String()
}

// serverPort is the number of the port for HTTP that a revision's server is written to have.
func serverPort(rev *smv1alpha1.Revision) string {
	w, err := manifest.WorkloadOf(rev.Namespace, rev.Name, &rev.Spec)
	if err != nil {
		return ""
	}
	p, _ := w.Server().HTTPPort()
	return strconv.Itoa(p.Number)
}
