// Package chaos kills everything, again and again, and looks whether anything was lost. It holds tests alone.
//
// The parts are the real ones: the binaries of the relay, the consumers and the operator's command, a durable PostgreSQL, a NATS server
// in a process of its own, a gateway that fails a fifth of its calls, and a payment service that tracks payments all the while in transactions of
// its own and remembers which of its commits were acknowledged. What ended how is read from the gateway's own log and from the rows, never
// from what the services say.
//
//	go test ./internal/chaos -chaos.for=5m                  more of it
//	go test ./internal/chaos -run Everything -chaos.seed=7  the same choices of whom to kill, and when
//
// A seed repeats the choices, not the race between the processes. A run that fails prints its seed, what is stuck and the last lines of each process.
package chaos
