package paypal

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/webhook"
)

func TestEventsAreListedPageByPage(t *testing.T) {
	const event = `{"id":"%s","event_type":"PAYMENT.CAPTURE.COMPLETED","resource_type":"capture","create_time":"2026-03-01T12:00:00Z","resource":{"id":"2GG27"}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path != "/v1/notifications/webhooks-events" || r.Header.Get("Authorization") != "Bearer "+marked:
			t.Errorf("asked %s", r.URL)
		case q.Get("page") == "2":
			fmt.Fprintf(w, `{"events":[`+event+`],"links":[]}`, "WH-1")
		case q.Get("start_time") == "2026-03-01T11:00:00Z" && q.Get("page_size") == "100":
			fmt.Fprintf(w, `{"events":[`+event+`],"links":[{"rel":"self","href":"x"},{"rel":"next","href":"https://evil.example/v1/other?page=2"}]}`, "WH-2")
		default:
			t.Errorf("asked %s", r.URL)
		}
	}))
	defer s.Close()
	a := adapter(t, config(s.URL, "capture", 10*time.Second))
	granted(t, a, "", marked)
	var all []webhook.Notice
	for after, n := "", 0; n == 0 || after != ""; n++ {
		page, ans := a.Events(context.Background(), "", time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC), after)
		if ans.Class != gateway.Pending {
			t.Fatalf("%+v", ans)
		}
		all, after = append(all, page.Notices...), page.Next
	}
	if len(all) != 2 || all[0].ID != "WH-2" || all[1].ID != "WH-1" || all[0].Effect != webhook.Hint || all[0].References[0] != "2GG27" {
		t.Errorf("%+v", all)
	}
}
