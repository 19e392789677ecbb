package modelstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// localSource reads files of this machine: file://, bare paths and pvc://.
type localSource struct {
	base   string // what relative paths are relative to
	pvcDir string // <pvcDir>/<namespace>/<claim> holds a claim's content
}

// Read implements Source.
func (l localSource) Read(ctx context.Context, req Request, s *Sink) error {
	if rest, ok := strings.CutPrefix(req.URI, "pvc://"); ok {
		return l.readClaim(ctx, req.Namespace, rest, s)
	}
	p, err := l.resolve(req.URI)
	if err != nil {
		return err
	}
	info, err := os.Stat(p)
	if err != nil {
		return localError(p, err)
	}
	if !info.IsDir() {
		return readFileAt(ctx, filepath.Dir(p), filepath.Base(p), s)
	}
	return readDir(ctx, p, ".", s)
}

// resolve turns file:// or a bare path into an absolute path. KServe strips "file://" and
// takes the rest as it is, so file://models/x is relative; percent signs are decoded only
// when no file has the name as written.
func (l localSource) resolve(uri string) (string, error) {
	p, isURL := strings.CutPrefix(uri, "file://")
	p = strings.TrimPrefix(p, "localhost/")
	if isURL && strings.HasPrefix(uri, "file://localhost/") {
		p = "/" + p
	}
	if p == "" || strings.ContainsRune(p, 0) {
		return "", errdef.Terminal(fmt.Errorf("%w: %q names no file", errdef.ErrInvalid, uri))
	}
	abs := func(p string) string {
		if filepath.IsAbs(p) {
			return filepath.Clean(p)
		}
		return filepath.Join(l.base, p)
	}
	if isURL && strings.Contains(p, "%") {
		if _, err := os.Lstat(abs(p)); err != nil {
			if q, err := url.PathUnescape(p); err == nil {
				p = q
			}
		}
	}
	return abs(p), nil
}

// readClaim reads claim[/path] of a namespace. Links inside a claim may point anywhere in it.
func (l localSource) readClaim(ctx context.Context, namespace, rest string, s *Sink) error {
	claim, sub, _ := strings.Cut(rest, "/")
	sub = path.Clean("./" + sub)
	invalid := func(why string) error {
		return errdef.Terminal(fmt.Errorf("%w: pvc://%s: %s", errdef.ErrInvalid, rest, why))
	}
	switch {
	case l.pvcDir == "":
		return errdef.Terminal(fmt.Errorf("%w: pvc:// has no directory configured here", errdef.ErrUnsupported))
	case claim == "" || claim == "." || claim == ".." || checkPath(claim) != nil:
		return invalid("it names no claim; the form is pvc://claim/path")
	case namespace == "" || namespace == "." || namespace == ".." || strings.Contains(namespace, "/"):
		return invalid("a claim needs the namespace that it is of")
	case sub == ".." || strings.HasPrefix(sub, "../"):
		return invalid("the path leads out of the claim")
	}
	dir := filepath.Join(l.pvcDir, namespace, claim)
	root, err := os.OpenRoot(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: the claim %s of namespace %s has no directory: put its files under %s",
				errdef.ErrNotFound, claim, namespace, dir)
		}
		return localError(dir, err)
	}
	defer root.Close()
	info, err := root.Stat(sub)
	if err != nil {
		return localError(filepath.Join(dir, sub), err)
	}
	if !info.IsDir() {
		return readFileAt(ctx, dir, sub, s)
	}
	return readDir(ctx, dir, sub, s)
}

// readFileAt takes one file, unpacked when its name says that it is an archive.
func readFileAt(ctx context.Context, dir, name string, s *Sink) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return localError(dir, err)
	}
	defer root.Close()
	full := filepath.Join(dir, name)
	f, info, err := openRegular(root, name)
	if isEscape(err) {
		// A single file that is named outright may be a link to anywhere.
		f, info, err = openRegularPath(full)
	}
	if err != nil {
		return localError(full, err)
	}
	defer f.Close()
	s.Expect(info.Size())
	kind, err := kindOf(path.Base(name), "")
	if err != nil {
		return err
	}
	if kind == plain {
		return s.AddLocal(ctx, path.Base(name), f)
	}
	return s.add(ctx, kind, "", f)
}

