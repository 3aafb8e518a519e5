package mercadopago

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/gateway/vendor"
	"pollux/internal/payment/currency"
)

// pageSize is how many payments come at once.
const pageSize = 50

// List returns a page of the payments of a period, the oldest first.
func (a *Adapter) List(ctx context.Context, p gateway.Period) (gateway.Page, error) {
	acct, none, missing := a.accounts.Of(p.Account)
	if missing {
		return gateway.Page{}, errors.New(none.Message)
	}
	offset, err := strconv.Atoi("0" + p.Next)
	if err != nil {
		return gateway.Page{}, fmt.Errorf("listing payments: %q is no place in a list", p.Next)
	}
	q := url.Values{
		"range": {"date_created"}, "sort": {"date_created"}, "criteria": {"asc"}, "limit": {strconv.Itoa(pageSize)}, "offset": {strconv.Itoa(offset)},
		"begin_date": {p.From.UTC().Format(time.RFC3339)}, "end_date": {p.To.Add(-time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z")}, // it is included
	}
	return a.desk.List(ctx, httpclient.Request{Method: http.MethodGet, URL: a.desk.URL("/v1/payments/search?"+q.Encode(), ""), Header: acct.header, Hide: acct.hide},
		vendor.Lister{Page: func(r *reply.Reply) (gateway.Page, error) { return page(r, a.live, offset) }, Refused: refusal})
}

func page(r *reply.Reply, live bool, offset int) (gateway.Page, error) {
	results := r.Root.Member("results")
	if results.Kind() != strictjson.Array {
		return gateway.Page{}, errors.New("no list at /results")
	}
	var page gateway.Page
	for v := range results.Elements() {
		page.Payments = append(page.Payments, r.Listed(unit, reply.Item{
			ID: v.Member("id"), MerchantRef: v.Member("external_reference"), Amount: v.Member("transaction_amount"), Currency: v.Member("currency_id"),
			Created: reply.Instant(v.Member("date_created")),
		}, func(one *reply.Reply) gateway.Answer { return paymentOf(one, v, live) }))
	}
	seen := offset + len(page.Payments)
	total, err := currency.Minor(reply.Text(r.Root.Member("paging").Member("total")), 0)
	if len(page.Payments) > 0 && (err != nil && len(page.Payments) >= pageSize || err == nil && int64(seen) < total) {
		page.Next = strconv.Itoa(seen)
	}
	return page, nil
}
