package broker

import (
	"fmt"
	"strings"

	"pollux/internal/outbox"
)

// apiError is how JetStream says no.
type apiError struct {
	Status      int    `json:"code"`
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (NATS error %d)", e.Description, e.Code) }

// Hint says what to do about it, where that is known.
func (e *apiError) Hint() string {
	switch e.Code {
	case codeStreamNotFound:
		return applyStreams
	case codeAccountExceeded, codeNoResources, codeStorageExceeded:
		return "all that the server or the account may store is used: raise max_file_store, or max_file of the account, and reload the server; what waits then goes on by itself"
	}
	return ""
}

// applyStreams makes what is missing.
const applyStreams = "pollux streams apply"

// The codes of JetStream's errors that mean something to us; nats-server lists all of them in server/errors.json.
const (
	codeAccountExceeded = 10002
	codeNoResources     = 10023 // of the server: its max_file_store
	codeStorageExceeded = 10047
	codeStreamNotFound  = 10059
	codeMessageTooLarge = 10054 // larger than the stream's max_msg_size
	codeHeadersTooLarge = 10097
	codeStoreFailed     = 10077 // among others: the stream is full and discards new
	codeAtomicDisabled  = 10174
	codeAtomicTooLarge  = 10199 // the server's max_batch_size is below ours
	codeAtomicDuplicate = 10201 // one message of the batch is stored already, or is in it twice
)

// verdict turns a stream's answer to a single message into the error of its receipt: a *outbox.Refusal when the same message will be
// refused again.
func verdict(stream string, err error) error {
	e, ok := err.(*apiError)
	if !ok {
		return err
	}
	switch {
	case e.Code == codeMessageTooLarge:
		return &outbox.Refusal{Reason: fmt.Sprintf("larger than the stream %s takes (max_msg_size)", stream)}
	case e.Code == codeHeadersTooLarge:
		return &outbox.Refusal{Reason: fmt.Sprintf("its headers are larger than the stream %s takes (64 KiB)", stream)}
	case e.Code == codeStoreFailed && strings.Contains(e.Description, "maximum"):
		return fmt.Errorf("the stream %s is full and keeps what it has: %w; look why nobody reads it, or raise its limit", stream, e)
	}
	return fmt.Errorf("the stream %s: %w", stream, e)
}
