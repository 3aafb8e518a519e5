package stripemock

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"
	"github.com/stripe/stripe-mock/spec"

	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/stripe"
	"pollux/internal/gateway/vendor"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

const key = "sk_test_123"

// mock starts Stripe's mock server and returns it with the description of the API that it is made from.
func mock(t *testing.T) (string, *spec.Spec) {
	t.Helper()
	api, err := server.LoadSpec(embedded.OpenAPISpec, "")
	if err != nil {
		t.Fatal(err)
	}
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	if err != nil {
		t.Fatal(err)
	}
	stub, err := server.NewStubServer(fixtures, api, false, false)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(stub.HandleRequest))
	t.Cleanup(s.Close)
	return s.URL, api
}

func adapter(t *testing.T, base string) *stripe.Adapter {
	t.Helper()
	a, err := stripe.New(stripe.Config{
		Credentials: stripe.Credentials{Key: secret.New(key)},
		Config: vendor.Config{
			Name: "mock", Mode: "test", BaseURL: base, Config: httpclient.Config{Timeout: 20 * time.Second, AllowHTTP: true, AllowLoopback: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// fixture is the mock's PaymentIntent, as it comes over the wire.
func fixture(t *testing.T, base string) map[string]any {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/payment_intents/pi_mock", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("HTTP %d %v: %s", resp.StatusCode, err, body)
	}
	doc := gatewaytest.Object(body)
	if doc == nil {
		t.Fatalf("no object: %s", body)
	}
	return doc
}

func ask(t *testing.T, base string, doc map[string]any, change func(*gateway.Query)) gateway.Answer {
	t.Helper()
	amount, err := doc["amount"].(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	q := gateway.Query{Payment: 1, Reference: "pi_mock", AmountMinor: amount, Currency: upper(doc["currency"].(string))}
	if change != nil {
		change(&q)
	}
	ans := adapter(t, base).Poll(context.Background(), q)
	gatewaytest.Check(t, ans, key)
	return ans
}

func upper(s string) string {
	b := []byte(s)
	for i := range b {
		b[i] &^= 0x20
	}
	return string(b)
}

// TestTheMockIsUnderstood: the adapter reads what Stripe's own mock sends.
func TestTheMockIsUnderstood(t *testing.T) {
	base, _ := mock(t)
	doc := fixture(t, base)
	if doc["last_payment_error"] == nil {
		t.Fatal("the mock's PaymentIntent had a failed try, and has none now: turn the next two lines around")
	}
	if ans := ask(t, base, doc, nil); ans.Status != payment.Failed || ans.GatewayStatus != "requires_payment_method" || ans.HTTPStatus != 200 {
		t.Errorf("a failed try: %+v", ans)
	}
	if ans := said(t, doc, map[string]any{"last_payment_error": nil}); ans.Class != gateway.Pending || ans.Detail != "requires_action" {
		t.Errorf("no try yet: %+v", ans)
	}
	if ans := ask(t, base, doc, func(q *gateway.Query) { q.AmountMinor++ }); ans.Class != gateway.Mismatch {
		t.Errorf("another amount: %+v", ans)
	}
	if ans := ask(t, base, doc, func(q *gateway.Query) { q.Currency = "EUR" }); ans.Class != gateway.Mismatch {
		t.Errorf("another currency: %+v", ans)
	}
}

// enum are the values that the description of the API has for a field of a PaymentIntent.
func enum(t *testing.T, api *spec.Spec, field string) []string {
	t.Helper()
	property := api.Components.Schemas["payment_intent"].Properties[field]
	if property == nil || len(property.Enum) == 0 {
		t.Fatalf("the description of the API has no values of %s", field)
	}
	var all []string
	for _, v := range property.Enum {
		if s, ok := v.(string); ok && s != "" {
			all = append(all, s)
		}
	}
	slices.Sort(all)
	return all
}

// said polls a PaymentIntent of the mock with some fields changed.
func said(t *testing.T, doc map[string]any, fields map[string]any) gateway.Answer {
	t.Helper()
	changed := map[string]any{}
	for k, v := range doc {
		changed[k] = v
	}
	for k, v := range fields {
		changed[k] = v
	}
	body, err := json.Marshal(changed)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
	defer s.Close()
	return ask(t, s.URL, doc, nil)
}

// TestEveryStatusOfTheAPIIsKnown: a status that Stripe describes and the adapter does not know would raise an alarm for each payment that has it.
func TestEveryStatusOfTheAPIIsKnown(t *testing.T) {
	base, api := mock(t)
	doc := fixture(t, base)
	for _, status := range enum(t, api, "status") {
		ans := said(t, doc, map[string]any{"status": status, "amount_received": doc["amount"]})
		if ans.Class != gateway.Pending && ans.Class != gateway.Final {
			t.Errorf("%s: %+v", status, ans)
		}
		if (ans.Status == payment.Succeeded) != (status == "succeeded") {
			t.Errorf("%s means %s", status, ans.Status)
		}
	}
	for _, why := range enum(t, api, "cancellation_reason") {
		ans := said(t, doc, map[string]any{"status": "canceled", "cancellation_reason": why})
		if ans.Status != payment.Cancelled && ans.Status != payment.Expired || ans.Detail != why {
			t.Errorf("canceled because of %s: %+v", why, ans)
		}
	}
}

// TestTheMockIsListed: a list of the mock is read, and every payment in it as it would be by itself.
func TestTheMockIsListed(t *testing.T) {
	base, _ := mock(t)
	page, err := adapter(t, base).List(context.Background(), gateway.Period{From: time.Unix(1, 0), To: time.Unix(1<<32, 0)})
	if err != nil || len(page.Payments) == 0 {
		t.Fatalf("%d payments, %v", len(page.Payments), err)
	}
	for _, p := range page.Payments {
		if p.Reference == "" || p.AmountMinor <= 0 || p.Currency == "" || p.CreatedAt.IsZero() || p.Answer.Class != gateway.Pending && p.Answer.Class != gateway.Final {
			t.Errorf("got %+v", p)
		}
	}
}
