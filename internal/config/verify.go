package config

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/certificate"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment/currency"
	"pollux/internal/secret"
)

// What the streams are made with; a test compares them with the folder streams.
const (
	// StreamMaxAge is how long the broker keeps a poll. Its row outlives it: a poll that is older was leased anew.
	StreamMaxAge = 10 * time.Minute
	// DuplicateWindow is how long the broker remembers the ids of messages.
	DuplicateWindow = 2 * time.Minute
)

// moreLanes are worked on besides those of fresh payments: those of retries, of replays and of deferred polls.
const moreLanes = 3

// verifier looks for keys that contradict each other, and for what is missing.
type verifier struct {
	origins  map[string]origin
	bad      map[string]bool
	skip     Skip
	only     string // the gateway that is used; empty is all
	problems []Problem
	warnings []Problem
}

// refuse says that keys cannot stand so. The problem is where the first of them was written that was written at all.
func (v *verifier) refuse(keys []path, format string, a ...any) {
	at := keys[0]
	for _, k := range keys {
		if v.bad[k.String()] {
			return
		}
	}
	for _, k := range keys {
		if _, ok := v.origins[k.id()]; ok {
			at = k
			break
		}
	}
	v.problems = append(v.problems, v.near(at).problem(at, format, a...))
}

// unusable says that a secret or a certificate that is named cannot be used. A service that runs goes on with the last good one.
func (v *verifier) unusable(keys []path, format string, a ...any) {
	before := len(v.problems)
	v.refuse(keys, format, a...)
	for i := before; i < len(v.problems); i++ {
		v.problems[i].unusable = true
	}
}

// settle says that enough was said about keys: what they contradict is no further problem.
func (v *verifier) settle(keys ...path) {
	for _, k := range keys {
		v.bad[k.String()] = true
	}
}

// near is where a key was written, or the nearest section above it.
func (v *verifier) near(key path) origin {
	for ; len(key) > 0; key = key[:len(key)-1] {
		if at, ok := v.origins[key.id()]; ok {
			return at
		}
	}
	return origin{}
}

func key(s string) path { return strings.Split(s, ".") }

func keys(names ...string) []path {
	list := make([]path, len(names))
	for i, s := range names {
		list[i] = key(s)
	}
	return list
}

func (v *verifier) skips(s Skip) bool { return v.skip&s != 0 }

// unused reports whether the adapter of a gateway is not used.
func (v *verifier) unused(gateway string) bool {
	return v.skips(SkipGateways) || v.only != "" && gateway != v.only
}

// config checks everything and reads the secrets.
func (v *verifier) config(c *Config) {
	v.database(&c.Database)
	v.broker(&c.NATS)
	v.telemetry(c)
	v.relay(c.Relay)
	v.consumer(c.Consumer)
	v.webhooks(&c.Webhooks)
	if c.Relay.Lease <= c.Consumer.AckWait {
		v.refuse(keys("relay.lease", "consumer.ack_wait"),
			"relay.lease (%s) is not longer than consumer.ack_wait (%s): the relay would publish a poll anew that is still being worked on; write a longer lease",
			FormatDuration(c.Relay.Lease), FormatDuration(c.Consumer.AckWait))
	}
	v.operators(c.Operators)
	v.classes(c)
	v.gateways(c)
	v.hints(c)
	c.resolvePolicies()
	v.policies(c)
}

func (v *verifier) database(d *Database) {
	if !v.skips(SkipDatabase) {
		v.record(&d.URL)
		v.databaseTLS(d)
	}
	v.between("database.max_conns", d.MaxConns, 2, 1000)
}

// users looks at names that become users of the broker beside Pollux's own and others.
func (v *verifier) users(key, whose string, names, others []string) {
	for i, name := range names {
		if !message.ValidUser(name) || slices.Contains(names[:i], name) || slices.Contains(others, name) {
			v.refuse(keys(key), "%.40q; write names of %s, each once, of a-z, 0-9 and _, other than those of Pollux's own users (%s)", name, whose, strings.Join(message.Users, ", "))
		}
	}
}

