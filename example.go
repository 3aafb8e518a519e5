// Package pollux holds what the module ships beside its programs.
package pollux

import _ "embed"

// ExampleConfig is pollux.example.yaml: every key, explained. The launcher of cmd/dev runs on it.
//
//go:embed pollux.example.yaml
var ExampleConfig []byte
