package razorpay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/gateway/vendor"
)

// pageSize is the most that Razorpay lists at once.
const pageSize = 100

// List returns a page of the payments of a period, the newest first.
func (a *Adapter) List(ctx context.Context, p gateway.Period) (gateway.Page, error) {
	acct, none, missing := a.accounts.Of(p.Account)
	if missing {
		return gateway.Page{}, errors.New(none.Message)
	}
	skip, err := strconv.Atoi("0" + p.Next)
	if err != nil {
		return gateway.Page{}, fmt.Errorf("listing payments: %q is no place in a list", p.Next)
	}
	path := fmt.Sprintf("/v1/payments?count=%d&skip=%d&from=%d&to=%d", pageSize, skip, p.From.Unix(), p.To.Unix()-1) // to is included
	return a.desk.List(ctx, httpclient.Request{Method: http.MethodGet, URL: a.desk.URL(path, ""), Header: acct.header, Hide: acct.hide},
		vendor.Lister{Page: func(r *reply.Reply) (gateway.Page, error) { return page(r, skip) }, Refused: refusal})
}

func page(r *reply.Reply, skip int) (gateway.Page, error) {
	items := r.Root.Member("items")
	if items.Kind() != strictjson.Array {
		return gateway.Page{}, errors.New("no list at /items")
	}
	var page gateway.Page
	for v := range items.Elements() {
		page.Payments = append(page.Payments, r.Listed(unit, reply.Item{
			ID: v.Member("id"), Parent: v.Member("order_id"), Amount: v.Member("amount"), Currency: v.Member("currency"), Created: reply.Seconds(v.Member("created_at")),
		}, func(one *reply.Reply) gateway.Answer { return paymentOf(one, v) }))
	}
	if len(page.Payments) >= pageSize {
		page.Next = strconv.Itoa(skip + len(page.Payments))
	}
	return page, nil
}
