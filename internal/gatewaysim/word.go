package gatewaysim

import "pollux/internal/payment"

// word is a status in the gateway's own language. The zero value is no status at all.
type word uint8

const (
	noWord word = iota
	processing
	requiresAction
	authorized
	succeeded
	failed
	canceled
	expired
	settling // the word of UnknownStatus, which no client's map has
)

var wordNames = [...]string{
	noWord: "", processing: "processing", requiresAction: "requires_action", authorized: "authorized", succeeded: "succeeded",
	failed: "failed", canceled: "canceled", expired: "expired", settling: UnknownWord,
}

func (w word) String() string { return wordNames[w] }

// final reports whether the word ends a payment.
func (w word) final() bool { return w >= succeeded && w <= expired }

// pendingWord is the word of a script's detail; no detail is processing.
func pendingWord(detail string) (word, bool) {
	switch detail {
	case "", "processing":
		return processing, true
	case "requires_action":
		return requiresAction, true
	case "authorized":
		return authorized, true
	}
	return noWord, false
}

// finalWord is the word of a final status, and none for Pending, which never ends.
func finalWord(s payment.Status) word {
	switch s {
	case payment.Succeeded:
		return succeeded
	case payment.Failed:
		return failed
	case payment.Cancelled:
		return canceled
	case payment.Expired:
		return expired
	}
	return noWord
}
