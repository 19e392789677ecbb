package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"stationmaster.dev/stationmaster/internal/spec"
)

// maxLabel is the greatest length of a DNS label and of a label's value (RFC 1123).
const maxLabel = 63

// ComponentName returns the name of the workload and of the in-cluster service of a component,
// "<service>-<component>" (KServe: pkg/constants). It is at most 63 bytes long; a longer one
// is cut and ends in a hash.
func ComponentName(service string, c spec.Component) string {
	return shorten(service+"-"+string(c), maxLabel)
}

// PredictorName returns the name of a predictor's workload, which holds the variant's name
// (predictor.name) where there is one: "<service>-<variant>-predictor".
func PredictorName(service, variant string) string {
	if variant == "" {
		return ComponentName(service, spec.Predictor)
	}
	return ComponentName(service+"-"+variant, spec.Predictor)
}

// WorkerName returns the name of the workers' workload of a predictor over several nodes.
func WorkerName(service string) string { return shorten(service+"-predictor-worker", maxLabel) }

// HeadServiceName and WorkersServiceName return the names of the headless services of a
// predictor over several nodes, at a generation of its service.
func HeadServiceName(service string, generation int64) string {
	return withSuffix(service+"-head", fmt.Sprintf("-%d", generation))
}

// WorkersServiceName is described at HeadServiceName.
func WorkersServiceName(service string, generation int64) string {
	return withSuffix(service+"-predictor-workers", fmt.Sprintf("-%d", generation))
}

// RevisionName returns the name of a component's revision, "<service>-<component>-00001" for
// generation 1 and so on. Names of two components or generations of a service differ.
func RevisionName(service string, c spec.Component, generation int64) string {
	return withSuffix(service+"-"+string(c), fmt.Sprintf("-%05d", generation))
}

// AppLabel returns the value of the label "app" that selects a component's pods,
// "isvc.<component name>".
func AppLabel(service string, c spec.Component) string {
	return shorten("isvc."+ComponentName(service, c), maxLabel)
}

// Host returns the external host of a service or component, "<name>-<namespace>.<domain>"
// (KServe's default domainTemplate). name is the service's, or ComponentName's result for a
// component's own host. The first label is cut to 63 bytes with a hash at its end. An empty
// domain gives the bare label.
//
// As in KServe, name "a" in namespace "b-c" and name "a-b" in "c" share a host; whoever lays
// out routes has to give it to one of them.
func Host(name, namespace, domain string) string {
	label := shorten(name+"-"+namespace, maxLabel)
	if domain == "" {
		return label
	}
	return label + "." + domain
}

// Tags of the two revisions that share traffic: the newest, and the one rolled out before it.
const (
	TagLatest   = "latest"
	TagPrevious = "prev"
	// TagCanary is another name of the newest revision, while it shares traffic.
	TagCanary = "canary"
)

// TagHeader names a revision's tag in a request.
const TagHeader = "X-Stationmaster-Tag"

// TagRoutingAnnotation is KServe's: "true" gives the newest revision a tag at all times.
const TagRoutingAnnotation = "serving.kserve.io/enable-tag-routing"

// TagHost returns the host that leads to one revision of a component by its tag, whatever its
// share: Host of "<tag>-<name>", where name is as Host takes it.
func TagHost(tag, name, namespace, domain string) string {
	return Host(tag+"-"+name, namespace, domain)
}

// ClusterHost returns the host of a component inside a cluster,
// "<service>-<component>.<namespace>.svc.cluster.local".
func ClusterHost(service string, c spec.Component, namespace string) string {
	return ComponentName(service, c) + "." + namespace + ".svc.cluster.local"
}

// PathPrefix returns the path under which a service is reached on any host,
// "/serving/<namespace>/<service>" (KServe's usual pathTemplate), without a slash at the end.
func PathPrefix(namespace, service string) string { return "/serving/" + namespace + "/" + service }

// ClusterLocal reports whether an object's labels keep it from clients outside the cluster:
// KServe's label for Standard mode or, as manifests written for Knative mode run here as well,
// Knative's.
func ClusterLocal(labels map[string]string) bool {
	return labels["networking.kserve.io/visibility"] == "cluster-local" || labels["networking.knative.dev/visibility"] == "cluster-local"
}

// withSuffix joins name and suffix into at most 63 bytes and keeps the suffix whole.
func withSuffix(name, suffix string) string {
	return shorten(name, maxLabel-len(suffix)) + suffix
}

// shorten returns s if it fits, else its beginning with 8 hex digits of its hash, so that
// long names that share a beginning stay distinct.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	tail := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(s[:limit-len(tail)], "-.") + tail
}
