//go:build unix

package secret

import (
	"errors"
	"syscall"
)

// sealed reports whether a folder is on a mount that is read-only, as Kubernetes mounts a ConfigMap: whatever its mode, nothing is put into it from here.
func sealed(dir string) bool {
	const write = 2 // W_OK
	return errors.Is(syscall.Access(dir, write), syscall.EROFS)
}
