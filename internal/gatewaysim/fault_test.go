package gatewaysim

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answer is the dialect, read the way a client reads it.
type answer struct {
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Livemode  *bool     `json:"livemode"`
	UpdatedAt time.Time `json:"updated_at"`
	Error     *struct{ Code, Message string }
}

func decode(t testing.TB, body string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return a
}

// TestFaultsThatAreWholeAnswers looks at each fault that comes as a complete HTTP answer.
func TestFaultsThatAreWholeAnswers(t *testing.T) {
	right := answer{ID: "demo_1999_EUR", Status: "succeeded", Amount: 1999, Currency: "EUR"}
	otherID, otherAmount, otherCurrency, unknown := right, right, right, right
	otherID.ID, otherAmount.Amount, otherCurrency.Currency, unknown.Status = "other_demo_1999_EUR", 19, "USD", "settling_v2"

	cases := map[Outcome]struct {
		status int
		kind   string
		body   string  // when the body is not JSON worth reading
		json   *answer // when it tells a payment
		code   string  // when it tells an error
	}{
		Answered:      {status: 200, kind: "application/json", json: &right},
		ServerError:   {status: 500, kind: "application/json", code: "internal_error"},
		BadGateway:    {status: 502, kind: "text/html; charset=utf-8", body: page},
		Unavailable:   {status: 503, kind: "application/json", code: "unavailable"},
		Empty:         {status: 200, kind: "application/json", body: ""},
		EmptyObject:   {status: 200, kind: "application/json", body: "{}"},
		Null:          {status: 200, kind: "application/json", body: "null"},
		HTML:          {status: 200, kind: "text/html; charset=utf-8", body: page},
		OtherID:       {status: 200, kind: "application/json", json: &otherID},
		OtherAmount:   {status: 200, kind: "application/json", json: &otherAmount},
		OtherCurrency: {status: 200, kind: "application/json", json: &otherCurrency},
		UnknownStatus: {status: 200, kind: "application/json", json: &unknown},
		Unauthorized:  {status: 401, kind: "application/json", code: "invalid_api_key"},
		NotFound:      {status: 404, kind: "application/json", code: "payment_not_found"},
	}
	for outcome, want := range cases {
		t.Run(outcome.String(), func(t *testing.T) {
			c := Conditions{}
			if outcome != Answered {
				c = allOf(outcome)
			}
			s := start(t, Config{}, c)
			resp, body := read(t, freshClient(t), s, "demo_1999_EUR")
			if resp.StatusCode != want.status || resp.Header.Get("Content-Type") != want.kind {
				t.Errorf("got %d %s, want %d %s", resp.StatusCode, resp.Header.Get("Content-Type"), want.status, want.kind)
			}
			switch {
			case want.json != nil:
				got := decode(t, body)
				if got.Livemode == nil || *got.Livemode || time.Since(got.UpdatedAt) > time.Hour {
					t.Errorf("livemode and updated_at in %s", body)
				}
				got.Livemode, got.UpdatedAt = nil, time.Time{}
				if diff := cmp.Diff(*want.json, got); diff != "" {
					t.Error(diff)
				}
			case want.code != "":
				got := decode(t, body)
				if got.Error == nil || got.Error.Code != want.code || got.Error.Message == "" {
					t.Errorf("body %s, want an error with the code %s", body, want.code)
				}
			case body != want.body:
				t.Errorf("body %q, want %q", body, want.body)
			}
			call := logged(t, s, 1)[0]
			if call.Outcome != outcome || call.Status != want.status || call.N != 1 || call.Reference != "demo_1999_EUR" {
				t.Errorf("logged %+v", call)
			}
		})
	}
}

func TestResetEndsTheConnectionBeforeTheAnswer(t *testing.T) {
	s := start(t, Config{}, allOf(Reset))
	_, err := ask(t.Context(), freshClient(t), s, "demo_1999_EUR")
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	if call := logged(t, s, 1)[0]; call.Outcome != Reset || call.Status != 0 || call.Told != "" {
		t.Errorf("logged %+v", call)
	}
}

