// Package streams holds the definitions of the JetStream streams, as JSON that `nats stream add --config` takes too.
//
// Why they are what they are:
//
//   - PAYMENTS_POLL keeps by limits, not as a work queue: one held message at the front of a work queue whose other messages
//     are acknowledged at once leaves a file for nearly every message behind it. Ten minutes are twice the lease of a poll (5m),
//     so a message outlives its own lease and little more. It discards old: what is oldest there has a lease that has run out, so its
//     row is due again and published anew; refusing new polls would stop everything instead. Ten million polls (about 3 GB) bound it.
//   - PAYMENTS_DEFERRED is a work queue, since nothing in it is held at its front: it is not read at all until its breaker lets
//     it be, and then it is emptied. It discards new: its publisher is told and parks in the database instead.
//   - PAYMENTS_EVENTS and PAYMENTS_DEAD keep by limits, so that reading consumes nothing. They discard new: an event that finds no
//     room stays in the outbox and is seen there, whereas discarding old would rob a reader without a word.
//
// All of them take atomic batches, which a server with sync_interval: always syncs once. num_replicas is 1 in the files and
// chosen when they are applied.
package streams

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.json
var files embed.FS

// Definition is one stream as it should be. JSON is its configuration in the form of the JetStream API; fields that it does not
// name are left to the server and to the operator. It must not be changed.
type Definition struct {
	Name     string
	Subjects []string
	JSON     []byte
}

var definitions = mustLoad()

// Definitions returns all streams of Pollux, ordered by name. The slice is the caller's own.
func Definitions() []Definition { return slices.Clone(definitions) }

// Of returns the name of the stream that takes a subject, and false when none does.
func Of(subject string) (string, bool) {
	for _, d := range definitions {
		for _, s := range d.Subjects {
			if prefix := strings.TrimSuffix(s, ">"); len(subject) > len(prefix) && strings.HasPrefix(subject, prefix) {
				return d.Name, true
			}
		}
	}
	return "", false
}

// mustLoad reads the embedded files. They are part of the build, so a wrong one is a fault of the build, found by the first test.
func mustLoad() []Definition {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("streams: reading the embedded definitions: %v", err))
	}
	var ds []Definition
	for _, e := range entries {
		d, err := load(e.Name())
		if err != nil {
			panic(fmt.Sprintf("streams: %s: %v", e.Name(), err))
		}
		ds = append(ds, d)
	}
	return ds
}

func load(file string) (Definition, error) {
	raw, err := files.ReadFile(file)
	if err != nil {
		return Definition{}, err
	}
	var d struct {
		Name     string   `json:"name"`
		Subjects []string `json:"subjects"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return Definition{}, err
	}
	if d.Name+".json" != file {
		return Definition{}, fmt.Errorf("defines the stream %q; a file is named after its stream", d.Name)
	}
	for _, s := range d.Subjects {
		if !strings.HasSuffix(s, ".>") {
			return Definition{}, fmt.Errorf("subject %q: must end in .> so that a subject's stream is found by its prefix", s)
		}
	}
	return Definition{Name: d.Name, Subjects: d.Subjects, JSON: raw}, nil
}
