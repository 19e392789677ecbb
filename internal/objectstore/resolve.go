package objectstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Secrets reads the secrets of namespaces. Errors are of errdef.ErrNotFound, errdef.ErrDenied or
// errdef.ErrUnavailable.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (Secret, error)
	// Attached returns the names of the secrets that a service account lists.
	Attached(ctx context.Context, namespace, serviceAccount string) ([]string, error)
	// ConfigMap returns a config map's data.
	ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error)
}

// Source says where a place's credentials are. They are the first that are found and fit: in
// Secret, if it is named; in the entry Key of the namespace's secret "storage-config"; in a secret
// that the service account lists.
type Source struct {
	Namespace, Secret, Key, ServiceAccount string
	// Region and Endpoint go before what the credentials say.
	Region, Endpoint string
}

// storageConfig is the secret of a namespace that KServe's storage.key names entries of.
const storageConfig = "storage-config"

// caDefault is the key of certificates in a config map (KServe's).
const caDefault = "cabundle.crt"

// keptFor is how long a bucket is used with the credentials that were read.
const keptFor = time.Minute

// Stores opens buckets with the credentials of namespaces, and keeps each for a minute, so that
// changed credentials count then. It is safe for concurrent use.
type Stores struct {
	secrets Secrets
	// fallback gives credentials where a namespace has none; nil for none.
	fallback func(scheme string) (Credentials, error)
	// trusted are certificates, as PEM, for all stores of S3's kind; empty for none.
	trusted string

	mu   sync.Mutex
	open map[opened]*kept
}

type opened struct {
	place  Place
	source Source
}

// kept is a bucket that is being opened, or open until a time.
type kept struct {
	once   sync.Once
	until  time.Time
	bucket Bucket
	err    error
}

// NewStores makes stores. fallback gives credentials for a scheme where a namespace has none, and
// empty ones for none; it may be nil.
func NewStores(secrets Secrets, fallback func(scheme string) (Credentials, error)) *Stores {
	return &Stores{secrets: secrets, fallback: fallback, open: map[opened]*kept{}}
}

// Trust has it believe certificates, as PEM, of every store of S3's kind, in place of those in config
// maps that credentials name: whoever gives them has looked there. It is for before the first use.
func (s *Stores) Trust(certificates string) { s.trusted = certificates }

// Put writes an object to a place's bucket, under the whole key, with the credentials that the
// source names. Errors are those of Bucket.Put, and errdef.ErrDenied where there are no credentials.
func (s *Stores) Put(ctx context.Context, p Place, from Source, key, contentType string, data []byte) error {
	p.Prefix = ""
	at := opened{p, from}
	k := s.bucket(at)
	k.once.Do(func() { k.bucket, k.err = s.resolve(ctx, p, from) })
	err := k.err
	if err == nil {
		err = k.bucket.Put(ctx, key, contentType, data)
	}
	if k.err != nil || errors.Is(err, errdef.ErrDenied) { // the credentials may be others by the next time
		s.forget(at, k)
	}
	return err
}

// Close ends connections that nothing uses.
func (s *Stores) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, k := range s.open {
		k.once.Do(func() { k.err = errdef.ErrUnavailable }) // one that nobody opened stays closed
		if k.bucket != nil {
			k.bucket.Close()
		}
		delete(s.open, at)
	}
}

// bucket returns what is kept of a place, and forgets what is too old: unused connections end by
// themselves.
func (s *Stores) bucket(at opened) *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	k := s.open[at]
	if k != nil && now.Before(k.until) {
		return k
	}
	for other, old := range s.open {
		if !now.Before(old.until) {
			delete(s.open, other)
		}
	}
	k = &kept{until: now.Add(keptFor)}
	s.open[at] = k
	return k
}

func (s *Stores) forget(at opened, k *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[at] == k {
		delete(s.open, at)
		if k.bucket != nil {
			k.bucket.Close()
		}
	}
}

// resolve finds credentials and opens a bucket with them.
func (s *Stores) resolve(ctx context.Context, p Place, from Source) (Bucket, error) {
	c, err := s.credentials(ctx, p.Scheme, from)
	if err != nil {
		return nil, err
	}
	c = c.overridden(from.Region, from.Endpoint)
	switch {
	case c.S3 == nil:
	case s.trusted != "":
		c.S3.CABundle += "\n" + s.trusted // overridden made a copy
	case c.S3.CAConfigMap != "":
		data, err := s.secrets.ConfigMap(ctx, from.Namespace, c.S3.CAConfigMap)
		if err != nil {
			return nil, fmt.Errorf("the certificates of the store: %w", err)
		}
		key := cmp.Or(c.S3.CAKey, caDefault)
		bundle, has := data[key]
		if !has {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the config map %s has no key %s with the certificates of the store", c.S3.CAConfigMap, key))
		}
		c.S3.CABundle += "\n" + bundle
	}
	return Open(p, c)
}

// credentials looks in the places that a source names, one after the other.
func (s *Stores) credentials(ctx context.Context, scheme string, from Source) (Credentials, error) {
	var tried []string
	try := func(what string, err error) { tried = append(tried, what+" ("+reason(err)+")") }
	secret := func(name string) (Credentials, error) {
		got, err := s.secrets.Secret(ctx, from.Namespace, name)
		switch c := FromSecret(got); {
		case errors.Is(err, errdef.ErrUnavailable):
			return Credentials{}, err
		case err != nil:
			try("secret "+name, err)
		case c.fits(scheme):
			return c, nil
		default:
			try("secret "+name, nil)
		}
		return Credentials{}, nil
	}
	if from.Secret != "" {
		if c, err := secret(from.Secret); err != nil || c.fits(scheme) {
			return c, err
		}
	}
	if from.Key != "" {
		got, err := s.secrets.Secret(ctx, from.Namespace, storageConfig)
		what := from.Key + " of secret " + storageConfig
		entry, has := got.Data[from.Key]
		switch {
		case errors.Is(err, errdef.ErrUnavailable):
			return Credentials{}, err
		case err != nil:
			try(what, err)
		case !has:
			try(what, errdef.ErrNotFound)
		default:
			c, err := FromEntry(entry)
			if err == nil && c.fits(scheme) {
				return c, nil
			}
			try(what, err)
		}
	}
	if from.ServiceAccount != "" {
		names, err := s.secrets.Attached(ctx, from.Namespace, from.ServiceAccount)
		if errors.Is(err, errdef.ErrUnavailable) {
			return Credentials{}, err
		}
		if err != nil || len(names) == 0 {
			try("service account "+from.ServiceAccount, cmp.Or(err, errors.New("lists no secrets")))
		}
		for _, name := range names {
			if c, err := secret(name); err != nil || c.fits(scheme) {
				return c, err
			}
		}
	}
	if s.fallback != nil {
		if c, err := s.fallback(scheme); err != nil || c.fits(scheme) {
			return c, err
		}
		tried = append(tried, "environment")
	}
	where := ""
	if from.Namespace != "" {
		where = " in namespace " + from.Namespace
	}
	return Credentials{}, fmt.Errorf("%w: no credentials for %s://%s; tried %s", errdef.ErrDenied, scheme, where, strings.Join(tried, ", "))
}

// reason is why a source has no credentials, in few words; nil means that it has others.
func reason(err error) string {
	switch {
	case err == nil:
		return "none for this scheme"
	case errors.Is(err, errdef.ErrNotFound):
		return "not there"
	case errors.Is(err, errdef.ErrDenied):
		return "not allowed to read it"
	}
	return err.Error()
}
