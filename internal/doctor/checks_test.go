package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// healthy is a system that is as it should be: every check of it is green.
func healthy() (*Sources, *Settings) {
	set := &Settings{
		Gateways: []Gateway{{Name: "acme", Timeout: 10 * time.Second, MaxWait: 5 * time.Second, Rate: 20, Concurrency: 8, Seats: 8, Workers: 64, HoldLimit: 30 * time.Second}},
		Lanes:    []string{"normal", "retry"},
		AckWait:  time.Minute, ConsumerLease: 5 * time.Minute, RelayLease: 5 * time.Minute, PublishTimeout: 5 * time.Second, Retry: time.Second,
		HoldBudget: 5000, MaxAckPending: 10_000, MaxConns: 8, Writers: 2, InFlight: 2,
		Keys: []Key{{Gateway: "acme", Name: "current"}, {Gateway: "acme", Name: "old", Until: now}}, Now: now,
	}
	here := Peer{Local: true}
	s := &Sources{
		Server: Know(Server{Version: 150004, Name: "15.4", Login: "pollux_relay", Peer: here, Settings: map[string]string{
			"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "track_counts": "on"}}),
		Clock:       Know(Clock{Offset: 2 * time.Millisecond, Within: time.Millisecond}),
		Schema:      Know(Schema{Have: 7, Want: 7}),
		Sessions:    Know(Sessions{Oldest: []Session{{PID: 7, Application: "psql", Age: time.Second}}, Relays: 2}),
		Connections: Know(Connections{Max: 100, Reserved: 3, Used: 10, Ours: map[string]int{"pollux-relay": 3}}),
		Tables:      Know([]Table{{Name: "poll_jobs", Live: 1_000_000, Dead: 40_000, XIDs: 1_000_000}}),
		Structure:   Know(Structure{}),
		Partitions:  Know([]Partitioned{{Table: "outbox", Today: now, Oldest: now, Keep: 24 * time.Hour}}),
		Strays:      Know(Strays{Looked: 10}),
		Ahead:       Know(Ahead{Looked: 10}),
		Queues:      Know([]Queue{{Gateway: "acme", Lane: "normal", Due: 3, Oldest: time.Second}}),
		Outbox:      Know(Outbox{Waiting: 2, Oldest: time.Second, Delay: time.Second}),
		Letters:     Know(Letters{Open: 1, Oldest: time.Hour}),
		Silence:     Know([]Silent{{Gateway: "acme", After: time.Hour, Heard: true, For: time.Minute, Waiting: true}}),
		Chain:       Know(Chain{Rows: 3, Head: "abc…@3"}),
		Rights:      Know(Rights{Login: "pollux_relay", Role: "relay"}),
		Roles:       Know([]Rights{{Login: "pollux_relay", Role: "pollux_relay"}}),
		Logins:      Know(Logins{Logins: []Login{{Name: "pollux_relay_login", Role: "pollux_relay"}}}),
		Hub:         Know(Hub{Version: "2.12.1", Servers: 1, Peer: here}),
		BrokerClock: Know(Clock{Offset: -3 * time.Millisecond, Within: time.Millisecond}),
		Drift:       Know([]Difference{}),
		Streams:     Know(soundStreams()),
		Consumers:   Know([]Consumer{soundConsumer()}),
		Account:     Know(Account{Limits: []Limit{{Name: "storage", Used: 10, Max: 100}}}),
		Disk:        Know(Disk{Asked: true, Interval: 2 * time.Minute}),
		Fleet:       Know(Fleet{Instances: 2, Shares: map[string]Share{"acme": {Members: 2, Sum: 1}}, Breakers: []Breaker{{Gateway: "acme", State: "closed", Rate: 1}}}),
		Access:      Know(Rights{Login: "relay", Role: "relay"}),
		Machine:     Know(Machine{OpenFiles: 65536, Memory: 1 << 30, GoLimit: 900 << 20}),
		Files: Know([]File{
			{Key: "database.url", Path: "/run/secrets/url", Kind: SecretFile, Mode: 0o400},
			{Key: "nats.credentials_file", Path: "/run/secrets/creds", Kind: CredentialsFile, Mode: 0o400, Expires: now.AddDate(1, 0, 0)},
			{Key: "webhooks.cert_file", Path: "/tls/tls.crt", Kind: CertificateFile, Mode: 0o644, Certs: []Certificate{{Where: "/tls/tls.crt", Subject: "CN=hooks", NotAfter: now.AddDate(0, 6, 0)}}},
			{Key: "gateways.acme", Path: "/elsewhere", Kind: SecretFile, Missing: true},
		}),
	}
	return s, set
}

func soundStreams() []Stream {
	one := Stream{Retention: "limits", Discard: "new", Storage: "file", Replicas: 1, DuplicateWindow: 2 * time.Minute}
	poll, deferred, events := one, one, one
	poll.Name, poll.Discard, poll.MaxAge = "PAYMENTS_POLL", "old", 10*time.Minute
	deferred.Name, deferred.Retention = "PAYMENTS_DEFERRED", "workqueue"
	events.Name = "PAYMENTS_EVENTS"
	return []Stream{poll, deferred, events}
}

func soundConsumer() Consumer {
	return Consumer{Stream: "PAYMENTS_POLL", Name: "poll_acme_normal", Gateway: "acme", Lane: "normal", AckPolicy: "explicit", AckWait: time.Minute, MaxDeliver: -1,
		MaxAckPending: 10_000, Pending: 4, Waiting: 1}
}

// change returns a fact that is another's value, changed.
func change[T any](f *Fact[T], how func(*T)) *Fact[T] {
	v, err := f.Get(context.Background())
	if err != nil {
		panic(err)
	}
	how(&v)
	return Know(v)
}

// faults are systems with one fault each, by the check that finds it.
var faults = []struct {
	id    string
	fault string
	make  func(*Sources, *Settings)
	want  Level
	says  string
	mend  string
}{
	{"record.reachable", "away", func(s *Sources, _ *Settings) {
		s.Server = Ask(func(context.Context) (Server, error) {
			return Server{}, errors.New("reaching the database: connection refused")
		})
	}, Red, "connection refused", "database.url"},
	{"record.reachable", "not let in", func(s *Sources, _ *Settings) {
		s.Server = Ask(func(context.Context) (Server, error) { return Server{}, knowing{errors.New("no such user")} })
	}, Red, "no such user", "what the error knows"},
	{"record.version", "old", server1(func(v *Server) { v.Version, v.Name = 140010, "14.10" }), Red, "14.10", "15 or newer"},
	{"record.schema", "none", func(s *Sources, _ *Settings) { s.Schema = Know(Schema{Want: 7}) }, Red, "no schema", "pollux migrate up"},
	{"record.schema", "old", func(s *Sources, _ *Settings) { s.Schema = Know(Schema{Have: 6, Want: 7}) }, Red, "version 6", "pollux migrate up"},
	{"record.schema", "new", func(s *Sources, _ *Settings) { s.Schema = Know(Schema{Have: 8, Want: 7}) }, Red, "knows 7", "newer build"},
	{"record.writable", "standby", server1(func(v *Server) { v.Standby = true }), Red, "standby", "primary"},
	{"record.writable", "read-only", server1(func(v *Server) { v.ReadOnly = true }), Red, "read_only", "reset"},
	{"record.fsync", "off", setting1("fsync", "off"), Red, "off", `psql -c "alter system set fsync = on" -c "select pg_reload_conf()"`},
	{"record.full_page_writes", "off", setting1("full_page_writes", "off"), Yellow, "off", "full_page_writes = on"},
	{"record.synchronous_commit", "off", setting1("synchronous_commit", "off"), Red, "lost in a crash", "synchronous_commit = on"},
	{"record.synchronous_commit", "local with a standby", func(s *Sources, _ *Settings) {
		s.Server = change(s.Server, func(v *Server) {
			v.Settings = map[string]string{"synchronous_commit": "local", "synchronous_standby_names": "b"}
		})
	}, Yellow, "failover", "to on"},
	{"record.autovacuum", "off", setting1("autovacuum", "off"), Red, "autovacuum is off", "autovacuum = on"},
	{"record.autovacuum", "blind", setting1("track_counts", "off"), Red, "track_counts is off", "track_counts = on"},
	{"record.transactions", "old", session(Session{PID: 42, Application: "pg_dump", State: "active", Age: 6 * time.Minute}), Yellow, "pg_dump (login unnamed) has had a transaction open for 6m", "pg_terminate_backend(42)"},
	{"record.transactions", "ancient", session(Session{PID: 42, Login: "ada", State: "idle in transaction", Age: 3 * time.Hour}), Red, "idle in transaction", "pg_terminate_backend(42)"},
	{"record.transactions", "a standby's", session(Session{PID: 42, Kind: "walsender", Age: 6 * time.Minute}), Yellow, "unnamed", "hot_standby_feedback"},
	{"record.transactions", "hidden", func(s *Sources, _ *Settings) { s.Sessions = Know(Sessions{Hidden: true}) }, Yellow, "not shown", "pg_read_all_stats"},
	{"record.prepared", "forgotten", func(s *Sources, _ *Settings) {
		s.Sessions = Know(Sessions{Prepared: []Prepared{{"tx1", "ada", time.Hour}}})
	}, Red, "ada 1h", "rollback prepared 'tx1'"},
	{"record.slots", "lost", slot(Slot{Name: "s", Status: "lost"}), Red, "lost", "pg_drop_replication_slot('s')"},
	{"record.slots", "piles up", slot(Slot{Name: "s", Active: true, Retained: 2 << 30}), Yellow, "2048 MiB", "pg_drop_replication_slot('s')"},
	{"record.slots", "fills the disk", slot(Slot{Name: "s", Retained: 20 << 30}), Red, "20 GiB", "pg_drop_replication_slot('s')"},
	{"record.slots", "unread", slot(Slot{Name: "s", XIDs: 9}), Yellow, "9 transactions", "start its reader"},
	{"record.locks", "somebody waits", waiting("psql"), Yellow, "psql has waited 1m", "pg_signal_backend"},
	{"record.locks", "the relay waits", waiting("pollux-relay"), Red, "pid 9 (pg_dump)", "pg_terminate_backend(9)"},
	{"record.connections", "few left", func(s *Sources, _ *Settings) { s.Connections = Know(Connections{Max: 103, Reserved: 3, Used: 85}) }, Yellow, "85 of 100", "max_connections"},
	{"record.connections", "none left", func(s *Sources, _ *Settings) { s.Connections = Know(Connections{Max: 103, Reserved: 3, Used: 99}) }, Red, "99 of 100", "max_connections"},
	{"record.connections", "hidden", func(s *Sources, _ *Settings) { s.Connections = Know(Connections{Hidden: true}) }, Yellow, "not shown", "pg_read_all_stats"},
	{"record.connections", "pools that just fit", func(s *Sources, _ *Settings) {
		s.Connections = Know(Connections{Max: 33, Reserved: 3, Used: 22, Ours: map[string]int{"pollux-consumer": 10}})
	}, Green, "22 of 30", ""},
	{"record.connections", "pools that do not fit", func(s *Sources, _ *Settings) {
		s.Connections = Know(Connections{Max: 33, Reserved: 3, Used: 23, Ours: map[string]int{"pollux-consumer": 10}})
	}, Yellow, "may need 18 connections, and others leave 17 of 30", "max_conns"},
	{"record.connections", "none left, and pools that do not fit", func(s *Sources, _ *Settings) {
		s.Connections = Know(Connections{Max: 33, Reserved: 3, Used: 29, Ours: map[string]int{"pollux-consumer": 10}})
	}, Red, "29 of 30", "max_conns"},
	{"record.bloat", "bloated", func(s *Sources, _ *Settings) {
		s.Tables = Know([]Table{{Name: "poll_jobs", Live: 100_000, Dead: 60_000}})
	}, Yellow, "60000 dead rows", "vacuum (analyze) pollux.poll_jobs"},
	{"record.bloat", "mostly dead", func(s *Sources, _ *Settings) {
		s.Tables = Know([]Table{{Name: "poll_jobs", Live: 100_000, Dead: 600_000, Bytes: 1 << 30, Vacuumed: now}})
	}, Red, "2026-03-01", "vacuum"},
	{"record.wraparound", "old", func(s *Sources, _ *Settings) { s.Tables = Know([]Table{{Name: "payments", XIDs: 1_100_000_000}}) }, Yellow, "1100 million", "vacuum (freeze) pollux.payments"},
	{"record.wraparound", "ancient", func(s *Sources, _ *Settings) { s.Tables = Know([]Table{{Name: "payments", XIDs: 1_900_000_000}}) }, Red, "1900 million", "freeze"},
	{"record.indexes", "missing", func(s *Sources, _ *Settings) {
		s.Structure = Know(Structure{MissingIndexes: []Index{{"poll_jobs_claim", "create index concurrently poll_jobs_claim on pollux.poll_jobs (gateway)"}}})
	}, Red, "missing", `as the migrator: psql -c "create index concurrently poll_jobs_claim on`},
	{"record.indexes", "invalid", func(s *Sources, _ *Settings) {
		s.Structure = Know(Structure{InvalidIndexes: []string{"poll_jobs_claim"}})
	}, Red, "invalid", "reindex index concurrently pollux.poll_jobs_claim"},
	{"record.storage", "another fillfactor", func(s *Sources, _ *Settings) {
		s.Structure = Know(Structure{Options: []Option{{"poll_jobs", "fillfactor", "", "70"}}})
	}, Yellow, "fillfactor is not set", "set (fillfactor = 70)"},
	{"record.storage", "never vacuumed", func(s *Sources, _ *Settings) {
		s.Structure = Know(Structure{Options: []Option{{"poll_jobs", "autovacuum_enabled", "false", ""}}})
	}, Red, "autovacuum_enabled is false", "reset (autovacuum_enabled)"},
	{"record.triggers", "disabled", func(s *Sources, _ *Settings) {
		s.Structure = Know(Structure{DisabledTriggers: []string{"payments.payments_turned"}})
	}, Red, "disabled", "alter table pollux.payments enable trigger payments_turned"},
	{"record.partitions", "today's is missing", partition(func(p *Partitioned) { p.Missing = []time.Time{now, now.AddDate(0, 0, 1)} }), Red, "2026-03-01", "pollux.maintain"},
	{"record.partitions", "tomorrow's is missing", partition(func(p *Partitioned) { p.Missing = []time.Time{now.AddDate(0, 0, 1)} }), Yellow, "2026-03-02", "pollux.maintain"},
	{"record.partitions", "an old one stays", partition(func(p *Partitioned) { p.Oldest = now.AddDate(0, 0, -9) }), Yellow, "2026-02-20", "published_at is null"},
	{"record.partitions", "rows in the default one", partition(func(p *Partitioned) { p.Default = 7 }), Yellow, "7 rows", "relay"},
	{"record.orphans", "a payment without a job", func(s *Sources, _ *Settings) { s.Strays = Know(Strays{NoJob: 2, Example: 42}) }, Red, "2 payments are pending without a job, such as 42", `psql -1 -c "alter table pollux.poll_jobs disable trigger jobs_begin"`},
	{"record.orphans", "a job of a final payment", func(s *Sources, _ *Settings) { s.Strays = Know(Strays{Final: 1, FinalOf: 43}) }, Red, "1 job is", `psql -c "delete from pollux.poll_jobs j where`},
	{"record.ahead", "a little", func(s *Sources, _ *Settings) { s.Ahead = Know(Ahead{Jobs: 2, By: 90 * time.Second}) }, Yellow, "2 jobs and 0 events are ahead, by up to 1m30s", `psql -1 -c "update pollux.poll_jobs set next_poll_at =`},
	{"record.ahead", "an event, far", func(s *Sources, _ *Settings) { s.Ahead = Know(Ahead{Events: 1, By: time.Hour}) }, Red, "0 jobs and 1 event is ahead, by up to 1h", `-c "update pollux.outbox set publish_at = now()`},
	{"record.due", "late", queue(Queue{Gateway: "acme", Lane: "normal", Due: 5, Oldest: 2 * time.Minute}), Yellow, "5 polls are due, the oldest for 2m", "relay"},
	{"record.due", "stuck", queue(Queue{Gateway: "acme", Lane: "normal", Due: 1, Oldest: time.Hour}), Red, "1 poll is due", "relay"},
	{"record.queues", "a stranger", queue(Queue{Gateway: "emca", Lane: "normal"}), Yellow, "not configured", "gateways.emca"},
	{"record.queues", "a stranger whose polls are due", queue(Queue{Gateway: "emca", Lane: "normal", Due: 2}), Red, "2 polls are due", "pollux payments list --gateway emca"},
	{"record.relay", "none", func(s *Sources, _ *Settings) { s.Sessions = Know(Sessions{}) }, Red, "pollux-relay", "start outbox-relay"},
	{"record.outbox", "late", func(s *Sources, _ *Settings) { s.Outbox = Know(Outbox{Waiting: 3, Oldest: 2 * time.Minute, Tries: 4}) }, Yellow, "3 events wait, the oldest for 2m, tried 4 times", "relay"},
	{"record.outbox", "stuck", func(s *Sources, _ *Settings) { s.Outbox = Know(Outbox{Waiting: 3, Oldest: time.Hour}) }, Red, "1h", "relay"},
	{"record.set_aside", "some", func(s *Sources, _ *Settings) {
		s.Outbox = Know(Outbox{SetAside: 1, Why: "larger than the stream takes"})
	}, Yellow, "larger than", "set_aside = null"},
	{"record.letters", "old", func(s *Sources, _ *Settings) {
		s.Letters = Know(Letters{Open: 3, Oldest: 30 * time.Hour, Money: map[string]int64{"EUR": 1999, "JPY": 500}})
	}, Yellow, "19.99 EUR, 500 JPY at stake, the oldest for 30h", "pollux dlq groups"},
	{"record.letters", "a replay that nobody drives", func(s *Sources, _ *Settings) { s.Letters = Know(Letters{Stuck: 1}) }, Yellow, "nobody drives", "pollux dlq resume"},
	{"record.audit", "broken", func(s *Sources, _ *Settings) { s.Chain = Know(Chain{Rows: 5, Broken: 4, Why: "it was changed"}) }, Red, "row 4: it was changed", "pollux audit verify"},

	{"broker.reachable", "away", func(s *Sources, _ *Settings) {
		s.Hub = Ask(func(context.Context) (Hub, error) { return Hub{}, errors.New("connecting to NATS: no servers") })
	}, Red, "no servers", "nats.urls"},
	{"broker.reachable", "not let in", func(s *Sources, _ *Settings) {
		s.Hub = Ask(func(context.Context) (Hub, error) { return Hub{}, knowing{errors.New("authorization violation")} })
	}, Red, "authorization violation", "what the error knows"},
	{"broker.jetstream", "off", func(s *Sources, _ *Settings) { s.Account = Know(Account{Off: "jetstream not enabled"}) }, Red, "not enabled", "--jetstream"},
	{"broker.version", "old", hub1(func(h *Hub) { h.Version = "2.10.22" }), Yellow, "2.10.22", "2.12"},
	{"broker.streams", "another setting", func(s *Sources, _ *Settings) {
		s.Drift = Know([]Difference{{Stream: "PAYMENTS_POLL", Field: "max_age", Have: "1h0m0s", Want: "10m0s"}})
	}, Red, "max_age is 1h0m0s, declared 10m0s", "pollux streams apply"},
	{"broker.streams", "missing", func(s *Sources, _ *Settings) { s.Drift = Know([]Difference{{Stream: "PAYMENTS_POLL"}}) }, Red, "missing", "pollux streams apply"},
	{"broker.streams", "what cannot be changed", func(s *Sources, _ *Settings) {
		s.Drift = Know([]Difference{{Stream: "PAYMENTS_POLL", Field: "retention", Have: "workqueue", Want: "limits", Blocked: "cannot be changed; stop the services"}})
	}, Red, "workqueue", "stop the services"},
	{"broker.consumers", "another setting", func(s *Sources, _ *Settings) {
		s.Drift = Know([]Difference{{Stream: "PAYMENTS_POLL", Consumer: "poll_acme_normal", Field: "ack_wait", Have: "30s", Want: "1m0s"}})
	}, Red, "ack_wait is 30s", "pollux streams apply"},
	{"broker.forbidden", "backoff", consumer1(func(c *Consumer) { c.BackOff = []time.Duration{time.Second} }), Red, "backoff is [1s]", "pollux streams apply"},
	{"broker.forbidden", "bounded deliveries", consumer1(func(c *Consumer) { c.MaxDeliver = 5 }), Red, "max_deliver is 5", "pollux streams apply"},
	{"broker.forbidden", "no acks", consumer1(func(c *Consumer) { c.AckPolicy = "none" }), Red, "ack_policy is none", "delete the consumer"},
	{"broker.forbidden", "pushes", consumer1(func(c *Consumer) { c.Push = true }), Red, "pushes", "delete the consumer"},
	{"broker.forbidden", "a work queue of polls", stream1(0, func(s *Stream) { s.Retention = "workqueue" }), Red, "retention is workqueue", "pollux streams diff"},
	{"broker.forbidden", "events that are dropped", stream1(2, func(s *Stream) { s.Discard = "old" }), Red, "discard is old", "pollux streams diff"},
	{"broker.forbidden", "events that reading deletes", stream1(2, func(s *Stream) { s.Retention = "interest" }), Red, "reading deletes", "pollux streams diff"},
	{"broker.forbidden", "in memory", stream1(0, func(s *Stream) { s.Storage = "memory" }), Red, "memory", "pollux streams diff"},
	{"broker.ack_pending", "too small", consumer1(func(c *Consumer) { c.MaxAckPending = 100 }), Red, "max_ack_pending is 100: 20 may be held, and 2 instances work on 64 each", "consumer.max_ack_pending: 1000"},
	{"broker.ack_pending", "used up", func(s *Sources, set *Settings) {
		set.Gateways[0].Rate = 0
		s.Consumers = change(s.Consumers, func(c *[]Consumer) { (*c)[0].AckPending = 10_000 })
	}, Red, "all 10000 places are taken", "hold_budget"},
	{"broker.ack_wait", "shorter than a call", consumer1(func(c *Consumer) { c.AckWait = 15 * time.Second }), Red, "may take 15s", "pollux streams apply makes it 1m0s"},
	{"broker.ack_wait", "configured shorter than a call", func(s *Sources, set *Settings) {
		set.AckWait = 15 * time.Second
		consumer1(func(c *Consumer) { c.AckWait = 15 * time.Second })(s, set)
	}, Red, "may take 15s", "longer consumer.ack_wait"},
	{"broker.ack_wait", "longer than a lease", consumer1(func(c *Consumer) { c.AckWait = 5 * time.Minute }), Red, "a lease 5m0s", "pollux streams apply makes it 1m0s"},
	{"broker.ack_wait", "configured longer than a lease", func(s *Sources, set *Settings) {
		set.AckWait = 5 * time.Minute
		consumer1(func(c *Consumer) { c.AckWait = 5 * time.Minute })(s, set)
	}, Red, "a lease 5m0s", "shorter consumer.ack_wait"},
	{"broker.duplicates", "shorter than a second try", stream1(2, func(s *Stream) { s.DuplicateWindow = 5 * time.Second }), Red, "published again after up to 6s", "pollux streams apply"},
	{"broker.duplicates", "shorter than the relay's lag", func(s *Sources, _ *Settings) { s.Outbox = Know(Outbox{Waiting: 1, Oldest: 3 * time.Minute, Tries: 2}) }, Yellow, "tried for 3m", "record.outbox"},
	{"broker.max_age", "shorter than a lease", stream1(0, func(s *Stream) { s.MaxAge = time.Minute }), Yellow, "max_age is 1m0s", "pollux streams apply"},
	{"broker.full", "nearly", stream1(2, func(s *Stream) { s.Bytes, s.MaxBytes = 85<<20, 100<<20 }), Yellow, "85 MiB of 100 MiB", "nats stream purge PAYMENTS_EVENTS"},
	{"broker.full", "full", stream1(2, func(s *Stream) { s.Messages, s.MaxMessages = 100, 100 }), Red, "100 of 100 messages", "purge"},
	{"broker.limits", "nearly reached", func(s *Sources, _ *Settings) {
		s.Account = Know(Account{Limits: []Limit{{Name: "storage", Used: 96, Max: 100}}})
	}, Red, "96 of 100", "account"},
	{"broker.sync", "not known", func(s *Sources, _ *Settings) { s.Disk = Know(Disk{}) }, Yellow, "not known", "nats.monitor_url"},
	{"broker.sync", "always", func(s *Sources, _ *Settings) { s.Disk = Know(Disk{Asked: true, Always: true}) }, Green, "before each", ""},
	{"broker.sync", "seldom", func(s *Sources, _ *Settings) { s.Disk = Know(Disk{Asked: true, Interval: time.Hour}) }, Yellow, "every 1h0m0s", "sync_interval"},
	{"broker.replicas", "one in a cluster", hub1(func(h *Hub) { h.Servers, h.Cluster = 3, "c1" }), Yellow, "1 replica, and the cluster has 3 servers", "--replicas 3"},
	{"broker.replicas", "no leader", stream1(0, func(s *Stream) { s.Clustered = true }), Red, "no leader", "step-down"},
	{"broker.replicas", "a peer is away", stream1(0, func(s *Stream) { s.Clustered, s.Leader, s.Offline = true, "a", []string{"b"} }), Yellow, "b offline", "start them"},
	{"broker.replicas", "a peer lags", stream1(0, func(s *Stream) { s.Clustered, s.Leader, s.Lagging = true, "a", []string{"b"} }), Yellow, "b behind", "wait"},
	{"broker.workers", "nobody asks", consumer1(func(c *Consumer) { c.Waiting = 0 }), Red, "4 messages wait, and nobody asks", "start a consumer"},
	{"broker.workers", "never started", func(s *Sources, _ *Settings) { s.Consumers = Know([]Consumer{}) }, Yellow, "no consumer at the broker", "start a consumer"},

	{"configuration.gateways", "none", func(_ *Sources, set *Settings) { set.Gateways = nil }, Yellow, "none", "gateways:"},
	{"configuration.gateways", "none, and none is needed", func(_ *Sources, set *Settings) { set.Gateways, set.NoGateways = nil, true }, Green, "needs none", ""},
	{"configuration.secrets", "an empty one", func(_ *Sources, set *Settings) {
		set.Unusable = []Unusable{{Key: "database.url", Where: "pollux.yaml:2", Why: "secret file /u: empty"}}
	}, Red, "database.url secret file /u: empty", "pollux.yaml:2"},
	{"configuration.pools", "too small", func(_ *Sources, set *Settings) { set.MaxConns, set.InFlight = 4, 8 }, Yellow, "4 connections, and 9", "database.max_conns: 9"},
	{"configuration.health", "off", func(_ *Sources, set *Settings) { set.TelemetryOff = true }, Yellow, "empty", "telemetry.listen"},

	{"gateways.limits", "none", func(_ *Sources, set *Settings) { set.Gateways[0].Rate, set.Gateways[0].Concurrency = 0, 0 }, Yellow, "neither", "limits.rate"},
	{"gateways.shares", "more than the whole", share(Share{Members: 2, Sum: 1.5}), Red, "150%", "share.acme"},
	{"gateways.shares", "too many instances", share(Share{Members: 9, Sum: 1}), Yellow, "9 instances share what 8 can", "at most 8 consumers"},
	{"gateways.shares", "of another version", share(Share{Unread: "version 9"}), Yellow, "version 9", "versions"},
	{"gateways.shares", "next to nothing for each", func(s *Sources, set *Settings) { set.Gateways[0].Rate = 0.1; share(Share{Members: 4, Sum: 1})(s, set) }, Yellow, "once in 40s", "fewer consumers"},
	{"gateways.breakers", "open", breaker1(Breaker{Gateway: "acme", Account: "eu", State: "open", Cause: "failure_ratio", Since: now, Rate: 1}), Yellow, "open since 2026-03-01 12:00:00Z: failure_ratio", "pollux gateway test acme"},
	{"gateways.breakers", "forced", breaker1(Breaker{Gateway: "acme", State: "closed", Forced: "open", Actor: "ada", Reason: "case 7", Until: now, Rate: 1}), Yellow, "forced open by ada", "pollux breaker release acme --reason WHY"},
	{"gateways.breakers", "unreadable", breaker1(Breaker{Gateway: "acme", Unread: "version 9", Rate: 1}), Yellow, "version 9", "pollux breaker reset acme"},
	{"gateways.breakers", "slowed down", breaker1(Breaker{Gateway: "acme", State: "closed", Rate: 0.2}), Yellow, "20%", "limits.rate"},
	{"gateways.credentials", "refused", breaker1(Breaker{Gateway: "acme", State: "open", Cause: "credentials", Since: now, Rate: 1}), Red, "refused our key since", `without a restart; then: pollux breaker reset acme --reason "`},
	{"gateways.notifications", "silent", silence(Silent{Gateway: "acme", After: time.Hour, Heard: true, For: 2 * time.Hour, Waiting: true}), Yellow, "nothing has come for 2h", "console"},
	{"gateways.notifications", "never heard", silence(Silent{Gateway: "acme", After: time.Hour, Waiting: true}), Yellow, "ever come", "console"},
	{"gateways.notifications", "silent, and never asked", func(s *Sources, set *Settings) {
		set.Gateways[0].NeverAsked = true
		silence(Silent{Gateway: "acme", After: time.Hour, Waiting: true})(s, set)
	}, Red, "ever come", "console"},
	{"gateways.keys", "the last one ends", func(_ *Sources, set *Settings) {
		set.Keys = []Key{{Gateway: "acme", Account: "eu", Name: "k1", Until: now.AddDate(0, 0, 20)}}
	}, Yellow, "acme/eu", "keys"},
	{"gateways.keys", "the last one has ended", func(_ *Sources, set *Settings) {
		set.Keys = []Key{{Gateway: "acme", Name: "k1", Until: now.AddDate(0, 0, -1)}}
	}, Red, "ended on 2026-02-28", "keys"},

	{"security.record_tls", "over a network", server1(func(v *Server) { v.Peer = Peer{} }), Yellow, "without TLS", "sslmode=verify-full"},
	{"security.broker_tls", "over a network", hub1(func(h *Hub) { h.Auth, h.Peer = true, Peer{} }), Yellow, "without TLS", "tls://"},
	{"security.broker_tls", "everybody", hub1(func(h *Hub) { h.Peer = Peer{Secure: true} }), Red, "everybody", "accounts"},
	{"security.certificates", "the database's ends", server1(func(v *Server) { v.Peer.Certificates = []Certificate{{"database", "CN=db", now.AddDate(0, 0, 20), ""}} }), Yellow, "CN=db ends on 2026-03-21", "renew"},
	{"security.certificates", "the broker's ends in days", hub1(func(h *Hub) { h.Peer.Certificates = []Certificate{{"broker", "CN=nats", now.AddDate(0, 0, 2), ""}} }), Red, "in 2 days", "renew"},
	{"security.certificates", "a file's has ended", file(File{Kind: CertificateFile, Path: "/c", Certs: []Certificate{{"/c", "CN=hooks", now, ""}}}), Red, "ended on", "renew"},
	{"security.certificates", "a file without one", file(File{Kind: CertificateFile, Path: "/c", Certs: []Certificate{{Where: "/c", Err: "no certificate is in it"}}}), Red, "no certificate", "PEM"},
	{"security.certificates", "one not seen", func(s *Sources, _ *Settings) {
		s.Hub = Ask(func(context.Context) (Hub, error) { return Hub{}, errors.New("away") })
	}, Unknown, "the broker's", "broker.reachable"},
	{"security.credentials", "end", file(File{Kind: CredentialsFile, Path: "/c", Expires: now.AddDate(0, 0, 10)}), Yellow, "JWT ends", "nsc"},
	{"security.credentials", "ended", file(File{Kind: CredentialsFile, Path: "/c", Expires: now}), Red, "JWT ended", "nsc"},
	{"security.credentials", "are none", file(File{Kind: CredentialsFile, Path: "/c", Err: "no credentials file"}), Red, "no credentials file", "nsc"},
	{"security.superuser", "one", server1(func(v *Server) { v.Superuser = true }), Yellow, "superuser", "docs/permissions.md"},
	{"security.rights", "missing", func(s *Sources, _ *Settings) {
		s.Rights = Know(Rights{Login: "l", Role: "relay", Missing: []string{"select on payments"}})
	}, Red, "lacks 1 right of relay: select on payments", "pollux migrate up"},
	{"security.rights", "too many", func(s *Sources, _ *Settings) {
		s.Rights = Know(Rights{Login: "l", Role: "relay", Excessive: []string{"1", "2", "3", "4", "5", "6", "7"}})
	}, Yellow, "and 2 more", "revoke"},
	{"security.rights", "too many for all", func(s *Sources, _ *Settings) {
		s.Rights = Know(Rights{Login: "l", Role: "relay", Excessive: []string{"execute on audit"}, Revoke: []string{"revoke execute on function pollux.audit from public"}})
	}, Yellow, "execute on audit", "revoke execute on function pollux.audit from public"},
	{"security.rights", "everything", func(s *Sources, _ *Settings) {
		s.Rights = Know(Rights{Login: "l", Role: "relay", Everything: "it owns the schema"})
	}, Yellow, "it owns the schema", "relay"},
	{"security.logins", "an upgraded database", logins(Logins{Open: []string{"public"}}), Yellow, "everybody may make things", "revoke create on schema public from public"},
	{"security.logins", "a superuser", logins(Logins{Logins: []Login{{Name: "l", Role: "pollux_relay", Superuser: true}}}), Yellow, "may become a superuser and has pollux_relay", "revoke pollux_relay from l"},
	{"security.logins", "the owner", logins(Logins{Logins: []Login{{Name: "l", Role: "pollux_relay", Owner: true}}}), Yellow, "owns the schema", "revoke pollux_migrator from l"},
	{"security.logins", "who makes roles", logins(Logins{Logins: []Login{{Name: "l", Role: "pollux_relay", CreateRole: true}}}), Yellow, "create roles", "alter role l nocreaterole"},
	{"security.logins", "who makes schemas", logins(Logins{Logins: []Login{{Name: "l", Role: "pollux_relay", Schemas: true}}}), Yellow, "make schemas", "revoke create on database"},
	{"security.logins", "who makes tables", logins(Logins{Logins: []Login{{Name: "l", Role: "pollux_relay", Creates: []string{"shop"}}}}), Yellow, "make things in shop", "revoke create on schema shop from l"},
	{"security.roles", "one lacks a right", func(s *Sources, _ *Settings) {
		s.Roles = Know([]Rights{{Role: "pollux_relay", Missing: []string{"update (state) on poll_jobs"}}})
	}, Red, "pollux_relay it lacks 1 right: update (state) on poll_jobs", "pollux migrate up"},
	{"security.roles", "one has too many", func(s *Sources, _ *Settings) {
		s.Roles = Know([]Rights{{Role: "pollux_tracker", Excessive: []string{"execute on audit"}}})
	}, Yellow, "pollux_tracker it has 1 right that it does not need", "pollux migrate up"},
	{"security.access", "too many", func(s *Sources, _ *Settings) {
		s.Access = Know(Rights{Login: "u", Role: "relay", Excessive: []string{"publish to payments.poll.gone.high"}})
	}, Yellow, "payments.poll.gone.high", "pollux perms print nats"},
	{"security.access", "missing", func(s *Sources, _ *Settings) {
		s.Access = Know(Rights{Login: "u", Role: "relay", Missing: []string{"publish payments.poll.>"}})
	}, Red, "publish payments.poll.>", "pollux perms print nats"},
	{"security.files", "open to all", file(File{Key: "nats.password", Kind: SecretFile, Path: "/p", Mode: 0o644, Others: true}), Yellow, "nats.password has mode 0644", "chmod 600 /p"},
	{"security.files", "in a folder of everybody", file(File{Key: "nats.password", Kind: SecretFile, Path: "/d/p", Mode: 0o600, Folder: "/d"}), Red, "another file in its place", "chmod o-w /d"},
	{"security.files", "empty", file(File{Key: "nats.password", Kind: SecretFile, Path: "/p", Mode: 0o600, Useless: "secret file /p: empty"}), Red, "nats.password: secret file /p: empty", "without a restart"},
	{"security.files", "said elsewhere", func(s *Sources, set *Settings) {
		set.Unusable = []Unusable{{Key: "nats.password"}}
		file(File{Key: "nats.password", Kind: SecretFile, Path: "/p", Useless: "secret file /p: empty"})(s, set)
	}, Green, "0 looked at", ""},
	{"security.files", "not allowed to look", file(File{Key: "nats.password", Kind: SecretFile, Path: "/p", Err: "permission denied"}), Unknown, "permission denied", "as the user"},

	{"host.clock", "off", func(s *Sources, _ *Settings) {
		s.Clock = Know(Clock{Offset: 3 * time.Second, Within: time.Millisecond})
	}, Yellow, "3s ahead of this machine", "chronyc"},
	{"host.clock", "far off", func(s *Sources, _ *Settings) {
		s.BrokerClock = Know(Clock{Offset: -time.Minute, Within: time.Millisecond})
	}, Red, "1m behind", "chronyc"},
	{"host.clock", "not told", func(s *Sources, _ *Settings) {
		s.BrokerClock = Ask(func(context.Context) (Clock, error) { return Clock{}, errors.New("away") })
	}, Unknown, "away", "record.reachable"},
	{"host.files", "too few", func(s *Sources, _ *Settings) { s.Machine = Know(Machine{OpenFiles: 256}) }, Yellow, "256", "ulimit -n 1000"},
	{"host.memory", "unknown to Go", func(s *Sources, _ *Settings) { s.Machine = Know(Machine{Memory: 1 << 30}) }, Yellow, "GOMEMLIMIT is not set", "GOMEMLIMIT=921MiB"},
	{"host.memory", "above the container's", func(s *Sources, _ *Settings) { s.Machine = Know(Machine{Memory: 1 << 30, GoLimit: 2 << 30}) }, Yellow, "2048 MiB", "GOMEMLIMIT=921MiB"},
	{"host.root", "root", func(s *Sources, _ *Settings) { s.Machine = Know(Machine{Root: true}) }, Yellow, "root", "65532"},
}

func server1(how func(*Server)) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Server = change(s.Server, how) }
}

func setting1(name, value string) func(*Sources, *Settings) {
	return server1(func(v *Server) { v.Settings = map[string]string{name: value} })
}

func hub1(how func(*Hub)) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Hub = change(s.Hub, how) }
}

