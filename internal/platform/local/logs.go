package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// tailLines is how many log lines a failure carries, as spec.Failure says.
const tailLines = 20

// LogOptions choose a log. The zero value means all of the newest replica's server log.
type LogOptions struct {
	// Component, Replica and Container narrow the choice; empty means any, any, and the server.
	Component spec.Component
	Replica   string
	Container string
	// Tail keeps only the last lines; zero means all that is kept.
	Tail int
	// Previous means the incarnation before the current one.
	Previous bool
	// Follow goes on until the reader is closed, ctx ends, or the replica is gone.
	Follow bool
}

// Logs returns the log of a service's newest replica that fits. The caller closes it. Errors
// are of kind ErrNotFound where there is no such replica, container or earlier incarnation.
func (p *Platform) Logs(ctx context.Context, service spec.ServiceKey, o LogOptions) (io.ReadCloser, error) {
	p.mu.Lock()
	var chosen *instance
	for _, r := range p.replicas {
		if r.w.Service != service || o.Component != "" && r.w.Component != o.Component || o.Replica != "" && r.id != o.Replica {
			continue
		}
		if chosen == nil || r.created.After(chosen.created) {
			chosen = r
		}
	}
	p.mu.Unlock()
	if chosen == nil {
		which := ""
		if o.Component != "" {
			which += " of its " + string(o.Component)
		}
		if o.Replica != "" {
			which += " named " + o.Replica
		}
		return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("service %s has no replica%s here; see what there is with 'stationmaster kubectl get isvc -A'", service, which))
	}
	name := o.Container
	if name == "" {
		name = chosen.w.Server().Name
	}
	if !chosen.has(name) {
		return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("replica %s has no container %q", chosen.id, name))
	}
	path := chosen.logPath(name)
	if o.Previous {
		path += ".previous"
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && o.Previous {
		return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("container %s of replica %s wasn't restarted, so there is no log from before", name, chosen.id))
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("container %s of replica %s has written no log yet", name, chosen.id))
	}
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	if o.Tail > 0 {
		if err := seekTail(f, o.Tail); err != nil {
			f.Close()
			return nil, fmt.Errorf("read the log of %s: %w", name, err)
		}
	}
	if !o.Follow || o.Previous {
		return f, nil
	}
	return &follower{ctx: ctx, File: f, path: path, gone: chosen.done}, nil
}

// follower reads on when its file grows, and starts over where it was cut or replaced.
type follower struct {
	*os.File
	ctx  context.Context //nolint:containedctx // an io.Reader has no other way to be ended
	path string
	gone <-chan struct{}
}

func (f *follower) Read(b []byte) (int, error) {
	for {
		n, err := f.File.Read(b)
		if n > 0 || err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		here, err := f.File.Stat()
		if err != nil {
			return 0, err
		}
		if there, err := os.Stat(f.path); err == nil && !os.SameFile(here, there) {
			next, err := os.Open(f.path)
			if err != nil {
				return 0, err
			}
			f.File.Close()
			f.File = next
			continue
		}
		if at, err := f.File.Seek(0, io.SeekCurrent); err == nil && here.Size() < at {
			if _, err := f.File.Seek(0, io.SeekStart); err != nil {
				return 0, err
			}
			continue
		}
		select {
		case <-f.ctx.Done():
			return 0, io.EOF
		case <-f.gone:
			return 0, io.EOF
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// seekTail places f so that n lines are left to read.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	const block = 8 << 10
	buf := make([]byte, block)
	lines := 0
	for pos := end; pos > 0; {
		from := max(pos-block, 0)
		chunk := buf[:pos-from]
		if _, err := f.ReadAt(chunk, from); err != nil {
			return err
		}
		for i := len(chunk) - 1; i >= 0; i-- {
			at := from + int64(i)
			if chunk[i] == '\n' && at != end-1 {
				if lines++; lines == n {
					_, err := f.Seek(at+1, io.SeekStart)
					return err
				}
			}
		}
		pos = from
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// logTail returns the last lines of a log, each cut at 1 KiB.
func logTail(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if seekTail(f, tailLines) != nil {
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(f, 256<<10))
	if err != nil || len(raw) == 0 {
		return nil
	}
	var out []string
	for line := range bytes.SplitSeq(bytes.TrimRight(raw, "\n"), []byte("\n")) {
		out = append(out, string(line[:min(len(line), 1024)]))
	}
	return out[max(0, len(out)-tailLines):]
}

// openLog opens a container's log for a new incarnation, keeping the one before.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		if err := os.Rename(path, path+".previous"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// rotate bounds a log: over limit bytes it is copied to path.1 and cut. The engine's handle
// appends, so it goes on at the new end; what it writes during the copy may be lost.
func rotate(path string, limit int64) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= limit {
		return nil // no log, nothing to bound
	}
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	if over := info.Size() - limit; over > 0 { // a burst may have gone far beyond
		if _, err := src.Seek(over, io.SeekStart); err != nil {
			return err
		}
	}
	dst, err := os.OpenFile(path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

func (r *instance) logPath(container string) string {
	return filepath.Join(r.dir, container+".log")
}
