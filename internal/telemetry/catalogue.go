package telemetry

import (
	"slices"
	"strings"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
	"pollux/internal/redelivery"
	"pollux/internal/survey"
	"pollux/internal/webhook"
)

// Kind is what a metric is.
type Kind uint8

// The kinds.
const (
	Counter   Kind = iota // it only grows
	UpDown                // a counter that also shrinks
	Gauge                 // a value as it is
	Histogram             // how values are spread
)

var kindWords = [...]string{"counter", "up-down counter", "gauge", "histogram"}

// String returns the kind as people call it.
func (k Kind) String() string { return kindWords[k] }

// Binary is a set of the processes that have a metric.
type Binary uint8

// The processes.
const (
	InRelay Binary = 1 << iota
	InConsumer
	InWebhook

	InAll    = InRelay | InConsumer | InWebhook
	inBroker = InRelay | InConsumer
)

var binaryNames = [...]string{"outbox-relay", "consumer", "webhook"}

// BinaryOf is the process that a service is called: one of the binaries, or all of them in one process, as on a laptop.
func BinaryOf(service string) Binary {
	if i := slices.Index(binaryNames[:], service); i >= 0 {
		return 1 << i
	}
	return InAll
}

// String lists the processes.
func (b Binary) String() string {
	var names []string
	for i, name := range binaryNames {
		if b&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Metric is an entry of the catalogue. Every instrument is made from its entry: what is not in the catalogue cannot be recorded.
type Metric struct {
	Name    string // of OpenTelemetry, such as relay.claimed; Prometheus says how it is called there
	Kind    Kind
	Unit    string // s, By, 1 (a share of one), or nothing for a number of things
	Labels  []Label
	In      Binary
	Help    string
	Buckets []float64 // of a histogram
	Rare    bool      // it appears with the first event only, which a healthy system may never have
}

// namespace is what every name begins with.
const namespace = "pollux"

// unitWords are the units as Prometheus has them in a name.
var unitWords = map[string]string{"s": "seconds", "By": "bytes", "1": "ratio"}

// Prometheus is the name of the metric in an exposition. A histogram has the suffixes _bucket, _sum and _count beyond that.
func (m Metric) Prometheus() string {
	name := namespace + "_" + strings.ReplaceAll(m.Name, ".", "_")
	if word := unitWords[m.Unit]; word != "" && !strings.HasSuffix(name, word) {
		name += "_" + word
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// Catalogue lists all metrics, in the order of the page docs/metrics.md. The caller must not change it.
func Catalogue() []Metric { return catalogue }

// catalogue is all there is. Names that are in use are never changed: dashboards and alerts have them.
var catalogue = []Metric{
	// The outbox relay: from the record to the broker.
	{Name: "relay.claimed", In: InRelay, Labels: queueLabels, Help: "Due polls leased by the relay."},
	{Name: "relay.claim_duration", Kind: Histogram, Unit: "s", In: InRelay, Buckets: batchBuckets, Help: "Time to lease due polls in the database, of claims that found some."},
	{Name: "relay.claim_batch_polls", Kind: Histogram, In: InRelay, Buckets: sizeBuckets, Help: "Polls leased by one claim, of claims that found some."},
	{Name: "relay.lag", Kind: Histogram, Unit: "s", In: InRelay, Labels: queueLabels, Buckets: latenessBuckets, Help: "How late the oldest poll of a claim was: from due to claimed."},
	{Name: "relay.events", In: InRelay, Help: "Events taken by the relay to be published."},
	{Name: "relay.event_lag", Kind: Histogram, Unit: "s", In: InRelay, Buckets: latenessBuckets, Help: "How old the oldest event of a batch was: from committed to taken."},
	{Name: "relay.published", In: InRelay, Labels: []Label{streamLabel}, Help: "Messages that the broker stored."},
	{Name: "relay.duplicates", In: InRelay, Labels: []Label{streamLabel}, Help: "Messages that the broker had stored before."},
	{Name: "relay.publish_failures", In: InRelay, Labels: []Label{streamLabel}, Help: "Messages that the broker did not acknowledge; they are published again."},
	{Name: "relay.publish_duration", Kind: Histogram, Unit: "s", In: InRelay, Labels: []Label{streamLabel}, Buckets: batchBuckets, Help: "Time to publish a batch and hear from the broker: from claimed to stored."},
	{Name: "relay.publish_batch_messages", Kind: Histogram, In: InRelay, Labels: []Label{streamLabel}, Buckets: sizeBuckets, Help: "Messages published together."},
	{Name: "relay.set_aside", In: InRelay, Labels: []Label{rowLabel}, Help: "Rows that can never be published and were handed to a person."},
	{Name: "relay.stream_losses", In: InRelay, Labels: []Label{streamLabel}, Help: "Times a stream was found recreated or shortened."},
	{Name: "relay.rearmed_polls", In: InRelay, Labels: []Label{streamLabel}, Rare: true, Help: "Polls made due again because their stream lost them."},
	{Name: "relay.rearmed_events", In: InRelay, Labels: []Label{streamLabel}, Rare: true, Help: "Events made publishable again because their stream lost them."},
	{Name: "relay.ready_polls", Kind: Gauge, In: InRelay, Labels: queueLabels, Help: "Polls that are due and wait in the database, counted up to 10000 at each relay.watch."},
	{Name: "relay.backlog_polls", Kind: Gauge, In: InRelay, Labels: queueLabels, Help: "Polls that wait at the broker, undelivered."},
	{Name: "relay.work_polls", Kind: Gauge, In: InRelay, Labels: queueLabels, Help: "Ready work, the number to scale consumers by: polls that are due in the database and polls that wait at the broker, undelivered. What is held, asleep or deferred is not in it."},
	{Name: "relay.success_timestamp", Kind: Gauge, Unit: "s", In: InRelay, Labels: []Label{loopLabel}, Help: "When a loop of the relay last did its work without an error, since 1970: a relay that is stuck stands still here."},

	// What the relay sees when it looks at the record, every relay.observe. Of several relays each may look; take the max.
	{Name: "record.observed_timestamp", Kind: Gauge, Unit: "s", In: InRelay, Labels: []Label{partLabel}, Help: "When a part of the record was last looked at, since 1970. The gauges of a part that was not looked at for three times relay.observe are not exposed."},
	{Name: "record.observation_duration", Kind: Histogram, Unit: "s", In: InRelay, Labels: []Label{partLabel}, Buckets: batchBuckets, Help: "Time to look at a part of the record."},
	{Name: "record.pending_payments", Kind: Gauge, In: InRelay, Help: "Payments that are pending, those with a person included, by the database's own statistics: an estimate."},
	{Name: "record.parked_polls", Kind: Gauge, In: InRelay, Help: "Polls that sleep in their rows until they are due: what is pending and neither due, at the broker nor with a person. An estimate."},
	{Name: "record.oldest_due_poll", Kind: Gauge, Unit: "s", In: InRelay, Labels: queueLabels, Help: "How long the poll has been due that has waited longest in the database; 0 when none waits."},
	{Name: "record.overdue_polls", Kind: Gauge, In: InRelay, Labels: queueLabels, Help: "Polls that have been due for more than 10 minutes and that no relay took, counted up to 10000."},
	{Name: "record.orphans", Kind: Gauge, In: InRelay, Labels: []Label{orphanLabel}, Help: "Pending payments that nobody will poll, and jobs of payments that are not pending, as found by the last whole pass or by the one under way. More than 0 is a fault."},
	{Name: "record.orphan_pass_timestamp", Kind: Gauge, Unit: "s", In: InRelay, Labels: []Label{orphanLabel}, Rare: true, Help: "When this relay last came to the end of a pass over all payments, or all jobs, since 1970. A pass reads some thousand rows at each relay.observe."},
	{Name: "record.dead_letters", Kind: Gauge, In: InRelay, Labels: []Label{gatewayLabel, reasonLabel, letterLabel}, Rare: true, Help: "Dead letters that are not closed."},
	{Name: "record.dead_letter_oldest", Kind: Gauge, Unit: "s", In: InRelay, Labels: []Label{gatewayLabel, reasonLabel}, Rare: true, Help: "Age of the oldest dead letter that is open: since it died last."},
	{Name: "record.money_at_risk_minor_units", Kind: Gauge, In: InRelay, Labels: []Label{gatewayLabel, currencyLabel}, Rare: true, Help: "Amounts of the pending payments that are with a person, in the minor unit of their currency: cents, yen, fils."},
	{Name: "record.unpublished_events", Kind: Gauge, In: InRelay, Help: "Events that wait in the outbox to be published, counted up to 10000."},
	{Name: "record.oldest_unpublished_event", Kind: Gauge, Unit: "s", In: InRelay, Help: "Age of the oldest event that waits in the outbox; 0 when none waits."},
	{Name: "record.set_aside_events", Kind: Gauge, In: InRelay, Help: "Events that can never be published and are still in the outbox, counted up to 10000."},
	{Name: "record.table_live_rows", Kind: Gauge, In: InRelay, Labels: []Label{tableLabel}, Help: "Rows of a table, its partitions together, by the database's own statistics."},
	{Name: "record.table_dead_rows", Kind: Gauge, In: InRelay, Labels: []Label{tableLabel}, Help: "Dead row versions of a table that vacuum has not taken away yet, by the database's own statistics."},
	{Name: "record.table_size", Kind: Gauge, Unit: "By", In: InRelay, Labels: []Label{tableLabel}, Help: "Size of a table on disk without its indexes."},
	{Name: "record.table_bloat", Kind: Gauge, Unit: "By", In: InRelay, Labels: []Label{tableLabel}, Help: "Size of a table beyond what its rows need at its fillfactor, by the database's own statistics: an estimate."},
	{Name: "record.index_size", Kind: Gauge, Unit: "By", In: InRelay, Labels: []Label{tableLabel}, Help: "Size of a table's indexes on disk."},
	{Name: "record.vacuumed_timestamp", Kind: Gauge, Unit: "s", In: InRelay, Labels: []Label{tableLabel}, Help: "When a table was last vacuumed, of its partitions the latest, since 1970; 0 when it never was."},
	{Name: "record.oldest_transaction", Kind: Gauge, Unit: "s", In: InRelay, Help: "How long the oldest transaction of the database has been open that keeps vacuum from taking dead rows away; 0 when there is none."},
	{Name: "record.oldest_transaction_pid", Kind: Gauge, In: InRelay, Help: "The process id at PostgreSQL of that transaction; 0 when there is none or it is a prepared one."},
	{Name: "record.blocked_session", Kind: Gauge, Unit: "s", In: InRelay, Help: "How long the session of Pollux that waits longest for a lock has waited; 0 when none waits."},
	{Name: "record.blocking_pid", Kind: Gauge, In: InRelay, Help: "The process id at PostgreSQL of the session that it waits for; 0 when none waits."},

	// The audit log's hash chain, which the relay walks.
	{Name: "audit.broken_row", Kind: Gauge, In: InRelay, Help: "The first row of the audit log that is not as it was written, or after which rows are missing; 0 while the chain holds as far as it was read."},
	{Name: "audit.verified_rows", Kind: Gauge, In: InRelay, Help: "Rows of the audit log that were read and found in order."},
	{Name: "audit.verified_timestamp", Kind: Gauge, Unit: "s", In: InRelay, Help: "When the audit log was last read up to its end and found in order, since 1970."},

	// The streams.
	{Name: "stream.messages", Kind: Gauge, In: InRelay, Labels: []Label{streamLabel}, Help: "Messages in a stream."},
	{Name: "stream.size", Kind: Gauge, Unit: "By", In: InRelay, Labels: []Label{streamLabel}, Help: "Size of a stream."},
	{Name: "stream.oldest_message", Kind: Gauge, Unit: "s", In: InRelay, Labels: []Label{streamLabel}, Help: "Age of the oldest message of a stream; 0 when it is empty."},
	{Name: "stream.consumer_lag_messages", Kind: Gauge, In: InRelay, Labels: []Label{streamLabel}, Help: "Messages that a stream's consumer which is furthest behind has not been sent yet, yours included."},
	{Name: "stream.unacknowledged_polls", Kind: Gauge, In: InRelay, Labels: queueLabels, Help: "Polls that were delivered and not acknowledged: in hand or held."},
	{Name: "stream.deferred_polls", Kind: Gauge, In: InRelay, Labels: []Label{gatewayLabel}, Rare: true, Help: "Polls that sleep at the broker until the breaker of their gateway lets them."},
	{Name: "stream.drift_fields", Kind: Gauge, In: InRelay, Labels: []Label{streamLabel}, Help: "Settings of a stream and its consumers that are not as they must be; `pollux streams diff` names them. More than 0 is a fault."},

	// The consumer: from the broker to the gateway and back to the record.
	{Name: "consumer.deliveries", In: InConsumer, Labels: []Label{gatewayLabel, verbLabel, reasonLabel}, Help: "Deliveries by how they ended and why."},
	{Name: "consumer.queue_wait", Kind: Histogram, Unit: "s", In: InConsumer, Labels: queueLabels, Buckets: latenessBuckets, Help: "How long a poll waited at the broker for its first delivery: from stored to delivered, by two clocks."},
	{Name: "consumer.poll_lateness", Kind: Histogram, Unit: "s", In: InConsumer, Labels: queueLabels, Buckets: latenessBuckets, Help: "How long after it was due a poll began."},
	{Name: "consumer.delivery_duration", Kind: Histogram, Unit: "s", In: InConsumer, Labels: []Label{gatewayLabel}, Buckets: callBuckets, Help: "Time of a delivery whose payment was polled: from handed out to acknowledged or given back."},
	{Name: "consumer.in_flight_polls", Kind: UpDown, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Polls that this process is working on."},
	{Name: "consumer.held_polls", Kind: Gauge, In: InConsumer, Labels: queueLabels, Help: "Polls that the broker holds for a delay, fleet-wide."},
	{Name: "consumer.resolved", In: InConsumer, Labels: []Label{gatewayLabel, statusLabel}, Help: "Payments that a poll brought to a final status."},
	{Name: "consumer.time_to_finality", Kind: Histogram, Unit: "s", In: InConsumer, Labels: []Label{gatewayLabel, paymentClassLabel}, Buckets: finalityBuckets, Help: "Time from tracking a payment to the final status that a poll brought, by class of payment. Those of notifications are webhook.time_to_finality."},
	{Name: "consumer.attempts_to_finality", Kind: Histogram, In: InConsumer, Labels: []Label{gatewayLabel}, Buckets: attemptBuckets, Help: "Calls that a gateway answered until a poll brought the final status, since the payment was tracked or last replayed."},
	{Name: "gateway.call_duration", Kind: Histogram, Unit: "s", In: InConsumer, Labels: []Label{gatewayLabel, answerLabel}, Buckets: callBuckets, Help: "Time of a call to a gateway, by the class of its answer."},
	{Name: "record.read_duration", Kind: Histogram, Unit: "s", In: InConsumer, Buckets: batchBuckets, Help: "Time to read the rows of a batch of deliveries."},
	{Name: "record.read_batch_polls", Kind: Histogram, In: InConsumer, Buckets: sizeBuckets, Help: "Deliveries whose rows were read together."},
	{Name: "record.batch_duration", Kind: Histogram, Unit: "s", In: InConsumer, Buckets: batchBuckets, Help: "Time to write a batch of results in one transaction."},
	{Name: "record.batch_results", Kind: Histogram, In: InConsumer, Buckets: sizeBuckets, Help: "Results written in one transaction."},
	{Name: "record.refused_rows", In: InConsumer, Help: "Results that the database refuses today and tomorrow."},
	{Name: "record.superseded_results", In: InConsumer, Help: "Results that changed nothing because the lease had moved on."},
	{Name: "payments.resolved", In: InConsumer | InWebhook, Labels: []Label{gatewayLabel, sourceLabel}, Help: "Payments that became final, by what told us: the share that notifications resolve is the share of source=\"webhook\"."},

	// What stands before a gateway.
	{Name: "breaker.state", Kind: Gauge, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "The breaker of a gateway as this process knows it, of several accounts the most closed to calls: 0 closed, 1 open, 2 half-open, 3 disabled."},
	{Name: "breaker.open_accounts", Kind: Gauge, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Accounts of a gateway whose breaker is open or half-open."},
	{Name: "breaker.credentials_refused", Kind: Gauge, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Accounts of a gateway whose breaker is open because the gateway refused our key."},
	{Name: "breaker.forced", Kind: Gauge, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Accounts of a gateway whose breaker an operator forced."},
	{Name: "breaker.admitted", Kind: Gauge, Unit: "1", In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Share of the calls that the breaker of a gateway admits, of several accounts the smallest: 0 while it is open, below 1 on the ramp after it."},
	{Name: "breaker.transitions", In: InConsumer, Labels: []Label{gatewayLabel, fromLabel, toLabel, causeLabel}, Help: "Changes of a gateway's breaker that this process saw, by what caused them."},
	{Name: "gate.refusals", In: InConsumer, Labels: []Label{gatewayLabel, whyLabel}, Help: "Calls to a gateway that were not made, by why."},
	{Name: "gate.probes", In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Calls made to find out whether a gateway is back."},
	{Name: "gate.wait", Kind: Histogram, Unit: "s", In: InConsumer, Labels: []Label{gatewayLabel}, Buckets: latenessBuckets, Help: "How long a call waited for its turn under the gateway's limit."},
	{Name: "limit.waiting_calls", Kind: Gauge, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Calls of this process that wait for their turn under the gateway's limit."},
	{Name: "limit.paused_accounts", Kind: Gauge, In: InConsumer, Labels: []Label{gatewayLabel}, Help: "Accounts of a gateway that are left alone because the gateway asked for it (429, Retry-After)."},
	{Name: "fleet.apart", Kind: Gauge, In: InConsumer, Help: "1 while this process knows nothing of the other consumers, because the fleet's bucket is missing or does not answer, and decides for itself, otherwise 0."},
	{Name: "limit.share", Kind: Gauge, Unit: "1", In: InConsumer, Labels: []Label{gatewayLabel}, Help: "This process's share of the gateway's limit; over the fleet they add up to 1."},

	// Notifications. A consumer has those of what it fetched from a gateway that was silent.
	{Name: "webhook.request_duration", Kind: Histogram, Unit: "s", In: InWebhook, Labels: []Label{gatewayLabel, outcomeLabel}, Buckets: answerBuckets, Help: "Time to answer a notification, by how it ended."},
	{Name: "webhook.refused", In: InWebhook, Labels: []Label{gatewayLabel, refusalLabel}, Help: "Notifications, or parts of them, that were not believed, by why."},
	{Name: "webhook.notices", In: InConsumer | InWebhook, Labels: []Label{gatewayLabel, decisionLabel}, Help: "Verified notices, by what became of them."},
	{Name: "webhook.time_to_finality", Kind: Histogram, Unit: "s", In: InConsumer | InWebhook, Labels: []Label{gatewayLabel, paymentClassLabel}, Buckets: finalityBuckets, Rare: true, Help: "Time from tracking a payment to the final status that a notification brought, by class of payment. Those of polls are consumer.time_to_finality."},
	{Name: "webhook.unverified_hints", In: InWebhook, Labels: []Label{gatewayLabel, hintLabel}, Rare: true, Help: "Notifications that were not believed, at gateways where they may make a poll due, by what became of them."},
	{Name: "webhook.batch_duration", Kind: Histogram, Unit: "s", In: InWebhook, Buckets: batchBuckets, Help: "Time to write notices in one transaction."},
	{Name: "webhook.batch_notices", Kind: Histogram, In: InWebhook, Buckets: sizeBuckets, Help: "Notices written in one transaction."},
	{Name: "webhook.silent", Kind: Gauge, In: InWebhook, Labels: []Label{gatewayLabel}, Rare: true, Help: "1 while a gateway sends no notifications although payments wait for it, otherwise 0. Gateways whose silence is not listened for are not here."},
	{Name: "webhook.quiet", Kind: Gauge, Unit: "s", In: InWebhook, Labels: []Label{gatewayLabel}, Rare: true, Help: "How long ago a gateway's last notification came."},
	{Name: "webhook.evicted_connections", In: InWebhook, Help: "Connections closed for dawdling while too many were open."},

	// What changes while a process runs.
	{Name: "config.reloads", In: InAll, Labels: []Label{reloadLabel}, Help: "Reloads of the configuration at SIGHUP, by how they ended."},
	{Name: "config.last_reload_timestamp", Kind: Gauge, Unit: "s", In: InAll, Help: "When the configuration that is in force was read, since 1970."},
	{Name: "config.last_reload_successful", Kind: Gauge, In: InAll, Help: "1 while the last reload of the configuration was taken, 0 while it was refused and the one before is in force."},
	{Name: "secret.reloads", In: InAll, Labels: []Label{secretLabel, takenLabel}, Rare: true, Help: "Secrets and certificates that changed in their files, by whether the new ones were taken or the last good ones kept."},
	{Name: "secret.stale", Kind: Gauge, In: InAll, Labels: []Label{secretLabel}, Rare: true, Help: "1 while what is in the files of a kind of secret is of no use and the last good one is in force, otherwise 0."},
	{Name: "certificate.expiry", Kind: Gauge, Unit: "s", In: InAll, Labels: []Label{certificateLabel}, Rare: true, Help: "When a certificate that is in force ends, in seconds since 1970."},

	// The process itself.
	{Name: "database.connections", Kind: Gauge, In: InAll, Labels: []Label{connectionLabel}, Help: "Connections of this process to PostgreSQL."},
	{Name: "database.max_connections", Kind: Gauge, In: InAll, Help: "Connections to PostgreSQL that this process may have: database.max_conns."},
	{Name: "database.waits", In: InAll, Help: "Times that a statement waited because all connections were in use."},
	{Name: "database.wait", Kind: Counter, Unit: "s", In: InAll, Help: "Time that statements waited for a connection, added up."},
	{Name: "broker.connected", Kind: Gauge, In: inBroker, Help: "1 while this process is connected to NATS, otherwise 0."},
	{Name: "broker.reconnects", In: inBroker, Help: "Times that a lost connection to NATS was made again."},
	{Name: "telemetry.export_failures", In: InAll, Labels: []Label{signalLabel}, Help: "Times that metrics or traces could not be pushed to the collector; what was not pushed is lost, and nothing waits for it."},
}

var catalogued = func() map[string]*Metric {
	by := make(map[string]*Metric, len(catalogue))
	for i := range catalogue {
		by[catalogue[i].Name] = &catalogue[i]
	}
	return by
}()

// Label is a label of a metric. Its values are a closed set, or names of the configuration under a cap; whatever else is recorded is "other".
type Label struct {
	Name   string
	What   string   // for a person
	Values []string // the closed set; nil of a capped label
	Capped bool     // names of the configuration, and of further ones as many as the cap takes
}

// Allows reports whether a value can stand there: a member of the closed set, other, or a name under a cap.
func (l Label) Allows(value string) bool {
	if value == other {
		return true
	}
	if l.Capped {
		return message.ValidToken(value)
	}
	return slices.Contains(l.Values, value)
}

// The labels.
var (
	gatewayLabel      = Label{Name: "gateway", What: "the gateway, as it is named in the configuration; beyond telemetry.max_gateways: other", Capped: true}
	paymentClassLabel = Label{Name: "class", What: "the class of the payment; beyond the configured ones and 16 in all: other", Capped: true}
	laneLabel         = Label{Name: "lane", What: "the lane of the poll", Values: lanes}
	streamLabel       = Label{Name: "stream", What: "the stream", Values: streams}
	rowLabel          = Label{Name: "kind", What: "the kind of row", Values: kinds}
	loopLabel         = Label{Name: "loop", What: "what the relay does over and over", Values: outbox.Loops}
	partLabel         = Label{Name: "part", What: "the part of the record", Values: wordsOf(survey.Parts)}
	orphanLabel       = Label{Name: "kind", What: "what lacks its other half", Values: wordsOf(survey.OrphanKinds)}
	tableLabel        = Label{Name: "table", What: "the table, its partitions together", Values: survey.Tables}
	letterLabel       = Label{Name: "state", What: "the state of the dead letter", Values: survey.LetterStates}
	currencyLabel     = Label{Name: "currency", What: "the currency (ISO 4217)", Values: currencies()}
	verbLabel         = Label{Name: "disposition", What: "how the delivery ended", Values: stringsOf(redelivery.Verbs)}
	reasonLabel       = Label{Name: "reason", What: "why", Values: wordsOf(redelivery.Reasons)}
	statusLabel       = Label{Name: "status", What: "the final status", Values: statuses}
	sourceLabel       = Label{Name: "source", What: "what told us", Values: sources}
	answerLabel       = Label{Name: "class", What: "the class of the gateway's answer", Values: stringsOf(gateway.Classes)}
	fromLabel         = Label{Name: "from", What: "the breaker's state before", Values: stringsOf(breaker.Kinds)}
	toLabel           = Label{Name: "to", What: "the breaker's state behind", Values: stringsOf(breaker.Kinds)}
	causeLabel        = Label{Name: "cause", What: "what caused the change", Values: wordsOf(breaker.Causes)}
	whyLabel          = Label{Name: "why", What: "why the call was not made", Values: wordsOf(fleet.Whys)}
	outcomeLabel      = Label{Name: "outcome", What: "how the request ended", Values: wordsOf(webhook.Outcomes)}
	refusalLabel      = Label{Name: "reason", What: "why it was not believed", Values: wordsOf(webhook.Refusals)}
	decisionLabel     = Label{Name: "decision", What: "what became of the notice", Values: wordsOf(webhook.Decisions)}
	hintLabel         = Label{Name: "outcome", What: "what became of the hint", Values: wordsOf(webhook.HintOutcomes)}
	connectionLabel   = Label{Name: "state", What: "what the connection does", Values: []string{"in_use", "idle"}}
	signalLabel       = Label{Name: "signal", What: "what is pushed", Values: []string{signalMetrics, signalTraces}}

	reloadLabel      = Label{Name: "result", What: "how the reload ended", Values: wordsOf(ReloadResults)}
	secretLabel      = Label{Name: "secret", What: "the kind of secret", Values: Secrets}
	takenLabel       = Label{Name: "result", What: "whether it was taken", Values: []string{"taken", "kept"}}
	certificateLabel = Label{Name: "certificate", What: "whose certificate it is; of `gateways` the first to end that we show to any", Values: Certificates}

	queueLabels = []Label{gatewayLabel, laneLabel}
)

// The closed sets that no other package has.
var (
	lanes    = append(slices.Clone(message.Lanes), message.LaneRetry, message.LaneReplay, message.LaneDeferred)
	streams  = []string{message.StreamPoll, message.StreamDeferred, message.StreamEvents, message.StreamDead}
	kinds    = []string{KindPoll, KindEvent}
	statuses = finalStatuses()
	sources  = []string{SourcePoll, SourceWebhook}
)

// What can tell that a payment is final, as far as a service hears of it.
const (
	SourcePoll    = "poll"
	SourceWebhook = "webhook"
)

// What is pushed to a collector.
const (
	signalMetrics = "metrics"
	signalTraces  = "traces"
)

func finalStatuses() []string {
	var names []string
	for _, s := range payment.Statuses {
		if s.Final() {
			names = append(names, string(s))
		}
	}
	return names
}

func currencies() []string {
	var codes []string
	for exponent := range currency.MaxExponent + 1 {
		codes = append(codes, currency.Codes(exponent)...)
	}
	slices.Sort(codes)
	return codes
}

// wordsOf are the members of a closed set of words as they are.
func wordsOf[T ~string](set []T) []string {
	words := make([]string, len(set))
	for i, member := range set {
		words[i] = string(member)
	}
	return words
}

// stringsOf are the members of a closed set as they name themselves.
func stringsOf[T interface{ String() string }](set []T) []string {
	words := make([]string, len(set))
	for i, member := range set {
		words[i] = member.String()
	}
	return words
}
