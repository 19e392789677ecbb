package modelstore

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// archiveKind is how a model is packed; plain means it is one file as it stands.
type archiveKind int

const (
	plain archiveKind = iota
	tarball
	zipped
)

// archiveNames are the endings that say a file is packed. Formats that are zip or tar inside
// and mean the file itself (.pt, .npz, .keras, .mar, .nemo) are deliberately not among them.
var archiveNames = []struct {
	ending string
	kind   archiveKind
}{
	{".tar", tarball}, {".tar.gz", tarball}, {".tgz", tarball}, {".tar.bz2", tarball},
	{".tbz2", tarball}, {".tar.zst", tarball}, {".zip", zipped},
}

// archiveTypes are the media types that say so where a name has no ending of its own.
var archiveTypes = map[string]archiveKind{
	"application/zip": zipped, "application/x-zip": zipped, "application/x-zip-compressed": zipped,
	"application/tar": tarball, "application/x-tar": tarball, "application/x-gtar": tarball,
	"application/x-tgz": tarball, "application/gzip": tarball, "application/x-gzip": tarball,
	"application/zstd": tarball, "application/x-bzip2": tarball,
}

// kindOf decides by the name's ending and, for a name without any, by the media type.
// mediaType is lower case without parameters. A packing that can't be opened is
// errdef.ErrUnsupported, so that nobody is served a packed file by surprise.
func kindOf(name, mediaType string) (archiveKind, error) {
	name = strings.ToLower(name)
	for _, a := range archiveNames {
		if strings.HasSuffix(name, a.ending) {
			return a.kind, nil
		}
	}
	for _, no := range []string{".tar.xz", ".txz", ".tar.lz4", ".tar.lzma", ".7z", ".rar"} {
		if strings.HasSuffix(name, no) {
			return plain, fmt.Errorf("%w: %s is packed as %s, which the store can't open; pack it as .tar.gz or .zip",
				errdef.ErrUnsupported, shortName(name), no)
		}
	}
	if path.Ext(name) == "" {
		return archiveTypes[mediaType], nil
	}
	return plain, nil
}

// add takes name from r, unpacked where kind says so. Errors as Sink.AddFile's, and
// errdef.ErrInvalid for an archive that is broken or unsafe.
func (s *Sink) add(ctx context.Context, kind archiveKind, name string, r io.Reader) error {
	switch kind {
	case tarball:
		return s.addTar(ctx, r)
	case zipped:
		return s.spoolZip(ctx, r)
	case plain:
		return s.AddFile(ctx, name, r)
	}
	panic("BUG: unknown archive kind")
}

// addTar unpacks a tar stream, compressed or not (its first bytes tell).
func (s *Sink) addTar(ctx context.Context, r io.Reader) error {
	in := &counter{r: r}
	s.input = in
	defer func() { s.input = nil }()
	stream, err := decompress(bufio.NewReaderSize(in, 64<<10))
	if err != nil {
		return err
	}
	defer stream.Close()
	end := &ending{r: stream}
	var links []link
	tr := tar.NewReader(end)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return broken("tar", err)
		}
		name, err := memberName(h.Name)
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeXGlobalHeader:
			continue
		case tar.TypeDir:
			if name == "." {
				continue
			}
			err = s.AddDir(name)
		case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse: //nolint:staticcheck // old writers still make TypeRegA.
			if h.Size > s.limits.MaxBytes-s.bytes {
				return s.tooMany()
			}
			err = s.AddFile(ctx, name, tr)
			if err != nil && !errors.Is(err, errdef.KindOf(err)) {
				err = broken("tar", err)
			}
		case tar.TypeSymlink:
			links, err = addLink(links, s.limits, name, path.Dir(name), h.Linkname)
		case tar.TypeLink:
			links, err = addLink(links, s.limits, name, ".", h.Linkname)
		case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
			err = fmt.Errorf("%w: %s in the archive is a device or a pipe, which a model may not hold",
				errdef.ErrInvalid, shortName(name))
		default:
			err = fmt.Errorf("%w: %s in the archive is of the unknown kind %q",
				errdef.ErrInvalid, shortName(name), h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
	if end.zeros < tarBlock {
		return fmt.Errorf("%w: the tar archive is broken: it was cut off before its end mark", errdef.ErrInvalid)
	}
	if err := s.resolve(links); err != nil {
		return err
	}
	// What follows the last member is read too, so that a checksum at the end is checked and
	// a source that counts bytes sees them all.
	left := io.LimitReader(stream, trailing+1)
	n, err := io.Copy(io.Discard, left)
	if err != nil {
		return broken("tar", err)
	}
	if n > trailing {
		return fmt.Errorf("%w: more than %d bytes follow the end of the tar archive", errdef.ErrInvalid, trailing)
	}
	return nil
}

// trailing is how many bytes may follow a tar's end: writers pad to their block size.
const trailing = 16 << 20

// tarBlock is the unit of a tar in bytes; two of zeros end it (POSIX pax, "End of archive").
// One is enough here, as for GNU tar.
const tarBlock = 512

// ending counts the zero bytes at the end of what was read, since archive/tar takes an archive
// that stops between members for whole.
type ending struct {
	r     io.Reader
	zeros int
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	tail := len(p[:n]) - len(bytes.TrimRight(p[:n], "\x00"))
	if tail == n {
		tail += e.zeros
	}
	e.zeros = min(tail, tarBlock)
	return n, err
}

