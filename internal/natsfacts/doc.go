// Package natsfacts holds tests of what the design takes for granted about JetStream, its client and our backoff library. It has no code: when an
// upgrade of a dependency changes one of these facts, a test here fails, and what was built on the fact has to be thought over.
//
// Facts that need a power cut, a full disk, a cluster or minutes of load are not here.
package natsfacts
