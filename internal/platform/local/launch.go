package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// LaunchCommand is the hidden first argument on which main must call Launch before anything else.
const LaunchCommand = "internal-launch"

// checkArg asks Launch whether mounts are permitted here.
const checkArg = "-check"

// launch is what the launcher needs to become a container's process. It holds no environment:
// that travels as the launcher's own.
type launch struct {
	Argv []string
	Dir  string
	// Cgroups are files that the launcher writes itself into (version 1 hierarchies).
	Cgroups []string
	// Mounts are made in the launcher's private mount namespace; nil means it has none.
	Mounts []bind
	// Scratch is an empty directory to build a root in.
	Scratch string
}

type bind struct {
	Source, Target string
	ReadOnly       bool
}

// Launch makes the mounts of the record named by args[0] and replaces this process by its
// command, or by args[1:] if there are any. It returns an exit code only when that failed:
// 127 for a command that isn't there, 126 for all else, as shells do.
func Launch(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "stationmaster: internal-launch is for stationmaster's own use")
		return 126
	}
	if args[0] == checkArg {
		if err := check(args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 126
		}
		return 0
	}
	err := launchRecord(args[0], args[1:])
	fmt.Fprintln(os.Stderr, "stationmaster: cannot start the container:", err)
	if errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}

func check(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return mountTmpfs(dir)
}

// launchRecord returns only when it failed.
func launchRecord(path string, argv []string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var l launch
	if err := json.Unmarshal(raw, &l); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(argv) == 0 {
		argv = l.Argv
	}
	for _, f := range l.Cgroups {
		if err := os.WriteFile(f, []byte("0"), 0o600); err != nil {
			return fmt.Errorf("enter the control group: %w", err)
		}
	}
	if len(l.Mounts) > 0 {
		if err := mountAll(l.Mounts, l.Scratch); err != nil {
			return err
		}
		// What mounting took must not pass to the engine.
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
			return fmt.Errorf("give up capabilities: %w", err)
		}
	}
	if err := os.Chdir(l.Dir); err != nil {
		return err
	}
	file, err := findIn(os.Getenv("PATH"), argv[0], l.Dir)
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", file, syscall.Exec(file, argv, os.Environ()))
}

// mountAll binds each source to its target, parents first.
func mountAll(binds []bind, scratch string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	slices.SortStableFunc(binds, func(a, b bind) int { return strings.Count(a.Target, "/") - strings.Count(b.Target, "/") })
	for _, b := range binds {
		info, err := os.Stat(b.Source)
		if err != nil {
			return err
		}
		if err := mountPoint(b.Target, info.IsDir(), scratch); err != nil {
			return fmt.Errorf("make the mount point %s: %w", b.Target, err)
		}
		if err := unix.Mount(b.Source, b.Target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", b.Source, b.Target, err)
		}
		if !b.ReadOnly {
			continue
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(b.Target, &fs); err != nil {
			return err
		}
		// A remount must keep the flags that a user namespace has locked.
		keep := uintptr(fs.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
		if err := unix.Mount("", b.Target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|keep, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", b.Target, err)
		}
	}
	return nil
}

// mountPoint makes target exist in this namespace without touching the machine's own tree:
// where it is missing, its nearest ancestor is covered by a tmpfs that shows the same entries.
func mountPoint(target string, dir bool, scratch string) error {
	if info, err := os.Stat(target); err == nil {
		if info.IsDir() != dir {
			return fmt.Errorf("it exists and is not of the kind (directory: %v) that is mounted there", dir)
		}
		return nil
	}
	parent := filepath.Dir(target)
	for {
		if info, err := os.Stat(parent); err == nil {
			if !info.IsDir() {
				return fmt.Errorf("%s is no directory", parent)
			}
			break
		}
		parent = filepath.Dir(parent)
	}
	var err error
	if parent == "/" {
		err = coverRoot(scratch)
	} else if !onTmpfsOfOurs(parent) {
		err = cover(parent)
	}
	if err != nil {
		return err
	}
	if dir {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o644)
}

// covered are the directories that this launcher covered.
var covered []string

func onTmpfsOfOurs(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return false
	}
	return slices.ContainsFunc(covered, func(c string) bool { return c == dir || strings.HasPrefix(dir, strings.TrimSuffix(c, "/")+"/") })
}

// entriesLimit bounds how many entries a covered directory may have: each costs a mount.
const entriesLimit = 512

func cover(dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := mountTmpfs(dir); err != nil {
		return err
	}
	covered = append(covered, dir)
	return mirror(fmt.Sprintf("/proc/self/fd/%d", fd), dir, entries)
}

func coverRoot(scratch string) error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	if err := mountTmpfs(scratch); err != nil {
		return err
	}
	if err := mirror("/", scratch, entries); err != nil {
		return err
	}
	if err := os.Chdir(scratch); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	covered = append(covered, "/")
	return os.Chdir("/")
}

func mountTmpfs(dir string) error {
	if err := unix.Mount("stationmaster", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m"); err != nil {
		return fmt.Errorf("cover %s: %w", dir, err)
	}
	return nil
}

// mirror shows each entry of from in to.
func mirror(from, to string, entries []os.DirEntry) error {
	if len(entries) > entriesLimit {
		return fmt.Errorf("%s has more than %d entries; make the mount path by hand", to, entriesLimit)
	}
	for _, e := range entries {
		src, dst := from+"/"+e.Name(), filepath.Join(to, e.Name())
		if e.Type()&os.ModeSymlink != 0 {
			link, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if err := os.Symlink(link, dst); err != nil {
				return err
			}
			continue
		}
		var err error
		if e.IsDir() {
			err = os.Mkdir(dst, 0o755)
		} else {
			err = os.WriteFile(dst, nil, 0o600)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(src, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("show %s: %w", dst, err)
		}
	}
	return nil
}

// findIn looks a command up as execvp does: with a slash relative to dir, else along path.
func findIn(path, name, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	for _, d := range filepath.SplitList(path) {
		if file := filepath.Join(d, name); d != "" && executable(file) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: %w on PATH", name, os.ErrNotExist)
}

func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s: %w: not executable", file, os.ErrPermission)
	}
	return nil
}
