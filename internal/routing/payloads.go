package routing

import (
	"net/url"
	"strings"

	"stationmaster.dev/stationmaster/internal/spec"
)

// log gives the addresses of a collector and of a marshaller as the gateway of a cluster has to
// call them: a single name is one of the service's own namespace, as it was where KServe's agent
// logged from the service's pods.
func (s *Service) log(l *spec.PayloadLog) *spec.PayloadLog {
	if l == nil || !s.InCluster {
		return l
	}
	qualified := *l
	if l.Store == nil {
		qualified.URL = s.qualified(l.URL)
	} else {
		store := *l.Store
		store.Marshaller = s.qualified(store.Marshaller)
		qualified.Store = &store
	}
	return &qualified
}

// qualified is an address whose host, if it is a single name, has the service's namespace behind it.
func (s *Service) qualified(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	host := u.Hostname()
	if host == "" || host == "localhost" || strings.ContainsAny(host, ".:") {
		return address
	}
	u.Host = strings.Replace(u.Host, host, host+"."+s.Key.Namespace, 1)
	return u.String()
}
