package objectstore

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"stationmaster.dev/stationmaster/internal/errdef"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParsePlace(t *testing.T) {
	for address, want := range map[string]Place{
		"s3://bucket":              {Scheme: "s3", Bucket: "bucket"},
		"s3://bucket/a/b/":         {Scheme: "s3", Bucket: "bucket", Prefix: "a/b"},
		"gs://bucket/logs":         {Scheme: "gs", Bucket: "bucket", Prefix: "logs"},
		"abfs://container/logs":    {Scheme: "abfs", Bucket: "container", Prefix: "logs"},
		"abfs://c@acc.dfs.x.net/l": {Scheme: "abfs", Bucket: "c", Account: "acc", Prefix: "l"},
	} {
		got, err := ParsePlace(address)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", address, got, err, want)
		}
	}
	for address, kind := range map[string]error{
		"http://collector": errdef.ErrUnsupported, "s3:///x": errdef.ErrInvalid, "abfs://@acc/x": errdef.ErrInvalid, "s3://%zz": errdef.ErrInvalid,
	} {
		if _, err := ParsePlace(address); !errors.Is(err, kind) {
			t.Errorf("%s: %v, want %v", address, err, kind)
		}
	}
}

func FuzzParsePlace(f *testing.F) {
	f.Add("s3://bucket/a")
	f.Add("abfs://c@a.dfs/x")
	f.Fuzz(func(t *testing.T, address string) {
		if p, err := ParsePlace(address); err == nil && (p.Bucket == "" || strings.HasPrefix(p.Prefix, "/")) {
			t.Errorf("%q is %+v", address, p)
		}
	})
}

// The example "PUT Object" of Amazon's "Signature calculations for the authorization header".
func TestTheSignatureIsAmazons(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://examplebucket.s3.amazonaws.com/test%24file.text", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Date", "Fri, 24 May 2013 00:00:00 GMT")
	r.Header.Set("X-Amz-Storage-Class", "REDUCED_REDUNDANCY")
	r.Header.Set("X-Amz-Content-Sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072")
	c := S3Credentials{AccessKey: "AKIAIOSFODNN7EXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Region: "us-east-1"}
	c.sign(r, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
	const want = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, " +
		"SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, " +
		"Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
	if got := r.Header.Get("Authorization"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// store is a server that keeps its last request and answers as it is told.
type store struct {
	*httptest.Server
	mu     sync.Mutex
	last   *http.Request
	body   string
	asked  int
	status int
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{status: http.StatusOK}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last, s.body, s.asked = r, string(body), s.asked+1
		w.WriteHeader(s.status)
		_, _ = io.WriteString(w, "<Code>SomeCode</Code>")
	}))
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, p Place, c Credentials) Bucket {
	t.Helper()
	b, err := Open(p, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

const oddKey = "logs/a b/ü+1%:x-request.json"

func TestAnObjectIsPutToS3(t *testing.T) {
	for name, tc := range map[string]struct {
		cred S3Credentials
		auth bool
		host string // before the server's
		path string
	}{
		"another store than Amazon's": {cred: S3Credentials{AccessKey: "a", SecretKey: "s", SessionToken: "tok"}, auth: true, path: "/bucket/"},
		"a bucket within the host":    {cred: S3Credentials{AccessKey: "a", SecretKey: "s", VirtualHost: "true"}, auth: true, host: "bucket.", path: "/"},
		"nobody's credentials":        {cred: S3Credentials{Anonymous: true}, path: "/bucket/"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			tc.cred.Endpoint = strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
			b := open(t, Place{Scheme: S3, Bucket: "bucket"}, Credentials{S3: &tc.cred})
			if tc.host != "" { // no name server knows it
				to := s.Listener.Addr().String()
				b.(*s3Bucket).client.Transport.(*http.Transport).Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: to})
			}
			if err := b.Put(t.Context(), oddKey, "application/json", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if got := s.last.URL.EscapedPath(); got != tc.path+"logs/a%20b/%C3%BC%2B1%25%3Ax-request.json" || s.body != "{}" || s.last.Method != http.MethodPut {
				t.Errorf("%s %s %q", s.last.Method, got, s.body)
			}
			if !strings.HasPrefix(s.last.Host, tc.host+"localhost:") {
				t.Errorf("host %s", s.last.Host)
			}
			if got := s.last.Header.Get("Authorization"); tc.auth != strings.HasPrefix(got, "AWS4-HMAC-SHA256 ") {
				t.Errorf("authorization %q", got)
			}
			if got := s.last.Header.Get("X-Amz-Security-Token"); got != tc.cred.SessionToken {
				t.Errorf("session token %q", got)
			}
			if got := s.last.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("type %q", got)
			}
		})
	}
}

