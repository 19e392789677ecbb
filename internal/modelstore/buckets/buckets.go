// Package buckets is a source of the model store: models in buckets, fetched with a namespace's
// credentials.
package buckets

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/objectstore"
)

// Stores opens buckets.
type Stores interface {
	Reader(ctx context.Context, p objectstore.Place, from objectstore.Source) (objectstore.Reader, error)
	// Entry returns the place that an entry of a namespace's secret storage-config names; parts of
	// it may be empty.
	Entry(ctx context.Context, namespace, key string) (objectstore.Place, error)
}

// Scheme is that of URIs that name an entry of the secret storage-config: storage://entry/key, with
// type, bucket, region and endpoint_url in the query where these go before what the entry says.
const Scheme = "storage"

// Source reads models of s3://bucket/key, and so of gs://, of Azure's abfs:// and https:// addresses,
// and of hf:// (objectstore.ParsePlace): the object of that key, or all below it as a directory.
// A model that is one archive is unpacked. URIs of Scheme lead to such a place as well. It is safe
// for concurrent use.
type Source struct {
	Stores Stores
	// From says where the credentials of a namespace are.
	From func(namespace string) objectstore.Source
}

var _ modelstore.Source = Source{}

// maxObjects bounds the objects of a model.
const maxObjects = 100_000

// Read implements modelstore.Source.
func (b Source) Read(ctx context.Context, req modelstore.Request, sink *modelstore.Sink) error {
	at, from, err := b.place(ctx, req)
	if err != nil {
		return err
	}
	bucket, err := b.Stores.Reader(ctx, at, from)
	if err != nil {
		return err
	}
	defer bucket.Close()
	listed, err := bucket.List(ctx, at.Prefix, maxObjects)
	if err != nil {
		return fmt.Errorf("list the bucket %s: %w", at.Bucket, err)
	}
	files := filesBelow(listed, at.Prefix)
	if len(files) == 0 {
		return fmt.Errorf("%w: the bucket %s has no object %s and none below it", errdef.ErrNotFound, at.Bucket, at.Prefix)
	}
	mark := markOf(files)
	if req.Last != nil && req.Last.ETag == mark {
		sink.Unchanged()
		return nil
	}
	var total int64
	for _, f := range files {
		total += f.Size
	}
	sink.Expect(total)
	for _, f := range files {
		body := &object{ctx: ctx, bucket: bucket, Object: f.Object}
		if len(files) == 1 {
			err = sink.AddUnpacked(ctx, f.name, body)
		} else {
			err = sink.AddFile(ctx, f.name, body)
		}
		if err = errors.Join(err, body.close()); err != nil {
			return err
		}
	}
	sink.Remember(modelstore.Ref{ETag: mark})
	return nil
}

// place returns where a request's model is, and where the credentials for it are.
func (b Source) place(ctx context.Context, req modelstore.Request) (objectstore.Place, objectstore.Source, error) {
	from := b.From(req.Namespace)
	if !strings.HasPrefix(req.URI, Scheme+"://") {
		at, err := objectstore.ParsePlace(req.URI)
		if err != nil {
			err = errdef.Terminal(err)
		}
		return at, from, err
	}
	u, err := url.Parse(req.URI)
	if err != nil || u.Host == "" {
		return objectstore.Place{}, from, errdef.Terminal(errdef.New(errdef.ErrInvalid, "the URI names no entry of the secret storage-config"))
	}
	said := u.Query()
	from.Key, from.Region, from.Endpoint = u.Host, said.Get("region"), said.Get("endpoint_url")
	at, err := b.Stores.Entry(ctx, req.Namespace, u.Host)
	if err != nil {
		return at, from, err
	}
	at.Scheme, at.Bucket = cmp.Or(said.Get("type"), at.Scheme), cmp.Or(said.Get("bucket"), at.Bucket)
	at.Prefix = strings.Trim(u.Path, "/")
	if at.Bucket == "" || at.Scheme == "" {
		return at, from, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the entry %s of the secret storage-config lacks its type or its bucket", u.Host))
	}
	return at, from, nil
}

// file is an object with its name in the model.
type file struct {
	objectstore.Object
	name string
}

// filesBelow returns the object that has the key, else those in the folder of that name. Keys that
// only begin alike aren't of it, and those that end with a slash are folders' own.
func filesBelow(listed []objectstore.Object, key string) []file {
	var out []file
	for _, o := range listed {
		if o.Key == key {
			return []file{{o, path.Base(key)}}
		}
		name, within := o.Key, true
		if key != "" {
			name, within = strings.CutPrefix(o.Key, key+"/")
		}
		if within && name != "" && !strings.HasSuffix(name, "/") {
			out = append(out, file{o, name})
		}
	}
	return out
}

// markOf changes with the name or content of any file.
func markOf(files []file) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %q %d\n", f.name, f.ETag, f.Size)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// tries is how many times in a row an object's connection may break, and pause how long to wait
// before it is asked for again.
const (
	tries = 4
	pause = 500 * time.Millisecond
)

// object is an object's bytes as a reader that goes on where it was cut off.
type object struct {
	objectstore.Object
	ctx    context.Context //nolint:containedctx // io.Reader has no place for it, and an object is read within one call.
	bucket objectstore.Reader

	body   io.ReadCloser
	at     int64
	broken int // in a row, without a byte between
}

// Read implements io.Reader.
func (o *object) Read(p []byte) (int, error) {
	for {
		n, err := o.more(p)
		o.at += int64(n)
		switch {
		case n > 0:
			o.broken = 0
			return n, nil // an error comes again with the next read
		case errors.Is(err, io.EOF) && o.at >= o.Size:
			return 0, io.EOF
		case err == nil:
			continue
		}
		if cause := context.Cause(o.ctx); cause != nil {
			return 0, cause
		}
		if o.broken++; o.broken > tries || !passing(err) {
			return 0, fmt.Errorf("after %d of %d bytes: %w", o.at, o.Size, err)
		}
		if err := o.close(); err != nil && !passing(err) {
			return 0, err
		}
		select {
		case <-time.After(pause << o.broken):
		case <-o.ctx.Done():
			return 0, context.Cause(o.ctx)
		}
	}
}

// more reads on, from a new answer where there is none.
func (o *object) more(p []byte) (int, error) {
	if o.body == nil {
		if o.at > 0 && o.at >= o.Size {
			return 0, io.EOF
		}
		body, err := o.bucket.Get(o.ctx, o.Object, o.at)
		if err != nil {
			return 0, err
		}
		o.body = body
	}
	return o.body.Read(p)
}

func (o *object) close() error {
	if o.body == nil {
		return nil
	}
	err := o.body.Close()
	o.body = nil
	return err
}

// passing reports whether an error may pass: what has no kind came from a connection.
func passing(err error) bool {
	kind := errdef.KindOf(err)
	return errors.Is(kind, errdef.ErrUnavailable) || errors.Is(kind, errdef.ErrTimeout) || errors.Is(kind, errdef.ErrInternal)
}
