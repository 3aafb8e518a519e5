package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/secret"

	"pollux/internal/gateway/stripe"
)

func TestList(t *testing.T) {
	item := func(change string) string {
		return replaced(strings.Replace(good, "{", `{"created":1789020000,`, 1), change)
	}
	pages := map[string]string{
		"":     `{"object":"list","has_more":true,"data":[` + item("pi_3Nk1 -> pi_9") + `,` + item(`pi_3Nk1 -> pi_8 ; "amount_received":1000 -> "amount_received":700`) + `]}`,
		"pi_8": `{"object":"list","has_more":false,"data":[` + item(`pi_3Nk1 -> pi_7 ; "succeeded" -> "settling_v2" ; "eur" -> "jpy"`) + `,` + item("pi_3Nk1 -> pi_6 ; true -> false") + `]}`,
	}
	from, to := time.Unix(1789000000, 0), time.Unix(1789100000, 0)
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/v1/payment_intents" || q.Get("created[gte]") != "1789000000" || q.Get("created[lt]") != "1789100000" || q.Get("limit") != "100" ||
			r.Header.Get("Authorization") != "Bearer "+marked {
			t.Errorf("asked %s %s", r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, pages[q.Get("starting_after")])
	})
	a := adapter(t, config(base, 10*time.Second))
	var all []gateway.Listed
	for next, n := "", 0; n == 0 || next != ""; n++ {
		page, err := a.List(context.Background(), gateway.Period{From: from, To: to, Next: next})
		if err != nil {
			t.Fatal(err)
		}
		all, next = append(all, page.Payments...), page.Next
	}
	for i, want := range []gateway.Listed{
		{Reference: "pi_9", AmountMinor: 1000, Currency: "EUR", Answer: gateway.Answer{Class: gateway.Final, Status: payment.Succeeded}},
		{Reference: "pi_8", AmountMinor: 700, Currency: "EUR", Answer: gateway.Answer{Class: gateway.Final, Status: payment.Succeeded}},
		{Reference: "pi_7", AmountMinor: 1000, Currency: "JPY", Answer: gateway.Answer{Class: gateway.UnknownStatus}},
		{Reference: "pi_6", AmountMinor: 1000, Currency: "EUR", Answer: gateway.Answer{Class: gateway.Mismatch}},
	} {
		got := all[i]
		if got.Reference != want.Reference || got.AmountMinor != want.AmountMinor || got.Currency != want.Currency || got.Answer.Class != want.Answer.Class ||
			got.Answer.Status != want.Answer.Status || !got.CreatedAt.Equal(time.Unix(1789020000, 0)) {
			t.Errorf("%d is %+v, want %+v", i, got, want)
		}
	}
	if len(all) != 4 {
		t.Errorf("%d payments", len(all))
	}
}

func TestListThatIsNone(t *testing.T) {
	for body, want := range map[string]string{good: "malformed", `{"data":{}}`: "malformed", `<html>`: "malformed", `{"data":[1,null,{}],"has_more":true}`: ""} {
		base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, body)
		})
		page, err := adapter(t, config(base, 10*time.Second)).List(context.Background(), gateway.Period{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		for _, p := range page.Payments {
			if p.Answer.Class == gateway.Final {
				t.Errorf("%s: %+v", body, p)
			}
		}
	}
	base := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) })
	c := config(base, 10*time.Second)
	c.Accounts = map[string]stripe.Credentials{"eu": {Key: secret.New(marked)}}
	for account, want := range map[string]string{"": "unauthorized", "us": "no credentials for account"} {
		if _, err := adapter(t, c).List(context.Background(), gateway.Period{Account: account}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), marked) {
			t.Errorf("%q: %v", account, err)
		}
	}
}
