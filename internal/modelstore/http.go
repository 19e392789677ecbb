package modelstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// HTTPConfig says how models are downloaded. The zero value is usable.
type HTTPConfig struct {
	// CAFile holds PEM certificates that are trusted beside the system's.
	CAFile string
	// ConnectTimeout bounds dialling and the TLS handshake, each; zero means 15 s.
	ConnectTimeout time.Duration
	// HeaderTimeout bounds the wait for a response's header; zero means 30 s.
	HeaderTimeout time.Duration
	// IdleTimeout ends a body from which nothing came for so long; zero means 60 s.
	IdleTimeout time.Duration
	// Retries is how many times in a row a request is made again after a failure that may
	// pass; bytes that came start the count anew. Zero means 4, below zero none.
	Retries int
	// Backoff is the wait before the first retry; it doubles up to 30 s. Zero means 500 ms.
	Backoff time.Duration
	// Headers returns fields that go to a host, "name" or "name:port", with the requests of a
	// namespace; they don't follow redirects to another. Nil means none.
	Headers func(ctx context.Context, namespace, host string) (map[string]string, error)
	// MaxRedirects bounds the hops of one request; zero means 5.
	MaxRedirects int
}

// HTTPConfigFromEnv reads the CA file's name from STATIONMASTER_CA_BUNDLE or, where that is
// empty, REQUESTS_CA_BUNDLE, which Python's tools read too. Go's own SSL_CERT_FILE and
// SSL_CERT_DIR hold as well, and HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
func HTTPConfigFromEnv(getenv func(string) string) HTTPConfig {
	return HTTPConfig{CAFile: cmp.Or(getenv("STATIONMASTER_CA_BUNDLE"), getenv("REQUESTS_CA_BUNDLE"))}
}

// httpSource reads http:// and https://.
type httpSource struct {
	cfg    HTTPConfig
	client *http.Client
	tr     *http.Transport
}

func newHTTPSource(cfg HTTPConfig) (*httpSource, error) {
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 15*time.Second)
	cfg.HeaderTimeout = cmp.Or(cfg.HeaderTimeout, 30*time.Second)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 60*time.Second)
	cfg.Backoff = cmp.Or(cfg.Backoff, 500*time.Millisecond)
	cfg.Retries = cmp.Or(cfg.Retries, 4)
	cfg.MaxRedirects = cmp.Or(cfg.MaxRedirects, 5)
	pool, err := roots(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	const maxHeaderBytes = 1 << 20
	h := &httpSource{cfg: cfg}
	h.tr = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: cfg.ConnectTimeout}).DialContext,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		TLSClientConfig:        &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true, // the bytes as stored, so that ranges and digests mean the same
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        30 * time.Second,
	}
	h.client = &http.Client{Transport: h.tr, CheckRedirect: h.redirect}
	return h, nil
}

// roots returns the system's certificates and those of a file; nil means the system's.
func roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // tls.Config means the system's by nil.
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: the CA file: %w", errdef.ErrInvalid, err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: the CA file %s holds no PEM certificate", errdef.ErrInvalid, file)
	}
	return pool, nil
}

func (h *httpSource) close() { h.tr.CloseIdleConnections() }

func (h *httpSource) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > h.cfg.MaxRedirects {
		return fmt.Errorf("%w: more than %d redirects", errdef.ErrInvalid, h.cfg.MaxRedirects)
	}
	if req.URL.Host != via[0].URL.Host {
		names, _ := via[0].Context().Value(fieldsKey{}).(map[string]string)
		for name := range names {
			req.Header.Del(name)
		}
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("%w: the server redirects from https to %s", errdef.ErrDenied, req.URL.Scheme)
	}
	return nil
}

// fieldsKey is that of a request's context for the fields that are for its first host alone.
type fieldsKey struct{}

// Read implements Source.
func (h *httpSource) Read(ctx context.Context, req Request, s *Sink) error {
	u, err := url.Parse(req.URI)
	if err != nil || u.Host == "" {
		return errdef.Terminal(fmt.Errorf("%w: the URI isn't one that can be read", errdef.ErrInvalid))
	}
	u.Fragment = ""
	d := &download{h: h, ctx: ctx, url: u, total: -1}
	if h.cfg.Headers != nil {
		fields, err := h.cfg.Headers(ctx, req.Namespace, u.Host)
		if err != nil {
			return fmt.Errorf("the fields for the host %s: %w", u.Host, err)
		}
		if len(fields) > 0 {
			d.fields, d.ctx = fields, context.WithValue(ctx, fieldsKey{}, fields)
		}
	}
	defer d.close()
	resp, err := d.open(req.Last) //nolint:bodyclose // d.close does it
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNotModified {
		s.Unchanged()
		return nil
	}
	name, mediaType := fileName(u, resp), mediaTypeOf(resp)
	kind, err := kindOf(name, mediaType)
	if err != nil {
		return err
	}
	if enc := strings.ToLower(resp.Header.Get("Content-Encoding")); enc != "" && enc != "identity" {
		// Some servers say gzip of what is stored as .gz; anything else wasn't asked for.
		if !strings.HasSuffix(enc, "gzip") || !strings.HasSuffix(strings.ToLower(name), "gz") {
			return fmt.Errorf("%w: the server encoded the content as %s though it wasn't asked to", errdef.ErrUnsupported, shortName(enc))
		}
	}
	if d.total > 0 {
		s.Expect(d.total)
		if kind != zipped && d.total > s.limits.MaxBytes {
			return s.tooMany()
		}
	}
	if kind == plain {
		if err := checkPath(name); err != nil {
			return err
		}
	}
	if err := s.add(ctx, kind, name, d); err != nil {
		return err
	}
	if etag, mod := resp.Header.Get("ETag"), resp.Header.Get("Last-Modified"); etag != "" || mod != "" {
		s.Remember(Ref{ETag: etag, LastModified: mod})
	}
	return nil
}