func TestWhereAmazonsBucketsAre(t *testing.T) {
	for want, tc := range map[string]struct {
		bucket string
		cred   S3Credentials
	}{
		"https://b.s3.us-east-1.amazonaws.com":         {bucket: "b"},
		"https://b.s3.eu-west-1.amazonaws.com":         {bucket: "b", cred: S3Credentials{Region: "eu-west-1"}},
		"https://s3.us-east-1.amazonaws.com/b.example": {bucket: "b.example"},
		"https://s3.us-east-1.amazonaws.com/b":         {bucket: "b", cred: S3Credentials{VirtualHost: "False"}},
		"https://b.s3-accelerate.amazonaws.com":        {bucket: "b", cred: S3Credentials{Accelerate: true}},
		"https://minio.ns:9000/b":                      {bucket: "b", cred: S3Credentials{Endpoint: "minio.ns:9000"}},
	} {
		tc.cred.Anonymous = true
		b := open(t, Place{Scheme: S3, Bucket: tc.bucket}, Credentials{S3: &tc.cred})
		if got := b.(*s3Bucket).bucket.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestWhatAStoreAnswers(t *testing.T) {
	for status, want := range map[int]error{
		500: errdef.ErrUnavailable, 503: errdef.ErrUnavailable, 429: errdef.ErrUnavailable, 403: errdef.ErrDenied, 401: errdef.ErrDenied,
		404: errdef.ErrNotFound, 400: errdef.ErrInvalid, 307: errdef.ErrInvalid,
	} {
		s := newStore(t)
		s.status = status
		b := open(t, Place{Scheme: S3, Bucket: "b"}, Credentials{S3: &S3Credentials{Anonymous: true, Endpoint: s.URL}})
		err := b.Put(t.Context(), "k", "text/plain", nil)
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), "SomeCode") {
			t.Errorf("%d: %v, want %v", status, err, want)
		}
	}
	s := newStore(t)
	s.Close()
	b := open(t, Place{Scheme: S3, Bucket: "b"}, Credentials{S3: &S3Credentials{Anonymous: true, Endpoint: s.URL}})
	if err := b.Put(t.Context(), "k", "text/plain", nil); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("a store that isn't there: %v", err)
	}
}

// tokens is a server that gives tokens, and checks a service account's signature.
func tokens(t *testing.T, check func(url.Values) error) (address string, given *int) {
	t.Helper()
	given = new(int)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if err := check(r.PostForm); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		*given++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, *given)
	}))
	t.Cleanup(s.Close)
	return s.URL, given
}

