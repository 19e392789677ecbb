package launch

import "syscall"

// mountAll binds each source to its target.
func mountAll(mounts []Mount, scratch string) error {
	if err := private(); err != nil {
		return err
	}
	t := tree{scratch: scratch}
	for _, m := range mounts {
		mode, err := stat(m.Source)
		if err != nil {
			return failure{m.Source, err}
		}
		if err := t.point(m.Target, mode&syscall.S_IFMT == syscall.S_IFDIR); err != nil {
			return failure{"make the mount point " + m.Target, err}
		}
		if err := syscall.Mount(m.Source, m.Target, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return failure{"mount " + m.Source + " at " + m.Target, err}
		}
		if !m.ReadOnly {
			continue
		}
		var fs syscall.Statfs_t
		if err := syscall.Statfs(m.Target, &fs); err != nil {
			return failure{m.Target, err}
		}
		// A remount must keep the flags that a user namespace has locked.
		keep := uintptr(fs.Flags) & (syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC)
		if err := syscall.Mount("", m.Target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY|keep, ""); err != nil {
			return failure{"make " + m.Target + " read-only", err}
		}
	}
	return nil
}

// check mounts as a container would.
func check(dir string) error {
	if err := private(); err != nil {
		return err
	}
	return mountTmpfs(dir)
}

func private() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return failure{"make mounts private", err}
	}
	return nil
}

// tree is the file tree as this launcher has changed it.
type tree struct {
	scratch string
	// covered are the directories that lie under a tmpfs which shows the same entries.
	covered []string
}

// point makes target exist in this namespace without touching the machine's own tree: where it
// is missing, its nearest ancestor is covered.
func (t *tree) point(target string, dir bool) error {
	if mode, err := stat(target); err == nil {
		if (mode&syscall.S_IFMT == syscall.S_IFDIR) == dir {
			return nil
		}
		if dir {
			return failure{"it is a file, and what is mounted there is a directory", syscall.ENOTDIR}
		}
		return failure{"it is a directory, and what is mounted there is a file", syscall.EISDIR}
	}
	nearest := parent(target)
	for {
		mode, err := stat(nearest)
		if err != nil {
			nearest = parent(nearest)
			continue
		}
		if mode&syscall.S_IFMT != syscall.S_IFDIR {
			return failure{nearest, syscall.ENOTDIR}
		}
		break
	}
	var err error
	if nearest == "/" {
		err = t.coverRoot()
	} else if !t.within(nearest) {
		err = t.cover(nearest)
	}
	if err != nil {
		return err
	}
	if dir {
		return mkdirAll(target)
	}
	if err := mkdirAll(parent(target)); err != nil {
		return err
	}
	return touch(target, 0o644)
}

// tmpfsMagic is TMPFS_MAGIC of linux/magic.h.
const tmpfsMagic = 0x01021994

// within reports whether dir is on a tmpfs that covers a directory, so that it takes new entries.
func (t *tree) within(dir string) bool {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil || fs.Type != tmpfsMagic {
		return false
	}
	for _, c := range t.covered {
		if c == "/" || dir == c || len(dir) > len(c) && dir[:len(c)] == c && dir[len(c)] == '/' {
			return true
		}
	}
	return false
}

// cover shows dir's entries on a tmpfs in its place.
func (t *tree) cover(dir string) error {
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return failure{dir, err}
	}
	defer func() { _ = syscall.Close(fd) }()
	names, err := entries(fd)
	if err != nil {
		return failure{dir, err}
	}
	// What lies below is seen from within alone, once it is covered.
	if err := syscall.Fchdir(fd); err != nil {
		return failure{dir, err}
	}
	if err := mountTmpfs(dir); err != nil {
		return err
	}
	t.covered = append(t.covered, dir)
	return mirror("", dir, names)
}

// coverRoot builds a root of the same entries in the scratch directory and moves into it.
func (t *tree) coverRoot() error {
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return failure{"/", err}
	}
	defer func() { _ = syscall.Close(fd) }()
	names, err := entries(fd)
	if err != nil {
		return failure{"/", err}
	}
	if err := mountTmpfs(t.scratch); err != nil {
		return err
	}
	if err := mirror("/", t.scratch, names); err != nil {
		return err
	}
	if err := syscall.Chdir(t.scratch); err != nil {
		return failure{t.scratch, err}
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return failure{"change the root", err}
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return failure{"leave the old root", err}
	}
	t.covered = append(t.covered, "/")
	return syscall.Chdir("/")
}

func mountTmpfs(dir string) error {
	if err := syscall.Mount("stationmaster", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=0755,size=4m"); err != nil {
		return failure{"cover " + dir, err}
	}
	return nil
}

// mirror shows the entries of a directory, whose path with a slash is from, in to.
func mirror(from, to string, names []string) error {
	for _, name := range names {
		src, dst := from+name, to+"/"+name
		var info syscall.Stat_t
		if err := syscall.Lstat(src, &info); err != nil {
			if err == syscall.ENOENT {
				continue // gone meanwhile
			}
			return failure{src, err}
		}
		switch info.Mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			link, err := readlink(src)
			if err == nil {
				err = syscall.Symlink(link, dst)
			}
			if err != nil {
				return failure{"show " + dst, err}
			}
			continue
		case syscall.S_IFDIR:
			if err := syscall.Mkdir(dst, 0o755); err != nil {
				return failure{"show " + dst, err}
			}
		default:
			if err := touch(dst, 0o600); err != nil {
				return failure{"show " + dst, err}
			}
		}
		if err := syscall.Mount(src, dst, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return failure{"show " + dst, err}
		}
	}
	return nil
}
