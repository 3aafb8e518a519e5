package gatewaysim

import (
	"fmt"

	"pollux/internal/payment"
)

// MaxPending is the largest number of pending answers in a script.
const MaxPending = 1_000_000

// Review is the truth of a payment that no client can finish: a person must be asked.
const Review = "review"

// Payment is a payment at the gateway. AmountMinor is in the minor unit of Currency.
type Payment struct {
	Reference   string `json:"reference"`
	AmountMinor int64  `json:"amount_minor"`
	Currency    string `json:"currency"`
	Script      Script `json:"script"`
}

// Script is the life of a payment. The zero value has succeeded at the first call.
type Script struct {
	Pending int            `json:"pending,omitempty"` // so many answers say that it is still pending
	Detail  string         `json:"detail,omitempty"`  // which pending status: processing (the default), requires_action or authorized
	Final   payment.Status `json:"final,omitempty"`   // then it is this; empty is succeeded, pending is never final
	Flaw    Outcome        `json:"flaw,omitzero"`     // instead of the final status, every call shows this fault
}

// final is the status that the gateway settles on.
func (s Script) final() payment.Status {
	if s.Final == "" {
		return payment.Succeeded
	}
	return s.Final
}

// truth is what a correct client has recorded in the end: a final status, or Review.
func (s Script) truth() string {
	if s.Flaw != Answered || s.final() == payment.Pending {
		return Review
	}
	return string(s.final())
}

// validate returns the first problem of the payment.
func (p Payment) validate() error {
	switch _, known := pendingWord(p.Script.Detail); {
	case !validReference(p.Reference):
		return fmt.Errorf("reference %.40q: 1 to %d letters, digits, dots, dashes and underscores, the first a letter or digit",
			p.Reference, MaxReference)
	case p.AmountMinor < 0 || p.AmountMinor > MaxAmountMinor:
		return fmt.Errorf("amount_minor %d: between 0 and %d", p.AmountMinor, int64(MaxAmountMinor))
	case !currency.MatchString(p.Currency):
		return fmt.Errorf("currency %.10q: three capital letters", p.Currency)
	case p.Script.Pending < 0 || p.Script.Pending > MaxPending:
		return fmt.Errorf("script.pending %d: between 0 and %d", p.Script.Pending, MaxPending)
	case !known:
		return fmt.Errorf("script.detail %.40q: processing, requires_action or authorized", p.Script.Detail)
	case p.Script.Final != "" && !p.Script.Final.Valid():
		return fmt.Errorf("script.final %.40q: succeeded, failed, cancelled, expired or pending", p.Script.Final)
	case p.Script.Flaw != Answered && !p.Script.Flaw.fault():
		return fmt.Errorf("script.flaw %s: not something that one payment can show", p.Script.Flaw)
	case p.Script.Flaw == Unauthorized:
		return fmt.Errorf("script.flaw %s: a refused key costs a payment nothing, so it would never end", p.Script.Flaw)
	}
	return nil
}
