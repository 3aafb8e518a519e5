package app

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"pollux/internal/doctor"
)

// thisMachine is what bounds this process.
func thisMachine() doctor.Machine {
	m := doctor.Machine{OpenFiles: openFiles(), Memory: memoryLimit("/proc/self/cgroup", "/sys/fs/cgroup"), Root: os.Geteuid() == 0}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		m.GoLimit = limit
	}
	return m
}

// memoryLimit is the limit of the control group that this process is in, 0 where there is none. Inside a container the group is the root of what is seen.
func memoryLimit(membership, root string) int64 {
	own := ""
	if b, err := os.ReadFile(membership); err == nil {
		for line := range strings.Lines(string(b)) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				own = path
			}
		}
	}
	for _, file := range []string{filepath.Join(root, own, "memory.max"), filepath.Join(root, "memory.max"), filepath.Join(root, "memory", "memory.limit_in_bytes")} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		const boundless = 1 << 50 // how the first version of control groups writes no limit
		if err == nil && n < boundless {
			return n
		}
		return 0
	}
	return 0
}
