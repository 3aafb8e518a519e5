package gatewaysim

import (
	"net/http"
	"strings"
	"testing"

	"pollux/internal/payment"

	"github.com/google/go-cmp/cmp"
)

func TestPaymentIsPendingAsOftenAsItsScriptSaysAndThenFinal(t *testing.T) {
	s := start(t, Config{}, Conditions{})
	must(t, s.Register([]Payment{{"a", 5, "JPY", Script{Pending: 2, Detail: "requires_action", Final: payment.Cancelled}}}))
	client := freshClient(t)
	var got []string
	for range 4 {
		_, body := read(t, client, s, "a")
		got = append(got, decode(t, body).Status)
	}
	if diff := cmp.Diff([]string{"requires_action", "requires_action", "canceled", "canceled"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCallThatFailsTakesNothingFromTheScript(t *testing.T) {
	s := start(t, Config{}, allOf(Unavailable))
	must(t, s.Register([]Payment{{"a", 5, "JPY", Script{Pending: 1}}}))
	client := freshClient(t)
	read(t, client, s, "a")
	read(t, client, s, "a")
	must(t, s.SetConditions(Conditions{}))
	if _, body := read(t, client, s, "a"); decode(t, body).Status != "processing" {
		t.Errorf("got %s", body)
	}
}

func TestReferenceMaySayItselfWhatItsPaymentIs(t *testing.T) {
	cases := map[string]struct {
		http   int
		status string
		truth  string
	}{
		"demo_1999_EUR":                        {200, "succeeded", "succeeded"},
		"my_own-order.7_5_JPY_failed":          {200, "failed", "failed"},
		"demo_1_KWD_canceled":                  {200, "canceled", "cancelled"},
		"demo_1_KWD_cancelled":                 {200, "canceled", "cancelled"},
		"demo_1_KWD_expired":                   {200, "expired", "expired"},
		"demo_0_KWD_succeeded":                 {200, "succeeded", "succeeded"},
		"demo_1_KWD_pending":                   {200, "processing", Review},
		"demo_1_KWD_unknown_status":            {200, "settling_v2", Review},
		"demo_1_KWD_http_503":                  {503, "", Review},
		"demo_1_KWD_not_found":                 {404, "", Review},
		"demo":                                 {404, "", ""},
		"demo_1999_eur":                        {404, "", ""},
		"demo_1999_EUR_paid":                   {404, "", ""},
		"demo_-1_EUR":                          {404, "", ""},
		"demo_99999999999999999_EUR":           {404, "", ""},
		"_1999_EUR":                            {404, "", ""},
		"demo%2F_1999_EUR":                     {404, "", ""},
		"demo%00_1999_EUR":                     {404, "", ""},
		"d%22emo_1999_EUR":                     {404, "", ""},
		strings.Repeat("a", 128) + "x":         {404, "", ""},
		strings.Repeat("a", 120) + "_1999_EUR": {404, "", ""},
	}
	s := start(t, Config{}, Conditions{})
	client := freshClient(t)
	for reference, want := range cases {
		resp, body := read(t, client, s, reference)
		if got := decode(t, body).Status; resp.StatusCode != want.http || got != want.status {
			t.Errorf("%.40s: %d %q, want %d %q", reference, resp.StatusCode, got, want.http, want.status)
		}
		if got, known := s.Truth(reference); got != want.truth || known != (want.truth != "") {
			t.Errorf("%.40s: truth %q, want %q", reference, got, want.truth)
		}
	}
	for _, c := range s.Log() {
		if len(c.Reference) > MaxReference {
			t.Errorf("logged %d bytes of a reference", len(c.Reference))
		}
	}
}

func TestRegistrationIsStrictAndRepeatable(t *testing.T) {
	good := Payment{"a", 5, "JPY", Script{Pending: 1, Final: payment.Failed}}
	s := New(Config{})
	must(t, s.Register([]Payment{good}))
	must(t, s.Register([]Payment{good}))
	other := good
	other.AmountMinor++
	bad := map[string]Payment{
		"registered already":      other,
		"reference":               {"a/b", 5, "JPY", Script{}},
		"amount_minor -1":         {"b", -1, "JPY", Script{}},
		"amount_minor 1000000000": {"b", MaxAmountMinor + 1, "JPY", Script{}},
		"currency":                {"b", 5, "JP", Script{}},
		"script.pending":          {"b", 5, "JPY", Script{Pending: -1}},
		"script.detail":           {"b", 5, "JPY", Script{Detail: "succeeded"}},
		"script.final":            {"b", 5, "JPY", Script{Final: "canceled"}},
		"script.flaw rate":        {"b", 5, "JPY", Script{Flaw: RateLimited}},
		"script.flaw unauth":      {"b", 5, "JPY", Script{Flaw: Unauthorized}},
	}
	for want, p := range bad {
		if err := s.Register([]Payment{p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", p, err, want)
		}
	}
	if n := s.Stats().Payments; n != 1 {
		t.Errorf("%d payments are registered", n)
	}
}

func TestFullSimulatorTakesNoMorePayments(t *testing.T) {
	s := start(t, Config{Capacity: 2}, Conditions{})
	if got := s.Generate(5, "x"); len(got) != 2 {
		t.Errorf("generated %d payments, there is place for 2", len(got))
	}
	if err := s.Register([]Payment{{"a", 5, "JPY", Script{}}}); err == nil || !strings.Contains(err.Error(), "Config.Capacity") {
		t.Errorf("got %v", err)
	}
	if resp, _ := read(t, freshClient(t), s, "demo_1999_EUR"); resp.StatusCode != 404 {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestMismatchByChanceMakesItAPersonsMatter(t *testing.T) {
	s := start(t, Config{}, allOf(OtherAmount))
	must(t, s.Register([]Payment{{"a", 5, "JPY", Script{}}, {"b", 5, "JPY", Script{}}}))
	client := freshClient(t)
	read(t, client, s, "a")
	must(t, s.SetConditions(Conditions{}))
	read(t, client, s, "b")
	must(t, s.SetConditions(allOf(OtherAmount)))
	read(t, client, s, "b") // it was told its final status before
	a, _ := s.Truth("a")
	b, _ := s.Truth("b")
	if a != Review || b != "succeeded" {
		t.Errorf("truths %s and %s", a, b)
	}
}

func TestWrongKeyAndWrongMethodAreRefused(t *testing.T) {
	s := start(t, Config{APIKey: "right"}, Conditions{})
	client := freshClient(t)
	call := func(method, authorization string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+paymentsPath+"demo_1999_EUR", nil)
		must(t, err)
		r.Header.Set("Authorization", authorization)
		resp, err := client.Do(r)
		must(t, err)
		must(t, resp.Body.Close())
		return resp.StatusCode
	}
	for authorization, want := range map[string]int{
		"Bearer right": 200, "": 401, "Bearer": 401, "Bearer wrong": 401, "right": 401, "Bearer right2": 401, "bearer right": 401,
	} {
		if got := call("GET", authorization); got != want {
			t.Errorf("Authorization %q: %d, want %d", authorization, got, want)
		}
	}
	if got := call("POST", "Bearer right"); got != 405 {
		t.Errorf("POST: %d", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