func (v *verifier) broker(n *NATS) {
	v.between("nats.max_outstanding", n.MaxOutstanding, 1000, 50_000)
	v.between("nats.batch_threshold", n.BatchThreshold, 2, 1000)
	if !slices.Contains([]string{"auto", "always", "never"}, n.Batches) {
		v.refuse(keys("nats.batches"), "%.40q; write auto, always or never", n.Batches)
	}
	if strings.ContainsAny(n.InboxPrefix, "*> \t\r\n") || strings.HasSuffix(n.InboxPrefix, ".") {
		v.refuse(keys("nats.inbox_prefix"), "not the beginning of a subject; write one such as _INBOX_pollux, without wildcards and blanks")
	}
	v.users("nats.readers", "your services", n.Readers, nil)
	v.users("nats.admins", "people, other than readers", n.Admins, n.Readers)
	if u, err := url.Parse(n.MonitorURL); n.MonitorURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil) {
		v.refuse(keys("nats.monitor_url"), "not a URL of the form http://host:8222")
	}
	if v.skips(SkipBroker) {
		return
	}
	v.servers(n.URLs)
	v.secretFile("nats.credentials_file", n.CredentialsFile)
	v.secretFile("nats.nkey_file", n.NKeyFile)
	v.certificates("nats", "ca_file", n.TLSFiles())
	v.password("nats.password", &n.Password)
	v.brokerTLS(n)
	if (n.User == "") != n.Password.IsZero() {
		v.refuse(keys("nats.user", "nats.password"), "a user and its password go together; write both user and password, or neither")
	}
	ways := slices.DeleteFunc([]string{n.CredentialsFile, n.NKeyFile, n.User}, func(s string) bool { return s == "" })
	if len(ways) > 1 {
		v.refuse(keys("nats.credentials_file", "nats.nkey_file", "nats.user"), "credentials_file, nkey_file and user are three ways to the same end; write one of them")
	}
}

func (v *verifier) servers(urls []string) {
	at := keys("nats.urls")
	if len(urls) == 0 {
		v.refuse(at, "missing; write [nats://host:4222]")
	}
	for i, s := range urls {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme): // it may hold a password and is not repeated
			v.refuse(at, "the URL at place %d is not of the form nats://host:4222 or tls://host:4222", i+1)
		case u.User != nil:
			v.refuse(at, "the URL at place %d carries credentials, which would show in logs; write user and password, or credentials_file", i+1)
		}
	}
}

// password reads a secret. None is no problem here.
func (v *verifier) password(name string, s *Secret) {
	if v.skips(skipSecrets) {
		return
	}
	if err := s.load(); err != nil {
		v.unusable(keys(name), "%s", err)
	}
	v.guarded(key(name), s.File())
}

// secrets reads the secrets in the sections of adapters. Where they are skipped each is a word that says so.
func (v *verifier) secrets(s *schema, p path, values map[string]any) secrets {
	found := secrets{names: map[string]string{}, values: map[string]secret.Secret{}}
	read := map[string]bool{} // names that were; the others are skipped so far
	eachSecret(s, p, values, func(p path, name string) {
		found.names[p.id()] = name
		if read[name] {
			return
		}
		if v.skips(skipSecrets) || p[0] == "gateways" && v.unused(p[1]) || v.skips(SkipWebhooks) && p[0] == "webhooks" || v.skips(SkipTelemetry) && p[0] == "telemetry" {
			found.values[name] = secret.New("skipped")
			return
		}
		read[name] = true
		value, err := secret.Load(name)
		if err != nil {
			v.unusable([]path{p}, "%s", err)
			v.settle(p)
		}
		found.values[name] = value
		if file, ok := strings.CutPrefix(name, "file:"); ok && err == nil {
			v.guarded(p, file)
		}
	})
	return found
}

// eachSecret calls fn for the name of every secret in values.
func eachSecret(s *schema, p path, value any, fn func(path, string)) {
	eachText(s, p, value, func(s *schema, p path, name string) {
		if s.typ == secretType {
			fn(p, name)
		}
	})
}

