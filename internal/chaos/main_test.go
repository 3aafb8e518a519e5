//go:build unix

package chaos

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"pollux/internal/natsembed"
)

var (
	seedFlag  = flag.Uint64("chaos.seed", 0, "of the choices of whom to kill and when; 0 takes another one each time, which is printed")
	forFlag   = flag.Duration("chaos.for", 0, "how long the longest test kills; 0 means 40s, and 12s with -short")
	roleFlag  = flag.String("chaos.role", "", "what this process is instead of a test: warden or nats. For the tests themselves")
	portFlag  = flag.Int("chaos.port", 0, "of the role nats: its port on loopback")
	storeFlag = flag.String("chaos.store", "", "of the role nats: the folder of its streams")
)

// scratch is a folder of this run for the programs.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	if *roleFlag != "" {
		if err := play(*roleFlag); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "pollux-chaos-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	return m.Run()
}

func play(role string) error {
	switch role {
	case "warden":
		return keepWatch()
	case "nats":
		return serveNATS(*portFlag, *storeFlag)
	}
	return fmt.Errorf("no role is called %s", role)
}

// keepWatch is the warden: the leader of the process group of everything that the tests start. Its standard input ends when the
// process of the tests does, however that ends (a panic, a timeout of go test, a SIGKILL), and then it ends the whole group, itself included.
func keepWatch() error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return syscall.Kill(0, syscall.SIGKILL)
}

// serveNATS is a NATS server until it is killed.
func serveNATS(port int, store string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if _, err := natsembed.Start(natsembed.Options{StoreDir: store, Port: port, Log: log}); err != nil {
		return err
	}
	select {}
}

// wardenPipe holds the warden's standard input open: without a reference to it the collector would close it.
var wardenPipe io.Closer

// group is the process group of everything that the tests start.
var group = sync.OnceValues(func() (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, "-chaos.role=warden")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if wardenPipe, err = cmd.StdinPipe(); err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting the warden: %w", err)
	}
	return cmd.Process.Pid, nil
})

// programs is the folder of the programs under test, built from the sources.
var programs = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"build", "-buildvcs=false", "-o", scratch + string(filepath.Separator)}
	if raceDetector {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/outbox-relay", "./cmd/consumer", "./cmd/pollux")...)
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return scratch, nil
})
