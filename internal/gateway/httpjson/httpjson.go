// Package httpjson asks any gateway that answers in JSON over HTTP, by configuration alone. docs/gateways/httpjson.md describes the
// configuration.
package httpjson

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
)

// Adapter asks one gateway. It is safe for concurrent use.
type Adapter struct {
	name     string
	client   *httpclient.Client
	method   string
	url      template
	body     template
	hasBody  bool
	escape   escape              // of the body
	headers  map[string]template // those with placeholders, by canonical name
	needs    []string            // the fields of the payment that the question has
	signer   *signer             // nil when requests are not signed
	accounts map[string]*account
	fallback *account // of the default account; of every account when accounts is empty; nil when there is none
	trace    bool
	reader   reader
	scratch  sync.Pool // of *scratch
}

// scratch is memory that polls use one after another.
type scratch struct {
	url, answer []byte
	doc         strictjson.Document
}

// maxScratch is the largest answer whose memory is kept.
const maxScratch = 64 << 10

// New returns an adapter, or every problem of its configuration at once, each naming the key and what to write instead.
func New(cfg Config) (*Adapter, error) { return compile(cfg) }

// Capabilities are what the configuration makes of the gateway.
func (a *Adapter) Capabilities() gateway.Capabilities {
	return gateway.Capabilities{ByMerchantRef: slices.Contains(a.needs, "merchant_reference")}
}

// Close closes the connections that are not in use.
func (a *Adapter) Close() { a.client.Close() }

// Timeout is the longest that Poll takes.
func (a *Adapter) Timeout() time.Duration { return a.client.Timeout() }

// Poll asks the gateway once about one payment. It always answers, within Timeout; what goes wrong is in the answer's class. An answer is
// Final only if the gateway said so in a document that is whole, that is about this payment, and whose status is in the map.
//
// The trace context of a span in ctx, or else that of the query, is sent on.
func (a *Adapter) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	acct := a.account(q.Account)
	if acct == nil {
		return gateway.Answer{Class: gateway.Unauthorized, Message: fmt.Sprintf("no credentials for account %.128q of %.64s: add it to accounts", q.Account, a.name)}
	}
	s, _ := a.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	defer a.release(s)

	req, why := a.request(ctx, q, acct, s)
	if why != "" {
		// It will be no different next time, and no answer could be about this payment: a person has to look.
		return gateway.Answer{Class: gateway.Mismatch, Message: why}
	}
	resp, err := a.client.Do(ctx, req, s.answer)
	s.answer = resp.Body
	return a.reader.read(reply.Call{Query: q, Hide: acct.redactor, HTTP: resp, Err: err}, &s.doc, time.Now())
}

func (a *Adapter) release(s *scratch) {
	if cap(s.answer) <= maxScratch {
		a.scratch.Put(s)
	}
}

func (a *Adapter) account(name string) *account {
	if name == "" || len(a.accounts) == 0 {
		return a.fallback
	}
	return a.accounts[name]
}

// request builds the question, or says why this payment cannot be asked for.
func (a *Adapter) request(ctx context.Context, q gateway.Query, acct *account, s *scratch) (httpclient.Request, string) {
	if why := a.unusable(q, acct); why != "" {
		return httpclient.Request{}, why
	}
	value := func(field string) string { return queryValue(q, field) }
	s.url = a.url.append(s.url[:0], value, httpclient.AppendEscaped)
	r := httpclient.Request{Method: a.method, URL: string(s.url), Header: acct.header, Hide: acct.redactor}
	if a.hasBody {
		r.Body = a.body.append(nil, value, a.escape) // not from scratch: the transport may read it after an answer that came early
	}
	parent := ""
	if a.trace {
		parent = traceParent(ctx, q.TraceParent)
	}
	if parent == "" && len(a.headers) == 0 && a.signer == nil {
		return r, ""
	}
	r.Header = maps.Clone(acct.header)
	if parent != "" {
		r.Header["Traceparent"] = []string{parent}
	}
	for name, t := range a.headers {
		v := string(t.append(nil, value, raw))
		if !httpclient.ValidHeaderValue(v) {
			return r, "the payment has characters that the header " + name + " cannot carry"
		}
		r.Header[name] = []string{v}
	}
	if a.signer != nil {
		u, err := url.Parse(r.URL)
		if err != nil {
			return r, "the payment does not fit into the URL"
		}
		a.signer.apply(r.Header, q, acct, a.method, u, r.Body, time.Now())
	}
	return r, ""
}

// unusable says why a payment cannot be asked for, or is empty.
func (a *Adapter) unusable(q gateway.Query, acct *account) string {
	for _, field := range a.needs {
		v := queryValue(q, field)
		if why := httpclient.Unsendable(v); why != "" {
			return fmt.Sprintf("%s %q %s: the gateway cannot be asked about it", field, acct.redactor.Name(v, 80), why)
		}
	}
	return ""
}

// queryFields are the placeholders that come from the payment.
var queryFields = []string{"reference", "merchant_reference", "account"}

func queryValue(q gateway.Query, field string) string {
	switch field {
	case "reference":
		return q.Reference
	case "merchant_reference":
		return q.MerchantRef
	case "account":
		return q.Account
	}
	return ""
}
