package localpg

import (
	"fmt"
	"os"
	"strconv"
)

// killChildren kills the processes that hold the pipe of p. It finds also those that have lost their parent, and nobody
// else's. The program itself is among them.
func killChildren(p *process, _ bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		// We hold the other end of the pipe, perhaps under the same number.
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			killIfHolds(pid, p.pipe)
		}
	}
}

// killIfHolds kills a process if it holds a pipe. The process is pinned before it is looked at (a pidfd), so that the one
// that is killed is the one that was looked at.
func killIfHolds(pid int, pipe uint64) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer p.Release()
	held, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, livenessFD))
	if err == nil && held == fmt.Sprintf("pipe:[%d]", pipe) {
		p.Kill()
	}
}
