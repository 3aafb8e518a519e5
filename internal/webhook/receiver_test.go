package webhook_test

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/webhook"
)

// post sends a body to a path, signed unless a signature is given.
func (d *door) post(path, body string, signature ...string) *http.Response {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Sum", sum(body))
	if signature != nil {
		r.Header.Set("Sum", signature[0])
	}
	w := httptest.NewRecorder()
	d.receiver.ServeHTTP(w, r)
	return w.Result()
}

func text(tb testing.TB, r *http.Response) string {
	tb.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func TestAGenuineNotificationIsKeptBeforeItIsAnswered(t *testing.T) {
	d := newDoor(t, roomy, &memory{})
	if r := d.post("/webhooks/acme", "e1 pay_1 succeeded live"); r.StatusCode != 200 || text(t, r) != "[accepted]\n" {
		t.Errorf("%d", r.StatusCode)
	}
	a, ok := d.record.get("e1")
	if !ok || a.Gateway != "acme" || a.Key != "current" || a.Body != nil || a.References[0] != "pay_1" {
		t.Errorf("%+v", a)
	}
	if r := d.post("/webhooks/acme", "e1 pay_1 succeeded live"); r.StatusCode != 200 {
		t.Errorf("again: %d", r.StatusCode)
	}
	for words, want := range map[string]int{"request acme accepted": 2, "notice acme applied": 1, "notice acme duplicate": 1} {
		if got := d.meter.of(words); got != want {
			t.Errorf("%s: %d", words, got)
		}
	}
}

func TestEveryFailedCheckHasTheSameAnswer(t *testing.T) {
	d := newDoor(t, roomy, &memory{})
	answers := map[string]bool{}
	for name, r := range map[string]*http.Response{
		"unsigned":                 d.post("/webhooks/acme", "e1 pay_1 succeeded", ""),
		"present, not computed":    d.post("/webhooks/acme", "e1 pay_1 succeeded", strings.Repeat("0", 64)),
		"another body":             d.post("/webhooks/acme", "e1 pay_1 succeeded", sum("e1 pay_1 succeeded ")),
		"another account's key":    d.post("/webhooks/acme/eu", "e1 pay_1 succeeded"),
		"an unknown account":       d.post("/webhooks/acme/us", "e1 pay_1 succeeded"),
		"an unknown gateway":       d.post("/webhooks/other", "e1 pay_1 succeeded"),
		"another path":             d.post("/", "e1 pay_1 succeeded"),
		"a slash at the end":       d.post("/webhooks/acme/", "e1 pay_1 succeeded"),
		"too large":                d.post("/webhooks/acme", strings.Repeat("e", 2<<10)),
		"all of a batch is forged": d.post("/webhooks/acme", "forged\nforged"),
	} {
		r.Header.Del("Date")
		var b strings.Builder
		_ = r.Header.Write(&b)
		answers[r.Status+b.String()+text(t, r)] = true
		if r.StatusCode != 401 {
			t.Errorf("%s: %d", name, r.StatusCode)
		}
	}
	if len(answers) != 1 {
		t.Errorf("%d different answers: %v", len(answers), answers)
	}
	if len(d.record.kept) != 0 {
		t.Errorf("kept: %v", d.record.kept)
	}
	r := httptest.NewRecorder()
	d.receiver.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/webhooks/acme", nil))
	if r.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", r.Code)
	}
}

func TestABatchIsJudgedItemByItem(t *testing.T) {
	d := newDoor(t, roomy, &memory{})
	if r := d.post("/webhooks/acme", "e1 pay_1 succeeded\nforged\ne3 pay_3 failed\ne4 pay_4"); r.StatusCode != 200 {
		t.Errorf("%d", r.StatusCode)
	}
	for id, fault := range map[string]string{"e1": "", "e3": "", "e4": "it names no payment"} {
		if a, ok := d.record.get(id); !ok || a.Fault != fault {
			t.Errorf("%s: %t %+v", id, ok, a)
		}
	}
	if d.meter.of("refused acme signature") != 1 || d.meter.of("notice acme applied") != 2 || d.meter.of("notice acme quarantined") != 1 {
		t.Error(d.meter.counts)
	}
}

func TestWhatIsGenuineAndOfNoUseIsSetAsideAndAnswered(t *testing.T) {
	d := newDoor(t, roomy, &memory{})
	for body, want := range map[string]string{
		"":                        "the body is empty",
		"e1 pay_1 succeeded test": "it is about test payments, and this endpoint is for live ones",
		"e2 pay_1 refunded":       "it says nothing about a status",
		"e3 pay\u00e91 succeeded": "its reference is not 1 to 255 printable characters",
		strings.Repeat("e", 256) + " pay succeeded": "its id is not 1 to 255 printable characters",
	} {
		if r := d.post("/webhooks/acme", body); r.StatusCode != 200 {
			t.Errorf("%q: %d", body, r.StatusCode)
		}
		id, _, _ := strings.Cut(body, " ")
		if len(id) > 255 || body == "" {
			id = webhook.DigestID([]byte(body))
		}
		if a, ok := d.record.get(id); !ok || a.Fault != want || string(a.Body) != body || a.Effect != webhook.Nothing {
			t.Errorf("%q: %t %+v", body, ok, a)
		}
	}
}

