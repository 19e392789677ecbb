package routing_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/routing"
	"stationmaster.dev/stationmaster/internal/spec"
)

const digest = "sha256:aaaa"

func revision(name, component string) smv1alpha1.Revision {
	return smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Spec: smv1alpha1.RevisionSpec{
			Service: "iris", Component: component, ModelName: "iris", Protocols: []string{"v2"}, TimeoutSeconds: 7,
			Models: []smv1alpha1.RevisionModel{{URI: "https://models/iris"}},
		},
	}
}

func replica(rev, id string, phase spec.Phase) spec.Replica {
	return spec.Replica{ID: id, Revision: spec.RevisionKey{Namespace: "team", Name: rev}, Phase: phase, HTTP: id + ":8080"}
}

func lingering(rev, id string, phase spec.Phase) spec.Replica {
	r := replica(rev, id, phase)
	r.Lingers = true
	return r
}

func routed(component string, shares ...any) smv1alpha1.ComponentRoute {
	r := smv1alpha1.ComponentRoute{Component: component}
	for i := 0; i < len(shares); i += 2 {
		r.Targets = append(r.Targets, smv1alpha1.RouteTarget{RevisionName: shares[i].(string), Percent: int32(shares[i+1].(int))})
	}
	return r
}

func TestLine(t *testing.T) {
	r1, r2 := revision("iris-predictor-00001", "predictor"), revision("iris-predictor-00002", "predictor")
	r1.Status.Models = []smv1alpha1.ResolvedModel{{URI: "https://models/iris", Digest: digest}}
	target := func(name string, weight int, digest string, ids ...string) route.Target {
		t := route.Target{Revision: name, Weight: weight, Digest: digest, ModelName: "iris", Engine: "v2", Protocols: []spec.Protocol{spec.V2}}
		for _, id := range ids {
			t.Endpoints = append(t.Endpoints, route.Endpoint{Replica: id, HTTP: id + ":8080", Metrics: "http://" + id + ":8080/metrics"})
		}
		return t
	}
	tests := map[string]struct {
		component routing.Component
		replicas  []spec.Replica
		want      route.Backend
	}{
		"ready replicas of the routed revision are endpoints, others aren't": {
			component: routing.Component{Route: routed("predictor", r1.Name, 100)},
			replicas:  []spec.Replica{replica(r1.Name, "a", spec.Ready), replica(r1.Name, "b", spec.Loading), replica(r2.Name, "c", spec.Ready)},
			want:      route.Backend{Targets: []route.Target{target(r1.Name, 100, digest, "a")}},
		},
		"a component that sleeps names what a request starts": {
			component: routing.Component{Cold: true, Why: "nothing to do", Route: routed("predictor", r1.Name, 100)},
			want: route.Backend{
				Targets: []route.Target{target(r1.Name, 100, digest)}, Cold: true,
				NotReady: "the predictor of service team/iris isn't ready: nothing to do",
			},
		},
		"a replica that is about to end gets no request": {
			component: routing.Component{Cold: true, Hidden: true, Route: routed("predictor", r1.Name, 100)},
			replicas:  []spec.Replica{replica(r1.Name, "a", spec.Ready)},
			want: route.Backend{
				Targets: []route.Target{target(r1.Name, 100, digest)}, Cold: true,
				NotReady: "the predictor of service team/iris isn't ready",
			},
		},
		"a replica that lingers serves where there is no other": {
			component: routing.Component{Route: routed("predictor", r1.Name, 100)},
			replicas:  []spec.Replica{lingering(r1.Name, "a", spec.Draining), replica(r1.Name, "b", spec.Loading)},
			want:      route.Backend{Targets: []route.Target{target(r1.Name, 100, digest, "a")}},
		},
		"a replica that lingers beside a ready one gets nothing": {
			component: routing.Component{Route: routed("predictor", r1.Name, 50, r2.Name, 50)},
			replicas:  []spec.Replica{lingering(r1.Name, "a", spec.Draining), replica(r2.Name, "b", spec.Ready)},
			want:      route.Backend{Targets: []route.Target{target(r2.Name, 50, "", "b")}},
		},
		"what lingers of a component that sleeps gets nothing": {
			component: routing.Component{Cold: true, Hidden: true, Route: routed("predictor", r1.Name, 100)},
			replicas:  []spec.Replica{lingering(r1.Name, "a", spec.Draining)},
			want: route.Backend{
				Targets: []route.Target{target(r1.Name, 100, digest)}, Cold: true,
				NotReady: "the predictor of service team/iris isn't ready",
			},
		},
		"a component that woke serves": {
			component: routing.Component{Cold: true, Route: routed("predictor", r1.Name, 100)},
			replicas:  []spec.Replica{replica(r1.Name, "a", spec.Ready)},
			want:      route.Backend{Targets: []route.Target{target(r1.Name, 100, digest, "a")}},
		},
		"two revisions share": {
			component: routing.Component{Route: routed("predictor", r1.Name, 90, r2.Name, 10)},
			replicas:  []spec.Replica{replica(r1.Name, "a", spec.Ready), replica(r2.Name, "c", spec.Ready)},
			want:      route.Backend{Targets: []route.Target{target(r1.Name, 90, digest, "a"), target(r2.Name, 10, "", "c")}},
		},
		"a revision without a ready replica leaves its share to the other": {
			component: routing.Component{Route: routed("predictor", r1.Name, 90, r2.Name, 10)},
			replicas:  []spec.Replica{replica(r1.Name, "a", spec.Ready), replica(r2.Name, "c", spec.Failed)},
			want:      route.Backend{Targets: []route.Target{target(r1.Name, 90, digest, "a")}},
		},
		"a draining replica gets no new requests": {
			component: routing.Component{Route: routed("predictor", r1.Name, 100), Why: "it drains", Returning: true},
			replicas:  []spec.Replica{replica(r1.Name, "a", spec.Draining)},
			want:      route.Backend{NotReady: "the predictor of service team/iris isn't ready: it drains", Returning: true},
		},
		"a route that names a revision that is gone leads nowhere": {
			component: routing.Component{Route: routed("predictor", "iris-predictor-00009", 100)},
			want:      route.Backend{NotReady: "the predictor of service team/iris isn't ready"},
		},
		"of a long reason the first line is told": {
			component: routing.Component{Why: "the engine exited\nTraceback"},
			want:      route.Backend{NotReady: "the predictor of service team/iris isn't ready: the engine exited"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.component.Name = spec.Predictor
			got := routing.Line(routing.Service{
				Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Domain: "example.com",
				Components: []routing.Component{tc.component},
				Revisions:  []smv1alpha1.Revision{r1, r2}, Observed: spec.Observed{Replicas: tc.replicas},
			})
			if diff := cmp.Diff(tc.want, got.Components[spec.Predictor]); diff != "" {
				t.Errorf("backend (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLineOfAServiceWithATransformerInACluster(t *testing.T) {
	tr := revision("iris-transformer-00001", "transformer")
	created := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	got := routing.Line(routing.Service{
		Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Created: created, Domain: "example.com", InCluster: true,
		Components: []routing.Component{
			{Name: spec.Predictor, Hosts: []string{"127.64.0.1"}},
			{Name: spec.Transformer, Route: routed("transformer", tr.Name, 100)},
		},
		Revisions: []smv1alpha1.Revision{tr},
	})
	hosts := []route.Host{
		{Name: "iris-team.example.com"},
		{Name: "iris-predictor-team.example.com", Component: spec.Predictor},
		{Name: "iris-predictor.team", Component: spec.Predictor},
		{Name: "iris-predictor.team.svc", Component: spec.Predictor},
		{Name: "iris-predictor.team.svc.cluster.local", Component: spec.Predictor},
		{Name: "127.64.0.1", Component: spec.Predictor},
		{Name: "iris-transformer-team.example.com", Component: spec.Transformer},
		{Name: "iris-transformer.team", Component: spec.Transformer},
		{Name: "iris-transformer.team.svc", Component: spec.Transformer},
		{Name: "iris-transformer.team.svc.cluster.local", Component: spec.Transformer},
	}
	if diff := cmp.Diff(hosts, got.Hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if got.Entry != spec.Transformer || got.Timeout != 7*time.Second || !got.Created.Equal(created) || got.PathPrefix != "/serving/team/iris" {
		t.Errorf("entry %s, timeout %v, created %v, prefix %s", got.Entry, got.Timeout, got.Created, got.PathPrefix)
	}
}

func TestTagsHaveHostsRulesAndSticky(t *testing.T) {
	r1, r2 := revision("iris-predictor-00001", "predictor"), revision("iris-predictor-00002", "predictor")
	comp := routed("predictor", r2.Name, 0, r1.Name, 100)
	comp.Targets[0].Tag, comp.Targets[1].Tag = "latest", "prev"
	comp.HeaderRules = []smv1alpha1.HeaderRule{{Header: "X-Tag", Value: "canary", Tag: "latest"}}
	comp.Sticky = &smv1alpha1.Sticky{Cookie: "user"}
	got := routing.Line(routing.Service{
		Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Domain: "example.com",
		Components: []routing.Component{{Name: spec.Predictor, Route: comp}},
		Revisions:  []smv1alpha1.Revision{r1, r2},
		Observed:   spec.Observed{Replicas: []spec.Replica{replica(r1.Name, "a", spec.Ready), replica(r2.Name, "b", spec.Ready)}},
	})
	tags := map[string]string{}
	for _, h := range got.Hosts {
		if h.Tag != "" {
			tags[h.Name] = h.Tag
		}
	}
	want := map[string]string{
		"latest-iris-team.example.com": "latest", "latest-iris-predictor-team.example.com": "latest",
		"canary-iris-team.example.com": "latest", "canary-iris-predictor-team.example.com": "latest",
		"prev-iris-team.example.com": "prev", "prev-iris-predictor-team.example.com": "prev",
	}
	if diff := cmp.Diff(want, tags); diff != "" {
		t.Errorf("hosts of tags (-want +got):\n%s", diff)
	}
	b := got.Components[spec.Predictor]
	if b.Targets[0].Tag != "latest" || b.Targets[0].Weight != 0 || b.Targets[1].Tag != "prev" {
		t.Errorf("targets %+v", b.Targets)
	}
	if len(b.Rules) != 1 || b.Rules[0] != (route.HeaderRule{Header: "X-Tag", Value: "canary", Tag: "latest"}) || b.Sticky != (route.Sticky{Cookie: "user"}) {
		t.Errorf("rules %+v, sticky %+v", b.Rules, b.Sticky)
	}
}

func TestLineCarriesTheRevisionsLimitAndStartUpTime(t *testing.T) {
	r := revision("iris-predictor-00001", "predictor")
	r.Spec.ContainerConcurrency = 4
	r.Status.Startup = &smv1alpha1.StartupDurations{Ready: &metav1.Duration{Duration: 3 * time.Second}}
	got := routing.Line(routing.Service{
		Key:        spec.ServiceKey{Namespace: "team", Name: "iris"},
		Components: []routing.Component{{Name: spec.Predictor, Cold: true, Route: routed("predictor", r.Name, 100)}},
		Revisions:  []smv1alpha1.Revision{r},
	}).Components[spec.Predictor]
	if got.Startup != 3*time.Second || got.Targets[0].Limit != 4 {
		t.Errorf("start-up %v and limit %d, want 3s and 4", got.Startup, got.Targets[0].Limit)
	}
}

func TestTheManifestGoesBeforeTheRuntimeInHowReplicasArePicked(t *testing.T) {
	r := revision("iris-predictor-00001", "predictor")
	r.Spec.PodTemplate.Annotations = map[string]string{manifest.PickingAnnotation: "round-robin "}
	is := &v1beta1.InferenceService{}
	for want, service := range map[string]string{"round-robin": "", "prefix": "prefix"} {
		is.Annotations = map[string]string{manifest.PickingAnnotation: service}
		comp := routing.NewComponent(is, spec.Predictor)
		comp.Route, comp.Cold = routed("predictor", r.Name, 100), true
		got := routing.Line(routing.Service{
			Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Components: []routing.Component{comp}, Revisions: []smv1alpha1.Revision{r},
		}).Components[spec.Predictor].Targets[0].Picking
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestLineCarriesWhatTheManifestSaysOfPayloads(t *testing.T) {
	url, size := "http://collector", 8
	is := &v1beta1.InferenceService{}
	is.Spec.Predictor.Logger = &v1beta1.LoggerSpec{Mode: v1beta1.LogAll, URL: &url}
	is.Spec.Predictor.Batcher = &v1beta1.Batcher{MaxBatchSize: &size}
	comp := routing.NewComponent(is, spec.Predictor)
	comp.Route = routed("predictor", "iris-predictor-00001", 100)
	got := routing.Line(routing.Service{
		Key:        spec.ServiceKey{Namespace: "team", Name: "iris"},
		Components: []routing.Component{comp, routing.NewComponent(is, spec.Transformer)},
	}).Components
	if b := got[spec.Predictor]; b.Log == nil || b.Log.URL != url || b.Batch == nil || b.Batch.MaxSize != size {
		t.Errorf("log %+v, batch %+v", b.Log, b.Batch)
	}
	if b := got[spec.Transformer]; b.Log != nil || b.Batch != nil {
		t.Errorf("the transformer has none: log %+v, batch %+v", b.Log, b.Batch)
	}
}

func TestACollectorOfOneNameIsInTheServicesNamespace(t *testing.T) {
	for url, want := range map[string]string{
		"http://collector": "http://collector.team", "http://collector:8080/in?a=b": "http://collector.team:8080/in?a=b",
		"https://collector.default": "https://collector.default", "http://localhost:9": "http://localhost:9",
		"http://10.0.0.1": "http://10.0.0.1", "http://[::1]:80": "http://[::1]:80",
	} {
		for _, inCluster := range []bool{true, false} {
			log := &spec.PayloadLog{URL: url}
			got := routing.Line(routing.Service{
				Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, InCluster: inCluster,
				Components: []routing.Component{{Name: spec.Predictor, Log: log}},
			}).Components[spec.Predictor].Log.URL
			if inCluster && got != want || !inCluster && got != url || log.URL != url {
				t.Errorf("%s, in a cluster %v: %s, want %s", url, inCluster, got, want)
			}
			log = &spec.PayloadLog{URL: "s3://bucket/x", Store: &spec.PayloadStore{Marshaller: url}}
			stored := routing.Line(routing.Service{
				Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, InCluster: inCluster,
				Components: []routing.Component{{Name: spec.Predictor, Log: log}},
			}).Components[spec.Predictor].Log
			if got := stored.Store.Marshaller; inCluster && got != want || !inCluster && got != url || log.Store.Marshaller != url {
				t.Errorf("a marshaller %s, in a cluster %v: %s, want %s", url, inCluster, got, want)
			}
			if stored.URL != log.URL {
				t.Errorf("a bucket became %s", stored.URL)
			}
		}
	}
}

func TestLineSaysWhoReadsThePrompts(t *testing.T) {
	is := &v1beta1.InferenceService{}
	is.Annotations = map[string]string{manifest.PrefillAnnotation: "p, protocol=header"}
	line := func() route.Backend {
		c := routing.NewComponent(is, spec.Predictor)
		c.Route = routed("predictor", "iris-1", 100)
		return routing.Line(routing.Service{
			Key: spec.ServiceKey{Namespace: "team", Name: "iris"}, Components: []routing.Component{c},
			Revisions: []smv1alpha1.Revision{revision("iris-1", "predictor")},
			Observed:  spec.Observed{Replicas: []spec.Replica{replica("iris-1", "a", spec.Ready)}},
		}).Components[spec.Predictor]
	}
	want := &spec.Prefill{Service: "p", Header: true, MinTokens: 256}
	if got := line(); !cmp.Equal(got.Prefill, want) || got.Targets[0].Picking != manifest.PrefillPicking {
		t.Errorf("%v, picked by %q", got.Prefill, got.Targets[0].Picking)
	}
	is.Annotations[manifest.PickingAnnotation] = "prefix"
	if got := line(); got.Targets[0].Picking != "prefix" {
		t.Errorf("picked by %q", got.Targets[0].Picking)
	}
	is.Annotations = nil
	if got := line(); got.Prefill != nil || got.Targets[0].Picking != "" {
		t.Errorf("%v, picked by %q", got.Prefill, got.Targets[0].Picking)
	}
}
