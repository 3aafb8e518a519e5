package paypal

import (
	"context"
	"net/url"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// eventsPath is where PayPal lists what it told (developer.paypal.com/docs/api/webhooks/v1, "List event notifications").
const eventsPath = "/v1/notifications/webhooks-events?"

// Events returns a page of the events since an instant. When the answer's class is not Pending there is no page. It takes no longer than Timeout.
func (a *Adapter) Events(ctx context.Context, account string, since time.Time, after string) (webhook.Events, gateway.Answer) {
	acct, none, missing := a.accounts.Of(account)
	if missing {
		return webhook.Events{}, none
	}
	if after == "" {
		after = url.Values{"page_size": {"100"}, "start_time": {since.UTC().Format(time.RFC3339)}, "end_time": {time.Now().UTC().Format(time.RFC3339)}}.Encode()
	}
	list := &eventList{}
	ans := a.ask(ctx, acct, gateway.Query{Account: account}, a.desk.URL(eventsPath+after, ""), list)
	return list.page, ans
}

// eventList reads a page of events.
type eventList struct{ page webhook.Events }

// Payment implements reply.Reader: what came is a list.
func (l *eventList) Payment(r *reply.Reply) gateway.Answer {
	events := r.Root.Member("events")
	if events.Kind() != strictjson.Array {
		return r.Bad("no list at /events")
	}
	for event := range events.Elements() {
		l.page.Notices = append(l.page.Notices, webhookNotice(event))
	}
	for link := range r.Root.Member("links").Elements() {
		next, err := url.Parse(reply.Text(link.Member("href")))
		if reply.Text(link.Member("rel")) == "next" && err == nil && len(l.page.Notices) > 0 { // of the address only the query is taken: no answer says where to ask
			l.page.Next = next.Query().Encode()
		}
	}
	return r.Answer(reply.Meaning{Status: payment.Pending}, "")
}

// Refusal implements reply.Reader.
func (l *eventList) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }
