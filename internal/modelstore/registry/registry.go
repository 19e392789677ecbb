// Package registry is a source of the model store: models in images, read from the registries that
// keep them, by the OCI distribution specification.
package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
)

// Schemes are those of URIs that a Source reads. How a model comes, which all but the first say, matters
// on a cluster alone.
func Schemes() []string { return []string{"oci", "oci+native", "oci+modelcar", "oci+fetch"} }

// Source reads models of oci://registry/repository:tag, or @digest: the files below models in the
// image. It is safe for concurrent use.
type Source struct {
	// Client makes the requests.
	Client *http.Client
	// Keys returns what a namespace shows a registry; empty for nothing. Nil means nothing for all.
	Keys func(namespace, host string) (user, password string, err error)
}

var _ modelstore.Source = Source{}

const (
	// modelsDir holds the model in its image (KServe's).
	modelsDir = "models"
	// maxManifest bounds a manifest and a token, as registries do.
	maxManifest = 4 << 20
	// idle ends a layer from which nothing comes.
	idle = time.Minute
)

// Media types of manifests.
const (
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// descriptor and manifest are what is read of an image, of an index too.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	Platform  struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

type manifest struct {
	Manifests []descriptor `json:"manifests"`
	Layers    []descriptor `json:"layers"`
}

// Read implements modelstore.Source.
func (s Source) Read(ctx context.Context, req modelstore.Request, sink *modelstore.Sink) error {
	image, err := parse(req.URI)
	if err != nil {
		return errdef.Terminal(err)
	}
	c := &conversation{source: s, image: image, namespace: req.Namespace}
	m, mark, err := c.manifest(ctx, image.reference)
	if err != nil {
		return err
	}
	if len(m.Manifests) > 0 {
		of, err := forThis(m.Manifests)
		if err != nil {
			return err
		}
		if m, mark, err = c.manifest(ctx, of.Digest); err != nil {
			return err
		}
	}
	if req.Last != nil && req.Last.ETag == mark {
		sink.Unchanged()
		return nil
	}
	var total int64
	for _, l := range m.Layers {
		total += l.Size
	}
	sink.Expect(total)
	layers := sink.Layers(modelsDir)
	for _, l := range slices.Backward(m.Layers) {
		if err := c.layer(ctx, l, layers); err != nil {
			return err
		}
	}
	if err := layers.End(); err != nil {
		return err
	}
	sink.Remember(modelstore.Ref{ETag: mark})
	return nil
}

// forThis picks the image for this machine; a model is the same for all, so a single one will do.
func forThis(all []descriptor) (descriptor, error) {
	for _, d := range all {
		if d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			return d, nil
		}
	}
	images := slices.DeleteFunc(slices.Clone(all), func(d descriptor) bool { return d.Platform.OS == "unknown" })
	if len(images) == 1 {
		return images[0], nil
	}
	return descriptor{}, fmt.Errorf("%w: none of the %d images of the index is for linux/%s", errdef.ErrNotFound, len(all), runtime.GOARCH)
}

// name is an image by its registry, repository, and tag or digest.
type name struct{ host, repository, reference string }

