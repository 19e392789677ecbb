package modelstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Config says where a store is and what it may do. Only Dir is needed.
type Config struct {
	// Dir holds the store; it is made when absent.
	Dir string
	// PVCDir holds a directory <namespace>/<claim> for each claim that pvc:// may name. Empty
	// refuses pvc://.
	PVCDir string
	// Base is what relative local paths are relative to. Empty means the working directory at
	// Open.
	Base string
	HTTP HTTPConfig
	// Limits bound each model.
	Limits Limits
	// Parallel is how many models may be fetched at once; further ones wait. Zero means 4.
	Parallel int
	// Sources add schemes, or take over those built in, by their name without "://". One such as
	// "https://*.blob.example" takes over the hosts of a scheme that end so.
	Sources map[string]Source
	// OnProgress, when set, is told of bytes as they come: about each MiB, from the goroutine
	// that fetches, so it must be quick. Several may call at once.
	OnProgress func(Progress)
	// Logger may be nil.
	Logger *slog.Logger
}

// Progress is how far one fetch is.
type Progress struct {
	Namespace string
	// URI is as asked, with secrets masked.
	URI string
	// Done and Total are bytes; Total is 0 when unknown, and for an archive is its packed size.
	Done, Total int64
}

// Request asks a source for a model.
type Request struct {
	// Namespace is that of the service that asks.
	Namespace string
	URI       string
	// Last is what the source remembered when it last brought this URI; nil when the store no
	// longer has what came then.
	Last *Ref
}

