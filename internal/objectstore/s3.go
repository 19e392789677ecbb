package objectstore

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// S3Credentials say how a store that speaks S3's API is reached.
type S3Credentials struct {
	AccessKey, SecretKey, SessionToken string
	// Region is empty for us-east-1.
	Region string
	// Endpoint is another store's than Amazon's: a host, https then, or an address.
	Endpoint string
	// VirtualHost puts the bucket's name before the host, and is "false" for the path. Empty means
	// the host with Amazon, the path with others.
	VirtualHost string
	// Accelerate uses Amazon's faster hosts.
	Accelerate bool
	// Anonymous signs nothing.
	Anonymous bool
	// Role, where it isn't nil, gives the keys instead.
	Role *WebIdentity
	// Insecure believes any certificate; CABundle is PEM, trusted beside the system's.
	Insecure bool
	CABundle string
	// CAConfigMap is a config map of the namespace that holds more of them, under CAKey; that is
	// empty for cabundle.crt.
	CAConfigMap, CAKey string
}

type s3Bucket struct {
	client *http.Client
	cred   S3Credentials
	// session has the keys of a role; nil where cred has them.
	session *session
	// bucket is the address of the bucket.
	bucket *url.URL
	now    func() time.Time
}

func openS3(bucket string, c Credentials) (Bucket, error) {
	cred := c.S3
	if cred == nil {
		return nil, errdef.New(errdef.ErrInvalid, "there are no credentials for s3")
	}
	if !cred.Anonymous && cred.Role == nil && (cred.AccessKey == "" || cred.SecretKey == "") {
		return nil, errdef.New(errdef.ErrInvalid, "the credentials for s3 lack the access key or its secret")
	}
	client, err := newClient(cred.CABundle, !cred.Insecure)
	if err != nil {
		return nil, err
	}
	b := &s3Bucket{client: client, cred: *cred, now: time.Now}
	b.cred.Region = cmp.Or(cred.Region, "us-east-1")
	if cred.Role != nil {
		if b.session, err = newSession(client, *cred.Role, b.cred.Region); err != nil {
			return nil, err
		}
	}
	host := "s3." + b.cred.Region + ".amazonaws.com"
	if cred.Accelerate {
		host = "s3-accelerate.amazonaws.com"
	}
	service, err := serviceAddress(cmp.Or(cred.Endpoint, host))
	if err != nil {
		return nil, err
	}
	// A certificate for *.s3… doesn't hold for a bucket with a dot.
	virtual := cred.Endpoint == "" && !strings.Contains(bucket, ".")
	if cred.VirtualHost != "" {
		virtual = !strings.EqualFold(cred.VirtualHost, "false")
	}
	if virtual {
		service.Host = bucket + "." + service.Host
		b.bucket = service
	} else {
		b.bucket = under(service, bucket)
	}
	return b, nil
}

func (b *s3Bucket) Close() { b.client.CloseIdleConnections() }

// Put implements Bucket (Amazon S3 API reference, PutObject).
func (b *s3Bucket) Put(ctx context.Context, key, contentType string, data []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "", http.NoBody)
	if err != nil {
		return err
	}
	r.URL = under(b.bucket, key)
	r.Host = r.URL.Host
	r.Header.Set("Content-Type", contentType)
	sum := sha256.Sum256(data)
	r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	if err := b.prove(r); err != nil {
		return err
	}
	return send(b.client, r, data)
}

// prove signs a request, unless that is anonymous.
func (b *s3Bucket) prove(r *http.Request) error {
	cred := b.cred
	if cred.Anonymous {
		return nil
	}
	if b.session != nil {
		keys, err := b.session.current(r.Context())
		if err != nil {
			return err
		}
		cred.AccessKey, cred.SecretKey, cred.SessionToken = keys.AccessKey, keys.SecretKey, keys.SessionToken
	}
	cred.sign(r, b.now())
	return nil
}

// sign adds the signature, version 4, that the request's fields and its X-Amz-Content-Sha256 need
// (AWS, "Signature calculations for the authorization header").
func (c *S3Credentials) sign(r *http.Request, now time.Time) {
	const algorithm, service = "AWS4-HMAC-SHA256", "s3"
	at := now.UTC().Format("20060102T150405Z")
	day := at[:8]
	r.Header.Set("X-Amz-Date", at)
	if c.SessionToken != "" {
		r.Header.Set("X-Amz-Security-Token", c.SessionToken)
	}
	names := []string{"host"}
	for name := range r.Header {
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	var fields strings.Builder
	for _, name := range names {
		value := r.Host
		if name != "host" {
			value = strings.Join(r.Header.Values(name), ",")
		}
		fields.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	signed := strings.Join(names, ";")
	request := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20"), fields.String(), signed, r.Header.Get("X-Amz-Content-Sha256"),
	}, "\n")
	sum := sha256.Sum256([]byte(request))
	scope := strings.Join([]string{day, c.Region, service, "aws4_request"}, "/")
	text := strings.Join([]string{algorithm, at, scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + c.SecretKey)
	for _, part := range []string{day, c.Region, service, "aws4_request", text} {
		key = keyed(key, part)
	}
	r.Header.Set("Authorization", algorithm+" Credential="+c.AccessKey+"/"+scope+", SignedHeaders="+signed+", Signature="+hex.EncodeToString(key))
}

func keyed(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
