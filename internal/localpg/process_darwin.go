package localpg

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// killChildren kills the children of p if it is stopped: then it reaps none of them, and their process ids cannot be given to
// others meanwhile. Those of a postmaster that was killed by somebody else have no parent to be found by; they end by
// themselves as soon as they notice that it is gone.
func killChildren(p *process, stopped bool) {
	if !stopped {
		return
	}
	out, err := exec.Command("/bin/ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 2 || f[1] != strconv.Itoa(p.pid()) {
			continue
		}
		if pid, err := strconv.Atoi(f[0]); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
