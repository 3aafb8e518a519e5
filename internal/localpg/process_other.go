//go:build !linux && !darwin

package localpg

import (
	"context"
	"fmt"
	"os"
	"runtime"
)

// errSystem is what Start returns where processes cannot be looked after in the way that this package needs.
var errSystem = fmt.Errorf("a private PostgreSQL runs on Linux and macOS only, not on %s: use a server of your own", runtime.GOOS)

type account struct{ name string }

func serverAccount() (account, error) { return account{}, errSystem }

func (account) own(string) error        { return errSystem }
func (account) blockedBy(string) string { return "" }

type process struct {
	ended, gone chan struct{}
	err         error
}

func spawn(account, string, *os.File, string, []string) (*process, error) { return nil, errSystem }

func (*process) pid() int   { return 0 }
func (*process) interrupt() {}
func (*process) kill()      {}

func removeSharedMemory(int) {}

type guard struct{}

func startGuard(bool, string) (*guard, error) { return nil, errSystem }

func (*guard) watch(int) {}
func (*guard) end()      {}

// lockFile locks nothing: where it is used nothing can be installed.
func lockFile(context.Context, string) (unlock func(), err error) { return func() {}, nil }
