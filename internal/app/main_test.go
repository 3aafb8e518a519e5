package app

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"pollux/internal/pgtest"
)

// TestMain also is the processes that the tests start: the services, and one that takes its time to stop.
func TestMain(m *testing.M) {
	testscript.Main(leakFree{pgtest.With(m)}, map[string]func(){
		"consumer":     func() { os.Exit(Main(ConsumerCommand())) },
		"outbox-relay": func() { os.Exit(Main(RelayCommand())) },
		"webhook":      func() { os.Exit(Main(WebhookCommand())) },
		"slow":         func() { os.Exit(Main(slowCommand())) },
	})
}

// leakFree fails when the tests leave goroutines behind.
type leakFree struct{ tests pgtest.Tests }

func (l leakFree) Run() int {
	code := l.tests.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// slowCommand says that it runs, waits to be told to stop, says so, and ends when its standard input does.
func slowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "slow", Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Println("running")
			<-cmd.Context().Done()
			fmt.Println("stopping")
			var b [1]byte
			_, _ = os.Stdin.Read(b[:])
			return nil
		},
	}
}