// record checks the URL of the database and reads the secret that it may be.
func (v *verifier) record(u *URL) {
	const name, example = "database.url", "postgres://user@host:5432/payments"
	if u.IsZero() {
		v.refuse(keys(name), "missing; write %s, or file:/path or env:NAME of a secret that holds such a URL", example)
		return
	}
	if isReference(u.shown) && v.skips(skipSecrets) {
		return
	}
	if err := u.load(); err != nil {
		v.unusable(keys(name), "%s", err)
		return
	}
	v.guarded(key(name), u.File())
	parsed, err := url.Parse(u.value.Reveal())
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		v.refuse(keys(name), "not a URL of the form %s", example)
		v.settle(key(name))
	}
}

func (v *verifier) telemetry(c *Config) {
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		v.refuse(keys("log.format"), "%.40q is not a format; write text or json", c.Log.Format)
	}
	t := c.Telemetry
	v.address("telemetry.listen", t.Listen)
	v.address("telemetry.pprof_listen", t.PprofListen)
	if t.PprofListen != "" && !loopback(t.PprofListen) {
		v.refuse(keys("telemetry.pprof_listen"), "%s is not loopback, and profiles show memory; write 127.0.0.1:6060", t.PprofListen)
	}
	if t.Listen != "" && t.Listen == t.PprofListen {
		v.refuse(keys("telemetry.pprof_listen", "telemetry.listen"), "pprof_listen and listen are both %s; write another port", t.Listen)
	}
	if !v.skips(SkipTelemetry) {
		v.listener("telemetry", t.TLSFiles())
	}
	if u, err := url.Parse(t.OTLPEndpoint); t.OTLPEndpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil) {
		v.refuse(keys("telemetry.otlp_endpoint"), "not a URL of the form http://host:4317 or https://host:4317")
	}
	if t.OTLPEvery != 0 {
		v.within("telemetry.otlp_every", t.OTLPEvery, time.Second, time.Hour)
	}
	for name := range t.OTLPHeaders {
		if !header.MatchString(name) {
			v.refuse(keys("telemetry.otlp_headers"), "%.40q is not the name of a header; write it of a-z, 0-9 and -", name)
		}
	}
	if !v.skips(SkipTelemetry) {
		v.certificates("telemetry.otlp_", "ca_file", certificate.Files{CA: t.OTLPCAFile, Cert: t.OTLPCertFile, Key: t.OTLPKeyFile})
	}
	v.between("telemetry.max_gateways", t.MaxGateways, 1, 1000)
}

// header is the name of a header of gRPC, which has them in small letters.
var header = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

func (v *verifier) address(name, s string) {
	if s == "" {
		return
	}
	if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
		v.refuse(keys(name), "%.60q is not an address; write host:port such as 127.0.0.1:9464, or :9464 for all interfaces", s)
	}
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || isLoopback(host) // what is no address is a problem of its own
}

func (v *verifier) relay(r Relay) {
	v.within("relay.every", r.Every, time.Millisecond, time.Minute)
	v.between("relay.batch", r.Batch, 1, 10_000)
	v.between("relay.in_flight", r.InFlight, 1, 64)
	v.within("relay.lease", r.Lease, 10*time.Second, StreamMaxAge)
	v.between("relay.backlog", r.Backlog, 1, 1_000_000)
	v.within("relay.publish_timeout", r.PublishTimeout, 100*time.Millisecond, DuplicateWindow-time.Second)
	v.within("relay.retry", r.Retry, 10*time.Millisecond, time.Hour)
	v.within("relay.watch", r.Watch, 100*time.Millisecond, 10*time.Minute)
	if r.Observe != 0 {
		v.within("relay.observe", r.Observe, time.Second, time.Hour)
	}
	v.within("relay.keep_events", r.KeepEvents, time.Hour, 366*day)
	v.within("relay.keep_attempts", r.KeepAttempts, day, 10*366*day)
	if r.Lease <= 2*r.PublishTimeout {
		v.refuse(keys("relay.lease", "relay.publish_timeout"),
			"relay.lease (%s) is not more than twice relay.publish_timeout (%s), so that a batch would be claimed again while it is published; write a longer lease",
			FormatDuration(r.Lease), FormatDuration(r.PublishTimeout))
	}
}