func consumer1(how func(*Consumer)) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) {
		c := soundConsumer()
		how(&c)
		s.Consumers = Know([]Consumer{c})
	}
}

func stream1(i int, how func(*Stream)) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) {
		all := soundStreams()
		how(&all[i])
		s.Streams = Know(all)
	}
}

func session(v Session) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Sessions = Know(Sessions{Oldest: []Session{v}}) }
}

func slot(v Slot) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Sessions = Know(Sessions{Slots: []Slot{v}}) }
}

func waiting(app string) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) {
		s.Sessions = Know(Sessions{Waiting: []Waiting{{PID: 7, Application: app, For: time.Minute, Blocker: 9, BlockedBy: "pg_dump"}, {PID: 8, For: time.Second}}})
	}
}

func partition(how func(*Partitioned)) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) {
		p := Partitioned{Table: "outbox", Today: now, Oldest: now, Keep: 24 * time.Hour}
		how(&p)
		s.Partitions = Know([]Partitioned{p})
	}
}

func queue(q Queue) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Queues = Know([]Queue{q}) }
}

func share(v Share) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Fleet = Know(Fleet{Shares: map[string]Share{"acme": v}}) }
}

func breaker1(b Breaker) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Fleet = Know(Fleet{Breakers: []Breaker{b}}) }
}

