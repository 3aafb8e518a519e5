package gatewaysim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/payment"
)

// pipes is a network in memory: in a synctest bubble the windows of a scenario pass in no time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
	case <-ctx.Done():
	}
	return nil, errors.New("nobody listens")
}

// patient is a client that does what a correct one does, and no more.
type patient struct {
	http *http.Client
	base string
}

// finish polls a payment until it is final or nothing but a person can help.
func (c patient) finish(ctx context.Context, p Payment) string {
	failures, answers := 0, 0
	for failures < 12 && answers < 20 {
		verdict, pause, failed := c.poll(ctx, p)
		if verdict != "" {
			return verdict
		}
		if failed {
			pause = max(pause, min(100*time.Millisecond<<failures, 2*time.Second))
			failures++
		} else if pause == 0 {
			pause, failures, answers = 200*time.Millisecond, 0, answers+1
		}
		<-time.After(pause)
	}
	return Review
}

// poll asks once: a verdict, or how long the gateway asked to wait, or that nothing was learned.
func (c patient) poll(ctx context.Context, p Payment) (verdict string, pause time.Duration, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+paymentsPath+p.Reference, nil)
	if err != nil {
		return "", 0, true
	}
	r.Header.Set("Authorization", "Bearer "+DefaultAPIKey)
	resp, err := c.http.Do(r)
	if err != nil {
		return "", 0, true
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		return "", retryAfter(resp), false
	case resp.StatusCode == http.StatusUnauthorized:
		return "", time.Second, false
	case err != nil || resp.StatusCode != http.StatusOK:
		return "", 0, true
	}
	var a struct {
		ID, Status, Currency string
		Amount               int64
	}
	if json.Unmarshal(body, &a) != nil || a.ID == "" {
		return "", 0, true
	}
	if a.ID != p.Reference || a.Amount != p.AmountMinor || a.Currency != p.Currency {
		return Review, 0, false
	}
	return map[string]string{"succeeded": "succeeded", "failed": "failed", "canceled": "cancelled", "expired": "expired"}[a.Status], 0, false
}

func retryAfter(resp *http.Response) time.Duration {
	v := resp.Header.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return time.Until(at)
}

// TestPatientClientFinishesEveryScenarioWithTheTruth plays each scenario in virtual time with 2,000 payments.
func TestPatientClientFinishesEveryScenarioWithTheTruth(t *testing.T) {
	for _, sc := range Scenarios() {
		t.Run(sc.Name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { play(t, sc.Name) }) })
	}
}

func play(t *testing.T, scenario string) {
	s := New(Config{Seed: 42, Scenario: scenario})
	must(t, s.broken)
	network := newPipes()
	s.serve(network)
	defer s.Close()
	tr := &http.Transport{DialContext: network.dial, MaxIdleConnsPerHost: 64, DisableCompression: true}
	defer tr.CloseIdleConnections()
	client := patient{base: "http://127.0.0.1", http: &http.Client{
		Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}

	begun := time.Now()
	payments := s.Generate(2000, "p")
	got := make([]string, len(payments))
	var wg sync.WaitGroup
	for i := range payments {
		wg.Go(func() {
			<-time.After(time.Duration(i) * 2 * time.Millisecond) // 500 a second, so that they meet the windows
			got[i] = client.finish(t.Context(), payments[i])
		})
	}
	wg.Wait()

	ends := map[string]int{}
	for i, p := range payments {
		want, known := s.Truth(p.Reference)
		if !known || got[i] != want {
			t.Errorf("%s: recorded %s, the truth is %s", p.Reference, got[i], want)
		}
		ends[got[i]]++
	}
	took, stats := time.Since(begun), s.Stats()
	t.Logf("%s: %v, %v, %v calls, %d in the densest second", took, ends, stats.Outcomes, stats.Calls, stats.PeakPerSecond)
	if took > 40*time.Second {
		t.Errorf("took %s", took)
	}
	for _, status := range payment.Statuses[1:] {
		if ends[string(status)] == 0 {
			t.Errorf("no payment ended %s", status)
		}
	}
	if (ends[Review] > 0) != (scenario == "wrong") {
		t.Errorf("%d payments ended with a person", ends[Review])
	}
	showsItself(t, scenario, stats, took)
}

// showsItself checks that a scenario does what it says.
func showsItself(t *testing.T, scenario string, stats Stats, took time.Duration) {
	t.Helper()
	o := stats.Outcomes
	faulty := stats.Calls - o["answered"]
	ok := true
	switch scenario {
	case "calm":
		ok = faulty == 0
	case "slow":
		ok = faulty == 0 && stats.Calls > 3*2000
	case "errors":
		ok = o["http_500"] > 0 && o["http_502_html"] > 0 && o["reset"] > 0 && o["timeout"] > 0 && o["cut_body"] > 0 &&
			o["cut_headers"] > 0 && o["not_found"] > 0 && o["drip"] > 0 && o["gzip_bomb"] > 0 && faulty*5 > stats.Calls
	case "throttled":
		ok = o["rate_limited"] > 100 && float64(o["answered"]) <= 100+400*took.Seconds()
	case "outage":
		ok = stats.CallsDown > 100 && o["reset"] > 0 && o["http_503"] > 0 && stats.CallsDown == faulty
	case "hung-probe":
		ok = o["reset"] > 0 && o["timeout"]+o["abandoned"] > 100 && stats.CallsDown >= faulty
	case "flapping":
		ok = stats.CallsDown > 100 && stats.CallsDown == faulty
	case "brownout":
		ok = o["http_503"] > 100 && stats.CallsDown == 0
	case "expired-key":
		ok = o["unauthorized"] > 100 && stats.CallsDown == 0
	case "wrong":
		for _, f := range []Outcome{OtherID, OtherAmount, OtherCurrency, HTML, Empty, UnknownStatus} {
			ok = ok && o[f.String()] > 0
		}
	default:
		t.Fatalf("nobody checks the scenario %s", scenario)
	}
	if !ok {
		t.Errorf("not what the scenario says: %d calls, %v", stats.Calls, o)
	}
}

func TestGeneratedPaymentsDependOnTheSeedAndTheirReferenceAlone(t *testing.T) {
	make100 := func(seed uint64, calls ...int) []Payment {
		s := New(Config{Seed: seed, Scenario: "wrong"})
		var out []Payment
		for _, n := range calls {
			out = append(out, s.Generate(n, "p")...)
		}
		return out
	}
	same := func(a, b []Payment) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return len(a) == len(b)
	}
	if !same(make100(1, 100), make100(1, 30, 0, 70)) {
		t.Error("in one go and in two, they are not the same")
	}
	if same(make100(1, 100), make100(2, 100)) {
		t.Error("another seed made the same payments")
	}
	seen := map[string]bool{}
	for _, p := range make100(1, 1000) {
		seen[p.Currency] = true
		must(t, p.validate())
	}
	if len(seen) != len(monies) {
		t.Errorf("currencies %v", seen)
	}
}

func TestPrefixThatNoReferenceBeginsWithPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it did not panic")
		}
	}()
	New(Config{}).Generate(1, "a b")
}

func TestUnknownScenarioIsSaidAtStart(t *testing.T) {
	err := New(Config{Scenario: "stormy"}).Start("127.0.0.1:0")
	if err == nil || err.Error() != `gateway simulator: scenario "stormy": one of calm, slow, errors, throttled, outage, hung-probe, flapping, brownout, expired-key, wrong` {
		t.Errorf("got %v", err)
	}
}
