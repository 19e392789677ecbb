package app

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// klog's flusher is started by an import and has no owner that could end it.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func TestComponentAddressesAreStableDistinctAndLoopback(t *testing.T) {
	a, b := newAddresses(8080), newAddresses(8080)
	seen := map[string]spec.ServiceKey{}
	for i := range 5000 {
		key := spec.ServiceKey{Namespace: "ns", Name: "svc" + string(rune('a'+i%26)) + time.Duration(i).String()}
		got := a.of(key, spec.Predictor)
		if again := a.of(key, spec.Predictor); again != got {
			t.Fatalf("%v got %s, then %s", key, got, again)
		}
		if other, taken := seen[got]; taken {
			t.Fatalf("%v and %v share %s", key, other, got)
		}
		seen[got] = key
		host, _, err := net.SplitHostPort(got)
		if err != nil || !net.ParseIP(host).IsLoopback() {
			t.Fatalf("%s isn't a loopback address", got)
		}
		if i < 10 && b.of(key, spec.Predictor) != got {
			t.Errorf("%v depends on more than its name", key)
		}
	}
}

func TestListenerSetFollowsTheTable(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	set := newListenerSet(first, slog.New(slog.DiscardHandler))
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(set) }()
	_, port, err := net.SplitHostPort(first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(host string) (string, error) {
		resp, err := client.Get("http://" + net.JoinHostPort(host, port))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		return string(raw), err
	}
	var table state.Topic[route.Table]
	withHost := route.Compile([]route.Service{{Key: spec.ServiceKey{Name: "x"}, Hosts: []route.Host{{Name: "127.70.1.2"}, {Name: "x-default.localhost"}}}})
	table.Publish(withHost)
	set.set(loopbackHosts(withHost))
	for _, host := range []string{"127.0.0.1", "127.70.1.2"} {
		if got, err := ask(host); err != nil || got != net.JoinHostPort(host, port) {
			t.Errorf("asked %s: %q, %v", host, got, err)
		}
	}
	set.set(nil)
	if got, err := ask("127.70.1.2"); err == nil {
		t.Errorf("an address that the table no longer names still answers %q", got)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	<-served
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}
