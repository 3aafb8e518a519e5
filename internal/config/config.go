// Package config is what an operator may say: one YAML file, the environment and flags, in that order, each overriding the one before.
// It is the only reader of the three.
//
// It is strict. A key that is unknown, a value of another type, a secret that is written out or is not there, and keys that contradict each
// other are refused at the start, all at once, each with the place where it was written and what to write instead.
package config

import (
	"errors"
	"strings"
	"time"

	"pollux/internal/gateway/httpjson"
	"pollux/internal/gateway/iyzico"
	"pollux/internal/gateway/mercadopago"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/stripe"
	"pollux/internal/payment/currency"
	"pollux/internal/secret"
)

// DefaultFile is the file that is read when none is named, if there is one.
const DefaultFile = "pollux.yaml"

// Config is the whole configuration. Load returns one that is complete and checked; it must not be changed afterwards and is then safe for
// concurrent use. However it is printed, secrets are not shown.
type Config struct {
	Database  Database           `koanf:"database" restart:"relay consumer webhook"`  // The record: a PostgreSQL database, version 15 or newer.
	NATS      NATS               `koanf:"nats" restart:"relay consumer"`              // The broker: NATS with JetStream.
	Log       Log                `koanf:"log" restart:"relay consumer webhook"`       // What the processes write to standard error.
	Telemetry Telemetry          `koanf:"telemetry" restart:"relay consumer webhook"` // Metrics, health and traces.
	Relay     Relay              `koanf:"relay" restart:"relay"`                      // The outbox relay: from the record to the broker.
	Consumer  Consumer           `koanf:"consumer" restart:"consumer"`                // The consumers: from the broker to the gateways and back to the record.
	Webhooks  Webhooks           `koanf:"webhooks" restart:"webhook"`                 // The receiver of gateways' notifications. See [webhooks.md](webhooks.md).
	Operators Operators          `koanf:"operators" restart:""`                       // What operators may do with dead letters, and what needs a second person.
	Policies  map[string]Policy  `koanf:"policies" restart:""`                        // How payments are retried, by the name of the policy. `standard`, `high_value` and `background` exist; what a policy of your own does not say is as in `standard`.
	Classes   map[string]string  `koanf:"classes" restart:""`                         // Which policy a class of payment has. A class that is not named here is treated as `standard`.
	Gateways  map[string]Gateway `koanf:"gateways" restart:"relay consumer webhook"`  // The gateways, by the name that payments carry.

	policies map[string]map[string]resolved // gateway ("" for any other), class
	secrets  map[string]string              // the names of secrets in the sections of adapters, by path
	from     *reading                       // what it was read from; nil for one that was not loaded
	warnings []Problem
}

// The services, as the tag of a key names those that a change of it takes a restart of. A key without the tag is as the section around it; an empty one is live:
// it takes effect at SIGHUP.
const (
	ServiceRelay    = "relay"
	ServiceConsumer = "consumer"
	ServiceWebhook  = "webhook"
)

// Database says where the record is.
type Database struct {
	URL      URL    `koanf:"url"`       // `postgres://user@host:5432/payments`, or `file:/path` or `env:NAME` of a secret that holds such a URL. With a password it must be a secret, except on loopback. Required by every process.
	TLS      string `koanf:"tls"`       // How the connection is secured, in PostgreSQL's words: `disable`, `require` (encrypted, and anybody may pass for the server), `verify-ca` (its certificate is of an authority that is trusted) or `verify-full` (and of its host). Not written: `verify-full` with a file below, otherwise what `sslmode` in the URL says.
	CAFile   string `koanf:"ca_file"`   // Certificates that the server's is checked against, read again when they change. Empty: the system's.
	CertFile string `koanf:"cert_file"` // A client certificate, for servers that ask for one; read again when it changes. Empty: none.
	KeyFile  string `koanf:"key_file"`  // The key of the client certificate.
	MaxConns int    `koanf:"max_conns"` // Connections of one process. A relay needs one for each batch in flight and one for events; a consumer one for each writer and a few to read. More do not make it faster: PostgreSQL works best with a few per core. Readiness has one more, so that probes never wait for the work nor the work for them.
}

