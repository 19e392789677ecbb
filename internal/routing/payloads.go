package routing

import (
	"net/url"
	"strings"

	"stationmaster.dev/stationmaster/internal/spec"
)

// log gives a collector's address as the gateway of a cluster has to call it: a single name is one
// of the service's own namespace, as it was where KServe's agent logged from the service's pods.
func (s *Service) log(l *spec.PayloadLog) *spec.PayloadLog {
	if l == nil || !s.InCluster {
		return l
	}
	u, err := url.Parse(l.URL)
	if err != nil {
		return l
	}
	host := u.Hostname()
	if host == "localhost" || strings.ContainsAny(host, ".:") {
		return l
	}
	u.Host = strings.Replace(u.Host, host, host+"."+s.Key.Namespace, 1)
	qualified := *l
	qualified.URL = u.String()
	return &qualified
}