var (
	repositoryName = regexp.MustCompile(`^[a-z0-9]+(?:[._/-]+[a-z0-9]+)*$`)
	tagName        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	digestName     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// parse reads a URI. No registry is assumed: the URI names it.
func parse(uri string) (name, error) {
	_, rest, _ := strings.Cut(uri, "://")
	host, rest, _ := strings.Cut(rest, "/")
	if !strings.ContainsAny(host, ".:") && host != "localhost" {
		return name{}, fmt.Errorf("%w: the URI names no registry before the image: write oci://registry.example/image:tag", errdef.ErrInvalid)
	}
	n := name{host: host, repository: rest, reference: "latest"}
	if before, digest, ok := strings.Cut(rest, "@"); ok {
		n.repository, n.reference = before, digest
		if !digestName.MatchString(digest) {
			return name{}, fmt.Errorf("%w: the image's digest isn't sha256: and 64 hexadecimal digits", errdef.ErrInvalid)
		}
	}
	if i := strings.LastIndexByte(n.repository, ':'); i >= 0 {
		tag := n.repository[i+1:]
		n.repository = n.repository[:i]
		if !tagName.MatchString(tag) {
			return name{}, fmt.Errorf("%w: the image's tag can't be one", errdef.ErrInvalid)
		}
		if !digestName.MatchString(n.reference) {
			n.reference = tag
		}
	}
	if !repositoryName.MatchString(n.repository) {
		return name{}, fmt.Errorf("%w: the image's name can't be one: write oci://registry.example/image:tag", errdef.ErrInvalid)
	}
	return n, nil
}

// url is where something of the image is. A registry of this machine is spoken to in the plain, as
// containerd does.
func (n name) url(kind, reference string) string {
	scheme := "https"
	if n.local() {
		scheme = "http"
	}
	return scheme + "://" + n.host + "/v2/" + n.repository + "/" + kind + "/" + reference
}

func (n name) local() bool {
	host := n.host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// manifest reads a manifest by tag or digest, and returns its digest too.
func (c *conversation) manifest(ctx context.Context, reference string) (manifest, string, error) {
	resp, err := c.get(ctx, c.image.url("manifests", reference), strings.Join([]string{ociIndex, ociManifest, dockerList, dockerManifest}, ", "))
	if err != nil {
		return manifest{}, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return manifest{}, "", fmt.Errorf("%w: read the image's manifest: %w", errdef.ErrUnavailable, err)
	}
	if len(raw) > maxManifest {
		return manifest{}, "", fmt.Errorf("%w: the image's manifest has more than %d bytes", errdef.ErrTooLarge, maxManifest)
	}
	sum := sha256.Sum256(raw)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if digestName.MatchString(reference) && digest != reference {
		return manifest{}, "", fmt.Errorf("%w: the registry's manifest has the digest %s and not %s", errdef.ErrUnverified, digest, reference)
	}
	var m manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return manifest{}, "", fmt.Errorf("%w: the image's manifest is no JSON that can be read: %w", errdef.ErrInvalid, err)
	}
	return m, digest, nil
}

// layer reads a layer, and checks its digest.
func (c *conversation) layer(ctx context.Context, d descriptor, layers *modelstore.Layers) error {
	if !digestName.MatchString(d.Digest) {
		return fmt.Errorf("%w: a layer's digest isn't sha256: and 64 hexadecimal digits", errdef.ErrInvalid)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := c.get(ctx, c.image.url("blobs", d.Digest), "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	silent := fmt.Errorf("%w: nothing came from the registry for %s", errdef.ErrTimeout, idle)
	watch := time.AfterFunc(idle, func() { cancel(silent) })
	defer watch.Stop()
	hash := sha256.New()
	body := &hashed{r: resp.Body, w: hash, ctx: ctx, touch: func() { watch.Reset(idle) }}
	if err := layers.Add(ctx, body); err != nil {
		return fmt.Errorf("layer %s: %w", d.Digest, err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return fmt.Errorf("layer %s: %w", d.Digest, err)
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != d.Digest {
		return fmt.Errorf("%w: a layer has the digest %s and not %s", errdef.ErrUnverified, got, d.Digest)
	}
	return nil
}

// hashed hashes what passes, and gives a broken connection its kind.
type hashed struct {
	r     io.Reader
	w     io.Writer
	ctx   context.Context //nolint:containedctx // io.Reader has no place for it, and a layer is read within one call.
	touch func()
}

func (h *hashed) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.touch()
	_, _ = h.w.Write(p[:n]) // a hash takes all
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := context.Cause(h.ctx); cause != nil {
			return n, cause
		}
		err = fmt.Errorf("%w: the registry's connection broke: %w", errdef.ErrUnavailable, err)
	}
	return n, err
}