// NATS says where the broker is. At most one of credentials_file, nkey_file and user is used.
type NATS struct {
	URLs            []string `koanf:"urls"`                   // The servers of one cluster: `nats://host:4222`, `tls://host:4222` with TLS. Without user and password. Required by every process but receivers and migrations.
	CredentialsFile string   `koanf:"credentials_file"`       // A JWT with its seed, as nsc writes it; read again at each connection. Empty: none.
	NKeyFile        string   `koanf:"nkey_file"`              // The seed of an nkey; read again at each connection. Empty: none.
	User            string   `koanf:"user"`                   // A user, with the password below. Empty: none.
	Password        Secret   `koanf:"password"`               // The user's password: `file:/path`, read again at each connection, or `env:NAME`.
	CAFile          string   `koanf:"ca_file"`                // Certificates that the servers' are checked against, read again when they change. Empty: the system's.
	CertFile        string   `koanf:"cert_file"`              // A client certificate, for servers that ask for one; read again when it changes. Empty: none.
	KeyFile         string   `koanf:"key_file"`               // The key of the client certificate.
	ServerName      string   `koanf:"server_name"`            // The name in the servers' certificates, where it is not the host of their URL.
	InboxPrefix     string   `koanf:"inbox_prefix"`           // What the subjects of answers to us begin with, for servers that let a user read its own inboxes only. Empty: `_INBOX_pollux_` and the name of the program's user, as `pollux perms print` has it: relay, consumer, operator for the command `pollux`, migrator for `pollux streams apply`. A person who may only look writes `_INBOX_pollux_readonly`.
	Admins          []string `koanf:"admins" restart:""`      // People who run the servers. Each has a user in what `pollux perms print` prints, who may do everything with the streams, also purge and delete them; no program needs one.
	Readers         []string `koanf:"readers" restart:""`     // Services of yours that read the events. Each has a user in what `pollux perms print` prints, and durable consumers of its name in PAYMENTS_EVENTS and PAYMENTS_DEAD, which `pollux streams apply` makes.
	MaxOutstanding  int      `koanf:"max_outstanding"`        // Messages that are published and not acknowledged yet. A stream refuses what exceeds 100,000 from all publishers together.
	Batches         string   `koanf:"batches"`                // Whether many messages for one stream are published as atomic batches: `always`, `never`, or `auto`, which measures each stream and takes what is faster: batches where the server syncs its disk for every message, single messages elsewhere. See [decisions/0003-atomic-batches.md](decisions/0003-atomic-batches.md).
	BatchThreshold  int      `koanf:"batch_threshold"`        // From so many messages for one stream on, batches are considered. Fewer go singly: their time is mostly the way to the server and back, and there is nothing to gain.
	MonitorURL      string   `koanf:"monitor_url" restart:""` // The monitoring page of a server, `http://host:8222`: nothing else tells how it syncs its disk. For `pollux doctor` only. Empty: it is not asked.
}

// Log says what is written to standard error.
type Log struct {
	Format string `koanf:"format"`           // `text` for people, `json` for machines.
	Level  Level  `koanf:"level" restart:""` // `debug`, `info`, `warn` or `error`: what is less important is not written.
}

