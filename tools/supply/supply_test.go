package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `MIT License

Copyright (c) 2026 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
`

// terms is the notice of a licence that asks for the source of what it is linked into.
const terms = `This program is free software: you can redistribute it and/or modify
it under the terms of the GNU Affero General Public License as published by
the Free Software Foundation, either version 3 of the License, or
(at your option) any later version.

This program is distributed in the hope that it will be useful,
but WITHOUT ANY WARRANTY; without even the implied warranty of
MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
GNU Affero General Public License for more details.
`

func TestOnlyKnownAndAllowedLicencesPass(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string // of the error; empty: it passes
	}{
		"allowed":               {map[string]string{"LICENSE": mit, "NOTICE": "made by Somebody"}, ""},
		"British":               {map[string]string{"LICENCE.txt": mit}, ""},
		"not allowed":           {map[string]string{"COPYING": terms}, "not one of the allowed licences"},
		"one of two is not":     {map[string]string{"LICENSE": mit, "LICENSE.extra": terms}, "not one of the allowed licences"},
		"none":                  {map[string]string{"README.md": mit}, "has no licence"},
		"words of nobody":       {map[string]string{"LICENSE": "You may look at it on Sundays."}, "0% of it"},
		"with terms of its own": {map[string]string{"LICENSE": mit + strings.Repeat("But never for money, and not in any other town than ours. ", 30)}, "at least 75% must be"},
	} {
		t.Run(name, func(t *testing.T) {
			m := module{path: "example.org/m", dir: t.TempDir()}
			for file, body := range c.files {
				if err := os.WriteFile(filepath.Join(m.dir, file), []byte(body), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := m.readLicences()
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, expected one with %q", err, c.want)
			case c.want == "" && (len(m.licences) != 1 || m.licences[0] != "MIT" || len(m.texts) != len(c.files)):
				t.Errorf("licences %v and %d texts, expected MIT and %d", m.licences, len(m.texts), len(c.files))
			}
		})
	}
}

// built builds this program.
func built(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "supply")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v: %s", err, out)
	}
	return file
}

func TestABillOfMaterialsNamesWhatTheLinkerTook(t *testing.T) {
	inv, err := readBinaries([]string{built(t)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range inv.modules {
		inv.modules[i].licences = []string{"BSD-3-Clause"}
	}
	var first, second bytes.Buffer
	if err := writeSBOM(inv, &first); err != nil {
		t.Fatal(err)
	}
	if err := writeSBOM(inv, &second); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Error("two bills of the same binaries differ")
	}
	var b bom
	if err := json.Unmarshal(first.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	refs := map[string]component{}
	for _, c := range b.Components {
		if c.Ref == "" || refs[c.Ref].Ref != "" {
			t.Errorf("the reference %q is empty or there twice", c.Ref)
		}
		refs[c.Ref] = c
	}
	program := refs["binary:supply"]
	if len(program.Hashes) != 1 || len(program.Hashes[0].Content) != 64 {
		t.Errorf("the program is not in its bill with a SHA-256: %+v", program)
	}
	const used = "pkg:golang/github.com/google/licensecheck@"
	found := 0
	for _, d := range b.Dependencies {
		for _, on := range d.DependsOn {
			c, ok := refs[on]
			if !ok {
				t.Errorf("%s depends on %s, which is no component", d.Ref, on)
			}
			if d.Ref == program.Ref && (strings.HasPrefix(on, used) || strings.HasPrefix(on, "pkg:golang/stdlib@1.")) && len(c.Licences) == 1 {
				found++
			}
		}
	}
	if found != 2 {
		t.Errorf("%d of 2 modules are in the bill of %s with a licence:\n%s", found, program.Ref, first.String())
	}
}

func TestWhatIsNoBinaryIsRefused(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(notes, []byte("not a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{notes, filepath.Join(t.TempDir(), "nowhere")} {
		if _, err := readBinaries([]string{path}); err == nil || !strings.Contains(err.Error(), "make build") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestPackageURLsAreCanonical(t *testing.T) {
	if got, want := purl("github.com/Some/Thing", "v2.0.0+incompatible"), "pkg:golang/github.com/some/thing@v2.0.0%2Bincompatible"; got != want {
		t.Errorf("%s, expected %s", got, want)
	}
}
