package objectstore

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// List implements Reader (Blob service REST API, List Blobs).
func (b *azureBucket) List(ctx context.Context, prefix string, most int) ([]Object, error) {
	var out []Object
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}}
	for {
		resp, err := b.get(ctx, "", query, nil)
		if err != nil {
			return nil, err
		}
		var listing struct {
			Blobs []struct {
				Name       string
				Properties struct {
					Size int64  `xml:"Content-Length"`
					ETag string `xml:"Etag"`
				}
			} `xml:"Blobs>Blob"`
			NextMarker string
		}
		err = xml.NewDecoder(io.LimitReader(resp.Body, maxListing)).Decode(&listing)
		_ = resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: the store's listing can't be read: %w", errdef.ErrUnavailable, err)
		}
		for _, o := range listing.Blobs {
			out = append(out, Object{Key: o.Name, Size: o.Properties.Size, ETag: o.Properties.ETag})
		}
		switch {
		case len(out) > most:
			return nil, fmt.Errorf("%w: more than %d objects", errdef.ErrTooLarge, most)
		case listing.NextMarker == "":
			return out, nil
		}
		query.Set("marker", listing.NextMarker)
	}
}

// Get implements Reader (Blob service REST API, Get Blob).
func (b *azureBucket) Get(ctx context.Context, o Object, offset int64) (io.ReadCloser, error) {
	header := http.Header{}
	if o.ETag != "" {
		header.Set("If-Match", quoted(o.ETag))
	}
	return partOf(offset, header, "X-Ms-Range", func() (*http.Response, error) { return b.get(ctx, o.Key, nil, header) })
}

// quoted is an ETag as it stands in a request: listings leave the quotes out.
func quoted(etag string) string {
	if etag[0] == '"' {
		return etag
	}
	return `"` + etag + `"`
}

func (b *azureBucket) get(ctx context.Context, key string, query url.Values, header http.Header) (*http.Response, error) {
	at := *b.container
	if key != "" {
		at = *under(b.container, key)
	}
	return fetch(ctx, b.client, &at, query, header, func(r *http.Request) error {
		r.Header.Set("X-Ms-Version", azureVersion)
		r.Header.Set("X-Ms-Date", b.now().UTC().Format(http.TimeFormat))
		switch {
		case b.key != nil:
			b.sign(r, 0)
		case b.tokens != nil:
			return authorize(r, b.tokens)
		}
		return nil // a public container asks for nothing
	})
}
