package objectstore

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// hello serves a file as stores do, by the range in a field.
func hello(w http.ResponseWriter, r *http.Request, field string) {
	if v := r.Header.Get(field); v != "" {
		r.Header.Set("Range", v)
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader("hello"))
}

func TestStoresAreListedAndRead(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte("key"))
	for name, tc := range map[string]struct {
		serve func(w http.ResponseWriter, r *http.Request)
		place Place
		cred  func(url string) Credentials
		want  []Object
	}{
		"Google's": {
			place: Place{Scheme: Google, Bucket: "b"}, cred: func(url string) Credentials { return Credentials{Google: &GoogleCredentials{Endpoint: url}} },
			want: []Object{{"a b/1", 5, "7/x"}, {"a b/2", 5, "8/y"}},
			serve: func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				switch {
				case r.URL.Path == "/storage/v1/b/b/o" && q.Get("prefix") == "a b" && q.Get("pageToken") == "":
					_, _ = io.WriteString(w, `{"items": [{"name": "a b/1", "size": "5", "generation": "7", "md5Hash": "x"}], "nextPageToken": "t"}`)
				case r.URL.Path == "/storage/v1/b/b/o" && q.Get("pageToken") == "t":
					_, _ = io.WriteString(w, `{"items": [{"name": "a b/2", "size": "5", "generation": "8", "md5Hash": "y"}]}`)
				case r.URL.EscapedPath() == "/storage/v1/b/b/o/a%20b%2F1" && q.Get("alt") == "media" && q.Get("ifGenerationMatch") == "7":
					hello(w, r, "Range")
				case q.Get("ifGenerationMatch") != "":
					w.WriteHeader(http.StatusPreconditionFailed)
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			},
		},
		"Azure's": {
			place: Place{Scheme: Azure, Bucket: "b"},
			cred: func(url string) Credentials {
				return Credentials{Azure: &AzureCredentials{Account: "a", AccessKey: key, Endpoint: url}}
			},
			want: []Object{{"a b/1", 5, "0x7"}, {"a b/2", 5, "0x8"}},
			serve: func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				blob := func(name, etag, marker string) string {
					return fmt.Sprintf("<EnumerationResults><Blobs><Blob><Name>%s</Name><Properties><Etag>%s</Etag><Content-Length>5</Content-Length></Properties></Blob></Blobs><NextMarker>%s</NextMarker></EnumerationResults>", name, etag, marker)
				}
				switch {
				case !strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey a:"):
					w.WriteHeader(http.StatusForbidden)
				case r.URL.Path == "/b" && q.Get("comp") == "list" && q.Get("prefix") == "a b" && q.Get("marker") == "":
					_, _ = io.WriteString(w, blob("a b/1", "0x7", "m"))
				case r.URL.Path == "/b" && q.Get("marker") == "m":
					_, _ = io.WriteString(w, blob("a b/2", "0x8", ""))
				case r.URL.Path == "/b/a b/1" && r.Header.Get("If-Match") == `"0x7"`:
					r.Header.Del("If-Match")
					hello(w, r, "X-Ms-Range")
				case r.Header.Get("If-Match") != "":
					w.WriteHeader(http.StatusPreconditionFailed)
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			},
		},
		"a hub's": {
			place: Place{Scheme: Hub, Bucket: "o/m", Revision: "v1"},
			cred:  func(url string) Credentials { return Credentials{Hub: &HubCredentials{Token: "t", Endpoint: url}} },
			want:  []Object{{"a b/1", 5, "c0/x"}, {"a b/2", 5, "c0/y"}},
			serve: func(w http.ResponseWriter, r *http.Request) {
				switch q := r.URL.Query(); {
				case r.Header.Get("Authorization") != "Bearer t":
					w.WriteHeader(http.StatusUnauthorized)
				case r.URL.Path == "/api/models/o/m/revision/v1":
					_, _ = io.WriteString(w, `{"sha": "c0"}`)
				case r.URL.Path == "/api/models/o/m/tree/c0" && q.Get("cursor") == "":
					w.Header().Set("Link", `<http://`+r.Host+`/api/models/o/m/tree/c0?recursive=true&cursor=n%3D>; rel="next"`)
					_, _ = io.WriteString(w, `[{"type": "directory", "path": "a b"}, {"type": "file", "path": "a b/1", "size": 130, "oid": "x", "lfs": {"size": 5}}]`)
				case r.URL.Path == "/api/models/o/m/tree/c0" && q.Get("cursor") == "n=":
					_, _ = io.WriteString(w, `[{"type": "file", "path": "a b/2", "size": 5, "oid": "y"}]`)
				case r.URL.Path == "/o/m/resolve/c0/a b/1":
					hello(w, r, "Range")
				case strings.HasPrefix(r.URL.Path, "/o/m/resolve/other/"):
					w.WriteHeader(http.StatusPreconditionFailed)
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(tc.serve))
			t.Cleanup(server.Close)
			b := open(t, tc.place, tc.cred(server.URL)).(Reader)
			listed, err := b.List(t.Context(), "a b", 2)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, listed); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			saysHello(t, b, listed[0])
			if _, err := b.List(t.Context(), "a b", 1); !errors.Is(err, errdef.ErrTooLarge) {
				t.Errorf("a listing that is too long: %v", err)
			}
			changed := listed[0]
			changed.ETag = "other/z"
			if name == "Google's" {
				changed.ETag = "9/z"
			}
			if _, err := b.Get(t.Context(), changed, 0); !errors.Is(err, errdef.ErrConflict) {
				t.Errorf("an object that changed: %v", err)
			}
		})
	}
}

