// Command supply says what is in the binaries of Pollux. It reads the modules that the Go linker wrote into each of them, so that it tells of what ships and
// not of what go.mod allows:
//
//	supply sbom BINARY…         a software bill of materials, CycloneDX 1.6 as JSON
//	supply licences BINARY…     a page: which module, under which licence, in which binary; an error if one may not be shipped
//	supply texts BINARY…        the licences and notices themselves, to be handed on with the binaries
//
// The same binaries give the same bytes: there is no time and no chance in them. It runs inside the repository, whose module cache has the licences.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "supply:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	kinds := map[string]func(*inventory, io.Writer) error{"sbom": writeSBOM, "licences": writePage, "texts": writeTexts}
	if len(args) < 2 || kinds[args[0]] == nil {
		return errors.New("usage: supply sbom|licences|texts BINARY...")
	}
	inv, err := readBinaries(args[1:])
	if err != nil {
		return err
	}
	if err := inv.findLicences(); err != nil {
		return err
	}
	return kinds[args[0]](inv, w)
}