// Telemetry says how a process is seen from outside.
type Telemetry struct {
	Listen       string                   `koanf:"listen"`                  // Where /metrics, /healthz and /readyz are served. Loopback, because metrics name gateways and volumes; in a container write `:9464` and let the network decide who may read. Empty: nowhere.
	CertFile     string                   `koanf:"cert_file"`               // A certificate (PEM), where these pages are to be served with TLS; read again when it changes. Empty: without TLS.
	KeyFile      string                   `koanf:"key_file"`                // The key of the certificate.
	ClientCAFile string                   `koanf:"client_ca_file"`          // Whoever reads the pages must show a certificate of one of these authorities; probes of an orchestrator cannot. Empty: nobody must.
	PprofListen  string                   `koanf:"pprof_listen"`            // Where /debug/pprof/ is served, on loopback only: profiles show memory. Empty: nowhere.
	OTLPEndpoint string                   `koanf:"otlp_endpoint"`           // The URL of a collector that takes OTLP over gRPC: `http://host:4317` without TLS, `https://` with. Metrics and traces are pushed there in the background; one that is away delays nothing. Empty: nothing is pushed and nothing traced, at no cost.
	OTLPEvery    time.Duration            `koanf:"otlp_every"`              // How often metrics are pushed there; they are served on `listen` all the same. 0: never, only traces are.
	OTLPHeaders  map[string]secret.Secret `koanf:"otlp_headers" restart:""` // Sent with each push: the token that a collector asks for.
	OTLPCAFile   string                   `koanf:"otlp_ca_file"`            // PEM: who signed the collector's certificate. Empty: the system's authorities.
	OTLPCertFile string                   `koanf:"otlp_cert_file"`          // PEM: our certificate for the collector, with `otlp_key_file`. Empty: none.
	OTLPKeyFile  string                   `koanf:"otlp_key_file"`           // PEM: its key.
	TraceRatio   Percent                  `koanf:"trace_ratio"`             // Share of traces that are recorded where the payment carries no `traceparent` that has decided.
	MaxGateways  int                      `koanf:"max_gateways"`            // Gateways with metrics of their own besides those configured here; payments of further ones are counted as `other`. A mistake in the data must not become a flood of time series.
}

// Relay says how the outbox relay works.
type Relay struct {
	Every          time.Duration `koanf:"every"`                                    // How often it looks for due polls and new events while there is nothing to do. A look with an empty result costs PostgreSQL 0.03 ms; it is half of the wait between a commit and its first poll.
	Batch          int           `koanf:"batch"`                                    // Most polls or events in one claim. The broker syncs a batch once, so that large ones are fast: 46,000 messages a second with 1000, 17,000 with 100.
	InFlight       int           `koanf:"in_flight"`                                // Batches that are published while the next is claimed. Two keep both the database and the broker busy.
	Lease          time.Duration `koanf:"lease"`                                    // How long a claimed poll is out of other relays' sight; afterwards it is due again. It bounds how late a poll is whose message was lost.
	Backlog        int           `koanf:"backlog"`                                  // Undelivered polls of a queue at the broker above which none is published to it: what waits, waits in the database. A few seconds of work for the consumers.
	PublishTimeout time.Duration `koanf:"publish_timeout" restart:"relay consumer"` // For the broker to store a batch. Longer, and the batch is published again.
	Retry          time.Duration `koanf:"retry"`                                    // Before an event that the broker did not store is tried again.
	Watch          time.Duration `koanf:"watch"`                                    // How often it looks whether a stream was lost or shortened, and for queues that are not configured.
	Observe        time.Duration `koanf:"observe"`                                  // How often it looks at the record for the metrics: dead letters and their money, orphans, table sizes, old transactions, the audit log, the streams. It costs the database some 10 ms. Where many relays run, let a few look and write 0 for the others: they do not.
	KeepEvents     time.Duration `koanf:"keep_events"`                              // How long published events stay in the outbox, so that a broker that lost its disk gets them again.
	KeepAttempts   time.Duration `koanf:"keep_attempts"`                            // How long the log of calls to gateways is kept: what a person looks at when a customer asks.
}

