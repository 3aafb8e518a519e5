package razorpay_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/payment"
)

func TestList(t *testing.T) {
	item := func(id int) string {
		return replaced(captured, fmt.Sprintf(`"id":"pay_G8" -> "created_at":1789020000,"id":"pay_%d"`, id))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/v1/payments" || q.Get("from") != "1789000000" || q.Get("to") != "1789099999" || q.Get("count") != "100" {
			t.Errorf("asked %s", r.URL)
		}
		from, n := map[string]int{"0": 0, "100": 100}[q.Get("skip")], map[string]int{"0": 100, "100": 3}[q.Get("skip")]
		var items []string
		for i := range n {
			items = append(items, item(from+i))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"entity":"collection","count":%d,"items":[%s]}`, n, strings.Join(items, ","))
	}))
	defer s.Close()
	a := adapter(t, config(s.URL, 10*time.Second))
	seen := map[string]bool{}
	for next, n := "", 0; n == 0 || next != ""; n++ {
		page, err := a.List(context.Background(), gateway.Period{From: time.Unix(1789000000, 0), To: time.Unix(1789100000, 0), Next: next})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Payments {
			seen[p.Reference] = true
			if p.Answer.Status != payment.Succeeded || p.AmountMinor != 1000 || p.Currency != "INR" || p.Parent != "order_DB" || p.CreatedAt.Unix() != 1789020000 {
				t.Fatalf("got %+v", p)
			}
		}
		next = page.Next
	}
	if len(seen) != 103 {
		t.Errorf("%d payments", len(seen))
	}
	if _, err := a.List(context.Background(), gateway.Period{Next: "x"}); err == nil {
		t.Error("a place that is none was taken")
	}
}
