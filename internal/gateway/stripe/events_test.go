package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/webhook"
)

func TestEventsAreListedPageByPage(t *testing.T) {
	event := func(id, intent string) string {
		return `{"id":"` + id + `","object":"event","type":"payment_intent.succeeded","created":1789020000,"livemode":true,"data":{"object":` + intent + `}}`
	}
	pages := map[string]string{
		"":      `{"object":"list","has_more":true,"data":[` + event("evt_2", good) + `]}`,
		"evt_2": `{"object":"list","has_more":false,"data":[` + event("evt_1", replaced(good, `"succeeded" -> "settling_v2"`)) + `]}`,
	}
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/v1/events" || q.Get("created[gte]") != "1789000000" || len(q["types[]"]) != 6 || r.Header.Get("Authorization") != "Bearer "+marked {
			t.Errorf("asked %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, pages[q.Get("starting_after")])
	})
	a := adapter(t, config(base, 10*time.Second))
	var all []webhook.Notice
	for after, n := "", 0; n == 0 || after != ""; n++ {
		page, ans := a.Events(context.Background(), "", time.Unix(1789000000, 0), after)
		if ans.Class != gateway.Pending {
			t.Fatalf("%+v", ans)
		}
		all, after = append(all, page.Notices...), page.Next
	}
	if len(all) != 2 || all[0].ID != "evt_2" || all[0].Effect != webhook.Report || all[0].Money.Minor != 1000 || all[1].Fault == "" {
		t.Errorf("%+v", all)
	}
}

func TestEventsThatCannotBeListed(t *testing.T) {
	for body, want := range map[string]gateway.Class{`{"error":{"code":"x"}}`: gateway.Unauthorized, `{}`: gateway.Malformed} {
		base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.Contains(body, "error") {
				w.WriteHeader(http.StatusForbidden)
			}
			fmt.Fprint(w, body)
		})
		if page, ans := adapter(t, config(base, 10*time.Second)).Events(context.Background(), "", time.Unix(1, 0), ""); ans.Class != want || page.Notices != nil {
			t.Errorf("%s: %+v %+v", body, page, ans)
		}
	}
}
