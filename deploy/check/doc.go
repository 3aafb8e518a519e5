// Package check holds the files that Pollux is deployed with to what they are about: the flags, pages, ports and keys that the binaries really have. The files are read by
// the parsers of the programs that they are for, since no container engine and no cluster is at hand where tests run; and the services of compose.yaml are run as it says,
// as processes. It is a module of its own, so that Pollux depends on none of those parsers.
package check
