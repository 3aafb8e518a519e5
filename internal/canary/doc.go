// Package canary puts marked secrets and card numbers through every way in and every error, and looks for them everywhere that something is kept or shown. It holds
// tests alone.
//
// The parts are the real ones: the processes of the services and of the operator's command, PostgreSQL, JetStream with its files, a collector of traces, and gateways
// that repeat all that they were sent, in every place of an answer.
package canary
