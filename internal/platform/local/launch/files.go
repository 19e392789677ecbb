package launch

import (
	"errors"
	"syscall"
)

// This file has what package os would offer, had it been initialised.

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func open(file string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error { fd, err = syscall.Open(file, flags|syscall.O_CLOEXEC, mode); return err })
	return fd, err
}

func read(file string) ([]byte, error) {
	fd, err := open(file, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	out := make([]byte, 0, 4096)
	for {
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		n := 0
		err := retry(func() (err error) { n, err = syscall.Read(fd, out[len(out):cap(out)]); return err })
		if err != nil || n == 0 {
			return out, err
		}
		out = out[:len(out)+n]
	}
}

// write writes a short text in one piece to a file that exists.
func write(file, text string) error {
	fd, err := open(file, syscall.O_WRONLY|syscall.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	return retry(func() error { _, err := syscall.Write(fd, []byte(text)); return err })
}

func touch(file string, mode uint32) error {
	fd, err := open(file, syscall.O_WRONLY|syscall.O_CREAT, mode)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

func stat(path string) (mode uint32, err error) {
	var info syscall.Stat_t
	err = retry(func() error { return syscall.Stat(path, &info) })
	return info.Mode, err
}

func readlink(path string) (string, error) {
	buf := make([]byte, 4096) // PATH_MAX
	n, err := syscall.Readlink(path, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// parent is the directory of a clean absolute path.
func parent(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return "/"
}

func mkdirAll(dir string) error {
	err := syscall.Mkdir(dir, 0o755)
	if err == syscall.ENOENT {
		if err := mkdirAll(parent(dir)); err != nil {
			return err
		}
		err = syscall.Mkdir(dir, 0o755)
	}
	if err == nil || err == syscall.EEXIST {
		return nil
	}
	return failure{dir, err}
}

// entriesLimit bounds how many entries a covered directory may have: each costs a mount.
const entriesLimit = 512

// entries lists an open directory.
func entries(fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 16<<10)
	for {
		n := 0
		err := retry(func() (err error) { n, err = syscall.ReadDirent(fd, buf); return err })
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = syscall.ParseDirent(buf[:n], -1, names)
		if len(names) > entriesLimit {
			return nil, failure{"it has more than 512 entries; make the mount path by hand", syscall.E2BIG}
		}
	}
}

// dropAmbient gives up the capabilities that would outlive the execution of a program.
func dropAmbient() error {
	const prCapAmbient, clearAll = 47, 4 // of linux/prctl.h
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, clearAll, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
