package stripe

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/gateway/vendor"
)

// List returns a page of the PaymentIntents of a period, the newest first.
func (a *Adapter) List(ctx context.Context, p gateway.Period) (gateway.Page, error) {
	acct, none, missing := a.accounts.Of(p.Account)
	if missing {
		return gateway.Page{}, errors.New(none.Message)
	}
	path := fmt.Sprintf("/v1/payment_intents?limit=100&created%%5Bgte%%5D=%d&created%%5Blt%%5D=%d", p.From.Unix(), p.To.Unix())
	if p.Next != "" {
		path += "&starting_after="
	}
	return a.desk.List(ctx, httpclient.Request{Method: http.MethodGet, URL: a.desk.URL(path, p.Next), Header: acct.header, Hide: acct.hide},
		vendor.Lister{Page: a.reader.page, Refused: a.reader.Refusal})
}

func (x reader) page(r *reply.Reply) (gateway.Page, error) {
	data := r.Root.Member("data")
	if data.Kind() != strictjson.Array {
		return gateway.Page{}, errors.New("no list at /data")
	}
	var page gateway.Page
	for v := range data.Elements() {
		amount := v.Member("amount")
		if reply.Text(v.Member("status")) == "succeeded" {
			amount = v.Member("amount_received")
		}
		page.Payments = append(page.Payments, r.Listed(unit, reply.Item{
			ID: v.Member("id"), Amount: amount, Currency: v.Member("currency"), Created: reply.Seconds(v.Member("created")),
		}, func(one *reply.Reply) gateway.Answer { return x.intent(one, v) }))
	}
	if n := len(page.Payments); n > 0 && reply.Text(r.Root.Member("has_more")) == "true" {
		page.Next = page.Payments[n-1].Reference
	}
	return page, nil
}
