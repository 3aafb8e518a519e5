package casework

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/audit"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

var standard = redelivery.Policy{
	Name: "standard", MaxAttempts: 10, Window: 24 * time.Hour, UnauthorizedDelay: 5 * time.Minute, MaxRetryAfter: 15 * time.Minute,
	Pending: redelivery.Curve{List: []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour},
		Jitter: redelivery.Jitter{Kind: redelivery.JitterPercent, Percent: 20}},
	Error: redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: redelivery.Jitter{Kind: redelivery.JitterFull}},
}

var known = Settings{Policy: standard, Configured: true, Limit: "60/s"}

func sparing() redelivery.Policy {
	p := standard
	p.MinInterval = time.Hour
	return p
}

// dossier is a payment that was polled four times, 23 minutes ago the last time, and is polled again in 7.
func dossier(change func(*Dossier)) Dossier {
	d := Dossier{
		Now:     noon,
		Payment: Payment{ID: 42, Gateway: "acme", Class: "standard", Lane: "normal", Status: payment.Pending, Place: Scheduled, TrackedAt: noon.Add(-time.Hour)},
		Job: &Job{State: "scheduled", Due: noon.Add(7*time.Minute + 10*time.Second), Attempts: 4, LastClass: "pending",
			WindowFrom: noon.Add(-time.Hour)},
		Attempts: []Attempt{{At: noon.Add(-23 * time.Minute), Took: 120 * time.Millisecond, Class: "pending", HTTPStatus: 200, GatewayStatus: "processing", Disposition: "park",
			Reason: "still_pending", DelayMS: 1810_000, Applied: true}},
	}
	if change != nil {
		change(&d)
	}
	return d
}

func at(t time.Time) *time.Time { return &t }