// Ref is what a source remembers to ask later whether a URI's content changed.
type Ref struct {
	Digest       string `json:"digest"`
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"lastModified,omitempty"`
}

// Source reads the models of one or more schemes. It is safe for concurrent use.
type Source interface {
	// Read gives every file of the model to the sink, or calls its Unchanged. Errors are of an
	// errdef kind and hold no secret.
	Read(ctx context.Context, req Request, sink *Sink) error
}

// errRestart marks an error after which a fetch may be begun anew, once or twice.
var errRestart = errors.New("the content changed while it was read")

const fetchTries = 3

// Store is a content-addressed store of models. All methods are safe for concurrent use, and
// several processes may open one directory.
type Store struct {
	dir     string
	session *session
	cfg     Config
	log     *slog.Logger
	sources map[string]Source
	slots   chan struct{}
	http    *httpSource

	building sync.Mutex // one tree is made at a time

	mu      sync.Mutex
	closed  bool
	flights map[flightKey]*flight
	inUse   map[string]int
	wg      sync.WaitGroup
}

type flightKey struct{ namespace, uri, digest string }

// flight is one fetch that any number of callers wait for.
type flight struct {
	done    chan struct{} // closed when the fields below are set
	cancel  context.CancelCauseFunc
	waiters int
	path    string
	digest  string
	err     error
}

// Open opens or makes the store at cfg.Dir and removes what processes that died left half
// done. Errors are of the disk: errdef.ErrDenied, ErrNoSpace, ErrInternal; or ErrInvalid for
// a CA file that can't be used.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, fmt.Errorf("%w: a model store needs a directory", errdef.ErrInvalid)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, diskError("find the store's directory", err)
	}
	if cfg.Base, err = filepath.Abs(cfg.Base); err != nil {
		return nil, diskError("find the base directory", err)
	}
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	for _, sub := range []string{"blobs", "manifests", "trees", "refs", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, diskError("make the model store", err)
		}
	}
	web, err := newHTTPSource(cfg.HTTP)
	if err != nil {
		return nil, err
	}
	session, err := openSession(filepath.Join(dir, "tmp"))
	if err != nil {
		return nil, err
	}
	local := localSource{base: cfg.Base, pvcDir: cfg.PVCDir}
	s := &Store{
		dir: dir, session: session, cfg: cfg, log: cfg.Logger,
		sources: map[string]Source{"": local, "file": local, "pvc": local, "http": web, "https": web},
		slots:   make(chan struct{}, cmp.Or(max(0, cfg.Parallel), 4)),
		http:    web,
		flights: map[flightKey]*flight{},
		inUse:   map[string]int{},
	}
	maps.Copy(s.sources, cfg.Sources)
	return s, nil
}

// Close ends what is under way, waits for it and lets go of the directory. A second call
// does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for _, f := range s.flights {
		f.cancel(errClosed)
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.http.close()
	return s.session.close()
}

var errClosed = fmt.Errorf("%w: the model store is closed", errdef.ErrUnavailable)

// For returns the store as one namespace sees it.
func (s *Store) For(namespace string) Namespaced { return Namespaced{s, namespace} }

// Namespaced is a store as the services of one namespace see it: pvc:// claims are theirs.
type Namespaced struct {
	store     *Store
	namespace string
}

// Fetch is Store.Fetch for this namespace.
func (n Namespaced) Fetch(ctx context.Context, uri, digest string) (path, gotDigest string, release func(), err error) {
	return n.store.Fetch(ctx, n.namespace, uri, digest)
}

// Fetch returns a directory with the content of uri and its digest (see TreeDigest). A single
// file stands in the directory under its own name. The directory is read-only by contract and
// stays until release is called, which may be done more than once.
//
// A non-empty digest pins the content: when the store has it, the source isn't asked, and
// when the source has something else the error is errdef.ErrUnverified and nothing is kept.
// Without one the source is asked each time (HTTP ones by a conditional request).
//
// It blocks while bytes come; calls for the same thing share one fetch, which ends early only
// when all of them are cancelled. Other errors: errdef.ErrUnsupported for a scheme or packing
// that isn't known, ErrInvalid for a URI or content that can't be, ErrNotFound, ErrDenied,
// ErrTooLarge, ErrNoSpace, ErrUnavailable and ErrTimeout for a server that doesn't answer, and
// the context's own. errdef.IsTerminal holds where only another manifest can help.
func (s *Store) Fetch(ctx context.Context, namespace, uri, digest string) (path, gotDigest string, release func(), err error) {
	if digest != "" {
		if _, err := parseDigest(digest); err != nil {
			return "", "", nil, errdef.Terminal(err)
		}
		if path, ok := s.lookup(digest); ok {
			return path, digest, s.acquire(digest), nil
		}
	}
	source, err := s.source(uri)
	if err != nil {
		return "", "", nil, err
	}
	key := flightKey{namespace, uri, digest}
	f, err := s.join(ctx, key, source)
	if err != nil {
		return "", "", nil, err
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		s.leave(key, f)
		return "", "", nil, context.Cause(ctx)
	}
	s.leave(key, f)
	if f.err != nil {
		return "", "", nil, fmt.Errorf("fetch %s: %w", mask(uri), f.err)
	}
	return f.path, f.digest, s.acquire(f.digest), nil
}

// source finds who reads a URI.
func (s *Store) source(uri string) (Source, error) {
	scheme, rest, has := strings.Cut(uri, "://")
	if !has {
		scheme = ""
	}
	host, _, _ := strings.Cut(rest, "/")
	for pattern, src := range s.sources {
		if end, ok := strings.CutPrefix(pattern, strings.ToLower(scheme)+"://*"); ok && strings.HasSuffix(strings.ToLower(host), end) {
			return src, nil
		}
	}
	if src, ok := s.sources[strings.ToLower(scheme)]; ok {
		return src, nil
	}
	var known []string
	for k := range s.sources {
		if k != "" && !strings.Contains(k, "://") {
			known = append(known, k+"://")
		}
	}
	slices.Sort(known)
	return nil, errdef.Terminal(fmt.Errorf(
		"%w: the scheme %s:// of %s: the store reads %s and plain paths; others (hdfs, webhdfs) aren't read, so bring the model to one of these",
		errdef.ErrUnsupported, scheme, mask(uri), strings.Join(known, ", ")))
}

// join adds a caller to the flight of a key, starting one where there is none.
func (s *Store) join(ctx context.Context, key flightKey, source Source) (*flight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if f, ok := s.flights[key]; ok {
		f.waiters++
		return f, nil
	}
	// The fetch outlives the caller that began it as long as another waits.
	fctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight{done: make(chan struct{}), cancel: cancel, waiters: 1}
	s.flights[key] = f
	s.wg.Go(func() {
		f.path, f.digest, f.err = s.run(fctx, key, source)
		s.mu.Lock()
		s.forget(key, f)
		s.mu.Unlock()
		cancel(nil)
		close(f.done)
	})
	return f, nil
}

// leave takes a caller off a flight; the last one off ends it.
func (s *Store) leave(key flightKey, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.waiters--
	if f.waiters == 0 {
		f.cancel(context.Canceled)
		s.forget(key, f) // so that nobody joins a fetch that is ending
	}
}

func (s *Store) forget(key flightKey, f *flight) {
	if s.flights[key] == f {
		delete(s.flights, key)
	}
}

// run fetches within the limit on how many may.
func (s *Store) run(ctx context.Context, key flightKey, source Source) (string, string, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return "", "", context.Cause(ctx)
	}
	for try := 1; ; try++ {
		path, digest, err := s.fetch(ctx, key, source)
		if errors.Is(err, errdef.ErrNoSpace) {
			return "", "", s.full(err)
		}
		if err == nil || try == fetchTries || !errors.Is(err, errRestart) || ctx.Err() != nil {
			return path, digest, err
		}
		s.log.Warn("fetch begins anew", "uri", mask(key.uri), "err", err)
	}
}

// full words a full disk for who has to make room: by the store's directory, and not by the file
// that happened to be written, whose name is another at each try.
func (s *Store) full(err error) error {
	why := "the disk is full"
	if errors.Is(err, syscall.EDQUOT) {
		why = "the disk quota is used up"
	}
	return fmt.Errorf("%w for the model in %s: %s; free some space there, or start with a data directory on a larger disk", errdef.ErrNoSpace, s.dir, why)
}

// fetch reads a model into a staging directory and makes it part of the store.
func (s *Store) fetch(ctx context.Context, key flightKey, source Source) (string, string, error) {
	dir, err := os.MkdirTemp(s.session.dir, "fetch-")
	if err != nil {
		return "", "", diskError("stage a model", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var progress func(done, total int64)
	if s.cfg.OnProgress != nil {
		uri := mask(key.uri)
		progress = func(done, total int64) {
			s.cfg.OnProgress(Progress{Namespace: key.namespace, URI: uri, Done: done, Total: total})
		}
	}
	sink := newSink(dir, s.cfg.Limits, s.has, progress)
	last := s.readRef(key.uri)
	if key.digest != "" {
		last = nil // the pinned content isn't here, or lookup had found it
	}
	if err := source.Read(ctx, Request{Namespace: key.namespace, URI: key.uri, Last: last}, sink); err != nil {
		return "", "", err
	}
	if sink.unchanged && last != nil {
		path, ok := s.lookup(last.Digest)
		if !ok {
			s.dropRef(key.uri)
			return "", "", fmt.Errorf("%w: what %s stood for is gone from the store: %w", errdef.ErrUnavailable, mask(key.uri), errRestart)
		}
		return path, last.Digest, nil
	}
	if progress != nil {
		progress(sink.bytes, sink.total)
	}
	path, digest, err := s.commit(sink, key.digest)
	if err != nil {
		return "", "", err
	}
	if sink.ref != nil {
		s.writeRef(key.uri, Ref{Digest: digest, ETag: sink.ref.ETag, LastModified: sink.ref.LastModified})
	}
	s.log.Info("model fetched", "uri", mask(key.uri), "digest", digest, "bytes", sink.bytes, "files", len(sink.entries))
	return path, digest, nil
}

// commit checks the digest and moves what was staged to where it stays.
func (s *Store) commit(sink *Sink, pinned string) (string, string, error) {
	if len(sink.entries) == 0 {
		return "", "", fmt.Errorf("%w: there is no file in it: put the model's files there, model.onnx for example, or name where they are", errdef.ErrInvalid)
	}
	entries := sink.tree()
	text := manifest(entries)
	digest := digestOf([]byte(text))
	if pinned != "" && pinned != digest {
		return "", "", fmt.Errorf("%w: the content has the digest %s and not the pinned %s: it changed at its source",
			errdef.ErrUnverified, digest, pinned)
	}
	touched := map[string]bool{}
	for d := range sink.staged {
		to := s.blobPath(d)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", "", diskError("keep a file", err)
		}
		if err := os.Rename(sink.stagedPath(d), to); err != nil {
			return "", "", diskError("keep a file", err)
		}
		touched[filepath.Dir(to)] = true
	}
	touched[filepath.Join(s.dir, "blobs", "sha256")] = true
	for d := range touched {
		if err := syncDir(d); err != nil {
			return "", "", err
		}
	}
	if err := writeFile(s.session.dir, s.path("manifests", digest), []byte(text)); err != nil {
		return "", "", err
	}
	s.building.Lock()
	defer s.building.Unlock()
	path, err := s.build(digest, entries)
	return path, digest, err
}

// acquire notes that a tree is in use and returns what ends that.
func (s *Store) acquire(digest string) func() {
	s.mu.Lock()
	s.inUse[digest]++
	s.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.inUse[digest]--; s.inUse[digest] <= 0 {
				delete(s.inUse, digest)
			}
		})
	}
}

// InUse lists the digests that were fetched and not released yet, sorted.
func (s *Store) InUse() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.inUse))
}

func (s *Store) refPath(uri string) string {
	sum := sha256.Sum256([]byte(uri))
	return filepath.Join(s.dir, "refs", hex.EncodeToString(sum[:]))
}

// readRef returns what is remembered of a URI, if its content is still here.
func (s *Store) readRef(uri string) *Ref {
	b, err := os.ReadFile(s.refPath(uri))
	if err != nil {
		return nil
	}
	var r Ref
	if json.Unmarshal(b, &r) != nil {
		return nil
	}
	if _, err := parseDigest(r.Digest); err != nil {
		return nil
	}
	if _, err := os.Stat(s.path("manifests", r.Digest)); err != nil {
		return nil
	}
	return &r
}

// writeRef remembers; a failure costs only a later download.
func (s *Store) writeRef(uri string, r Ref) {
	b, err := json.Marshal(r)
	if err == nil {
		err = writeFile(s.session.dir, s.refPath(uri), b)
	}
	if err != nil {
		s.log.Warn("couldn't remember a model's version", "uri", mask(uri), "err", err)
	}
}

func (s *Store) dropRef(uri string) { _ = os.Remove(s.refPath(uri)) }
