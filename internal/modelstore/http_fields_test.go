package modelstore_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/modelstore"
)

func TestAHostsFieldsGoToThatHostAlone(t *testing.T) {
	var elsewhere http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere = r.Header.Clone()
		_, _ = io.WriteString(w, "bytes")
	}))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "v" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, other.URL+"/model.bin", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "bytes")
	}))
	t.Cleanup(server.Close)
	s, err := modelstore.Open(modelstore.Config{Dir: t.TempDir(), HTTP: modelstore.HTTPConfig{
		Retries: -1,
		Headers: func(_ context.Context, namespace, host string) (map[string]string, error) {
			if namespace != "team" || "http://"+host != server.URL {
				return nil, nil
			}
			return map[string]string{"X-Key": "v"}, nil
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for path, ok := range map[string]bool{"/model.bin": true, "/moved": true} {
		_, _, release, err := s.Fetch(t.Context(), "team", server.URL+path, "")
		if (err == nil) != ok {
			t.Fatalf("%s: %v", path, err)
		}
		release()
	}
	if elsewhere == nil || elsewhere.Get("X-Key") != "" {
		t.Errorf("the host that it was sent on to got %v", elsewhere)
	}
	if _, _, _, err := s.Fetch(t.Context(), "others", server.URL+"/model.bin", ""); err == nil {
		t.Error("another namespace got the model")
	}
}

// taken is a source that serves one thing.
type taken struct{}

func (taken) Read(ctx context.Context, _ modelstore.Request, sink *modelstore.Sink) error {
	return sink.AddFile(ctx, "taken", strings.NewReader("x"))
}

func TestASourceTakesOverSomeHostsOfAScheme(t *testing.T) {
	s, err := modelstore.Open(modelstore.Config{Dir: t.TempDir(), HTTP: modelstore.HTTPConfig{Retries: -1}, Sources: map[string]modelstore.Source{"https://*.blob.example": taken{}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, _, release, err := s.Fetch(t.Context(), "", "https://acct.blob.example/c/m", ""); err != nil {
		t.Error(err)
	} else {
		release()
	}
	if _, _, _, err := s.Fetch(t.Context(), "", "https://127.0.0.1:1/blob.example", ""); err == nil {
		t.Error("it took over another host")
	}
}