// readDir takes everything under sub of dir.
func readDir(ctx context.Context, dir, sub string, s *Sink) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return localError(dir, err)
	}
	defer root.Close()
	w := walker{root: root, dir: dir, sink: s}
	return w.walk(ctx, sub, ".")
}

// walker goes through a directory and the links inside it.
type walker struct {
	root *os.Root
	dir  string
	sink *Sink
	// above are the directories being walked, to notice a link that leads back into one.
	above []fs.FileInfo
}

func (w *walker) walk(ctx context.Context, at, name string) error {
	full := filepath.Join(w.dir, at)
	d, err := w.root.Open(at)
	if err != nil {
		return localError(full, err)
	}
	defer d.Close()
	info, err := d.Stat()
	if err != nil {
		return localError(full, err)
	}
	for _, up := range w.above {
		if os.SameFile(up, info) {
			return fmt.Errorf("%w: the link %s leads back to a directory that holds it; remove it", errdef.ErrInvalid, full)
		}
	}
	w.above = append(w.above, info)
	defer func() { w.above = w.above[:len(w.above)-1] }()
	if name != "." {
		if err := w.sink.AddDir(name); err != nil {
			return err
		}
	}
	for {
		const batch = 256
		entries, err := d.ReadDir(batch)
		for _, e := range entries {
			if err := w.take(ctx, path.Join(at, e.Name()), path.Join(name, e.Name())); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return localError(full, err)
		}
	}
}

func (w *walker) take(ctx context.Context, at, name string) error {
	full := filepath.Join(w.dir, at)
	info, err := w.root.Stat(at)
	if err != nil {
		return localError(full, err)
	}
	if info.IsDir() {
		return w.walk(ctx, at, name)
	}
	f, _, err := openRegular(w.root, at)
	if err != nil {
		return localError(full, err)
	}
	defer f.Close()
	return w.sink.AddLocal(ctx, name, f)
}

// errNotRegular and errEscape are causes that localError words.
var (
	errNotRegular = errors.New("neither a file nor a directory")
	errEscape     = errors.New("a link that leads out")
)

// openRegular opens without waiting, so that a pipe in the way can't hold the store up.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return regular(f)
}

func openRegularPath(name string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return regular(f)
}

func regular(f *os.File) (*os.File, fs.FileInfo, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// localError words an error about a path of this machine and gives it its kind.
func localError(p string, err error) error {
	var pe *fs.PathError
	cause := err
	if errors.As(err, &pe) {
		cause = pe.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s doesn't exist on this machine", errdef.ErrNotFound, p)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %s may not be read by this process", errdef.ErrDenied, p)
	case errors.Is(err, errNotRegular), errors.Is(err, syscall.ENXIO):
		return fmt.Errorf("%w: %s is a device, a pipe or a socket, which a model may not hold", errdef.ErrInvalid, p)
	case errors.Is(err, syscall.ELOOP):
		return fmt.Errorf("%w: %s is a link that leads back to itself", errdef.ErrInvalid, p)
	case isEscape(err):
		return fmt.Errorf("%w: %s is a link out of the model's directory, or an absolute one; put the file itself there", errdef.ErrInvalid, p)
	}
	return fmt.Errorf("%w: read %s: %w", errdef.ErrInternal, p, cause)
}

// isEscape reports whether os.Root refused a path for leading outside. Its error value isn't
// exported, so the text that os documents by example is what there is to go by.
func isEscape(err error) bool {
	return err != nil && (errors.Is(err, errEscape) || strings.Contains(err.Error(), "path escapes from parent"))
}
