package gatewaysim

// Verdict is what the simulator knows of a payment.
type Verdict struct {
	Reference   string `json:"reference"`
	AmountMinor int64  `json:"amount_minor"`
	Currency    string `json:"currency"`
	Truth       string `json:"truth"`    // what a correct client has recorded in the end: a final status, or Review
	Calls       int    `json:"calls"`    // how often it was asked for
	Tellings    int    `json:"tellings"` // how often a right answer told its final status
}

// Truth returns what a correct client has recorded in the end for a payment: succeeded, failed, cancelled, expired, or Review for
// one that a person must be asked about. It reports false for a payment that is not known. It is known from the beginning, but for one
// thing: conditions that answer about another id, amount or currency by chance turn the truth of a payment that is
// answered so before it was told its final status into Review. No scenario does that.
func (s *Simulator) Truth(reference string) (string, bool) {
	e, ok := s.book.find(reference)
	if !ok {
		return "", false
	}
	return e.truth(), true
}

// Truths returns the truth of every payment, in no order.
func (s *Simulator) Truths() []Verdict {
	out := make([]Verdict, 0, s.book.size.Load())
	s.book.each(func(e entry) { out = append(out, e.verdict()) })
	return out
}

func (e *entry) verdict() Verdict {
	return Verdict{
		Reference: e.Reference, AmountMinor: e.AmountMinor, Currency: e.Currency,
		Truth: e.truth(), Calls: int(e.calls), Tellings: e.tellings,
	}
}
