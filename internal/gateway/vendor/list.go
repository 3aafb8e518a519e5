package vendor

import (
	"context"
	"fmt"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
)

// Lister reads a page of payments. Refusal is that of the adapter's other answers.
type Lister struct {
	Page    func(*reply.Reply) (gateway.Page, error)
	Refused func(*reply.Reply) gateway.Answer
}

// listing is a page being read.
type listing struct {
	Lister
	page gateway.Page
	read bool
}

// Payment implements reply.Reader: what came is a page.
func (l *listing) Payment(r *reply.Reply) gateway.Answer {
	page, err := l.Page(r)
	if err != nil {
		return r.Bad("%v", err)
	}
	l.page, l.read = page, true
	return r.Answer(reply.Meaning{}, "")
}

// Refusal implements reply.Reader.
func (l *listing) Refusal(r *reply.Reply) gateway.Answer { return l.Refused(r) }

// List asks for one page. Its error has the class of the answer and what went wrong, redacted.
func (d *Desk) List(ctx context.Context, r httpclient.Request, lister Lister) (gateway.Page, error) {
	l := &listing{Lister: lister}
	ans := d.Ask(ctx, gateway.Query{}, r, l)
	if !l.read {
		return gateway.Page{}, fmt.Errorf("listing payments: %s: %s", ans.Class, ans.Message)
	}
	return l.page, nil
}