func TestAnObjectIsPutToGoogle(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	address, given := tokens(t, func(form url.Values) error {
		parts := strings.Split(form.Get("assertion"), ".")
		if len(parts) != 3 {
			return fmt.Errorf("assertion %q", form.Get("assertion"))
		}
		signature, err := base64.RawURLEncoding.DecodeString(parts[2])
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, 5 /* crypto.SHA256 */, sum[:], signature); err != nil {
			return err
		}
		claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
		if !strings.Contains(string(claims), `"robot@x"`) || !strings.Contains(string(claims), "devstorage.read_write") {
			return fmt.Errorf("claims %s", claims)
		}
		return nil
	})
	account, _ := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "robot@x", "token_uri": address,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	s := newStore(t)
	b := open(t, Place{Scheme: Google, Bucket: "bucket"}, Credentials{Google: &GoogleCredentials{File: account, Endpoint: s.URL}})
	for range 2 {
		if err := b.Put(t.Context(), oddKey, "text/csv", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.last.URL; got.Path != "/upload/storage/v1/b/bucket/o" || got.Query().Get("name") != oddKey || got.Query().Get("uploadType") != "media" || s.body != "x" {
		t.Errorf("%s %q", got, s.body)
	}
	if got := s.last.Header.Get("Authorization"); got != "Bearer token-1" || *given != 1 {
		t.Errorf("authorization %q, %d tokens given", got, *given)
	}

	user := fmt.Appendf(nil, `{"type":"authorized_user","client_id":"c","client_secret":"s","refresh_token":"r","token_uri":%q}`, address)
	b = open(t, Place{Scheme: Google, Bucket: "bucket"}, Credentials{Google: &GoogleCredentials{File: user, Endpoint: s.URL}})
	if err := b.Put(t.Context(), "k", "text/csv", nil); !errors.Is(err, errdef.ErrDenied) {
		t.Errorf("a user who is refused: %v", err)
	}
	b = open(t, Place{Scheme: Google, Bucket: "bucket"}, Credentials{Google: &GoogleCredentials{Endpoint: s.URL}})
	if err := b.Put(t.Context(), "k", "text/csv", nil); err != nil || s.last.Header.Get("Authorization") != "" {
		t.Errorf("nobody's credentials: %v, %v", err, s.last.Header)
	}
}

func TestAnObjectIsPutToAzure(t *testing.T) {
	address, _ := tokens(t, func(form url.Values) error {
		if form.Get("client_id") != "app" || form.Get("client_secret") != "pass" || form.Get("scope") != "https://storage.azure.com/.default" {
			return fmt.Errorf("%v", form)
		}
		return nil
	})
	key := base64.StdEncoding.EncodeToString([]byte("the key"))
	for name, tc := range map[string]struct {
		cred AzureCredentials
		auth string
	}{
		"an account's key": {cred: AzureCredentials{AccessKey: key, Token: "other"}, auth: "SharedKey acc:"},
		"a token":          {cred: AzureCredentials{Token: "given"}, auth: "Bearer given"},
		"an application":   {cred: AzureCredentials{Tenant: "t", ClientID: "app", ClientSecret: "pass", Authority: address}, auth: "Bearer token-1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			tc.cred.Endpoint = s.URL + "/acc/"
			b := open(t, Place{Scheme: Azure, Bucket: "c", Account: "acc"}, Credentials{Azure: &tc.cred})
			if err := b.Put(t.Context(), oddKey, "text/csv", []byte("xy")); err != nil {
				t.Fatal(err)
			}
			const path = "/acc/c/logs/a%20b/%C3%BC%2B1%25%3Ax-request.json"
			if got := s.last.URL.EscapedPath(); got != path || s.body != "xy" || s.last.Header.Get("X-Ms-Blob-Type") != "BlockBlob" {
				t.Errorf("%s %q %v", got, s.body, s.last.Header)
			}
			auth := s.last.Header.Get("Authorization")
			if !strings.HasPrefix(auth, tc.auth) {
				t.Errorf("authorization %q", auth)
			}
			if tc.cred.AccessKey == "" {
				return
			}
			h := hmac.New(sha256.New, []byte("the key"))
			fmt.Fprintf(h, "PUT\n\n\n2\n\ntext/csv\n\n\n\n\n\n\nx-ms-blob-type:BlockBlob\nx-ms-date:%s\nx-ms-version:2021-08-06\n/acc%s", s.last.Header.Get("X-Ms-Date"), path)
			if want := "SharedKey acc:" + base64.StdEncoding.EncodeToString(h.Sum(nil)); auth != want {
				t.Errorf("authorization %q, want %q", auth, want)
			}
		})
	}
}

