//go:build unix

package app

import "golang.org/x/sys/unix"

// openFiles is how many files this process may have open; 0 where nobody knows.
func openFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on some systems
}