func silence(v Silent) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Silence = Know([]Silent{v}) }
}

func logins(l Logins) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Logins = Know(l) }
}

func file(f File) func(*Sources, *Settings) {
	return func(s *Sources, _ *Settings) { s.Files = Know([]File{f}) }
}

func TestAHealthySystemIsGreen(t *testing.T) {
	s, set := healthy()
	r := Examine(t.Context(), s, set)
	for _, f := range r.Findings {
		if f.Level != Green || f.Mend != "" {
			t.Errorf("%s is %s: %s", f.ID, f.Level, f.Found)
		}
	}
	if r.Level != Green || r.Counts.Green != len(r.Findings) || len(r.Findings) != len(Checks) {
		t.Errorf("%s with %d findings of %d checks: %+v", r.Level, len(r.Findings), len(Checks), r.Counts)
	}
}

func TestEachFaultIsFoundByItsCheck(t *testing.T) {
	tried := map[string]bool{}
	for _, c := range faults {
		t.Run(c.id+": "+c.fault, func(t *testing.T) {
			s, set := healthy()
			c.make(s, set)
			check, ok := checkOf(c.id)
			if !ok {
				t.Fatal("there is no such check")
			}
			findings := check.run(t.Context(), s, set)
			worst := Finding{Level: Green}
			for _, f := range findings {
				if worst.ID == "" || worse(f.Level, worst.Level) < 0 {
					worst = f
				}
			}
			if worst.Level != c.want || !strings.Contains(worst.Subject+" "+worst.Found, c.says) || !strings.Contains(worst.Mend, c.mend) {
				t.Errorf("wanted %s, %q, %q; got %+v", c.want, c.says, c.mend, findings)
			}
			if worst.Why == "" || worst.Area == "" || strings.ContainsAny(worst.Found+worst.Mend, "\n\t") || (worst.Level != Green) != (worst.Mend != "") {
				t.Errorf("%+v", worst)
			}
		})
		tried[c.id] = tried[c.id] || c.want != Green
	}
	for _, c := range Checks {
		if !tried[c.ID] {
			t.Errorf("no fault is tried that %s finds", c.ID)
		}
	}
}

