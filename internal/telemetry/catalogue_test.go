package telemetry

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/survey"
	"pollux/internal/webhook"
)

var update = flag.Bool("update", false, "write the tables of docs/metrics.md")

const docs = "../../docs/metrics.md"

// TestDocumentationIsTheCatalogue compares the tables of docs/metrics.md with the catalogue. With -update it writes them:
// go test ./internal/telemetry -run Documentation -update
func TestDocumentationIsTheCatalogue(t *testing.T) {
	page, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)(<!-- (metrics: [a-z. ]+|labels) -->\n).*?(<!-- end -->)`)
	shown := map[string]int{}
	want := block.ReplaceAllStringFunc(string(page), func(found string) string {
		m := block.FindStringSubmatch(found)
		if m[2] == "labels" {
			return m[1] + labelTable() + m[3]
		}
		return m[1] + metricTable(strings.Fields(strings.TrimPrefix(m[2], "metrics: ")), shown) + m[3]
	})
	for _, e := range Catalogue() {
		if shown[e.Name] != 1 {
			t.Errorf("%s shows %s %d times, want once", docs, e.Name, shown[e.Name])
		}
	}
	if *update {
		if err := os.WriteFile(docs, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, string(page)); d != "" {
		t.Errorf("%s is not what the catalogue says; write it with -update:\n%s", docs, d)
	}
}

// metricTable is the table of the metrics whose names begin with one of the prefixes.
func metricTable(prefixes []string, shown map[string]int) string {
	var b strings.Builder
	b.WriteString("| metric | kind | labels | in | what |\n|---|---|---|---|---|\n")
	for _, e := range Catalogue() {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(e.Name, p) }) {
			continue
		}
		shown[e.Name]++
		labels := make([]string, len(e.Labels))
		for i, l := range e.Labels {
			labels[i] = l.Name
		}
		kind := e.Kind.String()
		if e.Rare {
			kind += ", rare"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", e.Prometheus(), kind, strings.Join(labels, ", "), e.In, e.Help)
	}
	return b.String()
}

// labelTable is the table of the labels, each with the metrics that have it where there are several of its name.
func labelTable() string {
	var b strings.Builder
	b.WriteString("| label | of | values |\n|---|---|---|\n")
	for _, l := range everyLabel() {
		values := "names of the configuration, and `other`"
		if !l.Capped {
			values = "`" + strings.Join(append(slices.Clone(l.Values), other), "`, `") + "`"
		}
		if l.Name == currencyLabel.Name {
			values = fmt.Sprintf("the %d codes of ISO 4217 that `internal/payment/currency` knows, and `other`", len(l.Values))
		}
		var of []string
		for _, e := range Catalogue() {
			if slices.ContainsFunc(e.Labels, func(other Label) bool { return other.Name == l.Name && other.What == l.What }) {
				of = append(of, "`"+e.Name+"`")
			}
		}
		where := strings.Join(of, ", ")
		if len(of) > 4 {
			where = fmt.Sprintf("%d metrics", len(of))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s: %s |\n", l.Name, where, l.What, values)
	}
	return b.String()
}

// everyLabel are the labels of the catalogue in the order of their names.
func everyLabel() []Label {
	var all []Label
	for _, e := range Catalogue() {
		for _, l := range e.Labels {
			if !slices.ContainsFunc(all, func(known Label) bool { return known.Name == l.Name && known.What == l.What }) {
				all = append(all, l)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// recordAll records something in every instrument, of a gateway and of strangers.
func recordAll(t *testing.T, m *Metrics, names ...string) {
	t.Helper()
	f := fleet.New(fleet.Options{})
	for _, g := range names {
		for _, lane := range append(slices.Clone(lanes), "express") {
			m.RelayClaimed(g, lane, 3, time.Second)
			m.Ready(g, lane, 10)
			m.Backlog(g, lane, 11)
			m.Held(g, lane, 14)
			m.Waited(g, lane, time.Millisecond)
			m.Lateness(bg, g, lane, time.Second)
		}
		for _, r := range redelivery.Reasons {
			m.Delivery(g, redelivery.Hold, r)
		}
		for _, c := range gateway.Classes {
			m.Call(bg, g, c, time.Millisecond)
		}
		for _, s := range payment.Statuses {
			m.Resolved(g, s)
		}
		m.Finality(bg, g, "standard", time.Minute, 3)
		m.Delivered(bg, g, time.Second)
		m.InFlight(g, 1)
		for _, c := range breaker.Causes {
			m.Transition(g, breaker.Closed, breaker.Open, c)
		}
		for _, why := range fleet.Whys {
			m.NotCalled(g, why)
		}
		m.Probed(g)
		m.Turn(g, time.Millisecond)
		m.WebhookRequest(g, webhook.Accepted, time.Millisecond)
		m.WebhookRefused(g, webhook.RefusedSignature)
		m.WebhookNotice(g, webhook.Applied)
		m.WebhookNotice(g, "of tomorrow")
		m.WebhookFinal(g, "standard", time.Minute)
		m.WebhookHint(g, webhook.HintNudged)
		m.WebhookSilence(g, true, 90*time.Second)
		surveyed(m, g)
	}
	gate, err := f.Gate(fleet.GateConfig{Gateway: names[0], Breaker: breaker.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	m.WatchGates([]*fleet.Gate{gate}, func() bool { return true })
	m.Claim(3, time.Millisecond)
	m.RelayEvents(4, time.Second)
	for _, s := range append(slices.Clone(streams), "NOT_OURS") {
		m.Published(s, 5, time.Millisecond)
		m.Duplicates(s, 2)
		m.PublishFailed(s, 6)
		m.StreamLost(s, 8, 9)
	}
	m.SetAside(KindPoll, 7)
	for _, loop := range outbox.Loops {
		m.Succeeded(loop)
	}
	m.Read(3, time.Millisecond)
	m.Batch(500, 5*time.Millisecond)
	m.Refused(12)
	m.Superseded(13)
	m.WebhookBatch(3, time.Millisecond)
	m.WebhookEvicted()
	m.exportFailed(signalTraces)
	m.ConfigRead(time.Now())
	m.ConfigReload(ReloadApplied, time.Now())
	m.SecretReload(SecretTLS, "nats", false)
	m.SecretReload("somebody else's", "it", true)
	m.CertificateExpiry("nats", time.Now())
	m.CertificateExpiry("elsewhere", time.Now())
	m.WatchPool(func() Pool { return Pool{InUse: 1, Idle: 2, Max: 8, Waits: 3, Waited: time.Second} })
	m.WatchBroker(func() Link { return Link{Connected: true, Reconnects: 2} })
}

// surveyed finds something in each part of the record.
func surveyed(m *Metrics, g string) {
	now := time.Now()
	for _, f := range []survey.Finding{
		survey.Jobs{Pending: 100, Parked: 50, Queues: []survey.Queue{{Gateway: g, Lane: "high", Due: 1, Overdue: 1, Oldest: time.Minute}, {Gateway: "a stranger", Lane: "express"}}},
		survey.Letters{Groups: []survey.Group{{Gateway: g, Reason: "window", State: "open", N: 2, Oldest: time.Hour}, {Gateway: g, Reason: "boredom", State: "gone", N: 1}},
			AtRisk: []survey.Sum{{Gateway: g, Currency: "EUR", Minor: 1999}, {Gateway: g, Currency: "XXX", Minor: 1}, {Gateway: g, Currency: "", Minor: 1}}},
		survey.Events{Waiting: 1, Oldest: time.Second, SetAside: 1},
		survey.Storage{{Name: "payments", Live: 1, Dead: 1, Size: 8192, Vacuumed: now}, {Name: "elsewhere"}},
		survey.Sessions{Transaction: survey.Session{PID: 4711, For: time.Hour}, Blocked: survey.Session{PID: 4712, For: time.Minute}},
		survey.Orphans{survey.PaymentWithoutJob: {Found: 1, Ended: now}, survey.JobWithoutPayment: {}, "unicorn": {}},
		survey.Chain{Rows: 10, Verified: now},
		survey.Streams{Streams: []survey.Stream{{Name: message.StreamPoll, Messages: 1, Drift: 1}, {Name: "NOT_OURS"}},
			Unacked: []survey.Load{{Gateway: g, Lane: "normal", N: 1}}, Deferred: []survey.Load{{Gateway: g, N: 4}}},
	} {
		m.Surveyed(f, time.Millisecond, time.Minute)
	}
}

// TestEverythingRecordedIsInTheCatalogueAndTheOtherWayRound compares what is exposed with the catalogue: names, labels and their values.
func TestEverythingRecordedIsInTheCatalogueAndTheOtherWayRound(t *testing.T) {
	m, registry := metrics(t, Config{Gateways: []string{"acme"}, MaxGateways: 2})
	recordAll(t, m, "acme", "zenith", "a stranger", "third", "fourth")
	exposed := map[string]bool{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]Metric{}
	for _, e := range Catalogue() {
		entries[e.Prometheus()] = e
	}
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, namespace) {
			if !slices.ContainsFunc([]string{"go_", "process_", "target_info"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
				t.Errorf("%s is neither ours nor a library's", name)
			}
			continue
		}
		e, ok := entries[name]
		if !ok {
			t.Errorf("%s is exposed and not in the catalogue", name)
			continue
		}
		exposed[name] = true
		for _, one := range f.GetMetric() {
			if len(one.GetLabel()) != len(e.Labels) {
				t.Errorf("%s%s: want the labels %v", name, labels(one), e.Labels)
			}
			for _, l := range one.GetLabel() {
				at := slices.IndexFunc(e.Labels, func(want Label) bool { return want.Name == l.GetName() })
				if at < 0 || !e.Labels[at].Allows(l.GetValue()) {
					t.Errorf("%s has the label %s=%q, which its catalogue does not allow", name, l.GetName(), l.GetValue())
				}
			}
		}
	}
	for name := range entries {
		if !exposed[name] {
			t.Errorf("%s is in the catalogue and not exposed", name)
		}
	}
}

func TestTheCatalogueIsComplete(t *testing.T) {
	word := regexp.MustCompile(`^[a-z]+\.[a-z][a-z_]*[a-z]$`)
	for _, e := range Catalogue() {
		if !word.MatchString(e.Name) || e.In == 0 || !strings.HasSuffix(e.Help, ".") || (e.Kind == Histogram) != (e.Buckets != nil) || !slices.IsSorted(e.Buckets) {
			t.Errorf("entry %+v", e)
		}
		if unitWords[e.Unit] == "" && e.Unit != "" {
			t.Errorf("%s has the unit %q, which is none of ours", e.Name, e.Unit)
		}
		for _, l := range e.Labels {
			if l.What == "" || l.Capped == (l.Values != nil) {
				t.Errorf("%s has a label without words, or neither closed nor capped: %+v", e.Name, l)
			}
			if slices.Contains([]string{"pid", "payment", "payment_id", "reference", "account", "instance"}, l.Name) {
				t.Errorf("%s has the label %s, whose values nobody can bound", e.Name, l.Name)
			}
		}
	}
	if len(catalogued) != len(Catalogue()) {
		t.Error("a name is in the catalogue twice")
	}
}

// TestStaleValuesAreNotShown looks at gauges when nobody has looked at what they show for too long.
func TestStaleValuesAreNotShown(t *testing.T) {
	m, registry := metrics(t, Config{Stale: time.Nanosecond})
	m.Ready("acme", "high", 3)
	m.Held("acme", "high", 3)
	m.Surveyed(survey.Events{Waiting: 3}, time.Millisecond, 0)
	got := scrape(t, registry)
	for _, name := range []string{`pollux_relay_ready_polls{gateway="acme",lane="high"}`, `pollux_relay_work_polls{gateway="acme",lane="high"}`,
		`pollux_consumer_held_polls{gateway="acme",lane="high"}`, `pollux_record_unpublished_events`} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is still shown: %v", name, v)
		}
	}
	if got[`pollux_record_observed_timestamp_seconds{part="events"}`] == 0 {
		t.Error("nothing says when it was looked at")
	}
}

func TestARelayShowsNothingOfAConsumerFromTheStart(t *testing.T) {
	for service, in := range map[string]Binary{"outbox-relay": InRelay, "consumer": InConsumer, "webhook": InWebhook} {
		_, registry := metrics(t, Config{Service: service, Gateways: []string{"acme"}})
		for name := range ours(t, registry) {
			for _, e := range Catalogue() {
				if e.Prometheus() == name && e.In&in == 0 {
					t.Errorf("%s exposes %s, which is of %s", service, name, e.In)
				}
			}
		}
	}
}

// ours are the names that begin with the namespace.
func ours(t *testing.T, g prometheus.Gatherer) map[string]bool {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), namespace) {
			names[f.GetName()] = true
		}
	}
	return names
}

func TestABrokenChainAndAnOldTransactionAreNamedByValues(t *testing.T) {
	m, registry := metrics(t, Config{})
	m.Surveyed(survey.Sessions{Transaction: survey.Session{PID: 4711, For: time.Hour}}, 0, time.Minute)
	m.Surveyed(survey.Chain{Broken: 17, Why: "it was changed"}, 0, time.Minute)
	m.Surveyed(survey.Letters{AtRisk: []survey.Sum{{Gateway: "acme", Currency: "EUR", Minor: 1999}, {Gateway: "acme", Currency: "ZZZ", Minor: 1}, {Gateway: "acme", Currency: "QQQ", Minor: 2}}}, 0, time.Minute)
	got := scrape(t, registry)
	for name, want := range map[string]float64{
		`pollux_record_oldest_transaction_seconds`:                                 3600,
		`pollux_record_oldest_transaction_pid`:                                     4711,
		`pollux_audit_broken_row`:                                                  17,
		`pollux_record_money_at_risk_minor_units{currency="EUR",gateway="acme"}`:   1999,
		`pollux_record_money_at_risk_minor_units{currency="other",gateway="acme"}`: 3,
		`pollux_record_observed_timestamp_seconds{part="orphans"}`:                 0,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
}
