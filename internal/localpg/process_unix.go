//go:build linux || darwin

package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// account is the user that the server runs as. The zero value is the user of this process.
type account struct {
	name string
	cred *syscall.Credential
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := id(u.Uid)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := id(u.Gid)
		if err != nil {
			return account{}, fmt.Errorf("group of the user %s: %w", name, err)
		}
		return account{name, &syscall.Credential{Uid: uid, Gid: gid}}, nil
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody to run it as")
}

// id reads a user's or a group's number. macOS gives nobody the number -2, which is also written 4294967294.
func id(s string) (uint32, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	return uint32(n), err
}

// own gives a file to the account.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	if err := os.Chown(path, int(a.cred.Uid), int(a.cred.Gid)); err != nil {
		return fmt.Errorf("giving %s to the user %s: %w", path, a.name, err)
	}
	return nil
}

// blockedBy returns the folder above path that the account may not enter, or an empty string.
func (a account) blockedBy(path string) string {
	if a.cred == nil {
		return ""
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil || !a.mayEnter(st) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

func (a account) mayEnter(dir fs.FileInfo) bool {
	perm := dir.Mode().Perm()
	st, ok := dir.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return true
	case st.Uid == a.cred.Uid:
		return perm&0o100 != 0
	case st.Gid == a.cred.Gid:
		return perm&0o010 != 0
	}
	return perm&0o001 != 0
}

// process is a program of PostgreSQL and everything that it started.
type process struct {
	cmd   *exec.Cmd
	pipe  uint64        // the inode of the pipe whose writing end is the file livenessFD of all of them
	err   error         // of the program, once it has ended
	ended chan struct{} // closed when the program has ended
	gone  chan struct{} // closed when the last of its children has ended too
}

// livenessFD is the first file descriptor after the standard ones, which is where exec.Cmd puts the first extra file.
const livenessFD = 3

// spawn starts a program as another user, in a folder that this user may enter (it may not be allowed into ours), with its
// output in a file.
//
// It gets a process group of its own, so that Ctrl-C reaches only us and we shut it down in order. And it inherits
// the writing end of a pipe, which is closed when the last process that holds it has ended: that is how gone knows of the
// children, whoever they are and whoever their parent is by then.
func spawn(as account, dir string, output *os.File, program string, args []string) (*process, error) {
	alive, held, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	defer held.Close()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(held.Fd()), &st); err != nil {
		alive.Close()
		return nil, fmt.Errorf("looking at the pipe: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as.cred}
	// Nothing of our environment: PGDATA, PGPORT and a locale would change the server, and secrets are not its business. The
	// messages of the C locale are those that this package reads.
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "PATH=/usr/local/bin:/usr/bin:/bin"}
	if err := cmd.Start(); err != nil {
		alive.Close()
		return nil, err
	}
	p := &process{cmd: cmd, pipe: st.Ino, ended: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		defer alive.Close()
		p.err = cmd.Wait()
		close(p.ended)
		io.Copy(io.Discard, alive) // nobody writes: it returns at the end of the pipe
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// interrupt asks a postmaster for a fast shutdown. It does nothing to a process that has ended.
func (p *process) interrupt() { p.cmd.Process.Signal(os.Interrupt) }

// kill ends the program and all of its children, and waits until they are gone.
func (p *process) kill() {
	// Stopped first, so that it starts no further ones meanwhile. The children have to be killed as well: they notice the death
	// of the postmaster only when they wait for something, and a query that computes does not wait.
	stopped := p.cmd.Process.Signal(syscall.SIGSTOP) == nil
	killChildren(p, stopped)
	p.cmd.Process.Kill()
	<-p.gone
}

// removeSharedMemory removes a segment of System V shared memory. PostgreSQL uses one as an interlock between servers on
// the same data, and a killed server cannot remove it. An error means that it is gone already.
func removeSharedMemory(id int) {
	unix.SysvShmCtl(id, unix.IPC_RMID, nil)
}

// guardScript waits for the death of the process that started it, and cleans up after it. Its standard input is a pipe, whose
// other end is closed by the kernel when that process dies, however it dies. Each line that comes is the process that runs
// now, or 0 for none.
//
// The other way, PR_SET_PDEATHSIG, exists on Linux only, fires when the thread that started the server ends (and Go ends
// threads), and removes no folder.
const guardScript = `
trap '' HUP INT TERM
pid=0
while read -r line; do pid=$line; done
if [ "$pid" != 0 ]; then
	kill -INT "$pid"
	tries=0
	while kill -0 "$pid" && [ $tries -lt 100 ]; do
		case $tries in 50) kill -QUIT "$pid" ;; 90) kill -KILL "$pid" ;; esac
		tries=$((tries+1))
		sleep 0.1
	done
fi
[ -z "$1" ] || rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
`

// guard is a shell that runs guardScript beside the server.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

func startGuard(removeDir bool, dir string) (*guard, error) {
	if !removeDir {
		dir = ""
	}
	// A process group of its own, so that what is sent to ours, by a terminal or by a supervisor, spares the guard. Its output goes
	// nowhere: whoever reads our output must not wait for the guard's end.
	cmd := exec.Command("/bin/sh", "-c", guardScript, "pollux-postgresql-guard", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making the pipe of the guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the guard of the server: %w", err)
	}
	return &guard{cmd, pipe}, nil
}

// watch tells the guard what to end: a process, or 0 for nothing. If the guard was killed the server runs on without one.
func (g *guard) watch(pid int) { fmt.Fprintln(g.pipe, pid) }

// end ends the guard, which removes the folder if it is still there. A nil guard is one that never started.
func (g *guard) end() {
	if g == nil {
		return
	}
	g.pipe.Close()
	g.cmd.Wait()
}

// lockFile takes an exclusive lock on a file, which it creates, and waits for it until ctx is done. The lock also ends with
// the process.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	// O_NOFOLLOW, since the file is in a folder that everybody may write to.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}
