package gatewaysim

import (
	"net/http"
	"strconv"
	"time"

	"pollux/internal/payment"
)

// Dialect is how one vendor's API speaks of payments: how it is asked, and how its answers are written. It translates and does nothing else: what becomes of a
// payment, and what goes wrong with a call, is decided before it is asked. Its methods are safe for concurrent use.
type Dialect interface {
	// Fit returns a script with nothing in it that the vendor has no word for. One that fits is returned as it is.
	Fit(Script) Script
	// Reference is the vendor's id of the n-th payment of a prefix, a valid reference. Different numbers give different ids.
	Reference(prefix string, n int) string
	// Read reads a request. It reports false for a path that the vendor does not have.
	Read(r *http.Request) (Question, bool)
	// Write is the body of an answer about a payment, in JSON.
	Write(Question, State) []byte
	// Refuse is how the vendor says one of ServerError, Unavailable, Unauthorized, NotFound, RateLimited and BadRequest.
	Refuse(Question, Outcome) Refusal
}

// Question is what a request asks for.
type Question struct {
	Reference string // of the payment
	Ours      bool   // it is our own reference, and not the vendor's id
	Echo      string // what the answer has to repeat
	Key       bool   // the request brought the key
	Bad       bool   // it is not how the vendor is asked: the method, the body

	// Grant is the whole answer to a request that is about no payment, such as one for an access token; nil for all others.
	Grant *Refusal
}

// Refusal is an answer that is about no payment.
type Refusal struct {
	Status int
	Header map[string]string
	Body   []byte
}

// State is what is said about a payment. Times are in whole seconds.
type State struct {
	Reference   string
	AmountMinor int64 // in the minor unit of Currency, ISO 4217
	Currency    string
	Status      payment.Status // empty: one that nobody knows; the dialect writes UnknownWord
	Detail      string         // of one that is pending: processing, requires_action or authorized
	Changed     time.Time      // when it came to stand so
}

// UnknownWord is a status that no client's map has.
const UnknownWord = "settling_v2"

// state is what the answer says, in no dialect yet.
func (p *reply) state() State {
	st := State{Reference: p.reference, AmountMinor: p.amount, Currency: p.currency, Changed: time.Unix(p.updated, 0).UTC()}
	st.Status, st.Detail = p.told.meaning()
	switch p.outcome {
	case OtherID:
		st.Reference = p.dialect.Reference("other", int(hash(p.reference)%1_000_000))
	case OtherAmount:
		st.AmountMinor = otherAmount(st.AmountMinor)
	case OtherCurrency:
		st.Currency = otherCurrency(st.Currency)
	}
	return st
}

// meaning is what a word stands for. It is nothing for none and for the unknown one.
func (w word) meaning() (payment.Status, string) {
	switch w {
	case processing, requiresAction, authorized:
		return payment.Pending, w.String()
	case succeeded:
		return payment.Succeeded, ""
	case failed:
		return payment.Failed, ""
	case canceled:
		return payment.Cancelled, ""
	case expired:
		return payment.Expired, ""
	}
	return "", ""
}

// State returns where a payment stands. It reports false for one that is not known.
func (s *Simulator) State(reference string) (State, bool) {
	e, ok := s.book.find(reference)
	if !ok {
		return State{}, false
	}
	return e.state(), true
}

// Settle takes a payment to its end now, however many pending answers are left, and returns what there is to tell of it. It reports false, and changes nothing, when
// there is nothing: the payment is not known, never ends, or is one that the gateway never answers rightly about.
func (s *Simulator) Settle(reference string) (State, bool) {
	shard := s.book.of(hash(reference))
	shard.mu.Lock()
	defer shard.mu.Unlock()
	e := shard.entries[reference]
	if e == nil || e.end == noWord || e.Script.Flaw != Answered {
		return State{}, false
	}
	if e.pendingLeft > 0 {
		e.pendingLeft, e.ended, e.updated = 0, true, time.Now().Unix()
	}
	return e.state(), true
}

func (e *entry) state() State {
	st := State{Reference: e.Reference, AmountMinor: e.AmountMinor, Currency: e.Currency, Changed: time.Unix(e.updated, 0).UTC()}
	st.Status, st.Detail = e.current().meaning()
	return st
}

// serveDialect answers a call in the simulator's dialect. It reports false for a path that the vendor does not have.
func (s *Simulator) serveDialect(w http.ResponseWriter, r *http.Request) bool {
	q, ok := s.cfg.Dialect.Read(r)
	switch {
	case !ok:
		return false
	case q.Grant == nil:
		s.servePayment(w, r, &q)
		return true
	}
	p := reply{outcome: s.downAt(s.climate.Load(), time.Now()), dialect: s.cfg.Dialect, question: &q}
	if p.outcome == Answered {
		sendRefusal(w, *q.Grant)
	} else {
		s.send(w, r, &p)
	}
	return true
}

// refused reports whether an outcome is something that a vendor says in words of its own.
func (o Outcome) refused() bool {
	switch o {
	case ServerError, Unavailable, Unauthorized, NotFound, RateLimited, BadRequest:
		return true
	}
	return false
}

// refuse sends a refusal in the dialect.
func (p *reply) refuse(w http.ResponseWriter) int {
	if p.outcome == RateLimited {
		w.Header().Set("Retry-After", p.waitFor(time.Now()))
	}
	return sendRefusal(w, p.dialect.Refuse(*p.question, p.outcome))
}

func sendRefusal(w http.ResponseWriter, r Refusal) int {
	h := w.Header()
	h["Content-Type"] = asJSON
	h.Set("Content-Length", strconv.Itoa(len(r.Body)))
	for name, value := range r.Header {
		h.Set(name, value)
	}
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body)
	return r.Status
}
