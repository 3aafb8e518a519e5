package mercadopago

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/payment"
)

func TestList(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/v1/payments/search" || q.Get("begin_date") != "2026-09-10T00:00:00Z" || q.Get("end_date") != "2026-09-10T23:59:59.999Z" || q.Get("range") != "date_created" {
			t.Errorf("asked %s", r.URL)
		}
		offset, err := strconv.Atoi(q.Get("offset"))
		if err != nil {
			t.Error(err)
		}
		var items []string
		for i := offset; i < min(offset+50, 73); i++ {
			items = append(items, replaced(approved, fmt.Sprintf(`2798247250 -> %d ; "status" -> "date_created":"2026-09-10T12:00:00.000-04:00","status"`, 1000+i)))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"paging":{"total":73,"limit":50,"offset":%d},"results":[%s]}`, offset, strings.Join(items, ","))
	}))
	defer s.Close()
	a := adapter(t, config(s.URL, 10*time.Second))
	day := time.Date(2026, 9, 10, 0, 0, 0, 0, time.UTC)
	seen := map[string]bool{}
	for next, n := "", 0; n == 0 || next != ""; n++ {
		page, err := a.List(context.Background(), gateway.Period{From: day, To: day.Add(24 * time.Hour), Next: next})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Payments {
			seen[p.Reference] = true
			if p.Answer.Status != payment.Succeeded || p.AmountMinor != 5880 || p.Currency != "BRL" || p.MerchantRef != "order-7" || p.CreatedAt.Hour() != 16 {
				t.Fatalf("got %+v", p)
			}
		}
		next = page.Next
	}
	if len(seen) != 73 {
		t.Errorf("%d payments", len(seen))
	}
}
