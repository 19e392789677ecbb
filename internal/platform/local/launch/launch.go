// Package launch turns a fresh copy of this executable into a container's process: it makes the
// container's mounts in a mount namespace of its own and executes the command in its place.
//
// It has no function for main to call. A program that links it and is started as
//
//	program internal-launch RECORD [COMMAND...]
//
// never reaches main: init does the work and ends or replaces the process. Go initialises
// packages in the order of their import paths, each as soon as what it imports is, so a package
// that imports next to nothing comes before the thousand packages of a Kubernetes API, whose
// initialisation takes fifty times as long as this. That is why it speaks to the kernel through
// package syscall alone; a test keeps it so.
package launch

import (
	"errors"
	"syscall"
)

// Command is the first argument that makes a launcher of the program.
const Command = "internal-launch"

// Check as the second argument has the third, an empty directory, mounted over, to learn whether
// mounts are permitted: exit code 0 says that they are.
const Check = "-check"

// Record is what a launcher needs to become a container's process. It holds no environment: that
// travels as the launcher's own.
type Record struct {
	// Argv is the command, looked up along PATH if its name has no slash.
	Argv []string
	// Dir is where the command starts.
	Dir string
	// Cgroups are files that the launcher writes itself into.
	Cgroups []string
	// Mounts are made in order, in the launcher's mount namespace; none means that it has none of
	// its own.
	Mounts []Mount
	// Scratch is an empty directory to build a root in.
	Scratch string
}

// Mount binds Source to Target, both absolute and clean. Where there is no Target, it is made
// visible to this container alone.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// The codes of a launch that fails, as shells have them.
const (
	exitFailed   = 126
	exitNotFound = 127
)

func init() {
	raw, err := read("/proc/self/cmdline")
	if err != nil {
		return
	}
	args := split(raw)
	if len(args) < 2 || args[1] != Command {
		return
	}
	switch {
	case len(args) == 4 && args[2] == Check:
		err = check(args[3])
	case len(args) > 2:
		err = become(args[2], args[3:])
	default:
		err = failure{"internal-launch is for stationmaster's own use", syscall.EINVAL}
	}
	if err == nil {
		syscall.Exit(0)
	}
	say("stationmaster: cannot start the container: " + err.Error() + "\n")
	if errors.Is(err, syscall.ENOENT) {
		syscall.Exit(exitNotFound)
	}
	syscall.Exit(exitFailed)
}

func say(s string) { _, _ = syscall.Write(2, []byte(s)) }

// failure is an error with what was tried; fmt isn't at hand.
type failure struct {
	what string
	err  error
}

func (f failure) Error() string { return f.what + ": " + f.err.Error() }
func (f failure) Unwrap() error { return f.err }

// become returns only when it failed.
func become(file string, argv []string) error {
	raw, err := read(file)
	if err != nil {
		return failure{"read " + file, err}
	}
	r, ok := decode(raw)
	if !ok {
		return failure{"read " + file, syscall.EBADMSG}
	}
	if len(argv) == 0 {
		argv = r.Argv
	}
	if len(argv) == 0 {
		return failure{"there is no command", syscall.EINVAL}
	}
	for _, f := range r.Cgroups {
		if err := write(f, "0"); err != nil {
			return failure{"enter the control group " + f, err}
		}
	}
	if len(r.Mounts) > 0 {
		if err := mountAll(r.Mounts, r.Scratch); err != nil {
			return err
		}
		// What mounting took must not pass to the engine.
		if err := dropAmbient(); err != nil {
			return failure{"give up capabilities", err}
		}
	}
	if err := syscall.Chdir(r.Dir); err != nil {
		return failure{"enter " + r.Dir, err}
	}
	path, _ := syscall.Getenv("PATH")
	exe, err := Find(path, argv[0], r.Dir)
	if err != nil {
		return err
	}
	return failure{"execute " + exe, syscall.Exec(exe, argv, syscall.Environ())}
}

// Find looks a command up as execvp does: with a slash relative to dir, else along path. Its
// errors are of the kinds ErrNotExist and ErrPermission of package os.
func Find(path, name, dir string) (string, error) {
	if index(name, '/') >= 0 {
		if name[0] != '/' {
			name = dir + "/" + name
		}
		return name, executable(name)
	}
	for len(path) > 0 {
		d := path
		if i := index(path, ':'); i >= 0 {
			d, path = path[:i], path[i+1:]
		} else {
			path = ""
		}
		if file := d + "/" + name; d != "" && executable(file) == nil {
			return file, nil
		}
	}
	return "", failure{name + " isn't on PATH", syscall.ENOENT}
}

func executable(file string) error {
	mode, err := stat(file)
	if err != nil {
		return failure{file, err}
	}
	if mode&syscall.S_IFMT == syscall.S_IFDIR || mode&0o111 == 0 {
		return failure{file + " isn't executable", syscall.EACCES}
	}
	return nil
}
