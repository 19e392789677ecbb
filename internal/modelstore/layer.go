package modelstore

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Client makes the HTTP client that downloads have, for sources of other protocols over HTTP. An error
// is of kind errdef.ErrInvalid, for a CA file that can't be used.
func Client(cfg HTTPConfig) (*http.Client, error) {
	h, err := newHTTPSource(cfg)
	if err != nil {
		return nil, err
	}
	return h.client, nil
}

// Layers takes the files of one directory of an image into a sink, layer by layer from the top: what a
// layer has goes before those below, and what it deletes isn't taken from them. It is for one goroutine.
type Layers struct {
	sink *Sink
	dir  string
	// names are of the layers so far, true for what is no directory.
	names map[string]bool
	// gone are paths that lower layers don't bring, and opaque directories whose content they don't.
	gone, opaque map[string]bool
	links        []link
}

// Layers begins to take an image; dir is the directory in it, without slashes around it.
func (s *Sink) Layers(dir string) *Layers {
	return &Layers{sink: s, dir: dir, names: map[string]bool{}, gone: map[string]bool{}, opaque: map[string]bool{}}
}

// Names that mark deletions in a layer (OCI image specification, "Whiteouts").
const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// Add takes the next layer down, a tar, compressed or not, and reads it to its end. Errors are
// errdef.ErrInvalid for one that is broken or holds what a model may not, and those of Sink.AddFile.
func (l *Layers) Add(ctx context.Context, r io.Reader) error {
	in := &counter{r: r}
	l.sink.input = in
	defer func() { l.sink.input = nil }()
	stream, err := decompress(bufio.NewReaderSize(in, 64<<10))
	if err != nil {
		return err
	}
	defer stream.Close()
	names, gone, opaque := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for tr := tar.NewReader(stream); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return broken("tar", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		switch base := path.Base(name); {
		case base == opaqueWhiteout:
			opaque[path.Dir(name)] = true
			continue
		case strings.HasPrefix(base, whiteout):
			gone[path.Join(path.Dir(name), strings.TrimPrefix(base, whiteout))] = true
			continue
		}
		within, ok := strings.CutPrefix(name, l.dir+"/")
		if !ok || h.Typeflag == tar.TypeXGlobalHeader || l.hidden(name, h.Typeflag == tar.TypeDir) {
			continue
		}
		names[name] = h.Typeflag != tar.TypeDir
		if err := l.take(ctx, h, within, tr); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(stream, trailing)); err != nil {
		return broken("tar", err)
	}
	for p, file := range names {
		l.names[p] = file
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if _, ok := l.names[d]; !ok {
				l.names[d] = false
			}
		}
	}
	for p := range gone {
		l.gone[p] = true
	}
	for p := range opaque {
		l.opaque[p] = true
	}
	return nil
}

// hidden says whether layers above leave nothing of a path.
func (l *Layers) hidden(name string, dir bool) bool {
	if file, ok := l.names[name]; ok && (file || !dir) || l.gone[name] {
		return true
	}
	for d := path.Dir(name); ; d = path.Dir(d) {
		if l.names[d] || l.gone[d] || l.opaque[d] {
			return true
		}
		if d == "." {
			return false
		}
	}
}

// take brings one member to the sink; links wait for what they point at.
func (l *Layers) take(ctx context.Context, h *tar.Header, name string, r io.Reader) (err error) {
	s := l.sink
	switch h.Typeflag {
	case tar.TypeDir:
		return s.AddDir(name)
	case tar.TypeReg, tar.TypeGNUSparse:
		if h.Size > s.limits.MaxBytes-s.bytes {
			return s.tooMany()
		}
		if err := s.AddFile(ctx, name, r); err != nil {
			if !errors.Is(err, errdef.KindOf(err)) {
				err = broken("tar", err)
			}
			return err
		}
		return nil
	case tar.TypeSymlink:
		target := h.Linkname
		if path.IsAbs(target) { // within the image
			below, ok := strings.CutPrefix(path.Clean(target), "/"+l.dir+"/")
			if !ok {
				return fmt.Errorf("%w: the link %s points out of the image's directory %s", errdef.ErrInvalid, shortName(name), l.dir)
			}
			l.links, err = addLink(l.links, s.limits, name, ".", below)
			return err
		}
		l.links, err = addLink(l.links, s.limits, name, path.Dir(name), target)
		return err
	case tar.TypeLink:
		below, ok := strings.CutPrefix(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), l.dir+"/")
		if !ok {
			return fmt.Errorf("%w: the link %s points out of the image's directory %s", errdef.ErrInvalid, shortName(name), l.dir)
		}
		l.links, err = addLink(l.links, s.limits, name, ".", below)
		return err
	}
	return fmt.Errorf("%w: %s in the image is a device or a pipe, which a model may not hold", errdef.ErrInvalid, shortName(name))
}

// End resolves the links of all layers. Errors are errdef.ErrInvalid, for those that lead nowhere.
func (l *Layers) End() error { return l.sink.resolve(l.links) }