func TestWhatCannotBeKeptNowComesAgain(t *testing.T) {
	d := newDoor(t, roomy, &memory{}, webhook.Endpoint{Gateway: "acme", Scheme: plain{keys: webhook.Keys{secret}}}, webhook.Endpoint{Gateway: "slow", Scheme: plain{gone: true}})
	d.record.set(errors.New("the database is away"))
	r := d.post("/webhooks/acme", "e1 pay_1 succeeded")
	if r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
		t.Errorf("%d", r.StatusCode)
	}
	if r := d.post("/webhooks/slow", "e1 pay_1 succeeded"); r.StatusCode != 503 {
		t.Errorf("it could not be checked: %d", r.StatusCode)
	}
	d.record.set(nil)
	if r := d.post("/webhooks/acme", "e1 pay_1 succeeded"); r.StatusCode != 200 {
		t.Errorf("the database is back: %d", r.StatusCode)
	}
	if d.meter.of("request acme unavailable") != 1 || d.meter.of("request slow unavailable") != 1 {
		t.Error(d.meter.counts)
	}
}

func TestWhatTheDatabaseRefusesIsFoundAndSetAside(t *testing.T) {
	record := &memory{refuse: "e3", gate: make(chan struct{}), waits: make(chan struct{}, 64)}
	d := newDoor(t, roomy, record)
	var tasks sync.WaitGroup
	send := func(body string) {
		tasks.Go(func() {
			if r := d.post("/webhooks/acme", body); r.StatusCode != 200 {
				t.Errorf("%q: %d", body, r.StatusCode)
			}
		})
	}
	send("e0 pay succeeded")
	<-record.waits // the first is being written: the others gather
	for _, body := range []string{"e1 pay succeeded", "e2 pay succeeded\ne3 pay succeeded\ne4 pay succeeded", "e5 pay succeeded"} {
		send(body)
	}
	close(record.gate)
	tasks.Wait()
	for _, id := range []string{"e0", "e1", "e2", "e4", "e5"} {
		if a, ok := record.get(id); !ok || a.Fault != "" {
			t.Errorf("%s: %t %+v", id, ok, a)
		}
	}
	if a, ok := record.get(webhook.DigestID([]byte("e2 pay succeeded\ne3 pay succeeded\ne4 pay succeeded"))); !ok || !strings.Contains(a.Fault, "SQLSTATE 22021") {
		t.Errorf("%t %+v", ok, a)
	}
}

func TestOnlyVerifiedNotificationsTakeThePlacesOfThoseThatAreKept(t *testing.T) {
	record := &memory{gate: make(chan struct{}), waits: make(chan struct{}, 64)}
	cfg := roomy
	cfg.Keeping = 1
	d := newDoor(t, cfg, record)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if r := d.post("/webhooks/acme", "e1 pay succeeded"); r.StatusCode != 200 {
			t.Errorf("%d", r.StatusCode)
		}
	})
	<-record.waits
	if r := d.post("/webhooks/acme", "e2 pay succeeded"); r.StatusCode != 503 || d.meter.of("request acme full") != 1 {
		t.Errorf("one too many: %d", r.StatusCode)
	}
	if r := d.post("/webhooks/acme", "e3 pay succeeded", "00"); r.StatusCode != 401 {
		t.Errorf("forged: %d", r.StatusCode)
	}
	close(record.gate)
	tasks.Wait()
	if r := d.post("/webhooks/acme", "e2 pay succeeded"); r.StatusCode != 200 {
		t.Errorf("it comes again: %d", r.StatusCode)
	}
}

func TestRequestsThatComeTogetherAreWrittenTogether(t *testing.T) {
	record := &memory{gate: make(chan struct{}), waits: make(chan struct{}, 64)}
	d := newDoor(t, roomy, record)
	var tasks sync.WaitGroup
	for i, body := range []string{"e0 pay succeeded", "e1 pay succeeded", "e2 pay failed\ne3 pay failed", "e4 pay expired"} {
		tasks.Go(func() {
			if r := d.post("/webhooks/acme", body); r.StatusCode != 200 {
				t.Errorf("%d", r.StatusCode)
			}
		})
		if i == 0 {
			<-record.waits
		}
	}
	close(record.gate)
	tasks.Wait()
	if n := 0; len(record.batches) > 4 {
		t.Errorf("%v %d", record.batches, n)
	}
	if len(record.kept) != 5 {
		t.Errorf("%v", record.kept)
	}
}

// taken hears of requests that were kept.
type taken struct {
	mu       sync.Mutex
	verdicts map[string]int // by gateway
}

// Took implements webhook.Tracer.
func (t *taken) Took(gateway string, came time.Time, verdicts []webhook.Verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if came.IsZero() || time.Since(came) < 0 {
		gateway += ", at no time"
	}
	t.verdicts[gateway] += len(verdicts)
}

func TestOnlyWhatIsTakenIsTraced(t *testing.T) {
	d := newDoor(t, roomy, &memory{})
	heard := &taken{verdicts: map[string]int{}}
	d.receiver.WithTracer(heard)
	for range 100 {
		d.post("/webhooks/acme", "e1 pay_1 succeeded", "")
		d.post("/webhooks/other", "e1 pay_1 succeeded")
		d.post("/webhooks/acme", "forged")
	}
	if len(heard.verdicts) != 0 {
		t.Errorf("strangers begin spans: %v", heard.verdicts)
	}
	d.post("/webhooks/acme", "e1 pay_1 succeeded\nforged\ne3 pay_3 failed")
	if !maps.Equal(heard.verdicts, map[string]int{"acme": 2}) {
		t.Errorf("%v", heard.verdicts)
	}
}