// decompress opens gzip, bzip2, zstd or nothing, by the first bytes.
func decompress(r *bufio.Reader) (io.ReadCloser, error) {
	head, err := r.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, broken("gzip", err)
		}
		return z, nil
	case bytes.HasPrefix(head, []byte("BZh")):
		return io.NopCloser(bzip2.NewReader(r)), nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		const windowBytes = 128 << 20 // zstd --long=27, the most its tool opens by itself
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytes))
		if err != nil {
			return nil, broken("zstd", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// spoolZip keeps a zip stream in a file first, since its directory stands at its end.
func (s *Sink) spoolZip(ctx context.Context, r io.Reader) error {
	f, err := os.CreateTemp(s.dir, "zip-")
	if err != nil {
		return diskError("stage an archive", err)
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	n, err := s.copy(ctx, f, r)
	if err != nil {
		return err
	}
	s.bytes -= n // the archive itself isn't part of the model
	return s.addZip(ctx, f, n)
}

// addZip unpacks a zip file of n bytes.
func (s *Sink) addZip(ctx context.Context, f io.ReaderAt, n int64) error {
	z, err := zip.NewReader(f, n)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return broken("zip", err)
	}
	s.input = &counter{n: n}
	defer func() { s.input = nil }()
	var links []link
	for _, m := range z.File {
		name, err := memberName(m.Name)
		if err != nil {
			return err
		}
		const encrypted = 1
		mode := m.Mode()
		switch {
		case m.Flags&encrypted != 0:
			err = fmt.Errorf("%w: %s in the zip archive is encrypted; pack it without a password",
				errdef.ErrUnsupported, shortName(name))
		case mode.IsDir():
			if name != "." {
				err = s.AddDir(name)
			}
		case mode&fs.ModeSymlink != 0:
			var target []byte
			if target, err = readMember(m, maxPathBytes); err == nil {
				links, err = addLink(links, s.limits, name, path.Dir(name), string(target))
			}
		case !mode.IsRegular():
			err = fmt.Errorf("%w: %s in the archive is a device or a pipe, which a model may not hold",
				errdef.ErrInvalid, shortName(name))
		default:
			err = s.addMember(ctx, name, m)
		}
		if err != nil {
			return err
		}
	}
	return s.resolve(links)
}

func (s *Sink) addMember(ctx context.Context, name string, m *zip.File) error {
	if m.UncompressedSize64 > uint64(max(0, s.limits.MaxBytes-s.bytes)) {
		return s.tooMany()
	}
	r, err := m.Open()
	if err != nil {
		return broken("zip", err)
	}
	defer r.Close()
	if err := s.AddFile(ctx, name, brokenReader{r}); err != nil {
		return err
	}
	return nil
}

func readMember(m *zip.File, most int64) ([]byte, error) {
	r, err := m.Open()
	if err != nil {
		return nil, broken("zip", err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, most))
	if err != nil {
		return nil, broken("zip", err)
	}
	return b, nil
}

// brokenReader makes a decoder's complaint one about the archive.
type brokenReader struct{ r io.Reader }

func (b brokenReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = broken("zip", err)
	}
	return n, err
}

// link is a symbolic or hard link of an archive; target is relative to the archive's root.
type link struct{ name, target string }

// addLink notes a link after checking that it stays inside; base is what its text is relative
// to.
func addLink(links []link, limits Limits, name, base, text string) ([]link, error) {
	if len(links) >= limits.MaxFiles {
		return nil, fmt.Errorf("%w: the archive has more than %d links", errdef.ErrTooLarge, limits.MaxFiles)
	}
	target := path.Join(base, text)
	if text == "" || path.IsAbs(text) || target == ".." || strings.HasPrefix(target, "../") {
		return nil, fmt.Errorf("%w: the link %s points at %s, outside of the archive",
			errdef.ErrInvalid, shortName(name), shortName(text))
	}
	return append(links, link{name, target}), nil
}

// resolve makes each link a second name of what it points at. Links to links are settled in
// as many rounds as they are deep.
func (s *Sink) resolve(links []link) error {
	for len(links) > 0 {
		var later []link
		for _, l := range links {
			found, err := s.alias(l.name, l.target)
			if err != nil {
				return err
			}
			if !found {
				later = append(later, l)
			}
		}
		if len(later) == len(links) {
			return fmt.Errorf("%w: the link %s points at %s, which isn't in the archive",
				errdef.ErrInvalid, shortName(later[0].name), shortName(later[0].target))
		}
		links = later
	}
	return nil
}

// memberName cleans a member's name of what archivers add ("./", a slash after a directory)
// and refuses one that could lead outside.
func memberName(name string) (string, error) {
	if strings.Contains(name, `\`) {
		return "", fmt.Errorf("%w: the file name %s in the archive has a backslash; pack it with slashes",
			errdef.ErrInvalid, shortName(name))
	}
	clean := strings.TrimRight(name, "/")
	for strings.HasPrefix(clean, "./") {
		clean = strings.TrimLeft(clean[2:], "/")
	}
	if clean == "." || (clean == "" && strings.HasPrefix(name, "./")) {
		return ".", nil
	}
	if strings.HasPrefix(name, "/") {
		clean = name
	}
	return clean, checkPath(clean)
}

// broken is an error about an archive's own bytes.
func broken(kind string, err error) error {
	if errors.Is(err, context.Canceled) || errdef.KindOf(err) != errdef.ErrInternal {
		return err
	}
	if errors.Is(err, zip.ErrAlgorithm) {
		return fmt.Errorf("%w: the zip archive uses a compression that the store can't open; use deflate", errdef.ErrUnsupported)
	}
	return fmt.Errorf("%w: the %s archive is broken: %w", errdef.ErrInvalid, kind, err)
}
