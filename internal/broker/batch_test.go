package broker_test

import "github.com/nats-io/nats.go"

// batchStart is the first message of an atomic batch that nobody finishes.
func batchStart(subject string) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Batch-Id": {"unfinished"}, "Nats-Batch-Sequence": {"1"}}}
}
