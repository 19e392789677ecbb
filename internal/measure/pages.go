package measure

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// PagesPath begins the paths of Pages.
const PagesPath = "/engines/"

// Pages serves engines' own pages of metrics, whether they have an adapter or not:
// GET /engines/targets lists them as Prometheus' HTTP service discovery reads it, and GET
// /engines/<namespace>/<service>/<replica>/metrics is one of them.
func (s *Sampler) Pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PagesPath+"targets", s.targets)
	mux.HandleFunc("GET "+PagesPath+"{namespace}/{service}/{replica}/metrics", s.page)
	return mux
}

// targetGroup is what Prometheus' HTTP service discovery reads.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func (s *Sampler) targets(w http.ResponseWriter, r *http.Request) {
	out := []targetGroup{}
	for e := range endpoints(s.table.Load()) {
		at := PagesPath + strings.Join([]string{url.PathEscape(e.Service.Namespace), url.PathEscape(e.Service.Name), url.PathEscape(e.Replica), "metrics"}, "/")
		labels := map[string]string{
			"__metrics_path__": at, "namespace": e.Service.Namespace, "service": e.Service.Name, "revision": e.Revision, "replica": e.Replica,
		}
		if e.engine != "" {
			labels["engine"] = e.engine
		}
		out = append(out, targetGroup{[]string{r.Host}, labels})
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		return // the client is gone
	}
}

func (s *Sampler) page(w http.ResponseWriter, r *http.Request) {
	for e := range endpoints(s.table.Load()) {
		if e.Service.Namespace == r.PathValue("namespace") && e.Service.Name == r.PathValue("service") && e.Replica == r.PathValue("replica") {
			s.relay(w, r, e)
			return
		}
	}
	http.Error(w, "no ready replica of that name has a page of metrics", http.StatusNotFound)
}

// relay answers with an engine's page, as much of it as there may be.
func (s *Sampler) relay(w http.ResponseWriter, r *http.Request, e endpoint) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	begun := false
	err := s.client.over(e.security).page(ctx, e.page, maxPage, func(body io.Reader) error {
		begun = true
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, err := io.Copy(w, body)
		return err
	})
	switch {
	case err == nil:
	case begun:
		panic(http.ErrAbortHandler) // half a page is none
	default:
		http.Error(w, "the engine's page: "+err.Error(), http.StatusBadGateway)
	}
}
