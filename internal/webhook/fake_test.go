package webhook_test

import (
	"context"
	"crypto/hmac"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// plain is a scheme for tests: the header Sum is the HMAC of the body in hex, the body is lines of "id reference status".
type plain struct {
	keys webhook.Keys
	gone bool // nobody can tell now
}

var secret = webhook.Key{Name: "current", Secret: []byte("secret")}

func sum(body string) string { return hex.EncodeToString(webhook.SHA256(secret.Secret, []byte(body))) }

func (p plain) Glance(r *webhook.Request) error {
	if r.Header.Get("Sum") == "" {
		return webhook.RefusedUnsigned
	}
	return nil
}

func (p plain) Verify(_ context.Context, r *webhook.Request) (string, error) {
	if p.gone {
		return "", fmt.Errorf("%w: no certificate", webhook.ErrUnavailable)
	}
	want, _ := hex.DecodeString(r.Header.Get("Sum"))
	if name, ok := p.keys.Match(r.At, func(secret []byte) bool { return hmac.Equal(webhook.SHA256(secret, r.Body), want) }); ok {
		return name, nil
	}
	return "", webhook.RefusedSignature
}

func (p plain) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	if len(r.Body) == 0 {
		return nil, fmt.Errorf("the body is empty")
	}
	var all []webhook.Notice
	for line := range strings.Lines(string(r.Body)) {
		words := strings.Fields(line)
		if words[0] == "forged" {
			all = append(all, webhook.Notice{Refused: webhook.RefusedSignature})
			continue
		}
		n := webhook.Notice{ID: words[0], Effect: webhook.Report, Detail: "said"}
		if len(words) > 2 {
			n.References, n.Status = words[1:2], payment.Status(words[2])
		}
		if len(words) > 3 {
			n.Mode = words[3]
		}
		all = append(all, n)
	}
	return all, nil
}

// memory is a record that behaves: it keeps each notice once, and judges against payments that are all pending.
type memory struct {
	mu      sync.Mutex
	kept    map[string]webhook.Arrival
	batches []int
	fail    error         // of the next transactions
	refuse  string        // an id that it refuses
	gate    chan struct{} // a transaction waits for it, unless nil
	waits   chan struct{} // is told of each transaction that waits
}

func (m *memory) Take(ctx context.Context, arrivals []webhook.Arrival) ([]webhook.Verdict, error) {
	if m.gate != nil {
		m.waits <- struct{}{}
		select {
		case <-m.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.batches = append(m.batches, len(arrivals))
	if m.fail != nil {
		return nil, m.fail
	}
	for _, a := range arrivals {
		if a.ID == m.refuse && a.Fault == "" {
			return nil, fmt.Errorf("%w: SQLSTATE 22021", webhook.ErrRefused)
		}
	}
	verdicts := make([]webhook.Verdict, len(arrivals))
	for i, a := range arrivals {
		verdicts[i] = m.keep(a)
	}
	return verdicts, nil
}

func (m *memory) keep(a webhook.Arrival) webhook.Verdict {
	if m.kept == nil {
		m.kept = map[string]webhook.Arrival{}
	}
	if _, twice := m.kept[a.ID]; twice {
		return webhook.Verdict{Gateway: a.Gateway, Decision: webhook.Duplicate}
	}
	m.kept[a.ID] = a
	d, why := webhook.Judge(a.Notice, webhook.Standing{Tracked: true, Payment: 1, Status: payment.Pending})
	return webhook.Verdict{Gateway: a.Gateway, Decision: d, Why: why, Payment: 1}
}

func (m *memory) Ping(context.Context) error { return nil }

func (m *memory) get(id string) (webhook.Arrival, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.kept[id]
	return a, ok
}

func (m *memory) set(fail error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

// meter counts.
type meter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (m *meter) count(words ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[string]int{}
	}
	m.counts[strings.Join(words, " ")]++
}

func (m *meter) of(words string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[words]
}

func (m *meter) WebhookRequest(gateway string, o webhook.Outcome, _ time.Duration) {
	m.count("request", gateway, string(o))
}
func (m *meter) WebhookRefused(gateway string, r webhook.Refusal) {
	m.count("refused", gateway, string(r))
}
func (m *meter) WebhookFinal(string, string, time.Duration) {}

func (m *meter) WebhookNotice(gateway string, d webhook.Decision) {
	m.count("notice", gateway, string(d))
}
func (m *meter) WebhookHint(gateway string, o webhook.HintOutcome) {
	m.count("hint", gateway, string(o))
}
func (m *meter) WebhookBatch(int, time.Duration) { m.count("batch") }
func (m *meter) WebhookEvicted()                 { m.count("evicted") }
func (m *meter) WebhookSilence(gateway string, silent bool, _ time.Duration) {
	m.count("silence", gateway, fmt.Sprint(silent))
}

var quiet = slog.New(slog.DiscardHandler)

// door is a receiver with its record.
type door struct {
	record   *memory
	meter    *meter
	recorder *webhook.Recorder
	receiver *webhook.Receiver
}

func newDoor(tb testing.TB, cfg webhook.ReceiverConfig, record *memory, endpoints ...webhook.Endpoint) *door {
	tb.Helper()
	if endpoints == nil {
		endpoints = []webhook.Endpoint{{Gateway: "acme", Scheme: plain{keys: webhook.Keys{secret}}, Mode: "live"},
			{Gateway: "acme", Account: "eu", Scheme: plain{keys: webhook.Keys{{Name: "eu", Secret: []byte("other")}}}}}
	}
	d := &door{record: record, meter: &meter{}}
	d.recorder = webhook.NewRecorder(webhook.RecorderConfig{Batch: 10, Writers: 1, Patience: 20 * time.Second}, record, d.meter, quiet)
	tb.Cleanup(d.recorder.Close)
	d.receiver = webhook.NewReceiver(cfg, endpoints, d.recorder, d.meter, quiet)
	return d
}

var roomy = webhook.ReceiverConfig{MaxBody: 1 << 10, BodyTimeout: 20 * time.Second, Checking: 4, Keeping: 16}