func (v *verifier) consumer(c Consumer) {
	v.lanes(c.Lanes)
	v.within("consumer.ack_wait", c.AckWait, time.Second, StreamMaxAge)
	v.within("consumer.lease", c.Lease, time.Second, StreamMaxAge)
	v.between("consumer.hold_budget", c.HoldBudget, 0, 500_000)
	v.between("consumer.max_ack_pending", c.MaxAckPending, 1, 1_000_000)
	v.within("consumer.drain", c.Drain, time.Second, time.Hour)
	v.between("consumer.record.batch", c.Record.Batch, 1, 5000)
	v.within("consumer.record.linger", c.Record.Linger, 0, time.Second)
	v.between("consumer.record.writers", c.Record.Writers, 1, 64)
	v.within("consumer.record.patience", c.Record.Patience, time.Second, StreamMaxAge)
	if c.Lease <= c.AckWait {
		v.refuse(keys("consumer.lease", "consumer.ack_wait"),
			"consumer.lease (%s) is not longer than consumer.ack_wait (%s): the relay would publish a poll anew that is still being worked on; write a longer lease",
			FormatDuration(c.Lease), FormatDuration(c.AckWait))
	}
	if c.Record.Linger*10 > c.AckWait {
		v.refuse(keys("consumer.record.linger", "consumer.ack_wait"), "record.linger (%s) is more than a tenth of ack_wait (%s); write a few milliseconds",
			FormatDuration(c.Record.Linger), FormatDuration(c.AckWait))
	}
}

func (v *verifier) lanes(lanes []string) {
	at := keys("consumer.lanes")
	if len(lanes) == 0 {
		v.refuse(at, "no lane; write some of %s", strings.Join(message.Lanes, ", "))
	}
	seen := map[string]bool{}
	for _, lane := range lanes {
		switch {
		case !slices.Contains(message.Lanes, lane):
			v.refuse(at, "%.40q is not a lane; write some of %s", lane, strings.Join(message.Lanes, ", "))
		case seen[lane]:
			v.refuse(at, "%s twice; write each lane once", lane)
		}
		seen[lane] = true
	}
}

func (v *verifier) operators(o Operators) {
	v.between("operators.max_replays", o.MaxReplays, 0, 1000)
	v.between("operators.approve_above_count", o.ApproveAboveCount, 0, 1_000_000)
	for _, code := range sorted(o.ApproveAboveAmount) {
		at := path{"operators", "approve_above_amount", code}
		exponent, known := currency.Exponent(code)
		if !known {
			v.refuse([]path{at}, "no currency of ISO 4217; write one such as EUR")
			continue
		}
		if _, err := currency.Minor(string(o.ApproveAboveAmount[code]), exponent); err != nil {
			v.refuse([]path{at}, "%.40q: %s; write an amount such as 50000.00", string(o.ApproveAboveAmount[code]), err)
		}
	}
}

func (v *verifier) classes(c *Config) {
	for _, name := range sorted(c.Policies) {
		v.token(path{"policies", name})
	}
	v.classMap(path{"classes"}, c.Classes, c)
}

func (v *verifier) classMap(at path, classes map[string]string, c *Config) {
	for _, class := range sorted(classes) {
		v.token(at.child(class))
		if _, ok := c.Policies[classes[class]]; !ok {
			v.refuse([]path{at.child(class)}, "no policy is named %.64q; write one of %s", classes[class], strings.Join(sorted(c.Policies), ", "))
		}
	}
}

// token checks a name of the user's own.
func (v *verifier) token(p path) {
	if name := p[len(p)-1]; !message.ValidToken(name) {
		v.refuse([]path{p}, "not a name; write 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or a digit")
	}
}

