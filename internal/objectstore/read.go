package objectstore

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Object is an object as a bucket lists it.
type Object struct {
	// Key is its whole name in the bucket.
	Key string
	// Size is in bytes. ETag changes with the content.
	Size int64
	ETag string
}

// Reader reads the objects of a bucket. It is safe for concurrent use. Errors are as those of
// Bucket.Put.
type Reader interface {
	// List returns the objects whose keys begin with a prefix, in the order of their keys, at most
	// so many; one more of them is errdef.ErrTooLarge.
	List(ctx context.Context, prefix string, most int) ([]Object, error)
	// Get returns an object's bytes, from the offset to its end, if it still has the ETag; another
	// content is errdef.ErrConflict. The caller closes it.
	Get(ctx context.Context, o Object, offset int64) (io.ReadCloser, error)
	// Close ends connections that nothing uses.
	Close()
}

// Reader opens a place's bucket for reading, with the credentials that the source names. Where there
// are none, one of Google, Azure or a hub is read as anybody may, as KServe's own does. Errors are those of
// Open, and errdef.ErrDenied where there are no credentials for S3.
func (s *Stores) Reader(ctx context.Context, p Place, from Source) (Reader, error) {
	bucket, err := s.resolve(ctx, p, from)
	if errors.Is(err, errdef.ErrDenied) {
		switch p.Scheme {
		case Hub:
			bucket, err = Open(p, Credentials{})
		case Google:
			bucket, err = Open(p, Credentials{Google: &GoogleCredentials{Endpoint: from.Endpoint}})
		case Azure:
			bucket, err = Open(p, Credentials{Azure: &AzureCredentials{Anonymous: true, Endpoint: from.Endpoint}})
		}
	}
	if err != nil {
		return nil, err
	}
	r, ok := bucket.(Reader)
	if !ok {
		return nil, fmt.Errorf("BUG: a bucket of %s can't be read", p.Scheme)
	}
	return r, nil
}

// maxListing bounds one page of a listing, which names at most 1,000 objects.
const maxListing = 8 << 20

// List implements Reader (Amazon S3 API reference, ListObjectsV2).
func (b *s3Bucket) List(ctx context.Context, prefix string, most int) ([]Object, error) {
	var out []Object
	query := "list-type=2&prefix=" + encoded(prefix, false)
	for page := query; ; {
		resp, err := b.get(ctx, "", page, nil)
		if err != nil {
			return nil, err
		}
		var listing struct {
			Contents []struct {
				Key  string
				Size int64
				ETag string
			}
			IsTruncated           bool
			NextContinuationToken string
		}
		err = xml.NewDecoder(io.LimitReader(resp.Body, maxListing)).Decode(&listing)
		_ = resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: the store's listing can't be read: %w", errdef.ErrUnavailable, err)
		}
		for _, c := range listing.Contents {
			out = append(out, Object{Key: c.Key, Size: c.Size, ETag: c.ETag})
		}
		switch {
		case len(out) > most:
			return nil, fmt.Errorf("%w: more than %d objects", errdef.ErrTooLarge, most)
		case !listing.IsTruncated:
			return out, nil
		case listing.NextContinuationToken == "":
			return nil, fmt.Errorf("%w: the store's listing breaks off", errdef.ErrUnavailable)
		}
		page = "continuation-token=" + encoded(listing.NextContinuationToken, false) + "&" + query
	}
}

// Get implements Reader (Amazon S3 API reference, GetObject).
func (b *s3Bucket) Get(ctx context.Context, o Object, offset int64) (io.ReadCloser, error) {
	header := http.Header{}
	if o.ETag != "" {
		header.Set("If-Match", o.ETag)
	}
	want := http.StatusOK
	if offset > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
		want = http.StatusPartialContent
	}
	resp, err := b.get(ctx, o.Key, "", header)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%w: the store answered %s where %d was due", errdef.ErrUnavailable, resp.Status, want)
	}
	return resp.Body, nil
}

// emptySum is the SHA-256 of nothing.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// get makes a signed request, and returns the answer if it is of the 200s.
func (b *s3Bucket) get(ctx context.Context, key, query string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "", http.NoBody)
	if err != nil {
		return nil, err
	}
	r.URL = under(b.bucket, key)
	r.URL.RawQuery = query
	r.Host = r.URL.Host
	r.Header.Set("X-Amz-Content-Sha256", emptySum)
	for name, values := range header {
		r.Header[name] = values
	}
	if err := b.prove(r); err != nil {
		return nil, err
	}
	resp, err := b.client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, fmt.Errorf("%w: %w", errdef.ErrUnavailable, bare(err))
	}
	return checked(resp)
}

// code is what a store says is wrong, without what may be secret.
func code(said []byte) string {
	var fault struct{ Code, Message string }
	if xml.Unmarshal(said, &fault) != nil || fault.Code == "" {
		return ""
	}
	return ": " + strings.TrimSuffix(excerpt([]byte(fault.Code + " " + fault.Message))[2:], ".")
}

// bare is an error's text without the address that net/http puts around it.
func bare(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
