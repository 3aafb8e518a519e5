package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/survey"
)

// Surveyed keeps what was found in a part of the record, and shows it for as long as it is good.
func (m *Metrics) Surveyed(f survey.Finding, took, good time.Duration) {
	part, now := m.watched.parts[f.Part()], time.Now()
	if part == nil {
		return
	}
	part.seen.Store(&seen{f, now, now.Add(good)})
	m.lookTook.Record(bg, took.Seconds(), metric.WithAttributes(attribute.String("part", string(f.Part()))))
}

func (l looking) survey() {
	for part, f := range l.m.watched.parts {
		s := f.seen.Load()
		if s == nil {
			continue
		}
		l.gauge("record.observed_timestamp", stamp(s.at), attribute.String("part", string(part)))
		if l.now.After(s.until) {
			continue
		}
		switch found := s.what.(type) {
		case survey.Jobs:
			l.jobs(found)
		case survey.Letters:
			l.letters(found)
		case survey.Events:
			l.gauge("record.unpublished_events", float64(found.Waiting))
			l.gauge("record.oldest_unpublished_event", found.Oldest.Seconds())
			l.gauge("record.set_aside_events", float64(found.SetAside))
		case survey.Storage:
			l.storage(found)
		case survey.Sessions:
			l.gauge("record.oldest_transaction", found.Transaction.For.Seconds())
			l.gauge("record.oldest_transaction_pid", float64(found.Transaction.PID))
			l.gauge("record.blocked_session", found.Blocked.For.Seconds())
			l.gauge("record.blocking_pid", float64(found.Blocked.PID))
		case survey.Orphans:
			l.orphans(found)
		case survey.Chain:
			l.chain(found)
		case survey.Streams:
			l.streams(found)
		}
	}
}

// sums adds up what falls together under one label: of gateways beyond the cap, and of what is not in its closed set. A gauge that is observed twice
// would show one of the two.
type sums map[[3]string]float64

func (s sums) add(v float64, labels ...string) {
	var key [3]string
	copy(key[:], labels)
	s[key] += v
}

func (s sums) most(v float64, labels ...string) {
	var key [3]string
	copy(key[:], labels)
	s[key] = max(s[key], v)
}

func (l looking) all(name string, s sums, keys ...string) {
	for values, v := range s {
		labels := make([]attribute.KeyValue, len(keys))
		for i, key := range keys {
			labels[i] = attribute.String(key, values[i])
		}
		l.gauge(name, v, labels...)
	}
}

// gatewayName is the label of a gateway.
func (l looking) gatewayName(name string) string { return l.m.gateways.get(name).name }

// in is the label of a value out of a closed set.
func in(set Label, value string) string { return nameAt(set.Values, index(set.Values, value)) }

func (l looking) jobs(found survey.Jobs) {
	l.gauge("record.pending_payments", float64(found.Pending))
	if found.Parked >= 0 {
		l.gauge("record.parked_polls", float64(found.Parked))
	}
	overdue, oldest := sums{}, sums{}
	for _, q := range found.Queues {
		gateway, lane := l.gatewayName(q.Gateway), in(laneLabel, q.Lane)
		overdue.add(float64(q.Overdue), gateway, lane)
		oldest.most(q.Oldest.Seconds(), gateway, lane)
	}
	l.all("record.overdue_polls", overdue, "gateway", "lane")
	l.all("record.oldest_due_poll", oldest, "gateway", "lane")
}

func (l looking) letters(found survey.Letters) {
	count, oldest, risk := sums{}, sums{}, sums{}
	for _, g := range found.Groups {
		gateway, reason, state := l.gatewayName(g.Gateway), in(reasonLabel, g.Reason), in(letterLabel, g.State)
		count.add(float64(g.N), gateway, reason, state)
		if g.State == "open" {
			oldest.most(g.Oldest.Seconds(), gateway, reason)
		}
	}
	for _, s := range found.AtRisk {
		risk.add(s.Minor, l.gatewayName(s.Gateway), in(currencyLabel, s.Currency))
	}
	l.all("record.dead_letters", count, "gateway", "reason", "state")
	l.all("record.dead_letter_oldest", oldest, "gateway", "reason")
	l.all("record.money_at_risk_minor_units", risk, "gateway", "currency")
}

func (l looking) storage(found survey.Storage) {
	for _, t := range found {
		table := attribute.String("table", in(tableLabel, t.Name))
		l.gauge("record.table_live_rows", float64(t.Live), table)
		l.gauge("record.table_dead_rows", float64(t.Dead), table)
		l.gauge("record.table_size", float64(t.Size), table)
		l.gauge("record.table_bloat", float64(t.Bloat), table)
		l.gauge("record.index_size", float64(t.Indexes), table)
		l.gauge("record.vacuumed_timestamp", stamp(t.Vacuumed), table)
	}
}

func (l looking) orphans(found survey.Orphans) {
	for kind, walk := range found {
		label := attribute.String("kind", in(orphanLabel, string(kind)))
		l.gauge("record.orphans", float64(walk.Found), label)
		if !walk.Ended.IsZero() {
			l.gauge("record.orphan_pass_timestamp", stamp(walk.Ended), label)
		}
	}
}

func (l looking) chain(found survey.Chain) {
	l.gauge("audit.broken_row", float64(found.Broken))
	l.gauge("audit.verified_rows", float64(found.Rows))
	if !found.Verified.IsZero() {
		l.gauge("audit.verified_timestamp", stamp(found.Verified))
	}
}

func (l looking) streams(found survey.Streams) {
	for _, s := range found.Streams {
		stream := attribute.String("stream", in(streamLabel, s.Name))
		l.gauge("stream.messages", float64(s.Messages), stream)
		l.gauge("stream.size", float64(s.Bytes), stream)
		l.gauge("stream.oldest_message", s.Oldest.Seconds(), stream)
		l.gauge("stream.consumer_lag_messages", float64(s.Lag), stream)
		l.gauge("stream.drift_fields", float64(s.Drift), stream)
	}
	unacked, deferred := sums{}, sums{}
	for _, q := range found.Unacked {
		unacked.add(float64(q.N), l.gatewayName(q.Gateway), in(laneLabel, q.Lane))
	}
	for _, q := range found.Deferred {
		deferred.add(float64(q.N), l.gatewayName(q.Gateway))
	}
	l.all("stream.unacknowledged_polls", unacked, "gateway", "lane")
	l.all("stream.deferred_polls", deferred, "gateway")
}
