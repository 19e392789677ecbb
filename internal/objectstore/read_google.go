package objectstore

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// List implements Reader (Cloud Storage JSON API, Objects: list).
func (b *googleBucket) List(ctx context.Context, prefix string, most int) ([]Object, error) {
	var out []Object
	query := url.Values{"prefix": {prefix}}
	for {
		resp, err := b.get(ctx, b.objects(""), query, nil)
		if err != nil {
			return nil, err
		}
		var listing struct {
			Items []struct {
				Name       string
				Size       string
				Generation string
				MD5Hash    string `json:"md5Hash"`
			}
			NextPageToken string
		}
		err = json.NewDecoder(io.LimitReader(resp.Body, maxListing)).Decode(&listing)
		_ = resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: the store's listing can't be read: %w", errdef.ErrUnavailable, err)
		}
		for _, o := range listing.Items {
			size, err := strconv.ParseInt(o.Size, 10, 64)
			if err != nil || size < 0 {
				return nil, fmt.Errorf("%w: the store's listing gives %s no size", errdef.ErrUnavailable, o.Name)
			}
			// A generation is a content of an object; the hash tells apart what a store gives none.
			out = append(out, Object{Key: o.Name, Size: size, ETag: o.Generation + "/" + o.MD5Hash})
		}
		switch {
		case len(out) > most:
			return nil, fmt.Errorf("%w: more than %d objects", errdef.ErrTooLarge, most)
		case listing.NextPageToken == "":
			return out, nil
		}
		query.Set("pageToken", listing.NextPageToken)
	}
}

// Get implements Reader (Cloud Storage JSON API, Objects: get).
func (b *googleBucket) Get(ctx context.Context, o Object, offset int64) (io.ReadCloser, error) {
	query, header := url.Values{"alt": {"media"}}, http.Header{}
	if generation, _, ok := cutGeneration(o.ETag); ok {
		query.Set("ifGenerationMatch", generation)
	}
	return partOf(offset, header, "Range", func() (*http.Response, error) { return b.get(ctx, b.objects(o.Key), query, header) })
}

// cutGeneration parts an ETag of List; false where the store gave no generation.
func cutGeneration(etag string) (generation, hash string, ok bool) {
	for i := range len(etag) {
		if etag[i] == '/' {
			_, err := strconv.ParseInt(etag[:i], 10, 64)
			return etag[:i], etag[i+1:], err == nil
		}
	}
	return "", "", false
}

// objects is the address of the bucket's objects, or of one of them, whose slashes are encoded.
func (b *googleBucket) objects(key string) *url.URL {
	u := under(b.service, "storage/v1/b/"+b.bucket+"/o")
	if key != "" {
		u.RawPath += "/" + encoded(key, false)
		u.Path += "/" + key
	}
	return u
}

func (b *googleBucket) get(ctx context.Context, at *url.URL, query url.Values, header http.Header) (*http.Response, error) {
	return fetch(ctx, b.client, at, query, header, func(r *http.Request) error {
		if b.tokens == nil {
			return nil
		}
		return authorize(r, b.tokens)
	})
}

// partOf asks for an object from an offset on, in the field that the store wants it in, and returns
// its bytes.
func partOf(offset int64, header http.Header, field string, get func() (*http.Response, error)) (io.ReadCloser, error) {
	want := http.StatusOK
	if offset > 0 {
		header.Set(field, "bytes="+strconv.FormatInt(offset, 10)+"-")
		want = http.StatusPartialContent
	}
	resp, err := get()
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%w: the store answered %s where %d was due", errdef.ErrUnavailable, resp.Status, want)
	}
	return resp.Body, nil
}

// fetch makes a request that prove adds credentials to, and returns the answer if it is of the 200s.
func fetch(ctx context.Context, client *http.Client, at *url.URL, query url.Values, header http.Header, prove func(*http.Request) error) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "", http.NoBody)
	if err != nil {
		return nil, err
	}
	r.URL = at
	r.URL.RawQuery = query.Encode()
	r.Host = at.Host
	for name, values := range header {
		r.Header[name] = values
	}
	if err := prove(r); err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, fmt.Errorf("%w: %w", errdef.ErrUnavailable, bare(err))
	}
	return checked(resp)
}

// checked returns an answer of the 200s, and makes an error of another.
func checked(resp *http.Response) (*http.Response, error) {
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	kind := kindOf(resp.StatusCode)
	if resp.StatusCode == http.StatusPreconditionFailed {
		kind = errdef.ErrConflict
	}
	return nil, fmt.Errorf("%w: the store answered %s%s", kind, resp.Status, code(said))
}
