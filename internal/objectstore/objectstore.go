// Package objectstore writes objects to buckets of S3, Google Cloud Storage and Azure Blob
// Storage, and reads them, with credentials as KServe keeps them in a namespace's secrets.
package objectstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The schemes of places, as KServe's agent knows them (pkg/agent/storage/provider.go).
const (
	S3     = "s3"
	Google = "gs"
	Azure  = "abfs"
)

// Place is a folder in a bucket.
type Place struct {
	// Scheme is S3, Google or Azure.
	Scheme string
	// Bucket is the bucket's name; in Azure the container's.
	Bucket string
	// Prefix is the folder, without a slash at either end; empty for the bucket itself.
	Prefix string
	// Revision is a hub's branch, tag or commit; empty for its main one.
	Revision string
	// Account is Azure's storage account where the address names one, as in
	// abfs://container@account.dfs.core.windows.net/folder; else empty.
	Account string
}

// AzureHosts is how the hosts of Azure's storage accounts end; their addresses are KServe's for Azure.
const AzureHosts = ".blob.core.windows.net"

// ParsePlace reads an address such as s3://bucket/folder, or Azure's own
// https://account.blob.core.windows.net/container/folder. An error is of errdef.ErrInvalid or, for
// another scheme, errdef.ErrUnsupported, and says what is wrong.
func ParsePlace(address string) (Place, error) {
	if strings.HasPrefix(address, Hub+"://") {
		return parseHub(address) // a revision is no port
	}
	u, err := url.Parse(address)
	if err != nil {
		return Place{}, errdef.New(errdef.ErrInvalid, "this is no address: "+err.Error())
	}
	p := Place{Scheme: u.Scheme, Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	if account, ok := strings.CutSuffix(u.Hostname(), AzureHosts); ok && u.Scheme == "https" {
		// Accounts with zones of their own have more than one part.
		p.Scheme, p.Account = Azure, account
		p.Bucket, p.Prefix, _ = strings.Cut(p.Prefix, "/")
		if p.Bucket == "" {
			return Place{}, errdef.New(errdef.ErrInvalid, "the address names no container: write https://"+u.Host+"/container/folder")
		}
		return p, nil
	}
	switch u.Scheme {
	case S3, Google:
	case Azure:
		if u.User != nil {
			p.Bucket = u.User.Username()
			p.Account, _, _ = strings.Cut(u.Hostname(), ".")
		}
	default:
		return Place{}, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("objects aren't written to %s://: s3://, gs:// and abfs:// are known", u.Scheme))
	}
	if p.Bucket == "" {
		return Place{}, errdef.New(errdef.ErrInvalid, "the address names no bucket: write "+u.Scheme+"://bucket/folder")
	}
	return p, nil
}

// Bucket takes objects. It is safe for concurrent use.
type Bucket interface {
	// Put writes an object, over one that has the key. It blocks until the store has it. An error
	// is of errdef.ErrUnavailable where another try may have more luck, of errdef.ErrDenied where
	// the credentials don't do, else of errdef.ErrInvalid or errdef.ErrNotFound.
	Put(ctx context.Context, key, contentType string, data []byte) error
	// Close ends connections that nothing uses.
	Close()
}

// Open returns a place's bucket. It makes no request. An error is of errdef.ErrInvalid, and says
// what the credentials lack.
func Open(p Place, c Credentials) (Bucket, error) {
	switch p.Scheme {
	case S3:
		return openS3(p.Bucket, c)
	case Google:
		return openGoogle(p.Bucket, c)
	case Azure:
		return openAzure(p, c)
	case Hub:
		return openHub(p, c)
	}
	return nil, errdef.New(errdef.ErrUnsupported, "objects aren't written to "+p.Scheme+"://")
}

// tokenWait bounds the request for a token, which isn't bound to that of any one object.
const tokenWait = 10 * time.Second

// newClient makes a client of its own for a bucket. certificates are PEM, trusted beside the
// system's; empty for none.
func newClient(certificates string, verify bool) (*http.Client, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: !verify} //nolint:gosec // the secret's owner says so
	if certificates != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM([]byte(certificates)) {
			return nil, errdef.New(errdef.ErrInvalid, "the credentials' CA bundle holds no PEM certificate")
		}
		conf.RootCAs = pool
	}
	return &http.Client{
		// Credentials are for the store that was named, and a signature holds for one host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: conf, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
	}, nil
}

// maxAnswer bounds what is read of an answer, so that its connection can be kept.
const maxAnswer = 64 << 10

// send makes a request whose answer says no more than whether it worked.
func send(client *http.Client, r *http.Request, data []byte) error {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	resp, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	return fmt.Errorf("%w: the store answered %s%s", kindOf(resp.StatusCode), resp.Status, excerpt(said))
}

func kindOf(status int) error {
	switch {
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return errdef.ErrUnavailable
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return errdef.ErrDenied
	case status == http.StatusNotFound:
		return errdef.ErrNotFound
	}
	return errdef.ErrInvalid
}

// excerpt is what a store said, short enough for a line of a log.
func excerpt(said []byte) string {
	const most = 300
	text := strings.Join(strings.Fields(string(said)), " ")
	if text == "" {
		return ""
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return ": " + text
}

// encoded is a path's part with all but unreserved characters (RFC 3986, 2.3) percent-encoded, and
// slashes too unless they stay.
func encoded(part string, slashesStay bool) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(part) {
		switch c := part[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.~", c) >= 0, c == '/' && slashesStay:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// under returns a service's address with a path below its own, encoded as it goes over the wire.
func under(service *url.URL, path string) *url.URL {
	u := *service
	u.RawPath = strings.TrimRight(service.EscapedPath(), "/") + "/" + encoded(path, true)
	u.Path = strings.TrimRight(service.Path, "/") + "/" + path
	return &u
}

// serviceAddress reads the address of a store; https unless it says otherwise.
func serviceAddress(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errdef.New(errdef.ErrInvalid, "the credentials' endpoint is no http or https address")
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u, nil
}