// Consumer says how the consumers work.
type Consumer struct {
	Lanes         []string      `koanf:"lanes" restart:"relay consumer"` // The lanes of fresh payments that this process works on, of `high`, `normal` and `low`. All, unless some lanes have processes of their own. Retries, replays and what was deferred are worked on by all.
	AckWait       time.Duration `koanf:"ack_wait"`                       // When the broker delivers again what was not acknowledged. Longer than any gateway's timeout, or one payment is polled twice at once; and the shorter, the sooner a dead process's work goes on.
	Lease         time.Duration `koanf:"lease"`                          // How long the record keeps a poll for the consumer that has it, and a held one beyond its delay. Afterwards the relay publishes it anew.
	HoldBudget    int           `koanf:"hold_budget"`                    // Messages of a queue that the broker may hold for a delay, over the whole fleet; beyond it polls sleep in the database. About one second of the fleet's work, so that held retries that come due together never stand long before fresh payments; at a gateway with a rate in `limits` no more than one second of that. The broker itself takes 100,000 well; with 500,000 fresh polls waited 80 s.
	MaxAckPending int           `koanf:"max_ack_pending"`                // Messages of a queue that may be held or worked on, over the whole fleet. At least the hold budget and the workers of all processes together, or held messages keep fresh ones from being delivered: the default leaves room for 78 processes of 64 workers.
	Drain         time.Duration `koanf:"drain"`                          // How long polls that were begun may go on after SIGTERM. Below the orchestrator's grace period, which is usually 30 s; above the gateways' timeouts.
	Record        Record        `koanf:"record"`                         // How results are written.
}

// Record says how results are gathered into transactions.
type Record struct {
	Batch    int           `koanf:"batch"`    // Most results in one transaction. In batches of 500 PostgreSQL spends a tenth of what it spends on single ones.
	Linger   time.Duration `koanf:"linger"`   // How long a result waits for others that are on their way. It is added to the time of a payment; when nothing else is on its way it is not waited for.
	Writers  int           `koanf:"writers"`  // Transactions at once.
	Patience time.Duration `koanf:"patience"` // How long writing is tried again while the database is away. Afterwards the deliveries go back to the broker, and the gateways are asked again.
}

// Operators says what needs care when dead letters are replayed.
type Operators struct {
	MaxReplays         int                `koanf:"max_replays"`          // A payment that was replayed so often and came back each time is put aside instead of being replayed again, until somebody takes it back with `pollux dlq reopen`. 0: never.
	ApproveAboveCount  int                `koanf:"approve_above_count"`  // A replay of more letters waits until a second person approves it with `pollux approve`. 0: no number needs one.
	ApproveAboveAmount map[string]Decimal `koanf:"approve_above_amount"` // A replay of more money waits in the same way: an amount for each currency that has a limit, such as `{EUR: 50000.00}`.
}

// Policy says how a class of payments is retried.
type Policy struct {
	Pending           Curve         `koanf:"pending"`            // Delays between polls while the gateway says that the payment is still pending.
	Error             Curve         `koanf:"error"`              // Delays after calls that failed, by how many failed in a row.
	MaxAttempts       int           `koanf:"max_attempts"`       // Answered polls before a person is asked. 0: no bound.
	MaxFailures       int           `koanf:"max_failures"`       // Failed calls in a row before a person is asked. 0: no bound, so that an outage costs no payment its place; the window still ends it.
	Window            time.Duration `koanf:"window"`             // Age of a payment at which a person is asked. `0s`: no bound.
	OutageGrace       time.Duration `koanf:"outage_grace"`       // How long past its window a payment still sleeps behind an open breaker, to be polled when the gateway is back, before a person is asked. `0s`: not at all; at most 30d.
	HoldLimit         time.Duration `koanf:"hold_limit"`         // The longest delay that the broker keeps a message for; longer ones sleep in the database. At most 5m; `0s`: never hold.
	NotFoundGrace     time.Duration `koanf:"not_found_grace"`    // How long after it was tracked a payment may be unknown to its gateway: gateways show new payments late.
	UnauthorizedDelay time.Duration `koanf:"unauthorized_delay"` // At least so long after the gateway refused our key.
	MaxRetryAfter     time.Duration `koanf:"max_retry_after"`    // What a gateway asks us to wait is cut to this.
	PoisonDeliveries  int           `koanf:"poison_deliveries"`  // Deliveries of a message without a result before it goes to a person: it may be what ends the process each time. 0: never; otherwise at least 5.
}

// Curve is a series of delays: a list, or base and cap.
type Curve struct {
	List   []time.Duration `koanf:"list"`   // The delays; the last one repeats.
	Base   time.Duration   `koanf:"base"`   // The first delay; each following one is twice the one before. Instead of a list.
	Cap    time.Duration   `koanf:"cap"`    // The longest delay, after jitter too.
	Jitter Jitter          `koanf:"jitter"` // Spreads the delays, so that payments that were created together are not polled together: `none`, `full` (0 to the delay), `equal` (half to the whole), `decorrelated` (base to three times the one before) or a percentage such as `±20%`.
}