func TestCredentialsThatDontDo(t *testing.T) {
	for name, tc := range map[string]struct {
		place Place
		cred  Credentials
	}{
		"none for s3":         {Place{Scheme: S3, Bucket: "b"}, Credentials{}},
		"half a key":          {Place{Scheme: S3, Bucket: "b"}, Credentials{S3: &S3Credentials{AccessKey: "a"}}},
		"no address":          {Place{Scheme: S3, Bucket: "b"}, Credentials{S3: &S3Credentials{Anonymous: true, Endpoint: "ftp://x"}}},
		"no certificate":      {Place{Scheme: S3, Bucket: "b"}, Credentials{S3: &S3Credentials{Anonymous: true, CABundle: "x"}}},
		"none for gs":         {Place{Scheme: Google, Bucket: "b"}, Credentials{}},
		"a file of no JSON":   {Place{Scheme: Google, Bucket: "b"}, Credentials{Google: &GoogleCredentials{File: []byte("secret")}}},
		"a file of a kind":    {Place{Scheme: Google, Bucket: "b"}, Credentials{Google: &GoogleCredentials{File: []byte(`{"type":"external_account"}`)}}},
		"none for abfs":       {Place{Scheme: Azure, Bucket: "b"}, Credentials{}},
		"no account":          {Place{Scheme: Azure, Bucket: "b"}, Credentials{Azure: &AzureCredentials{Token: "t"}}},
		"no way to say who":   {Place{Scheme: Azure, Bucket: "b", Account: "a"}, Credentials{Azure: &AzureCredentials{ClientID: "x"}}},
		"a key that is none":  {Place{Scheme: Azure, Bucket: "b", Account: "a"}, Credentials{Azure: &AzureCredentials{AccessKey: "%"}}},
		"an unknown scheme":   {Place{Scheme: "hdfs", Bucket: "b"}, Credentials{}},
		"an unknown endpoint": {Place{Scheme: Google, Bucket: "b"}, Credentials{Google: &GoogleCredentials{Endpoint: "http://"}}},
	} {
		_, err := Open(tc.place, tc.cred)
		if err == nil || strings.Contains(err.Error(), "secret\"") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCredentialsAreReadAsKServeHasThem(t *testing.T) {
	data := func(pairs ...string) map[string][]byte {
		m := map[string][]byte{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = []byte(pairs[i+1])
		}
		return m
	}
	for name, tc := range map[string]struct {
		secret Secret
		want   Credentials
	}{
		"s3, with annotations": {
			Secret{
				Annotations: map[string]string{
					"serving.kserve.io/s3-endpoint": "minio:9000", "serving.kserve.io/s3-usehttps": "0", "serving.kserve.io/s3-region": "r",
					"serving.kserve.io/s3-verifyssl": "0", "serving.kserve.io/s3-usevirtualbucket": "false",
				},
				Data: data("awsAccessKeyID", "a", "awsSecretAccessKey", "s\n", "AWS_DEFAULT_REGION", "other"),
			},
			Credentials{S3: &S3Credentials{AccessKey: "a", SecretKey: "s", Region: "r", Endpoint: "http://minio:9000", Insecure: true, VirtualHost: "false"}},
		},
		"s3, as KServe's page on loggers writes it": {
			Secret{Data: data("AWS_ACCESS_KEY_ID", "a", "AWS_SECRET_ACCESS_KEY", "s", "AWS_DEFAULT_REGION", "r")},
			Credentials{S3: &S3Credentials{AccessKey: "a", SecretKey: "s", Region: "r"}},
		},
		"gs": {Secret{Data: data("gcloud-application-credentials.json", "{}")}, Credentials{Google: &GoogleCredentials{File: []byte("{}")}}},
		"abfs, an application": {
			Secret{Data: data("AZ_CLIENT_ID", "i", "AZ_CLIENT_SECRET", "s", "AZ_TENANT_ID", "t", "AZURE_ACCOUNT_NAME", "acc")},
			Credentials{Azure: &AzureCredentials{ClientID: "i", ClientSecret: "s", Tenant: "t", Account: "acc"}},
		},
		"abfs, a key":    {Secret{Data: data("AZURE_STORAGE_ACCESS_KEY", "k")}, Credentials{Azure: &AzureCredentials{AccessKey: "k"}}},
		"a hub":          {Secret{Data: data("HF_TOKEN", "x", "HF_ENDPOINT", "https://hub")}, Credentials{Hub: &HubCredentials{Token: "x", Endpoint: "https://hub"}}},
		"something else": {Secret{Data: data("MODELSCOPE_API_TOKEN", "x")}, Credentials{}},
	} {
		if diff := cmp.Diff(tc.want, FromSecret(tc.secret)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	got, err := FromEntry([]byte(`{"type":"s3","access_key_id":"a","secret_access_key":"s","endpoint_url":"http://e","region":"r","anonymous":"False"}`))
	if diff := cmp.Diff(Credentials{S3: &S3Credentials{AccessKey: "a", SecretKey: "s", Endpoint: "http://e", Region: "r"}}, got); diff != "" || err != nil {
		t.Errorf("an entry: %v (-want +got):\n%s", err, diff)
	}
	for entry, kind := range map[string]error{`{"type":"hdfs"}`: errdef.ErrUnsupported, `nonsense`: errdef.ErrInvalid} {
		if _, err := FromEntry([]byte(entry)); !errors.Is(err, kind) {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

func TestCredentialsOfTheEnvironment(t *testing.T) {
	env := map[string]string{
		"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://e", "AWS_REGION": "r",
		"STORAGE_EMULATOR_HOST": "localhost:9023", "GOOGLE_APPLICATION_CREDENTIALS": "file",
		"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_ACCESS_KEY": "k",
	}
	getenv := func(name string) string { return env[name] }
	readFile := func(name string) ([]byte, error) {
		if name != "file" {
			return nil, errors.New("no such file")
		}
		return []byte("{}"), nil
	}
	for scheme, want := range map[string]Credentials{
		S3:     {S3: &S3Credentials{AccessKey: "a", SecretKey: "s", Endpoint: "http://e", Region: "r"}},
		Google: {Google: &GoogleCredentials{Endpoint: "http://localhost:9023", File: []byte("{}")}},
		Azure:  {Azure: &AzureCredentials{Account: "acc", AccessKey: "k"}},
	} {
		got, err := FromEnv(scheme, getenv, readFile)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", scheme, err, diff)
		}
		if got, err := FromEnv(scheme, func(string) string { return "" }, readFile); err != nil || got.fits(scheme) {
			t.Errorf("%s without any: %+v, %v", scheme, got, err)
		}
	}
	env["GOOGLE_APPLICATION_CREDENTIALS"] = "absent"
	if _, err := FromEnv(Google, getenv, readFile); !errors.Is(err, errdef.ErrInvalid) {
		t.Errorf("a file that isn't there: %v", err)
	}
}

// namespace is the secrets of one namespace.
type namespace struct {
	mu       sync.Mutex
	secrets  map[string]Secret
	accounts map[string][]string
	maps     map[string]map[string]string
	denied   map[string]bool
	down     bool
	reads    int
}

func (n *namespace) Secret(_ context.Context, _, name string) (Secret, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	s, ok := n.secrets[name]
	switch {
	case n.down:
		return Secret{}, errdef.ErrUnavailable
	case n.denied[name]:
		return Secret{}, errdef.ErrDenied
	case !ok:
		return Secret{}, errdef.ErrNotFound
	}
	return s, nil
}

func (n *namespace) ConfigMap(_ context.Context, _, name string) (map[string]string, error) {
	if m, ok := n.maps[name]; ok {
		return m, nil
	}
	return nil, errdef.ErrNotFound
}

func (n *namespace) Attached(_ context.Context, _, account string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	names, ok := n.accounts[account]
	if !ok {
		return nil, errdef.ErrNotFound
	}
	return names, nil
}

func s3Secret(key string) Secret {
	return Secret{Data: map[string][]byte{"awsAccessKeyID": []byte(key), "awsSecretAccessKey": []byte("s")}}
}

func TestWhereCredentialsAreLookedFor(t *testing.T) {
	n := &namespace{
		secrets: map[string]Secret{
			"named":          s3Secret("named"),
			"storage-config": {Data: map[string][]byte{"entry": []byte(`{"type":"s3","access_key_id":"entry","secret_access_key":"s"}`), "odd": []byte(`{"type":"gs"}`)}},
			"other":          {Data: map[string][]byte{"HF_TOKEN": nil}},
			"attached":       s3Secret("attached"),
		},
		accounts: map[string][]string{"logger-sa": {"other", "hidden", "attached"}, "bare": nil},
		denied:   map[string]bool{"hidden": true},
	}
	fallback := func(string) (Credentials, error) { return Credentials{S3: &S3Credentials{AccessKey: "own"}}, nil }
	for name, tc := range map[string]struct {
		from     Source
		fallback func(string) (Credentials, error)
		want     string // the access key
		says     []string
	}{
		"a named secret":               {from: Source{Secret: "named", Key: "entry", ServiceAccount: "logger-sa"}, want: "named"},
		"an entry":                     {from: Source{Secret: "absent", Key: "entry", ServiceAccount: "logger-sa"}, want: "entry"},
		"an account's secrets":         {from: Source{Key: "absent", ServiceAccount: "logger-sa"}, fallback: fallback, want: "attached"},
		"an entry for another store":   {from: Source{Key: "odd", ServiceAccount: "logger-sa"}, want: "attached"},
		"the environment":              {from: Source{Key: "absent", ServiceAccount: "absent"}, fallback: fallback, want: "own"},
		"nothing, with what was tried": {from: Source{Secret: "hidden", Key: "odd", ServiceAccount: "bare"}, says: []string{"secret hidden (not allowed to read it)", `odd of secret storage-config (its type is "gs"`, "service account bare (lists no secrets)"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := NewStores(n, tc.fallback).credentials(t.Context(), S3, tc.from)
			if tc.want != "" {
				if err != nil || c.S3 == nil || c.S3.AccessKey != tc.want {
					t.Errorf("%+v, %v; want %s", c.S3, err, tc.want)
				}
				return
			}
			if !errors.Is(err, errdef.ErrDenied) {
				t.Fatalf("error %v", err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q doesn't say %q", err, s)
				}
			}
		})
	}
	n.down = true
	for _, from := range []Source{{Secret: "named"}, {Key: "entry"}} {
		if _, err := NewStores(n, fallback).credentials(t.Context(), S3, from); !errors.Is(err, errdef.ErrUnavailable) {
			t.Errorf("an API that doesn't answer: %v; nobody else's credentials may be used then", err)
		}
	}
}

func TestStoresKeepABucketUntilItsCredentialsFail(t *testing.T) {
	s := newStore(t)
	n := &namespace{secrets: map[string]Secret{"mine": s3Secret("first")}}
	stores := NewStores(n, nil)
	t.Cleanup(stores.Close)
	put := func(key string) error {
		return stores.Put(t.Context(), Place{Scheme: S3, Bucket: "b", Prefix: "ignored"}, Source{Secret: "mine", Endpoint: s.URL, Region: "r"}, key, "text/plain", nil)
	}
	for _, key := range []string{"1", "2"} {
		if err := put(key); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.last.Header.Get("Authorization"); n.reads != 1 || !strings.Contains(got, "first/") || !strings.Contains(got, "/r/s3/") || s.last.URL.Path != "/b/2" {
		t.Errorf("%d reads, %s, %s", n.reads, got, s.last.URL.Path)
	}
	n.secrets["mine"] = s3Secret("second")
	s.status = http.StatusForbidden
	if err := put("3"); !errors.Is(err, errdef.ErrDenied) {
		t.Errorf("refused: %v", err)
	}
	s.status = http.StatusOK
	if err := put("4"); err != nil || !strings.Contains(s.last.Header.Get("Authorization"), "second/") {
		t.Errorf("after a change: %v, %s", err, s.last.Header.Get("Authorization"))
	}
}

func TestCredentialsDontReachLogs(t *testing.T) {
	c := FromSecret(s3Secret("AKIA"))
	if got := c.LogValue().String(); strings.Contains(got, "AKIA") {
		t.Errorf("a log says %s", got)
	}
}