func TestTimeoutIsNeverAnswered(t *testing.T) {
	s := start(t, Config{}, allOf(Timeout))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := ask(ctx, freshClient(t), s, "demo_1999_EUR"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if call := logged(t, s, 1)[0]; call.Outcome != Timeout || call.Status != 0 {
		t.Errorf("logged %+v", call)
	}
}

func TestTimeoutIsDroppedWhenPatienceEnds(t *testing.T) {
	s := start(t, Config{Patience: time.Millisecond}, allOf(Timeout))
	if _, err := ask(t.Context(), freshClient(t), s, "demo_1999_EUR"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestCutBodiesEndTooEarly(t *testing.T) {
	for outcome, some := range map[Outcome]bool{CutHeaders: false, CutBody: true} {
		t.Run(outcome.String(), func(t *testing.T) {
			s := start(t, Config{}, allOf(outcome))
			resp, err := ask(t.Context(), freshClient(t), s, "demo_1999_EUR")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if !errors.Is(err, io.ErrUnexpectedEOF) || resp.StatusCode != 200 || len(b) > 0 != some {
				t.Errorf("got %d, %q, %v", resp.StatusCode, b, err)
			}
			if call := logged(t, s, 1)[0]; call.Outcome != outcome || call.Status != 200 || call.Told != "" {
				t.Errorf("logged %+v", call)
			}
		})
	}
}

func TestDripComesByteByByte(t *testing.T) {
	s := start(t, Config{}, allOf(Drip))
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := ask(ctx, freshClient(t), s, "demo_1999_EUR")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 64)
	n, err := resp.Body.Read(b)
	if n != 1 || b[0] != '{' || err != nil || resp.ContentLength < 100 {
		t.Errorf("got %q of %d bytes, %v", b[:n], resp.ContentLength, err)
	}
	cancel()
	if call := logged(t, s, 1)[0]; call.Outcome != Drip || call.Told != "" {
		t.Errorf("logged %+v", call)
	}
}

func TestRedirectLeadsToAnotherHostThatNoticesTheKey(t *testing.T) {
	s := start(t, Config{}, allOf(Redirect))
	careful := freshClient(t)
	resp, _ := read(t, careful, s, "demo_1999_EUR")
	location, err := resp.Location()
	if err != nil || resp.StatusCode != http.StatusFound {
		t.Fatal(resp.StatusCode, err)
	}
	if location.Hostname() == resp.Request.URL.Hostname() || location.Port() != resp.Request.URL.Port() {
		t.Errorf("from %s to %s", resp.Request.URL, location)
	}
	if got := s.Stats(); got.Followed != 0 || got.Leaked != 0 {
		t.Errorf("a careful client was counted: %+v", got)
	}

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+paymentsPath+"demo_1999_EUR", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+DefaultAPIKey)
	r.Header.Set("X-Api-Key", DefaultAPIKey) // net/http takes Authorization out, but not this
	tr := &http.Transport{DisableKeepAlives: true, Proxy: nil}
	resp, err = (&http.Client{Transport: tr}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := s.Stats(); got.Followed != 1 || got.Leaked != 1 || resp.StatusCode != http.StatusTeapot {
		t.Errorf("a careless client got %d and was counted %+v", resp.StatusCode, got)
	}
}

func TestGzipBombIsSmallOnTheWireAndAGoodAnswerAtItsEnd(t *testing.T) {
	s := start(t, Config{}, allOf(GzipBomb))
	resp, body := read(t, freshClient(t), s, "demo_1999_EUR")
	if len(body) > 2<<20 || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%d bytes, %v", len(body), resp.Header)
	}
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyN(io.Discard, z, BombSize); err != nil {
		t.Fatalf("only %d bytes: %v", n, err)
	}
	rest, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(t, string(bytes.TrimSpace(rest))); got.ID != "demo_1999_EUR" || got.Status != "succeeded" {
		t.Errorf("got %+v", got)
	}
}

func TestRateLimitAnswersWithRetryAfterInBothForms(t *testing.T) {
	s := start(t, Config{}, Conditions{Limit: Limit{Rate: 0.001, Burst: 1, RetryAfter: 1500 * time.Millisecond}})
	client := freshClient(t)
	if resp, _ := read(t, client, s, "demo_1999_EUR"); resp.StatusCode != 200 {
		t.Fatalf("the first call got %d", resp.StatusCode)
	}
	resp, body := read(t, client, s, "demo_1999_EUR")
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "2" || decode(t, body).Error.Code != "rate_limited" {
		t.Errorf("got %d, %q, %s", resp.StatusCode, resp.Header.Get("Retry-After"), body)
	}

	if err := s.SetConditions(Conditions{Limit: Limit{Rate: 0.001, Burst: 1, RetryAfter: time.Minute, Dates: 1}}); err != nil {
		t.Fatal(err)
	}
	read(t, client, s, "demo_1999_EUR")
	before := time.Now()
	resp, _ = read(t, client, s, "demo_1999_EUR")
	at, err := http.ParseTime(resp.Header.Get("Retry-After"))
	if err != nil {
		t.Fatal(err)
	}
	if at.Before(before.Add(time.Minute)) || at.After(time.Now().Add(time.Minute+time.Second)) {
		t.Errorf("told at %s to come back at %s", before, at)
	}
}

func TestEveryFaultIsShownByName(t *testing.T) {
	for _, f := range Faults {
		name := f.String()
		if got, ok := OutcomeOf(name); !ok || got != f || !f.fault() {
			t.Errorf("%s is read as %s", name, got)
		}
		p, ok := speaking("demo_1999_EUR_" + name)
		if want := f != Unauthorized; ok != want || ok && p.Script.Flaw != f {
			t.Errorf("demo_1999_EUR_%s is read as %+v, %v", name, p, ok)
		}
	}
	if len(Faults) != int(NotFound) {
		t.Errorf("Faults has %d faults, there are %d", len(Faults), NotFound)
	}
}
