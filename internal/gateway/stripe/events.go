package stripe

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// eventTypes are the events that say where a PaymentIntent stands.
const eventTypes = "&types%5B%5D=payment_intent.succeeded&types%5B%5D=payment_intent.processing&types%5B%5D=payment_intent.payment_failed" +
	"&types%5B%5D=payment_intent.canceled&types%5B%5D=payment_intent.requires_action&types%5B%5D=payment_intent.amount_capturable_updated"

// Events returns a page of the events since an instant, the newest first (docs.stripe.com/api/events/list); Stripe keeps them for thirty days. When the answer's class
// is not Pending there is no page. It takes no longer than Timeout.
func (a *Adapter) Events(ctx context.Context, account string, since time.Time, after string) (webhook.Events, gateway.Answer) {
	acct, none, missing := a.accounts.Of(account)
	if missing {
		return webhook.Events{}, none
	}
	path := fmt.Sprintf("/v1/events?limit=100&created%%5Bgte%%5D=%d", since.Unix()) + eventTypes
	if after != "" {
		path += "&starting_after="
	}
	list := &eventList{reader: a.reader}
	ans := a.desk.Ask(ctx, gateway.Query{Account: account}, httpclient.Request{
		Method: http.MethodGet, URL: a.desk.URL(path, after), Header: acct.header, Hide: acct.hide,
	}, list)
	return list.page, ans
}

// eventList reads a page of events.
type eventList struct {
	reader
	page webhook.Events
}

// Payment implements reply.Reader: what came is a list.
func (l *eventList) Payment(r *reply.Reply) gateway.Answer {
	data := r.Root.Member("data")
	if data.Kind() != strictjson.Array {
		return r.Bad("no list at /data")
	}
	for event := range data.Elements() {
		l.page.Notices = append(l.page.Notices, WebhookNotice(event))
	}
	if n := len(l.page.Notices); n > 0 && reply.Text(r.Root.Member("has_more")) == "true" {
		l.page.Next = l.page.Notices[n-1].ID
	}
	return r.Answer(reply.Meaning{Status: payment.Pending}, "")
}