func (v *verifier) gateways(c *Config) {
	if len(c.Gateways) == 0 && !v.skips(SkipGateways) {
		v.refuse(keys("gateways"), "missing; write at least one, see pollux.example.yaml")
	}
	for _, name := range sorted(c.Gateways) {
		g, at := c.Gateways[name], path{"gateways", name}
		v.token(at)
		v.gateway(c, at, &g)
		v.classMap(at.child("classes"), g.Classes, c)
		for _, policy := range sorted(g.Policies) {
			if _, ok := c.Policies[policy]; !ok {
				v.refuse([]path{at.child("policies", policy)}, "no policy is named so, and nothing can differ from it; write one of %s",
					strings.Join(sorted(c.Policies), ", "))
			}
		}
		c.Gateways[name] = g
	}
}

func (v *verifier) gateway(c *Config, at path, g *Gateway) {
	v.betweenAt(at.child("workers"), g.Workers, 1, 10_000)
	if need := c.Consumer.HoldBudget + g.Workers; c.Consumer.MaxAckPending < need {
		v.refuse([]path{key("consumer.max_ack_pending"), key("consumer.hold_budget"), at.child("workers")},
			"max_ack_pending (%d) is below hold_budget (%d) and the workers of %s (%d) together: held polls would keep fresh ones from being delivered; write at least %d",
			c.Consumer.MaxAckPending, c.Consumer.HoldBudget, at[1], g.Workers, need)
	}
	v.limits(at.child("limits"), g)
	if !isAdapter(g.Adapter) {
		v.refuse([]path{at.child("adapter")}, "%.64q is not an adapter; write one of %s", g.Adapter, strings.Join(Adapters, ", "))
		return
	}
	for _, name := range Adapters {
		if _, written := v.origins[at.child(name).id()]; written && name != g.Adapter {
			v.refuse([]path{at.child(name)}, "the adapter of %s is %s; write adapter: %s, or take this section away", at[1], g.Adapter, name)
		}
	}
	if v.bad[at.child(g.Adapter).String()] {
		return
	}
	v.adapter(c, at, g)
	v.polling(c, at, *g)
	if g.Timeout() == 0 {
		return
	}
	v.timeout(c, at, *g)
	v.turn(c, at, *g)
	v.breaker(at, g)
}

// adapter completes the section of an adapter and lets the adapter check it.
func (v *verifier) adapter(c *Config, at path, g *Gateway) {
	section, s := at.child(g.Adapter), g.section()
	client := s.Client()
	if client != nil && client.MaxInFlight == 0 { // a call that waits for a connection spends its timeout
		client.MaxInFlight = min(g.Workers*(len(c.Consumer.Lanes)+moreLanes), 10_000)
	}
	s.Complete(at[1])
	if client != nil && client.MaxInFlight < g.Workers {
		v.refuse([]path{section.child("max_in_flight"), at.child("workers")},
			"max_in_flight (%d) is below workers (%d), so that polls would wait for a connection within their timeout; write fewer workers",
			client.MaxInFlight, g.Workers)
	}
	if v.unused(at[1]) {
		return
	}
	var blamed []path
	for _, message := range messages(s.Validate()) {
		key, what := blame(section, message)
		if v.skips(skipSecrets) && readsFile(key) {
			continue
		}
		if readsFile(key) {
			v.unusable([]path{key}, "%s", what)
		} else {
			v.refuse([]path{key}, "%s", what)
		}
		blamed = append(blamed, key)
	}
	v.settle(blamed...)
}

// polling checks how often a gateway is asked, if at all.
func (v *verifier) polling(c *Config, at path, g Gateway) {
	interval := at.child("min_interval")
	if g.MinInterval != nil && (*g.MinInterval < 0 || *g.MinInterval > day) {
		v.refuse([]path{interval}, "%s; write 0s to 24h", FormatDuration(*g.MinInterval))
		v.settle(interval)
	}
	if g.Capabilities().Polling != gateway.Never {
		return
	}
	if g.MinInterval != nil && *g.MinInterval > 0 {
		v.refuse([]path{interval}, "%s is never asked, so that there is no interval; take the key away", at[1])
	}
	all := c.resolve(at, g)
	for _, class := range sorted(all) {
		if r := all[class]; r.policy.Window == 0 {
			v.refuse([]path{r.at.child("window")},
				"no bound, and %s is never asked: nothing would bring a payment of class %s to a person whose webhook was lost; write how long it may take", at[1], class)
			v.settle(r.at.child("window"))
		}
	}
}