// Gateway says how payments of one gateway are polled.
type Gateway struct {
	Adapter     string              `koanf:"adapter" restart:"consumer webhook"`      // What speaks with the gateway: `httpjson`, `stripe`, `paypal`, `razorpay`, `mercadopago`, `iyzico` or `adyen`. The section of that name says how; `adyen` has none, because it is never asked: see [gateways/adyen.md](gateways/adyen.md).
	Workers     int                 `koanf:"workers" restart:"consumer"`              // Polls of one lane that one process has in hand at once. With a rate in `limits`, no more than have their turn within two seconds.
	MinInterval *time.Duration      `koanf:"min_interval" restart:"consumer webhook"` // Between two polls of one payment, whatever its policy says. Not written: what the adapter knows of the gateway, mostly `0s`.
	WebhookOnly bool                `koanf:"webhook_only" restart:"consumer webhook"` // The gateway is never asked: its payments wait for a webhook until their deadline or the policy's window ends, and then for a person. Always so with gateways that cannot be asked.
	Limits      Limits              `koanf:"limits" restart:""`                       // How often it is called, by the whole fleet; each of its accounts for itself. Without a rate and a concurrency nothing but pauses that it asks for: write at least what its contract says.
	Breaker     Breaker             `koanf:"breaker" restart:""`                      // When it is not called any more, by the whole fleet, and how it comes back; each of its accounts for itself. See [breaker.md](breaker.md).
	Classes     map[string]string   `koanf:"classes" restart:""`                      // Classes that have another policy at this gateway.
	Policies    map[string]Policy   `koanf:"policies" restart:""`                     // Policies that are different at this gateway: what is not said here is as in the policy of that name.
	HTTPJSON    *httpjson.Config    `koanf:"httpjson" restart:""`                     // For `adapter: httpjson`: how to ask the gateway and how to read its answers. See [gateways/httpjson.md](gateways/httpjson.md).
	Stripe      *stripe.Config      `koanf:"stripe" restart:""`                       // For `adapter: stripe`. See [gateways/stripe.md](gateways/stripe.md).
	PayPal      *paypal.Config      `koanf:"paypal" restart:""`                       // For `adapter: paypal`. See [gateways/paypal.md](gateways/paypal.md).
	Razorpay    *razorpay.Config    `koanf:"razorpay" restart:""`                     // For `adapter: razorpay`. See [gateways/razorpay.md](gateways/razorpay.md).
	MercadoPago *mercadopago.Config `koanf:"mercadopago" restart:""`                  // For `adapter: mercadopago`. See [gateways/mercadopago.md](gateways/mercadopago.md).
	Iyzico      *iyzico.Config      `koanf:"iyzico" restart:""`                       // For `adapter: iyzico`. See [gateways/iyzico.md](gateways/iyzico.md).
}

// Decimal is an amount of money in whole units, as it was written: 50000.00. Its currency stands beside it.
type Decimal string

// MarshalText returns the amount as it was written.
func (d Decimal) MarshalText() ([]byte, error) { return []byte(d), nil }

// UnmarshalText takes digits, and perhaps a point and digits.
func (d *Decimal) UnmarshalText(text []byte) error {
	if len(text) == 0 || strings.Trim(string(text), "0123456789.") != "" {
		return errors.New("not an amount; write one such as 50000.00")
	}
	*d = Decimal(text)
	return nil
}

// ApproveAbove is the limits of Operators.ApproveAboveAmount in minor units, by currency.
func (c Config) ApproveAbove() map[string]int64 {
	limits := make(map[string]int64, len(c.Operators.ApproveAboveAmount))
	for code, amount := range c.Operators.ApproveAboveAmount {
		exponent, _ := currency.Exponent(code)
		limits[code], _ = currency.Minor(string(amount), exponent) // both were checked
	}
	return limits
}