func TestExplanationsSayWhatHappensNextAndWhy(t *testing.T) {
	tracked := noon.Add(-10 * time.Second)
	failed := func(d *Dossier) {
		d.Job.Attempts, d.Job.Failures, d.Job.LastClass = 0, 3, "transport"
		d.Job.Due = noon.Add(2 * time.Second)
		d.Attempts[0] = Attempt{At: noon.Add(-time.Second), Class: "transport", Message: "connection refused", Disposition: "hold", Reason: "failure", Applied: true}
	}
	for _, c := range []struct {
		name        string
		change      func(*Dossier)
		settings    Settings
		where, next string
	}{
		{"asleep", nil, known,
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`next poll 12:07:10Z, in 7m 10s, because standard[3] = 30m ±20 %`},
		{"not polled", func(d *Dossier) {
			d.Attempts, d.Job.Attempts, d.Payment.TrackedAt, d.Job.Due = nil, 0, tracked, noon.Add(time.Minute)
		}, known,
			`it was tracked 11:59:50Z, 10s ago and not polled yet`,
			`next poll 12:01:00Z, in 1m, because that is when its first poll was wanted`},
		{"due", func(d *Dossier) {
			d.Attempts, d.Job.Attempts, d.Payment.TrackedAt, d.Job.Due = nil, 0, tracked, tracked
		}, Settings{Policy: standard},
			`it was tracked 11:59:50Z, 10s ago and not polled yet`,
			`a poll, due since 11:59:50Z, 10s ago: the relay publishes it at its next look. If it stays so: does a relay run, do consumers of acme (which is not in the configuration here), and do they reach NATS?`},
		{"failed", func(d *Dossier) {
			failed(d)
			d.Payment.Place = Held
			d.Job.LockedUntil, d.Job.LockedBy = at(noon.Add(time.Minute)), "consumer@a#1"
		}, known,
			`it was polled, and the last 3 calls failed: transport, connection refused, 11:59:59Z, 1s ago`,
			`next poll 12:00:02Z, in 2s, because standard.error[2] = min(1m, 1s·2^2) = 4s, of which chance takes any part; the broker holds it until then`},
		{"asked to wait", func(d *Dossier) {
			failed(d)
			d.Attempts[0].Reason, d.Attempts[0].RetryAfterMS, d.Job.Failures, d.Job.Attempts = "rate_limited", 3600_000, 0, 1
		}, known,
			`polled 1 time, the last time too often for the gateway: transport, connection refused, 11:59:59Z, 1s ago`,
			`next poll 12:00:02Z, in 2s, because the gateway was asked too often (429), and not before the 15m that the gateway asked for`},
		{"refused key", func(d *Dossier) { failed(d); d.Attempts[0].Reason, d.Job.Failures = "unauthorized", 0 }, known,
			`it was polled: transport, connection refused, 11:59:59Z, 1s ago`,
			`next poll 12:00:02Z, in 2s, because the gateway refused our key: not before 5m`},
		{"past the list", func(d *Dossier) { d.Job.Attempts = 9 }, known,
			`polled 9 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`next poll 12:07:10Z, in 7m 10s, because standard[4] = 1h ±20 %`},
		{"on its way", func(d *Dossier) {
			d.Payment.Place, d.Job.LockedUntil, d.Job.LockedBy = InFlight, at(noon.Add(30*time.Second)), "outbox-relay@a#1"
		}, known,
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`its poll is on its way, published by outbox-relay@a#1; without a result by 12:00:30Z, in 30s it is published anew`},
		{"lease over", func(d *Dossier) {
			d.Payment.Place, d.Job.LockedUntil, d.Job.Due = InFlight, at(noon.Add(-time.Second)), noon.Add(-time.Minute)
		}, known,
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`a poll, due since 11:59:59Z, 1s ago: the relay publishes it at its next look. If it stays so: does a relay run, do consumers of acme, and do they reach NATS?`},
		{"deferred", func(d *Dossier) {
			d.Payment.Place, d.Job.LockedUntil, d.Job.Deferrals = Deferred, at(noon.Add(time.Hour)), 1
		}, known,
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`it sleeps until the breaker of acme lets calls in again; at no cost to its attempts. See: pollux breaker show acme`},
		{"held", func(d *Dossier) {
			d.Payment.Place, d.Job.HeldUntil = Held, at(noon.Add(26*time.Hour))
			d.Acts = []audit.Entry{{Actor: "ada", Action: "payment.hold", Outcome: audit.Done, Reason: "the bank looks"}}
		}, known,
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`an operator holds it (ada: the bank looks) until 2026-12-01 14:00:00Z, in 1d 2h; then it is polled; to end that: pollux payment release 42`},
		{"wanted now", func(d *Dossier) {
			d.Job.Due = noon.Add(time.Millisecond)
			d.Acts = []audit.Entry{{At: noon, Actor: "ada", Action: "payment.poll-now", Outcome: audit.Done}}
		}, known,
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`next poll 12:00:00Z, in 1ms, because ada wanted a poll now`},
		{"replayed", func(d *Dossier) { d.Job.Attempts, d.Job.Replays, d.Job.WindowFrom = 0, 2, noon.Add(7*time.Minute) }, known,
			`it is being replayed, for the 2nd time, and not polled again yet`,
			`next poll 12:07:10Z, in 7m 10s, because that is its turn in the replay`},
		{"with a person", func(d *Dossier) {
			d.Payment.Place = WithPerson
			d.Letters = []Letter{{ID: 3, State: "resolved", ClosedAt: at(noon)}, {ID: 7, Reason: "mismatch", State: "open", DiedAt: noon.Add(-time.Minute), Message: "id: another"}}
		}, known,
			`it is with a person since 11:59:00Z, 1m ago, reason mismatch: dead letter 7, id: another`,
			`nothing by itself, unless its gateway notifies; see: pollux dlq show 7; to poll it again: pollux dlq replay 7 --reason WHY`},
		{"discarded", func(d *Dossier) {
			d.Payment.Place, d.Letters = WithPerson, []Letter{{ID: 7, State: "discarded", ClosedAt: at(noon)}}
		}, known,
			`it is with a person, who closed its dead letter without an end`,
			`nothing: it stays pending; to end it: pollux payment force 42 STATUS --reason WHY`},
		{"final", func(d *Dossier) {
			d.Job, d.Payment.Status, d.Payment.StatusSource, d.Payment.Place, d.Payment.StatusSince = nil, payment.Succeeded, payment.ByWebhook, Final, noon.Add(-time.Minute)
		}, known,
			`it is succeeded since 11:59:00Z, 1m ago, as the gateway notified`,
			`nothing: it is not polled any more`},
		{"failed for now", func(d *Dossier) {
			d.Job, d.Payment.Status, d.Payment.StatusSource, d.Payment.Place, d.Payment.StatusSince = nil, payment.Failed, payment.ByPoll, Final, noon.Add(-time.Minute)
		}, known,
			`it is failed since 11:59:00Z, 1m ago, as the gateway answered a poll`,
			`nothing: it is not polled any more; should the gateway say that it has succeeded after all, that is a late success`},
		{"forced, and contradicted", func(d *Dossier) {
			d.Job, d.Payment.Status, d.Payment.StatusSource, d.Payment.Place, d.Payment.StatusSince = nil, payment.Failed, payment.ByOperator, Final, noon.Add(-time.Minute)
			d.Acts = []audit.Entry{{Actor: "ada", Action: "payment.force", Outcome: audit.Refused, Reason: "no"}, {Actor: "ada", Action: "payment.force", Outcome: audit.Done, Reason: "the bank says so"}}
			d.Letters = []Letter{{ID: 9, Reason: "conflict", State: "open", Said: "succeeded", Message: "said by webhook"}}
		}, known,
			`it is failed since 11:59:00Z, 1m ago, forced by ada: the bank says so`,
			`a person decides: succeeded said by webhook; see: pollux dlq show 9`},
		{"never asked", func(d *Dossier) {
			d.Attempts, d.Job.Attempts, d.Job.LastClass, d.Job.Due, d.Payment.TrackedAt = nil, 0, "watched", noon.Add(time.Hour), tracked
		}, Settings{Policy: redelivery.Policy{Name: "standard", NeverPoll: true}, Configured: true},
			`it was tracked 11:59:50Z, 10s ago; acme is never asked, it reports by webhook`,
			`a webhook finishes it; without one a person is asked 13:00:00Z, in 1h, because its deadline or its window ends then`},
		{"asked sparingly", nil, Settings{Policy: sparing(), Configured: true},
			`polled 4 times, still pending: "processing", 11:37:00Z, 23m ago`,
			`next poll 12:07:10Z, in 7m 10s, because standard[3] = 30m ±20 %, and at least 1h after the poll before, as its gateway wishes`},
		{"nowhere", func(d *Dossier) { d.Payment.Place = Nowhere }, known,
			`the record is not sound: this payment is in none of the places that there are`,
			`run: pollux verify`},
	} {
		e := Explain(dossier(c.change), c.settings)
		if e.Where != c.where {
			t.Errorf("%s:\n%s\nnot\n%s", c.name, e.Where, c.where)
		}
		if e.Next != c.next {
			t.Errorf("%s:\n%s\nnot\n%s", c.name, e.Next, c.next)
		}
	}
}

func TestExplanationsSayWhatEndsThePolls(t *testing.T) {
	d := dossier(func(d *Dossier) {
		d.Payment.ExpiresAt = at(noon.Add(90 * time.Minute))
		d.Job.Deferrals, d.Job.Replays = 1, 2
		d.Breaker = []Transition{{At: noon.Add(-time.Minute), From: "closed", To: "open", Cause: "ratio", RetryAt: at(noon.Add(20 * time.Second))}}
	})
	want := []string{
		"attempts: 4 of 10; failures in a row: 0 (no bound); policy standard",
		"window: 23h of 1d left; after that a poll that brings no end hands it to a person",
		"its own deadline: 13:30:00Z, in 1h 30m; the poll then is its last",
		"it slept 1 time behind an open breaker",
		"it was replayed 2 times",
		"breaker of acme: open since 11:59:00Z, 1m ago (ratio), as far as the record knows, next probe 12:00:20Z, in 20s",
		"limit of acme: 60/s for the whole fleet",
	}
	if diff := cmp.Diff(want, Explain(d, known).Bounds); diff != "" {
		t.Error(diff)
	}
	d = dossier(func(d *Dossier) { d.Job.WindowFrom = noon.Add(-25 * time.Hour) })
	want = []string{
		"attempts: 4 of 10; failures in a row: 0 (no bound); policy standard",
		"window: over since 1h; the next poll that brings no end hands it to a person",
		"breaker of acme: closed, as far as the record knows",
		"acme is not in the configuration here: what is said about its policy is what any gateway has",
	}
	if diff := cmp.Diff(want, Explain(d, Settings{Policy: standard}).Bounds); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsWithAPersonHasNoWindowAnyMore(t *testing.T) {
	d := dossier(func(d *Dossier) {
		d.Payment.Place, d.Payment.ExpiresAt = WithPerson, at(noon.Add(time.Hour))
		d.Letters = []Letter{{ID: 7, Reason: "attempts", State: "open", DiedAt: noon}}
	})
	want := []string{
		"attempts: 4 of 10; failures in a row: 0 (no bound); policy standard",
		"breaker of acme: closed, as far as the record knows",
		"limit of acme: 60/s for the whole fleet",
	}
	if diff := cmp.Diff(want, Explain(d, known).Bounds); diff != "" {
		t.Error(diff)
	}
}

func TestATimelineHasTheFirstAndTheLastChangesOfABreaker(t *testing.T) {
	d := dossier(func(d *Dossier) {
		d.Attempts, d.Payment.Account = nil, "eu"
		d.Breaker = []Transition{{At: d.Payment.TrackedAt.Add(-time.Hour), To: "open", Cause: "before"}}
		for i := range 31 {
			d.Breaker = append(d.Breaker, Transition{At: d.Payment.TrackedAt.Add(time.Duration(i+1) * time.Minute), To: "open", Cause: "ratio"})
		}
	})
	line := d.Timeline()
	if len(line) != 1+firstChanges+1+lastChanges || line[0].Kind != "tracked" || line[4].Text != "of acme: 23 changes between; pollux breaker show acme/eu has them" ||
		!line[len(line)-1].At.Equal(d.Breaker[31].At) {
		t.Errorf("%+v", line)
	}
	d.Breaker = d.Breaker[:1+firstChanges+1+lastChanges]
	if line := d.Timeline(); len(line) != 1+firstChanges+1+lastChanges || line[4].Text == "" || line[4].At != d.Breaker[4].At {
		t.Errorf("%+v", line)
	}
}

func TestTheTimelineIsInOrder(t *testing.T) {
	d := dossier(func(d *Dossier) {
		d.Payment.Status, d.Payment.StatusSource, d.Payment.Place, d.Payment.StatusSince = payment.Failed, payment.ByOperator, Final, noon
		d.Breaker = []Transition{{At: noon.Add(-30 * time.Minute), From: "closed", To: "open", Cause: "forced", Actor: "ada", Reason: "maintenance"}}
		d.Letters = []Letter{{ID: 7, Reason: "window", State: "resolved", CreatedAt: noon.Add(-20 * time.Minute), DiedAt: noon.Add(-10 * time.Minute), ClosedAt: at(noon), ClosedBy: "operator"}}
		d.Events = []Event{{ID: "42-1-failed", Subject: "payments.resolved.acme.failed", CreatedAt: noon, PublishedAt: at(noon.Add(8 * time.Millisecond))}}
		d.Acts = []audit.Entry{{At: noon, Actor: "ada", Action: "payment.force", Outcome: audit.Refused, Reason: "no"}}
		d.Notices = []Notice{{At: noon.Add(-50 * time.Minute), Kind: "payment.updated", Status: "pending", Decision: "noted"}, {At: noon.Add(time.Second), Status: "succeeded", Decision: "conflict", Why: "an operator forced failed"}}
		d.Attempts = append(d.Attempts, Attempt{At: noon.Add(-time.Minute), Class: "transport", Message: "EOF", Disposition: "hold", Reason: "failure"})
	})
	var got []string
	for _, m := range d.Timeline() {
		got = append(got, m.At.Format("15:04 ")+m.Kind+": "+m.Text)
	}
	want := []string{
		"11:00 tracked: class standard, lane normal",
		"11:10 webhook: payment.updated pending: noted",
		"11:30 breaker: of acme: closed to open, forced by ada: maintenance",
		`11:37 polled: pending 200 "processing" in 120ms: park, still_pending, again in 30m 10s`,
		"11:40 dead letter: 7",
		"11:50 dead letter: 7: window (again)",
		"11:59 polled: transport in 0s: hold, failure; it came too late and changed nothing; EOF",
		"12:00 dead letter: 7 is resolved by operator",
		"12:00 event: 42-1-failed on payments.resolved.acme.failed, published 8ms later",
		"12:00 operator: ada: payment.force, refused: no",
		"12:00 status: failed by operator",
		"12:00 webhook: succeeded: conflict, an operator forced failed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
