package dev

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"pollux/internal/app"
	"pollux/internal/pgtest"
)

// TestMain also is the launcher as a process, for the tests that stop one.
func TestMain(m *testing.M) {
	testscript.Main(pgtest.With(m), map[string]func(){
		"dev": func() { os.Exit(app.Main(Command())) },
	})
}