// fileName is the name of what came: the server's word for it, else the path's last part,
// else "model".
func fileName(u *url.URL, resp *http.Response) string {
	if _, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition")); err == nil {
		if n := path.Base("/" + params["filename"]); n != "/" {
			return n
		}
	}
	if n := path.Base("/" + u.Path); n != "/" && !strings.HasSuffix(u.Path, "/") {
		return n
	}
	return "model"
}

func mediaTypeOf(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// download is the body of one URI as a reader that goes on where it was cut off.
type download struct {
	h   *httpSource
	ctx context.Context //nolint:containedctx // io.Reader has no place for it, and a download lives for one call.
	url *url.URL
	// fields go to the URL's host.
	fields map[string]string

	body     io.ReadCloser
	bodyCtx  context.Context //nolint:containedctx // as ctx; its cause says why a body ended.
	watch    *watch
	at       int64  // bytes handed out
	total    int64  // of the whole, -1 when not told
	mark     string // what If-Range may hold, empty for none
	failures int    // in a row, without a byte between
}

// open makes the first request.
func (d *download) open(last *Ref) (*http.Response, error) {
	header := http.Header{}
	if last != nil {
		if last.ETag != "" {
			header.Set("If-None-Match", last.ETag)
		} else if last.LastModified != "" {
			header.Set("If-Modified-Since", last.LastModified)
		}
	}
	resp, err := d.try(header)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusNotModified:
		if last != nil {
			return resp, nil
		}
		return nil, fmt.Errorf("%w: the server answered 304 to a request without a condition", errdef.ErrUnavailable)
	case http.StatusOK:
	default:
		return nil, fmt.Errorf("%w: the server answered %s where 200 was due", errdef.ErrUnavailable, resp.Status)
	}
	d.total = resp.ContentLength
	// RFC 9110 13.1.5: only a strong validator may stand in If-Range, and a date is strong
	// only when it is a second older than the response.
	if etag := resp.Header.Get("ETag"); etag != "" {
		if !strings.HasPrefix(etag, "W/") {
			d.mark = etag
		}
	} else if mod, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil && date.Sub(mod) >= time.Second {
			d.mark = resp.Header.Get("Last-Modified")
		}
	}
	return resp, nil
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	for {
		n, err := d.body.Read(p)
		d.watch.touch()
		d.at += int64(n)
		if n > 0 {
			d.failures = 0
			return n, nil // an error comes again with the next read
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) && (d.total < 0 || d.at == d.total) {
			return 0, io.EOF
		}
		if cause := context.Cause(d.ctx); cause != nil {
			return 0, cause
		}
		if cause := context.Cause(d.bodyCtx); cause != nil {
			err = cause
		}
		if err := d.resume(err); err != nil {
			return 0, err
		}
	}
}

// resume asks for the rest.
func (d *download) resume(why error) error {
	cut := fmt.Errorf("%w: the connection broke after %d of %s bytes: %w", errdef.ErrUnavailable, d.at, sizeWord(d.total), bare(why))
	d.failures++
	if d.failures > d.h.cfg.Retries {
		return cut
	}
	if d.mark == "" {
		return fmt.Errorf("%w: %w", cut, errRestart)
	}
	header := http.Header{}
	header.Set("Range", fmt.Sprintf("bytes=%d-", d.at))
	header.Set("If-Range", d.mark)
	if err := d.wait(d.failures, 0); err != nil {
		return err
	}
	resp, err := d.try(header) //nolint:bodyclose // d.close does it
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("%w, and the server wouldn't go on from there: %w", cut, errRestart)
	}
	var from, to int64
	if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/", &from, &to); err != nil || from != d.at {
		return fmt.Errorf("%w, and the server went on from elsewhere: %w", cut, errRestart)
	}
	return nil
}

func sizeWord(n int64) string {
	if n < 0 {
		return "an unknown number of"
	}
	return strconv.FormatInt(n, 10)
}