func TestWhatAProgramIsNotMeantToSeeIsLeftToOthers(t *testing.T) {
	barred := fmt.Errorf("looking: %w", ErrNotOurs)
	s, set := healthy()
	s.Account, s.Letters, s.Chain, s.Hub, s.BrokerClock = lost[Account](barred), lost[Letters](barred), lost[Chain](barred), lost[Hub](barred), lost[Clock](barred)
	s.Sessions = Know(Sessions{Private: true, Relays: 1})
	r := Examine(t.Context(), s, set)
	want := []string{"record.transactions", "record.letters", "record.audit", "broker.reachable", "broker.jetstream", "broker.version", "broker.limits", "broker.replicas", "security.broker_tls"}
	if !slices.Equal(r.Left, want) || r.Level != Green || r.Counts.Green != len(Checks)-len(want) || len(r.Findings) != r.Counts.Green {
		t.Errorf("%v, %+v, %+v", r.Left, r.Counts, r.Findings)
	}
}

// What a check needs is away: it is never green, and the others go on.
func TestWhatIsAwayIsNeverGreen(t *testing.T) {
	away := errors.New("reaching it: connection refused")
	s, set := healthy()
	s.Server, s.Clock, s.Schema = lost[Server](away), lost[Clock](away), lost[Schema](away)
	s.Sessions, s.Connections, s.Tables, s.Structure = lost[Sessions](away), lost[Connections](away), lost[[]Table](away), lost[Structure](away)
	s.Partitions, s.Strays, s.Queues, s.Outbox = lost[[]Partitioned](away), lost[Strays](away), lost[[]Queue](away), lost[Outbox](away)
	s.Ahead = lost[Ahead](away)
	s.Letters, s.Silence, s.Chain, s.Rights = lost[Letters](away), lost[[]Silent](away), lost[Chain](away), lost[Rights](away)
	r := Examine(t.Context(), s, set)
	for _, f := range r.Findings {
		switch {
		case f.ID == "record.reachable" && f.Level != Red, f.Area == Record && f.Level == Green:
			t.Errorf("%s is %s: %s", f.ID, f.Level, f.Found)
		case f.Area == Broker && f.Level != Green && f.ID != "broker.duplicates":
			t.Errorf("%s is %s: %s", f.ID, f.Level, f.Found)
		}
	}
	if r.Level != Red || r.Counts.Red != 1 || r.Counts.Unknown < 20 {
		t.Errorf("%+v", r.Counts)
	}
}

func lost[T any](err error) *Fact[T] {
	return Ask(func(context.Context) (v T, _ error) { return v, err })
}

// knowing is an error that knows what to do about itself.
type knowing struct{ error }

func (knowing) Hint() string { return "what the error knows" }