func TestAHubsTokenStaysWithTheHub(t *testing.T) {
	var elsewhere string
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere = r.Header.Get("Authorization")
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(files.Close)
	server := httptest.NewServer(http.RedirectHandler(files.URL, http.StatusFound))
	t.Cleanup(server.Close)
	b := open(t, Place{Scheme: Hub, Bucket: "o/m"}, Credentials{Hub: &HubCredentials{Token: "t", Endpoint: server.URL}}).(Reader)
	body, err := b.Get(t.Context(), Object{Key: "f", ETag: "c/x"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	if elsewhere != "" {
		t.Errorf("the server of files got %q", elsewhere)
	}
}

func TestWhatNamesAModelInAStore(t *testing.T) {
	for address, want := range map[string]Place{
		"hf://o/m":    {Scheme: Hub, Bucket: "o/m"},
		"hf://o/m:v1": {Scheme: Hub, Bucket: "o/m", Revision: "v1"},
		"https://acct.blob.core.windows.net/c/a/b": {Scheme: Azure, Bucket: "c", Account: "acct", Prefix: "a/b"},
		"https://acct.z1.blob.core.windows.net/c":  {Scheme: Azure, Bucket: "c", Account: "acct.z1"},
	} {
		if got, err := ParsePlace(address); err != nil || got != want {
			t.Errorf("%s: %+v, %v", address, got, err)
		}
	}
	for _, address := range []string{"hf://m", "hf://o/m/x", "hf:///m", "hf://../m", "hf://o/m?x", "https://acct.blob.core.windows.net/", "https://example.com/c/a"} {
		if got, err := ParsePlace(address); err == nil {
			t.Errorf("%s is %+v", address, got)
		}
	}
}

// The token service gives keys for an hour, and the store wants those.
func TestARoleIsTakenWithTheAccountsToken(t *testing.T) {
	taken, refuse := 0, false
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			taken++
			if refuse || r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("RoleArn") != "arn:r" || r.FormValue("WebIdentityToken") != "jwt" {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>Too old.</Message></Error></ErrorResponse>")
				return
			}
			fmt.Fprintf(w, "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AK%d</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>st</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
				taken, now.Add(time.Hour).Format(time.RFC3339))
			return
		}
		if !strings.Contains(r.Header.Get("Authorization"), fmt.Sprintf("Credential=AK%d/", taken)) || r.Header.Get("X-Amz-Security-Token") != "st" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, "<ListBucketResult></ListBucketResult>")
	}))
	t.Cleanup(server.Close)
	cred, err := FromEnv(S3, func(name string) string {
		return map[string]string{"AWS_ROLE_ARN": "arn:r", "AWS_WEB_IDENTITY_TOKEN_FILE": "token", "AWS_ENDPOINT_URL": server.URL, "AWS_ENDPOINT_URL_STS": server.URL}[name]
	}, func(string) ([]byte, error) { return []byte("jwt\n"), nil })
	if err != nil || cred.S3 == nil || cred.S3.Role == nil {
		t.Fatalf("%+v, %v", cred.S3, err)
	}
	b := open(t, Place{Scheme: S3, Bucket: "b"}, cred).(*s3Bucket)
	clock := now
	b.session.now = func() time.Time { return clock }
	for _, step := range []struct {
		after time.Duration
		taken int
	}{{0, 1}, {30 * time.Minute, 1}, {59 * time.Minute, 2}} {
		clock = now.Add(step.after)
		if _, err := b.List(t.Context(), "", 1); err != nil || taken != step.taken {
			t.Errorf("after %s it was taken %d times, want %d; %v", step.after, taken, step.taken, err)
		}
	}
	refuse, clock = true, now.Add(3*time.Hour)
	if _, err := b.List(t.Context(), "", 1); !errors.Is(err, errdef.ErrDenied) || !strings.Contains(err.Error(), "ExpiredTokenException Too old") || strings.Contains(err.Error(), "jwt") {
		t.Errorf("refused: %v", err)
	}
}