// try makes a request, again where the failure may pass, and takes over its body.
func (d *download) try(header http.Header) (*http.Response, error) {
	for try := 1; ; try++ {
		d.close()
		resp, retryAfter, err := d.once(header)
		if err == nil {
			return resp, nil
		}
		if cause := context.Cause(d.ctx); cause != nil {
			return nil, cause
		}
		kind := errdef.KindOf(err)
		passing := errors.Is(kind, errdef.ErrUnavailable) || errors.Is(kind, errdef.ErrTimeout) || errors.Is(kind, errdef.ErrOverloaded)
		if !passing || try > d.h.cfg.Retries {
			return nil, err
		}
		if err := d.wait(try, retryAfter); err != nil {
			return nil, err
		}
	}
}

// once makes one request. It returns how long the server asks to wait, if it does.
func (d *download) once(header http.Header) (*http.Response, time.Duration, error) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, 0, fmt.Errorf("%w: the URI can't be requested", errdef.ErrInvalid)
	}
	req.Header = header.Clone()
	req.Header.Set("User-Agent", "stationmaster")
	for name, value := range d.fields {
		req.Header.Set(name, value)
	}
	resp, err := d.h.client.Do(req)
	if err != nil {
		cancel(nil)
		return nil, 0, requestError(err)
	}
	if err := statusError(resp); err != nil {
		_ = resp.Body.Close()
		cancel(nil)
		return nil, retryAfter(resp), err
	}
	d.body, d.bodyCtx = resp.Body, ctx
	d.watch = newWatch(d.h.cfg.IdleTimeout, func() {
		cancel(fmt.Errorf("%w: nothing came for %s", errdef.ErrTimeout, d.h.cfg.IdleTimeout))
	}, func() { cancel(nil) })
	return resp, 0, nil
}

func (d *download) close() {
	if d.body != nil {
		_ = d.body.Close()
		d.watch.stop()
		d.body, d.watch = nil, nil
	}
}

// wait is the back-off before a retry: doubling, or what the server asked for up to a minute.
func (d *download) wait(try int, asked time.Duration) error {
	const most, mostAsked = 30 * time.Second, time.Minute
	pause := d.h.cfg.Backoff
	for range try - 1 {
		pause = min(2*pause, most)
	}
	t := time.NewTimer(max(pause, min(asked, mostAsked)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-d.ctx.Done():
		return context.Cause(d.ctx)
	}
}

// watch cancels a request when nothing touched it for a while.
type watch struct {
	idle time.Duration
	t    *time.Timer
	end  func()
}

func newWatch(idle time.Duration, expire, end func()) *watch {
	return &watch{idle: idle, t: time.AfterFunc(idle, expire), end: end}
}

func (w *watch) touch() { w.t.Reset(w.idle) }
func (w *watch) stop()  { w.t.Stop(); w.end() }

// bare is an error's text without the URL that net/http puts around it: the query and the
// user part may be secrets.
func bare(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// requestError gives a failed exchange its kind.
func requestError(err error) error {
	var (
		ue     = bare(err)
		ne     net.Error
		verify *tls.CertificateVerificationError
	)
	switch {
	case errdef.KindOf(ue) != errdef.ErrInternal:
		return ue
	case errors.As(err, &verify):
		return fmt.Errorf("%w: the server's certificate isn't trusted: %w; add its CA to the CA file", errdef.ErrDenied, verify.Err)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: %w", errdef.ErrTimeout, ue)
	}
	return fmt.Errorf("%w: %w", errdef.ErrUnavailable, ue)
}

// statusError gives a refusal its kind; nil for an answer with content, or 304.
func statusError(resp *http.Response) error {
	kind := errdef.ErrInvalid
	switch c := resp.StatusCode; {
	case c >= 200 && c < 300, c == http.StatusNotModified:
		return nil
	case c == http.StatusUnauthorized, c == http.StatusForbidden:
		kind = errdef.ErrDenied
	case c == http.StatusNotFound, c == http.StatusGone:
		kind = errdef.ErrNotFound
	case c == http.StatusTooManyRequests:
		kind = errdef.ErrOverloaded
	case c == http.StatusRequestTimeout, c >= 500:
		kind = errdef.ErrUnavailable
	case c == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("%w: %w: the server answered %s", errdef.ErrInvalid, errRestart, resp.Status)
	}
	return fmt.Errorf("%w: the server answered %s", kind, resp.Status)
}

func retryAfter(resp *http.Response) time.Duration {
	s, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || s < 0 || s > 3600 {
		return 0
	}
	return time.Duration(s) * time.Second
}

// mask is a URI as messages and logs may have it: without the user part and the query.
func mask(uri string) string {
	rest, query, hasQuery := strings.Cut(uri, "?")
	scheme, after, ok := strings.Cut(rest, "://")
	if ok && strings.HasPrefix(strings.ToLower(scheme), "http") {
		host, p, _ := strings.Cut(after, "/")
		if i := strings.LastIndex(host, "@"); i >= 0 {
			host = "…@" + host[i+1:]
		}
		rest = scheme + "://" + host
		if p != "" {
			rest += "/" + p
		}
	}
	if hasQuery && ok {
		return rest + "?…"
	}
	if hasQuery {
		return rest + "?" + query
	}
	return rest
}
