package objectstore

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The example "GET Bucket (List Objects)" of Amazon's "Signature calculations for the
// authorization header".
func TestTheSignatureOfAListingIsAmazons(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Content-Sha256", emptySum)
	c := S3Credentials{AccessKey: "AKIAIOSFODNN7EXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Region: "us-east-1"}
	c.sign(r, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
	const want = "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
	if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// shelf is a store with two pages of objects.
func shelf(t *testing.T) Reader {
	t.Helper()
	page := func(token string, keys ...string) string {
		out := "<ListBucketResult>"
		for _, k := range keys {
			out += fmt.Sprintf("<Contents><Key>%s</Key><Size>5</Size><ETag>&quot;e&quot;</ETag></Contents>", k)
		}
		if token != "" {
			out += "<IsTruncated>true</IsTruncated><NextContinuationToken>" + token + "</NextContinuationToken>"
		}
		return out + "</ListBucketResult>"
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		q := r.URL.Query()
		switch {
		case r.URL.Path == "/b/" && q.Get("prefix") == "a b" && q.Get("continuation-token") == "":
			_, _ = io.WriteString(w, page("to ken+", "a b/1", "a b/2"))
		case r.URL.Path == "/b/" && q.Get("continuation-token") == "to ken+":
			_, _ = io.WriteString(w, page("", "a b/3&amp;"))
		case r.URL.Path == "/b/" && q.Get("prefix") == "broken":
			_, _ = io.WriteString(w, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")
		case r.URL.Path == "/b/a b/1" && r.Header.Get("If-Match") == `"e"`:
			w.Header().Set("ETag", `"e"`)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader("hello"))
		case r.URL.Path == "/b/a b/1":
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, "<Error><Code>PreconditionFailed</Code><Message>It changed.</Message><AWSAccessKeyId>hidden</AWSAccessKeyId></Error>")
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	bucket := open(t, Place{Scheme: S3, Bucket: "b"}, Credentials{S3: &S3Credentials{AccessKey: "a", SecretKey: "s", Endpoint: server.URL}})
	return bucket.(Reader)
}

func TestABucketIsListedAndRead(t *testing.T) {
	b := shelf(t)
	listed, err := b.List(t.Context(), "a b", 3)
	if err != nil {
		t.Fatal(err)
	}
	want := []Object{{"a b/1", 5, `"e"`}, {"a b/2", 5, `"e"`}, {"a b/3&", 5, `"e"`}}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	saysHello(t, b, listed[0])
}

func TestWhatCantBeReadSaysWhy(t *testing.T) {
	b := shelf(t)
	if _, err := b.List(t.Context(), "a b", 2); !errors.Is(err, errdef.ErrTooLarge) {
		t.Errorf("a listing that is too long: %v", err)
	}
	if _, err := b.List(t.Context(), "broken", 2); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("a listing that breaks off: %v", err)
	}
	_, err := b.Get(t.Context(), Object{Key: "a b/1", ETag: `"other"`}, 0)
	if !errors.Is(err, errdef.ErrConflict) || !strings.Contains(err.Error(), "PreconditionFailed It changed") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("an object that changed: %v", err)
	}
	if _, err := b.Get(t.Context(), Object{Key: "none"}, 0); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("an object that isn't there: %v", err)
	}
}

func TestMountedSecretsAreReadAsTheAPIHasThem(t *testing.T) {
	m := Mounted{
		Names: []string{"gone", "tls", "mine"},
		Settings: SettingsFromEnv(func(name string) string {
			return map[string]string{"S3_ENDPOINT": "store:9000", "S3_USE_HTTPS": "0", "AWS_DEFAULT_REGION": "of-the-service"}[name]
		}),
		Folders: fstest.MapFS{
			"tls/tls.crt":                {Data: []byte("x")},
			"mine/AWS_ACCESS_KEY_ID":     {Data: []byte("id")},
			"mine/AWS_SECRET_ACCESS_KEY": {Data: []byte("key\n")},
			"mine/AWS_DEFAULT_REGION":    {Data: []byte("of-the-secret")},
			"mine/..data/x":              {Data: []byte("the kubelet's")},
			"storage-config/k":           {Data: []byte(`{"type": "s3", "bucket": "b", "access_key_id": "id", "secret_access_key": "key"}`)},
			"storage-config/broken":      {Data: []byte("hello")},
		},
	}
	stores := NewStores(m, nil)
	got, err := stores.credentials(t.Context(), S3, Source{ServiceAccount: "the pod's"})
	if err != nil {
		t.Fatal(err)
	}
	want := S3Credentials{AccessKey: "id", SecretKey: "key", Region: "of-the-secret", Endpoint: "http://store:9000"}
	if diff := cmp.Diff(want, *got.S3); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if at, err := stores.Entry(t.Context(), "", "k"); err != nil || at != (Place{Scheme: S3, Bucket: "b"}) {
		t.Errorf("the entry names %+v, %v", at, err)
	}
	for key, kind := range map[string]error{"none": errdef.ErrNotFound, "broken": errdef.ErrInvalid} {
		if _, err := stores.Entry(t.Context(), "", key); !errors.Is(err, kind) {
			t.Errorf("the entry %s: %v", key, err)
		}
	}
	for _, name := range []string{"../mine", "mine/..data", "", "."} {
		if s, err := m.Secret(t.Context(), "", name); !errors.Is(err, errdef.ErrNotFound) && len(s.Data) > 0 {
			t.Errorf("the secret %q: %v, %v", name, s, err)
		}
	}
	m.Names = []string{"gone", "tls"}
	_, err = NewStores(m, nil).credentials(t.Context(), S3, Source{Namespace: "team", ServiceAccount: "the pod's"})
	if !errors.Is(err, errdef.ErrDenied) || !strings.Contains(err.Error(), "tried secret gone (not there), secret tls (none for this scheme)") {
		t.Errorf("without credentials: %v", err)
	}
}

// saysHello reads an object from its start and from its midst.
func saysHello(t *testing.T, b Reader, object Object) {
	t.Helper()
	for offset, want := range map[int64]string{0: "hello", 2: "llo"} {
		body, err := b.Get(t.Context(), object, offset)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		if err != nil || string(got) != want {
			t.Errorf("from %d on it is %q, %v", offset, got, err)
		}
		body.Close()
	}
}
