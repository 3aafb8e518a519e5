package reply_test

import (
	"net/http"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// careless takes every document for a success: what it is never shown, no adapter is.
type careless struct{}

func (careless) Payment(r *reply.Reply) gateway.Answer {
	return r.Answer(reply.Meaning{Status: payment.Succeeded}, "paid")
}

func (careless) Refusal(r *reply.Reply) gateway.Answer {
	return r.Error(gateway.Transport, "code", "text")
}

func read(rd reply.Reader, status int, kind, body string, header ...string) gateway.Answer {
	h := http.Header{"Content-Type": {kind}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	c := reply.Call{
		Query: gateway.Query{Reference: "r", AmountMinor: 1000, Currency: "EUR"}, Hide: httpclient.NewRedactor("hunter-two"),
		HTTP: httpclient.Response{Status: status, Header: h, Body: []byte(body)},
	}
	return reply.Terms{MaxRetryAfter: time.Minute}.Read(rd, c, new(strictjson.Document), time.Unix(1789020000, 0))
}

// TestWhatAReaderIsNotShown: none of these is an answer, however careless the adapter is.
func TestWhatAReaderIsNotShown(t *testing.T) {
	for _, c := range []struct {
		status     int
		kind, body string
		want       gateway.Class
	}{
		{200, "application/json", `{"a":1}`, gateway.Final}, {203, "application/vnd.x+json", `[]`, gateway.Final},
		{200, "application/json", ``, gateway.Malformed}, {200, "application/json", " \n", gateway.Malformed}, {200, "text/html", `{"a":1}`, gateway.Malformed},
		{200, "", `{}`, gateway.Malformed}, {204, "application/json", `{}`, gateway.Malformed}, {206, "application/json", `{}`, gateway.Malformed},
		{200, "application/json", `{"a":1,"a":2}`, gateway.Malformed}, {200, "application/json", `{"a":1`, gateway.Malformed}, {200, "application/json", "{\"a\":\"\xff\"}", gateway.Malformed},
		{200, "application/json", `{"a":"\u0000"}`, gateway.Malformed}, {200, "application/json", `{} {}`, gateway.Malformed}, {200, "application/json", `{"a":1e999}`, gateway.Malformed},
		{200, "application/json; charset=ISO-8859-9", `{"a":"é"}`, gateway.Malformed}, {200, "application/json; charset=ISO-8859-9", `{"a":"e"}`, gateway.Final},
		{0, "", ``, gateway.Transport}, {302, "application/json", `{}`, gateway.Transport}, {404, "application/json", `{}`, gateway.Transport}, {599, "", `<html>`, gateway.Transport},
	} {
		ans := read(careless{}, c.status, c.kind, c.body)
		gatewaytest.Check(t, ans, "hunter-two")
		if ans.Class != c.want {
			t.Errorf("%d %s %q: %+v", c.status, c.kind, c.body, ans)
		}
	}
}

// asking asks for money in every way that a vendor writes it.
type asking struct{ unit reply.Unit }

func (x asking) Payment(r *reply.Reply) gateway.Answer {
	field := func(key string) reply.Field { return reply.Field{Value: r.Root.Member(key), Where: "/" + key} }
	if ans, wrong := r.Owed(x.unit, field("amount"), field("currency"), true); wrong {
		return ans
	}
	return r.Answer(reply.Meaning{Status: payment.Succeeded}, "paid")
}

func (asking) Refusal(r *reply.Reply) gateway.Answer { return r.Error(gateway.Transport, "", "") }

func TestMoney(t *testing.T) {
	major := reply.Unit{Major: true, Currencies: map[string]string{"978": "EUR"}}
	for _, c := range []struct {
		unit             reply.Unit
		amount, currency string
		want             gateway.Class
	}{
		{reply.Unit{}, "1000", `"EUR"`, gateway.Final}, {reply.Unit{}, `"1000"`, `"eur"`, gateway.Final}, {reply.Unit{}, "1000.0", `"EUR"`, gateway.Final},
		{reply.Unit{}, "10.00", `"EUR"`, gateway.Mismatch}, {reply.Unit{}, "999", `"EUR"`, gateway.Mismatch}, {reply.Unit{}, "1000", `"USD"`, gateway.Mismatch},
		{reply.Unit{}, "true", `"EUR"`, gateway.Malformed}, {reply.Unit{}, "null", `"EUR"`, gateway.Malformed}, {reply.Unit{}, "1000", `["EUR"]`, gateway.Malformed},
		{reply.Unit{}, `"1.000,00"`, `"EUR"`, gateway.Malformed}, {reply.Unit{}, "1000", "null", gateway.Malformed},
		{major, "10.00", `"EUR"`, gateway.Final}, {major, "10", "978", gateway.Final}, {major, `"10.000"`, `"978"`, gateway.Final}, {major, "10.001", `"EUR"`, gateway.Mismatch},
		{major, "1000", `"EUR"`, gateway.Mismatch}, {reply.Unit{Decimals: map[string]int{"EUR": 3}}, "10000", `"EUR"`, gateway.Final},
	} {
		ans := read(asking{c.unit}, 200, "application/json", `{"amount":`+c.amount+`,"currency":`+c.currency+`}`)
		gatewaytest.Check(t, ans)
		if ans.Class != c.want {
			t.Errorf("%s %s: %+v", c.amount, c.currency, ans)
		}
	}
}

func TestWaits(t *testing.T) {
	for _, c := range []struct {
		status int
		value  string
		want   time.Duration
	}{{503, "7", 7 * time.Second}, {503, "3600", time.Minute}, {200, "7", 0}, {503, "x", 0}} {
		if ans := read(careless{}, c.status, "application/json", `{}`, "Retry-After", c.value); ans.RetryAfter != c.want || (c.value == "3600") != (len(ans.Message) > 40) {
			t.Errorf("%d with %s: %+v", c.status, c.value, ans)
		}
	}
}
