package modelstore_test

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
)

// quick makes waits short enough for tests.
var quick = modelstore.HTTPConfig{Backoff: time.Millisecond, Retries: 3}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestFetchHTTP(t *testing.T) {
	packed := gz(tarOf(file("m/f", "x")))
	zipped := zipOf(member{"m/f", "x", 0})
	unpacked := map[string]string{"m/f": "x"}
	say := func(body []byte, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			_, _ = w.Write(body)
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	cases := map[string]struct {
		path    string
		handler http.HandlerFunc
		want    map[string]string
		kind    error
		says    string
	}{
		"one file":                            {path: "/a/m.onnx", handler: say([]byte("w"), "Content-Type", "text/html"), want: map[string]string{"m.onnx": "w"}},
		"one file with a query":               {path: "/a/m.onnx?token=secret", handler: say([]byte("w")), want: map[string]string{"m.onnx": "w"}},
		"a name in the header":                {path: "/get?id=1", handler: say([]byte("w"), "Content-Disposition", `attachment; filename="../m.gguf"`), want: map[string]string{"m.gguf": "w"}},
		"no name at all":                      {path: "/", handler: say([]byte("w")), want: map[string]string{"model": "w"}},
		"a tar.gz as octets":                  {path: "/m.tar.gz", handler: say(packed, "Content-Type", "application/octet-stream"), want: unpacked},
		"a tar.gz that claims an encoding":    {path: "/m.tgz", handler: say(packed, "Content-Type", "application/x-tar", "Content-Encoding", "gzip"), want: unpacked},
		"a tar.gz by its media type":          {path: "/download", handler: say(packed, "Content-Type", "application/gzip; x=y"), want: unpacked},
		"a zip by its name":                   {path: "/m.zip", handler: say(zipped, "Content-Type", "text/plain"), want: unpacked},
		"a zip by its media type":             {path: "/download", handler: say(zipped, "Content-Type", "application/zip"), want: unpacked},
		"a model format that is a zip inside": {path: "/m.pt", handler: say(zipped, "Content-Type", "application/zip"), want: map[string]string{"m.pt": string(zipped)}},
		"not found":                           {path: "/m?sig=secret", handler: status(404), kind: errdef.ErrNotFound, says: "404"},
		"forbidden":                           {path: "/m?sig=secret", handler: status(403), kind: errdef.ErrDenied, says: "403"},
		"a server that is broken":             {path: "/m?sig=secret", handler: status(500), kind: errdef.ErrUnavailable, says: "500"},
		"a server that is busy":               {path: "/m", handler: status(429), kind: errdef.ErrOverloaded, says: "429"},
		"an answer without content":           {path: "/m", handler: status(204), kind: errdef.ErrUnavailable, says: "204"},
		"an encoding that wasn't asked for":   {path: "/m.onnx", handler: say(packed, "Content-Encoding", "gzip"), kind: errdef.ErrUnsupported, says: "encoded"},
		"a page where a tar was due":          {path: "/m.tar", handler: say([]byte("<html>")), kind: errdef.ErrInvalid, says: "broken"},
		"redirects without end":               {path: "/m?sig=secret", handler: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/m?sig=secret2", http.StatusFound) }, kind: errdef.ErrInvalid, says: "more than 5 redirects"},
		"a redirect to a scheme that isn't the web": {path: "/m", handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, kind: errdef.ErrUnavailable, says: "unsupported protocol scheme"},
		"less than was announced": {path: "/m.onnx?sig=secret", handler: say([]byte("short"), "Content-Length", "500"),
			kind: errdef.ErrUnavailable, says: "broke after 5 of 500 bytes"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := open(t, modelstore.Config{HTTP: quick})
			url := serve(t, tc.handler) + tc.path
			url = strings.Replace(url, "http://", "http://user:hunter2@", 1)
			path, _, release, err := s.Fetch(t.Context(), "", url, "")
			if tc.kind != nil {
				if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
					t.Fatalf("error %v, want one of kind %q that says %q", err, tc.kind, tc.says)
				}
				for _, secret := range []string{"hunter2", "secret"} {
					if strings.Contains(err.Error(), secret) {
						t.Errorf("the error has %q in it: %v", secret, err)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if diff := cmp.Diff(tc.want, contents(t, path)); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDownloadGoesOnWhereItBroke(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	for name, tc := range map[string]struct {
		etag    string
		ranges  bool
		changed bool // other content after the first break
		cuts    int32
		from    []string // Range headers in order
	}{
		"with a strong mark the rest is asked for":     {etag: `"v1"`, ranges: true, cuts: 2, from: []string{"", "bytes=300000-", "bytes=600000-"}},
		"without a mark it begins anew":                {cuts: 1, from: []string{"", ""}},
		"with a weak mark it begins anew":              {etag: `W/"v1"`, ranges: true, cuts: 1, from: []string{"", ""}},
		"when the server can't, it begins anew":        {etag: `"v1"`, cuts: 1, from: []string{"", "bytes=300000-", ""}},
		"when the content changed, all of it is asked": {etag: `"v1"`, ranges: true, changed: true, cuts: 1, from: []string{"", "bytes=300000-", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			var from []string
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				n := calls.Add(1)
				from = append(from, r.Header.Get("Range"))
				etag, body := tc.etag, body
				if tc.changed && n > 1 {
					etag, body = `"v2"`, bytes.ToUpper(body)
				}
				if etag != "" {
					w.Header().Set("ETag", etag)
				}
				at := 0
				if rng := r.Header.Get("Range"); rng != "" && tc.ranges && r.Header.Get("If-Range") == etag {
					at, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(rng, "bytes="), "-"))
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(body)-1, len(body)))
					w.Header().Set("Content-Length", strconv.Itoa(len(body)-at))
					w.WriteHeader(http.StatusPartialContent)
				}
				if n <= tc.cuts {
					w.Header().Set("Content-Length", strconv.Itoa(len(body)-at))
					_, _ = w.Write(body[at:min(at+300_000, len(body))])
					return // short of the length: net/http closes the connection
				}
				_, _ = w.Write(body[at:])
			})
			s := open(t, modelstore.Config{HTTP: quick})
			path, _, release, err := s.Fetch(t.Context(), "", url+"/m.bin", "")
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			want := string(body)
			if tc.changed {
				want = strings.ToUpper(want)
			}
			if got := contents(t, path)["m.bin"]; got != want {
				t.Errorf("got %d bytes that differ from the %d served", len(got), len(want))
			}
			if diff := cmp.Diff(tc.from, from); diff != "" {
				t.Errorf("ranges asked for (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServerThatRecoversIsTriedAgain(t *testing.T) {
	var calls atomic.Int32
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = w.Write([]byte("w"))
	})
	s := open(t, modelstore.Config{HTTP: quick})
	_, _, release, err := s.Fetch(t.Context(), "", url, "")
	if err != nil || calls.Load() != 3 {
		t.Fatalf("%v after %d requests, want success with the third", err, calls.Load())
	}
	release()
}

func TestUnchangedContentIsNotSentAgain(t *testing.T) {
	var sent, same atomic.Int32
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if r.Header.Get("If-None-Match") == `"v1"` {
			same.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent.Add(1)
		_, _ = w.Write([]byte("w"))
	})
	store := t.TempDir()
	s := open(t, modelstore.Config{Dir: store, HTTP: quick})
	digests := map[string]bool{}
	for range 3 {
		_, digest, release, err := s.Fetch(t.Context(), "", url, "")
		if err != nil {
			t.Fatal(err)
		}
		release()
		digests[digest] = true
	}
	if sent.Load() != 1 || same.Load() != 2 || len(digests) != 1 {
		t.Errorf("sent %d, unchanged %d, digests %v; want 1, 2 and one", sent.Load(), same.Load(), digests)
	}
	for _, kind := range []string{"blobs", "trees"} {
		if err := os.RemoveAll(filepath.Join(store, kind, "sha256")); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, release, err := s.Fetch(t.Context(), "", url, ""); err != nil {
		t.Errorf("after the store lost the bytes: %v", err)
	} else {
		release()
	}
}

func TestServerThatStallsTimesOut(t *testing.T) {
	stop := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = w.Write([]byte("abc"))
		w.(http.Flusher).Flush()
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	defer close(stop)
	s := open(t, modelstore.Config{HTTP: modelstore.HTTPConfig{IdleTimeout: 20 * time.Millisecond, Backoff: time.Millisecond, Retries: -1}})
	_, _, _, err := s.Fetch(t.Context(), "", url, "")
	if !errors.Is(err, errdef.ErrTimeout) || !strings.Contains(err.Error(), "nothing came for 20ms") {
		t.Errorf("got %v, want a time-out that says how long", err)
	}
}

func TestTLSTrustsTheCAFileAndNoOther(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, "http://127.0.0.1:1/m", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("w"))
	}))
	srv.Config.ErrorLog = nil
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	with := open(t, modelstore.Config{HTTP: modelstore.HTTPConfig{CAFile: ca}})
	_, _, release, err := with.Fetch(t.Context(), "", srv.URL+"/m", "")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if _, _, _, err := with.Fetch(t.Context(), "", srv.URL+"/down", ""); !errors.Is(err, errdef.ErrDenied) {
		t.Errorf("a redirect from https to http gave %v", err)
	}
	without := open(t, modelstore.Config{HTTP: quick})
	if _, _, _, err := without.Fetch(t.Context(), "", srv.URL+"/m", ""); !errors.Is(err, errdef.ErrDenied) || !strings.Contains(err.Error(), "CA file") {
		t.Errorf("a certificate that nobody vouches for gave %v", err)
	}
	if _, err := modelstore.Open(modelstore.Config{Dir: t.TempDir(), HTTP: modelstore.HTTPConfig{CAFile: srv.URL}}); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a CA file that isn't there gave %v", err)
	}
}

func TestProgressIsTold(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 5<<20)
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
	var got []modelstore.Progress
	s := open(t, modelstore.Config{OnProgress: func(p modelstore.Progress) { got = append(got, p) }})
	_, _, release, err := s.Fetch(t.Context(), "ns", url+"/m?sig=1", "")
	if err != nil {
		t.Fatal(err)
	}
	release()
	want := modelstore.Progress{Namespace: "ns", URI: url + "/m?…", Done: 5 << 20, Total: 5 << 20}
	if len(got) < 5 || got[len(got)-1] != want {
		t.Errorf("progress %v, want some and at last %v", got, want)
	}
}
