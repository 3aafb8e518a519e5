package dev

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"pollux/internal/app"
	"pollux/internal/pgtest"
)

// TestMain also is the launcher as a process, for the tests that stop one.
func TestMain(m *testing.M) {
	testscript.Main(leakFree{pgtest.With(m)}, map[string]func(){
		"dev": func() { os.Exit(app.Main(Command())) },
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