// readsFile reports whether the value of a key is the content of a file or variable, which may be on another machine.
func readsFile(key path) bool {
	s := root.at(key)
	return s != nil && s.typ == secretType || strings.HasSuffix(key[len(key)-1], "_file")
}

// timeout compares the timeout of a gateway with what must be longer.
func (v *verifier) timeout(c *Config, at path, g Gateway) {
	section, timeout := at.child(g.Adapter, "timeout"), g.Timeout()
	if timeout >= c.Consumer.AckWait {
		v.refuse([]path{section, key("consumer.ack_wait")},
			"the timeout of %s (%s) is not below consumer.ack_wait (%s): the broker would deliver a poll again that is still being asked; write a shorter timeout or a longer ack_wait",
			at[1], FormatDuration(timeout), FormatDuration(c.Consumer.AckWait))
	}
	if timeout > c.Consumer.Drain {
		v.refuse([]path{section, key("consumer.drain")},
			"the timeout of %s (%s) is above consumer.drain (%s): a shutdown would cut calls off that would have answered; write a shorter timeout or a longer drain",
			at[1], FormatDuration(timeout), FormatDuration(c.Consumer.Drain))
	}
}

// limits checks the limits of a gateway. What package limit takes for a word about its defaults is no value here.
func (v *verifier) limits(at path, g *Gateway) {
	l, d := g.Limits, defaultLimits()
	for _, x := range []struct {
		key           string
		value, unsaid time.Duration
	}{{"pause", l.Pause, d.Pause}, {"max_pause", l.MaxPause, d.MaxPause}, {"recovery", l.Recovery, d.Recovery}, {"max_wait", l.MaxWait, d.MaxWait}} {
		if x.value == 0 {
			v.refuse([]path{at.child(x.key)}, "0s; write more, or take the key away for %s", FormatDuration(x.unsaid))
		}
	}
	if l.Floor == (breaker.Ratio{}) {
		v.refuse([]path{at.child("floor")}, "0%%; write more, or take the key away for %s", d.Floor)
	}
	if l.Burst != nil && *l.Burst < 1 {
		v.refuse([]path{at.child("burst")}, "%d; write 1 or more, or take the key away for what the rate makes in a tenth of a second", *l.Burst)
		v.settle(at.child("burst"))
	}
	if l.Shares == (Shares{}) {
		v.refuse([]path{at.child("shares")}, "shares add up to 0%%: make it 100%%") // no shares are the default to it
	}
	v.blame(at, g.LimitConfig().Validate())
}

// breaker completes the breaker of a gateway and checks it.
func (v *verifier) breaker(at path, g *Gateway) {
	b, section, timeout := &g.Breaker, at.child("breaker"), g.Timeout()
	slow := section.child("slow_call")
	switch _, written := v.origins[slow.id()]; {
	case !written:
		b.SlowCall = max(min(b.SlowCall, timeout/2, b.Window/2), time.Millisecond)
	case b.SlowCall >= timeout:
		v.refuse([]path{slow, at.child(g.Adapter, "timeout")},
			"slow_call (%s) is not below the timeout of %s (%s), so that no call would be slow; write a shorter one, or 0s to say so",
			FormatDuration(b.SlowCall), at[1], FormatDuration(timeout))
	}
	if b.ProbeDeadline <= timeout {
		v.refuse([]path{section.child("probe_deadline"), at.child(g.Adapter, "timeout")},
			"probe_deadline (%s) is not longer than the timeout of %s (%s): a probe would lose its place while it is under way; write a longer deadline or a shorter timeout",
			FormatDuration(b.ProbeDeadline), at[1], FormatDuration(timeout))
	}
	v.blame(section, g.BreakerConfig().Validate())
}