func TestFieldsForAHostAreThoseOfItsSecret(t *testing.T) {
	secret := func(host, fields string) Secret {
		return Secret{Data: map[string][]byte{"https-host": []byte(host), "headers": []byte(fields)}}
	}
	n := &namespace{
		secrets:  map[string]Secret{"keys": s3Secret("k"), "models": secret("models.example\n", `{"X-Key": "v"}`), "bad": secret("bad.example", "X-Key: v")},
		accounts: map[string][]string{"robot": {"gone", "keys", "models", "bad"}},
	}
	s := NewStores(n, nil)
	from := Source{Namespace: "team", ServiceAccount: "robot"}
	for host, want := range map[string]map[string]string{"models.example": {"X-Key": "v"}, "Models.Example:8443": {"X-Key": "v"}, "other.example": nil} {
		if got, err := s.Fields(t.Context(), from, host); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
	if _, err := s.Fields(t.Context(), from, "bad.example"); !errors.Is(err, errdef.ErrInvalid) || strings.Contains(err.Error(), "X-Key") {
		t.Errorf("fields that can't be read: %v", err)
	}
	n.down = true
	if _, err := s.Fields(context.Background(), from, "models.example"); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("secrets that can't be looked at: %v", err)
	}
}

func TestCertificatesOfAConfigMap(t *testing.T) {
	entry := func(text string) Secret { return Secret{Data: map[string][]byte{"k": []byte(text)}} }
	const keys = `{"type": "s3", "access_key_id": "a", "secret_access_key": "s", "cabundle_configmap": "roots"`
	store := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<ListBucketResult></ListBucketResult>")
	}))
	t.Cleanup(store.Close)
	roots := pemOf(store.Certificate().Raw)
	n := &namespace{secrets: map[string]Secret{}, maps: map[string]map[string]string{"roots": {"cabundle.crt": roots, "ours.pem": roots}}}
	s := NewStores(n, nil)
	from := Source{Namespace: "team", Key: "k", Endpoint: store.URL}
	for text, why := range map[string]string{
		keys + "}": "",
		keys + `, "ca_bundle": "/etc/ssl/ours.pem"}`: "",
		keys + `, "ca_bundle": "none.pem"}`:          "has no key none.pem",
	} {
		n.secrets[storageConfig] = entry(text)
		b, err := s.Reader(t.Context(), Place{Scheme: S3, Bucket: "b"}, from)
		if err == nil {
			_, err = b.List(t.Context(), "", 1)
			b.Close()
		}
		if why == "" && err != nil || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %v, want %q", text, err, why)
		}
	}
	trusting := NewStores(n, nil)
	trusting.Trust(roots)
	n.secrets[storageConfig], n.maps = entry(keys+"}"), nil
	b, err := trusting.Reader(t.Context(), Place{Scheme: S3, Bucket: "b"}, from)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.List(t.Context(), "", 1); err != nil {
		t.Errorf("with certificates of the pod's: %v", err)
	}
}

func pemOf(certificate []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
}
