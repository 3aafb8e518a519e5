package httpjson

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// FuzzAnswer reads whole answers. None makes the reader panic, and an answer is final only where encoding/json finds in the same body
// exactly what a success must have.
func FuzzAnswer(f *testing.F) {
	a, err := New(Config{
		URL:        "https://a.example/{reference}",
		Pointers:   Pointers{Status: "/status", Detail: "/reason", ID: "/id", Amount: "/amount", Currency: "/currency", ErrorCode: "/code", ErrorMessage: "/message", RetryAfter: "/wait", UpdatedAt: "/at"},
		Statuses:   map[string]string{"paid": "succeeded", "declined": "failed", "open": "pending", "closed/late": "expired"},
		ErrorCodes: map[string]string{"1": "not_found", "2": "pending", "3": "mismatch", "400/4": "rate_limited"},
		Success:    Success{Pointer: "/result", IsNot: []string{"failure"}},
		Amount:     Amount{Unit: "major"},
	})
	if err != nil {
		f.Fatal(err)
	}
	q := gateway.Query{Reference: "pay_1", AmountMinor: 1050, Currency: "EUR"}
	hide := httpclient.NewRedactor("hunter-two")
	for _, body := range []string{
		`{"id":"pay_1","status":"paid","amount":"10.50","currency":"eur"}`, `{"id":"pay_1","status":"declined"}`, `{"id":"pay_1","status":"closed","reason":"late"}`,
		`{"result":"failure","code":"1","message":"x"}`, `{"code":2,"wait":1e9}`, `{}`, `null`, ``, `<html>`, `{"status":{"a":1}}`, `{"id":"pay_1","status":"new","at":"hunter-two"}`,
	} {
		for _, status := range []int{200, 302, 404, 429, 500} {
			f.Add(status, "application/json", "120", []byte(body), false)
		}
	}
	f.Add(200, "text/html; charset=ISO-8859-9", "Thu, 10 Sep 2026 06:02:00 GMT", []byte("\xddi\xfe"), true)
	f.Fuzz(func(t *testing.T, status int, kind, retryAfter string, body []byte, broken bool) {
		var callErr error
		if broken {
			callErr = &httpclient.Error{Kind: httpclient.CutBody}
		}
		resp := httpclient.Response{Status: status, Header: http.Header{"Content-Type": {kind}, "Retry-After": {retryAfter}}, Body: body}
		ans := a.reader.read(reply.Call{Query: q, Hide: hide, HTTP: resp, Err: callErr}, new(strictjson.Document), time.Unix(1789020000, 0))
		gatewaytest.Check(t, ans)
		if strings.Contains(ans.Message+ans.GatewayStatus+ans.Detail, "hunter-two") {
			t.Fatalf("it shows a secret: %+v", ans)
		}
		if ans.Class != gateway.Final {
			return
		}
		if err := deservesFinal(status, broken, body, ans.Status); err != nil {
			t.Fatalf("final, but %v: %+v", err, ans)
		}
	})
}

// deservesFinal looks at an answer with the standard library.
func deservesFinal(status int, broken bool, body []byte, got payment.Status) error {
	var doc struct {
		ID, Status, Reason, Result any
		Amount                     any
		Currency                   any
	}
	var keys map[string]json.RawMessage
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.UseNumber()
	switch {
	case status < 200 || status > 203 || broken:
		return errors.New("the call did not go well")
	case !utf8.Valid(body) || !json.Valid(body):
		return errors.New("it is not JSON")
	case json.Unmarshal(body, &keys) != nil:
		return errors.New("it is no object")
	}
	for name, to := range map[string]*any{"id": &doc.ID, "status": &doc.Status, "reason": &doc.Reason, "result": &doc.Result, "amount": &doc.Amount, "currency": &doc.Currency} {
		if raw, ok := keys[name]; ok {
			n := json.NewDecoder(strings.NewReader(string(raw)))
			n.UseNumber()
			if err := n.Decode(to); err != nil {
				return err
			}
		}
	}
	want := map[any]payment.Status{"paid": payment.Succeeded, "declined": payment.Failed, "closed": payment.Expired}[doc.Status]
	switch {
	case doc.ID != "pay_1" || doc.Result == "failure":
		return errors.New("it is about something else")
	case want != got || doc.Status == "closed" && doc.Reason != "late":
		return errors.New("its status is another")
	case got == payment.Succeeded && (doc.Amount == nil || doc.Currency == nil):
		return errors.New("a success without money")
	}
	return nil
}

// FuzzTemplate puts anything into a question. It stays the question that it was: the host, the segments of the path and the parameters
// are those of the template, and the values come back as they were.
func FuzzTemplate(f *testing.F) {
	a, err := New(Config{
		URL:      "https://a.example/v1/{account}/payments/{reference}?order={merchant_reference}&v=2",
		Method:   "POST",
		Body:     `{"id":"{reference}","n":{"order":"{merchant_reference}"}}`,
		Pointers: Pointers{Status: "/status"},
		Statuses: map[string]string{"paid": "succeeded"},
	})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"pay_1", "../../admin", "a/b?c#d", "%2e%2e", `"},"x":{"`, "\\", "é", "\x00", "..;/", "@evil.example", "{reference}", "a b+c", "\xff"} {
		f.Add(s, "acc", "order")
		f.Add("pay", s, s)
	}
	f.Fuzz(func(t *testing.T, reference, accountName, order string) {
		q := gateway.Query{Reference: reference, Account: accountName, MerchantRef: order}
		r, why := a.request(t.Context(), q, a.fallback, new(scratch))
		if why != "" {
			return
		}
		u, err := url.Parse(r.URL)
		if err != nil {
			t.Fatalf("%q: %v", r.URL, err)
		}
		segments := strings.Split(u.EscapedPath(), "/")
		if u.Scheme != "https" || u.Host != "a.example" || u.User != nil || u.Fragment != "" || len(segments) != 5 || segments[1] != "v1" || segments[3] != "payments" {
			t.Fatalf("%+v changes the question: %s", q, r.URL)
		}
		if clean := u.JoinPath(); clean.EscapedPath() != u.EscapedPath() {
			t.Fatalf("%+v changes the path: %s becomes %s", q, r.URL, clean)
		}
		account, err1 := url.PathUnescape(segments[2])
		ref, err2 := url.PathUnescape(segments[4])
		values, err3 := url.ParseQuery(u.RawQuery)
		if err1 != nil || err2 != nil || err3 != nil || account != accountName || ref != reference || len(values) != 2 || values.Get("order") != order || values.Get("v") != "2" {
			t.Fatalf("%+v comes back otherwise: %s", q, r.URL)
		}
		var body struct {
			ID string
			N  struct{ Order string }
		}
		if err := json.Unmarshal(r.Body, &body); err != nil || body.ID != reference || body.N.Order != order {
			t.Fatalf("%+v comes back otherwise: %s", q, r.Body)
		}
		if new(strictjson.Document).Parse(r.Body) != nil {
			t.Fatalf("the body is not strict: %s", r.Body)
		}
	})
}