// turn compares how long a poll waits for its turn under the limits with what must be longer.
func (v *verifier) turn(c *Config, at path, g Gateway) {
	l := g.LimitConfig()
	if l.Limited() && l.MaxWait+g.Timeout() >= c.Consumer.AckWait {
		v.refuse([]path{at.child("limits", "max_wait"), at.child(g.Adapter, "timeout"), key("consumer.ack_wait")},
			"max_wait (%s) and the timeout of %s (%s) together are not below consumer.ack_wait (%s): the broker would deliver a poll again that is still being asked; write less, or a longer ack_wait",
			FormatDuration(l.MaxWait), at[1], FormatDuration(g.Timeout()), FormatDuration(c.Consumer.AckWait))
	}
}

// blame refuses what an error says about a section.
func (v *verifier) blame(section path, err error) {
	for _, message := range messages(err) {
		at, what := blame(section, asKeys.Replace(message))
		about := []path{at}
		for _, name := range root.at(at).names { // of a whole section nothing can be said while a part of it is wrong
			about = append(about, at.child(name))
		}
		v.refuse(about, "%s", what)
	}
}

// asKeys makes keys of what packages call their settings.
var asKeys = strings.NewReplacer("share of ", "shares.", "cooldown base ", "cooldown.base ", "cooldown cap ", "cooldown.cap ")

// policies checks each policy once, wherever it is used from, and what it has to do with the rest.
func (v *verifier) policies(c *Config) {
	for _, name := range sorted(c.Policies) {
		v.policy(c, resolved{c.Policies[name].named(name), path{"policies", name}})
	}
	for _, gateway := range sorted(c.Gateways) {
		own := c.Gateways[gateway].Policies
		for _, name := range sorted(own) {
			if _, ok := c.Policies[name]; ok {
				v.policy(c, resolved{own[name].named(name), path{"gateways", gateway, "policies", name}})
			}
		}
	}
}

func (v *verifier) policy(c *Config, r resolved) {
	var blamed []path
	for _, message := range messages(r.policy.Validate()) {
		at, what := blame(r.at, message)
		v.refuse([]path{at}, "%s", what)
		blamed = append(blamed, at)
	}
	v.settle(blamed...)
	if sum := r.policy.HoldLimit + c.Consumer.Lease; sum > StreamMaxAge {
		v.refuse([]path{r.at.child("hold_limit"), key("consumer.lease")},
			"hold_limit (%s) and consumer.lease (%s) together are longer than the broker keeps a poll (%s); write less",
			FormatDuration(r.policy.HoldLimit), FormatDuration(c.Consumer.Lease), FormatDuration(StreamMaxAge))
	}
}

// messages are the single messages of joined errors.
func messages(err error) []string {
	switch e := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		var all []string
		for _, one := range e.Unwrap() {
			all = append(all, messages(one)...)
		}
		return all
	}
	return []string{err.Error()}
}

// blame finds the key below a section that a message begins with, and what is left to say of it: "pending: base 0s: …" is about
// pending.base, "hold_limit 6m: …" about hold_limit, "auth.hmac.sign: …" about that.
func blame(at path, message string) (path, string) {
	s := root.at(at)
	for {
		words, rest := message, ""
		if i := strings.IndexAny(message, " :[,"); i >= 0 {
			words, rest = message[:i], message[i:]
		}
		key, below := at, s
		for name := range strings.SplitSeq(words, ".") {
			if below = below.below(name); below == nil {
				return at, message
			}
			key = key.child(name)
		}
		at, s = key, below
		switch {
		case strings.HasPrefix(rest, ": "):
			message = rest[2:]
		case len(rest) > 1 && rest[0] == ' ' && (rest[1] >= '0' && rest[1] <= '9' || strings.HasPrefix(rest, " -") || strings.HasPrefix(rest, " ±")):
			return at, rest[1:]
		default:
			return at, message
		}
	}
}

func (v *verifier) between(name string, n, low, high int) { v.betweenAt(key(name), n, low, high) }

func (v *verifier) betweenAt(at path, n, low, high int) {
	if n < low || n > high {
		v.refuse([]path{at}, "%d; write %d to %d", n, low, high)
		v.settle(at)
	}
}

func (v *verifier) within(name string, d, low, high time.Duration) {
	if d < low || d > high {
		v.refuse(keys(name), "%s; write %s to %s", FormatDuration(d), FormatDuration(low), FormatDuration(high))
		v.settle(key(name))
	}
}
