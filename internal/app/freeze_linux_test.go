package app

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// freeze stops a PostgreSQL and all its processes where they are: connections stay open, and nobody answers. The returned function lets it go on.
func freeze(t *testing.T, postmaster int) (thaw func()) {
	t.Helper()
	pids := []int{postmaster}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parentOf(pid) == postmaster {
			pids = append(pids, pid)
		}
	}
	all := func(s syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, s) // a backend that has ended meanwhile answers nobody either
		}
	}
	all(syscall.SIGSTOP)
	t.Cleanup(func() { all(syscall.SIGCONT) })
	return func() { all(syscall.SIGCONT) }
}

// parentOf is the process id of a process's parent; 0 when there is no such process.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if f := strings.Fields(rest); len(f) > 1 {
		parent, _ := strconv.Atoi(f[1])
		return parent
	}
	return 0
}
