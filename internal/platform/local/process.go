package local

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"stationmaster.dev/stationmaster/internal/spec"
)

// process is a container's process, started here or adopted.
type process struct {
	Container   int
	Incarnation int
	PID         int
	// Started is the process's start in clock ticks since boot; with PID it names the
	// process for good.
	Started uint64
	Group   group
	// Engine is the container engine that runs it, and Name its container there; empty for
	// plain processes.
	Engine, Name string
	// OOMKills and GroupOOMKills are what the machine and its group had counted when it started.
	OOMKills, GroupOOMKills int

	pidfd *os.File
}

// ending is how a process ended. Known is false when the kernel couldn't tell.
type ending struct {
	Known  bool
	Status syscall.WaitStatus
}

// spawn starts a process in a session of its own and returns once it runs.
func spawn(path string, argv, env []string, dir string, log *os.File, sys *syscall.SysProcAttr) (*process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	p, err := os.StartProcess(path, argv, &os.ProcAttr{Dir: dir, Env: env, Files: []*os.File{null, log, log}, Sys: sys})
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Release() }()
	out := &process{PID: p.Pid}
	out.Started, err = startTime(p.Pid)
	if err == nil {
		err = out.watch()
	}
	if err != nil {
		_ = unix.Kill(-p.Pid, unix.SIGKILL)
		var ws unix.WaitStatus
		_, _ = unix.Wait4(p.Pid, &ws, 0, nil)
		return nil, fmt.Errorf("follow process %d: %w", p.Pid, err)
	}
	return out, nil
}

// watch opens a handle by which the process's end is seen; it fails when the process is no
// longer the one that was recorded.
func (p *process) watch() error {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("open a handle of process %d: %w", p.PID, err)
	}
	if now, err := startTime(p.PID); err != nil || now != p.Started {
		unix.Close(fd)
		return fmt.Errorf("process %d: %w", p.PID, os.ErrNotExist)
	}
	p.pidfd = os.NewFile(uintptr(fd), "pidfd")
	return nil
}

// wait blocks, in the runtime's poller, until the process has ended or the handle is closed;
// then it reports false.
func (p *process) wait() bool {
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	err = rc.Read(func(fd uintptr) bool {
		gone = polled(int(fd), 0, unix.POLLIN)
		return gone
	})
	return err == nil && gone
}

func polled(fd, millis int, events int16) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(fds, millis)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0 && fds[0].Revents&(events|unix.POLLHUP) != 0
	}
}

// pidfdInfo is struct pidfd_info of linux/pidfd.h in its first published size.
type pidfdInfo struct {
	Mask, Cgroup                                                      uint64
	PID, TGID, PPID, RUID, RGID, EUID, EGID, SUID, SGID, FSUID, FSGID uint32
	ExitCode                                                          int32
}

const (
	pidfdGetInfo  = 3<<30 | 64<<16 | 0xFF<<8 | 11 // _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3                        // since Linux 6.15, for reaped processes
)

// reap returns how an ended process ended. A child of ours is waited for. Of one that was
// adopted the kernel tells since Linux 6.15, once its new parent has reaped it.
func (p *process) reap() ending {
	var ws unix.WaitStatus
	if pid, err := unix.Wait4(p.PID, &ws, unix.WNOHANG, nil); err == nil && pid == p.PID {
		return ending{true, syscall.WaitStatus(ws)}
	}
	fd := int(p.pidfd.Fd())
	for range 20 {
		info := pidfdInfo{Mask: pidfdInfoExit}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
		if errno == 0 && info.Mask&pidfdInfoExit != 0 {
			return ending{true, syscall.WaitStatus(info.ExitCode)}
		}
		if errno == unix.ENOTTY || errno == unix.EINVAL {
			break // an older kernel
		}
		polled(fd, 25, 0) // up to half a second for the reaping, seen as a hang-up
	}
	return ending{}
}

// signal sends to the whole process group.
func (p *process) signal(sig unix.Signal) {
	if err := unix.Kill(-p.PID, sig); err != nil && p.pidfd != nil {
		_ = unix.PidfdSendSignal(int(p.pidfd.Fd()), sig, nil, 0)
	}
}

// killAll ends the group and whatever left it but stayed in the control group.
func (p *process) killAll() {
	p.Group.kill()
	p.signal(unix.SIGKILL)
}

// startTime returns field 22 of /proc/PID/stat (proc_pid_stat(5)); a zombie is no process.
func startTime(pid int) (uint64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything; the fields go on after the last one.
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("process %d: its stat has %d fields", pid, len(f))
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// failure describes the end in the words of the platform's contract.
func (e ending) failure(oom bool, at time.Time) *spec.Failure {
	f := &spec.Failure{Reason: spec.Exited, ExitCode: -1, At: at}
	switch {
	case oom:
		f.Reason, f.Signal = spec.OOMKilled, "SIGKILL"
		f.Message = "the kernel ended the process for memory; raise resources.limits.memory or serve a smaller model"
		if e.Known && e.Status.Exited() {
			f.ExitCode, f.Signal = e.Status.ExitStatus(), ""
		}
	case !e.Known:
		f.Message = "the process ended while another control plane had started it, and this kernel doesn't tell how (Linux 6.15 and later do)"
	case e.Status.Signaled():
		f.Signal = unix.SignalName(e.Status.Signal())
		f.Message = "the process was ended by " + f.Signal
	default:
		f.ExitCode = e.Status.ExitStatus()
		f.Message = "the process exited with code " + strconv.Itoa(f.ExitCode)
		if f.ExitCode == 0 {
			f.Message = "the process exited by itself with code 0; a server has to stay in the foreground"
		}
	}
	return f
}
