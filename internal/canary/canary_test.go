package canary

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/certificate/certificatetest"
)

// gateways are the sections of all gateways; those of httpjson differ in how they authorise.
const gateways = `
database: {url: 'file:DIR/dsn'}
nats: {urls: ['NATS'], user: pollux, password: 'file:DIR/nats'}
log: {format: json}
telemetry: {otlp_endpoint: 'http://TRACES', trace_ratio: 100%, otlp_headers: {authorization: 'file:DIR/push'}}
relay: {watch: 200ms}
policies: {standard: {max_failures: 1, error: {list: [200ms], jitter: none}, pending: {list: [1h]}, not_found_grace: 0s}}
gateways:
  bearer:
    breaker: BREAKER
    httpjson:
      auth: {kind: bearer, token: 'file:DIR/bearer'}
      secret_headers: {X-Api-Key: 'file:DIR/header'}
      client_cert_file: DIR/cert
      client_key: file:DIR/key
      url: PARROT/bearer/payments/{reference}
      COMMON
  basic:
    breaker: BREAKER
    httpjson:
      auth: {kind: basic, user: me, password: 'file:DIR/basic'}
      url: PARROT/basic/payments/{reference}
      COMMON
  signed:
    breaker: BREAKER
    httpjson:
      auth: {kind: hmac, key_id: k, key: 'file:DIR/signed', hmac: {sign: '{method}{path}{body}', headers: {X-Signature: '{signature}'}}}
      method: POST
      body: '{"id": "{reference}"}'
      url: PARROT/signed/payments
      COMMON
  proxied:
    breaker: BREAKER
    httpjson:
      proxy: PARROT
      proxy_user: me
      proxy_password: file:DIR/proxy
      url: http://gateway.example/proxied/payments/{reference}
      COMMON
  stripe: {adapter: stripe, breaker: BREAKER, stripe: {key: 'file:DIR/stripe', base_url: PARROT/stripe, allow_http: true, allow_loopback: true}}
  paypal: {adapter: paypal, breaker: BREAKER, paypal: {client_id: id, client_secret: 'file:DIR/paypal', base_url: PARROT/paypal, allow_http: true, allow_loopback: true}}
  razorpay: {adapter: razorpay, breaker: BREAKER, razorpay: {key_id: rzp_live_id, key_secret: 'file:DIR/razorpay', base_url: PARROT/razorpay, allow_http: true, allow_loopback: true}}
  mercadopago: {adapter: mercadopago, breaker: BREAKER, mercadopago: {access_token: 'file:DIR/mercadopago', base_url: PARROT/mercadopago, allow_http: true, allow_loopback: true}}
  iyzico: {adapter: iyzico, breaker: BREAKER, iyzico: {api_key: id, secret_key: 'file:DIR/iyzico', base_url: PARROT/iyzico, allow_http: true, allow_loopback: true}}
webhooks:
  listen: DOOR
  gateways:
    bearer:
      scheme: standard
      keys: {current: {secret: 'file:DIR/standard'}}
      user: shop
      password: file:DIR/login
      mode: live
      httpjson:
        pointers: {kind: /type, reference: /data/id, status: /data/status, amount: /data/amount, currency: /data/currency}
        statuses: {processing: pending, succeeded: succeeded}
    stripe: {scheme: stripe, keys: {current: {secret: 'file:DIR/stripe-hook'}}}
    basic: {scheme: hmac, unverified: hint, keys: {current: {secret: 'file:DIR/hmac-hook'}}, httpjson: {signature: {header: X-Signature}, pointers: {reference: /id}}}
    razorpay: {scheme: razorpay, keys: {current: {secret: 'file:DIR/razorpay-hook'}}}
    mercadopago: {scheme: mercadopago, keys: {current: {secret: 'file:DIR/mercadopago-hook'}}}
    iyzico: {scheme: iyzico, keys: {current: {secret: 'file:DIR/iyzico-hook'}}}
    adyen: {scheme: adyen, keys: {current: {secret: 'file:DIR/adyen-hook'}}}
`

// common is what the gateways of httpjson say alike.
const common = `allow_http: true
      allow_loopback: true
      timeout: 5s
      pointers: {status: /status, id: /id, amount: /amount, currency: /currency, mode: /mode, detail: /name, updated_at: /updated_at, error_code: /error/code, error_message: /error/message, retry_after: /error/reason}
      mode: live
      statuses: {processing: pending, succeeded: succeeded}`

// patient is a breaker that never opens: every trick is to be played.
const patient = `{consecutive_failures: 100000, credential_failures: 100000, min_calls: 100000, slow_call: 0s}`

// vendors are the gateways that are asked.
var vendors = []string{"bearer", "basic", "signed", "proxied", "stripe", "paypal", "razorpay", "mercadopago", "iyzico"}

// phrase stands for a secret that does not look like one.
const phrase = "a phrase"

// secrets are what each file of a secret has in it, made of a mark behind a prefix.
var secrets = map[string]string{
	"push": "", "bearer": phrase, "header": phrase, "basic": "", "signed": "", "proxy": "", "stripe": "sk_live_", "paypal": "", "razorpay": "", "mercadopago": "APP_USR-", "iyzico": "",
	"login": "", "stripe-hook": "whsec_", "hmac-hook": "", "razorpay-hook": "", "mercadopago-hook": "", "iyzico-hook": "",
}

func (s *site) configure(door string) (values map[string]string) {
	s.t.Helper()
	values = map[string]string{}
	for name, prefix := range secrets {
		if prefix == phrase {
			values[name] = s.marks.phrase("the secret " + name)
		} else {
			values[name] = s.marks.secret("the secret "+name, prefix)
		}
		s.write(name, values[name])
	}
	for _, basic := range []struct{ user, secret string }{{"me", "basic"}, {"me", "proxy"}, {"shop", "login"}, {"id", "paypal"}, {"rzp_live_id", "razorpay"}} {
		s.marks.inside("the secret "+basic.secret+" in a header", base64.StdEncoding.EncodeToString([]byte(basic.user+":"+values[basic.secret])))
	}
	raw := s.marks.secret("the secret standard", "")
	values["standard"] = raw
	s.write("standard", "whsec_"+s.marks.inside("the secret standard in base64", base64.StdEncoding.EncodeToString([]byte(raw))))
	values["adyen"] = s.marks.secret("the secret adyen-hook", "")
	s.write("adyen-hook", s.marks.inside("the secret adyen-hook in hex", hex.EncodeToString([]byte(values["adyen"]))))
	cert, key := certificatetest.New(s.t).Issue("client", time.Hour)
	s.write("cert", string(cert))
	s.write("key", string(key))
	s.marks.inside("the key of our certificate", strings.Split(string(key), "\n")[1])
	text := strings.NewReplacer("COMMON", common, "BREAKER", patient, "PARROT", s.parrot.URL, "DIR", s.dir, "NATS", s.nats, "TRACES", s.traces.address, "DOOR", door).Replace(gateways)
	s.write("pollux.yaml", text)
	return values
}

// notify posts a notification and returns the status of the answer.
func (s *site) notify(door, path, body string, header ...string) int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+door+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range []string{"User-Agent", "Cookie", "X-Forwarded-For", "Traceparent", "Tracestate", "Baggage", "Referer"} {
		r.Header.Set(name, "card="+s.said+";"+s.token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	s.shown[fmt.Sprintf("%d the answer to a notification", len(s.shown))] = answer
	return resp.StatusCode
}

func sum(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

// TestNothingThatIsSecretIsKeptOrShown plays everything once and then looks everywhere.
func TestNothingThatIsSecretIsKeptOrShown(t *testing.T) {
	s := newSite(t)
	door := freeAddress(t)
	values := s.configure(door)
	s.said = s.marks.card("a card number in a notification")
	s.token = s.marks.secret("a token in a notification", "tok_")
	metadata := s.marks.card("a card number in metadata")
	written := s.marks.card("a card number in what an operator writes")

	if out, code := s.run(nil, "streams", "apply"); code != 0 {
		t.Fatal(out)
	}
	relay, consumer, webhook := s.start("outbox-relay"), s.start("consumer"), s.start("webhook")

	// Every trick of every gateway.
	for _, vendor := range vendors {
		for trick := range tricks {
			currency := "EUR"
			if trick == 9 {
				currency = "JPY"
			}
			s.exec(`select pollux.track_payment($1, $2, 1999, $3, metadata => jsonb_build_object('card', $4::text), traceparent => $5)`, vendor, reference(vendor, trick), currency,
				metadata, fmt.Sprintf("00-%032x-%016x-01", 1+trick, 1+trick))
		}
	}
	eventually(t, "every trick is played", func() bool {
		s.parrot.mu.Lock()
		defer s.parrot.mu.Unlock()
		return len(s.parrot.asked) == len(vendors)*tricks
	})
	eventually(t, "what came of each is recorded", func() bool {
		return s.number(`select count(distinct payment_id) from pollux.poll_attempts`) == len(vendors)*tricks && s.number(`select count(*) from pollux.dead_letters`) > 40
	})

	s.notifications(door, values)
	s.operators(written)
	s.mistakes()
	s.reload(consumer, values)
	s.troubles(relay, consumer, webhook)
	for _, p := range []*process{webhook, consumer, relay} {
		p.stop()
	}
	s.look(metadata)
}

// notifications sends genuine ones and others, with card numbers in every place of them.
func (s *site) notifications(door string, values map[string]string) {
	t, said, token := s.t, s.said, s.token
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	login := "Basic " + base64.StdEncoding.EncodeToString([]byte("shop:"+values["login"]))
	standard := func(id, body string) int {
		return s.notify(door, "/webhooks/bearer?token="+token, body, "webhook-id", id, "webhook-timestamp", stamp, "Authorization", login,
			"webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(sum(values["standard"], id+"."+stamp+"."+body)))
	}
	stripe := func(body string) int {
		return s.notify(door, "/webhooks/stripe", body, "Stripe-Signature", "t="+stamp+",v1="+hex.EncodeToString(sum(values["stripe-hook"], stamp+"."+body)))
	}
	about := func(kind, id, status string) string {
		return fmt.Sprintf(`{"type":%q,"data":{"id":%q,"status":%q,"amount":1999,"currency":"EUR","card":%q,"token":%q}}`, kind, id, status, said, token)
	}
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"of a payment", standard("e1", about("updated", "canary_0", "processing")), 200},
		{"with a status that is a card number", standard("e2", about("updated", "canary_0", said)), 200},
		{"of a kind that is a card number", standard("e3", about(grouped(said, " "), "canary_0", "processing")), 200},
		{"that cannot be read", standard("e4", `{"type":"`+said+`","data":`+token), 200},
		{"with money that is a card number", standard("e5", fmt.Sprintf(`{"type":"x","data":{"id":"canary_0","status":"succeeded","amount":"%s x","currency":"EUR"}}`, said)), 200},
		{"of Stripe, that cannot be read", stripe(`{"id":"evt_1","object":"event","type":"payment_intent.succeeded","data":"` + grouped(said, "-") + `"}`), 200},
		{"forged, with another password", s.notify(door, "/webhooks/bearer", about("x", "canary_0", said), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("shop:"+token))), 401},
		{"forged, with a card number for its signature", s.notify(door, "/webhooks/stripe", about("x", "y", said), "Stripe-Signature", "t="+stamp+",v1="+said), 401},
		{"forged, which may be a hint", s.notify(door, "/webhooks/basic", fmt.Sprintf(`{"id":"canary_0","card":%q}`, said), "X-Signature", said), 401},
		{"to nobody", s.notify(door, "/webhooks/"+said+"/"+token, "x"), 401},
	} {
		if c.got != c.want {
			t.Errorf("a notification %s: %d, want %d", c.name, c.got, c.want)
		}
	}
}

// operators runs what operators run.
func (s *site) operators(card string) {
	t := s.t
	letter := strconv.Itoa(s.number(`select min(id) from pollux.dead_letters`))
	reason := "the customer of card " + grouped(card, " ") + " called"
	s.write("import.csv", "gateway,reference,amount,currency\nbearer,adopted,"+card+",EUR\nbearer,adopted2,1000,"+card+"\n")
	for _, args := range [][]string{
		{"dlq", "list"}, {"dlq", "groups"}, {"dlq", "show", letter}, {"dlq", "show", letter, "-o", "json"}, {"dlq", "export"},
		{"dlq", "note", letter, "--text", reason}, {"dlq", "assign", letter, "--to", "me", "--reason", reason}, {"dlq", "replay", "id=" + letter, "--reason", reason, "--actor", "me"},
		{"payment", "show", "bearer/canary_0"}, {"payment", "show", "bearer/canary_0", "-o", "json"}, {"payment", "explain", "stripe/pi_canary_1"}, {"payments", "list"},
		{"payment", "force", "bearer/canary_5", "failed", "--reason", reason, "--actor", "me"},
		{"payments", "import", filepath.Join(s.dir, "import.csv"), "--amounts", "minor", "--dry-run"},
		{"webhook", "list"}, {"webhook", "list", "-o", "json"}, {"verify"}, {"breaker", "list"}, {"breaker", "show", "bearer"},
		{"breaker", "open", "basic", "--reason", reason, "--for", "5m", "--actor", "me"}, {"audit", "list"}, {"audit", "export"}, {"audit", "verify"},
		{"streams", "diff"}, {"migrate", "status"}, {"config", "check"},
		{"gateway", "test", "bearer", "canary_0"}, {"gateway", "test", "stripe", "pi_canary_1"}, {"gateway", "test", "paypal", "CANARY-4"}, {"gateway", "test", "proxied", "canary_2"},
		{"gateway", "test", "signed", "canary_7"}, {"gateway", "test", "basic", "canary_3", "-o", "json"},
	} {
		out, code := s.run(nil, args...)
		if code == 2 {
			t.Errorf("pollux %s was not tried: %s", strings.Join(args, " "), out)
		}
	}
}

// mistakes writes secrets where none belongs. What is refused is not repeated.
func (s *site) mistakes() {
	t := s.t
	inline := s.marks.secret("a secret that was written out", "")
	number := s.marks.card("a card number in the configuration")
	for name, line := range map[string]string{
		"a password":         "nats: {password: " + inline + "}",
		"a URL":              "database: {url: 'postgres://me:" + inline + "@db.example/payments'}",
		"another URL":        "database: {url: 'postgres://db.example/payments?password=" + inline + "'}",
		"no URL":             "database: {url: 'postgres://me:" + inline + "@db.example:port/%zz'}",
		"a broker":           "nats: {urls: ['nats://me:" + inline + "@nats.example:4222']}",
		"a collector":        "telemetry: {otlp_endpoint: 'http://me:" + inline + "@otel.example:4317'}",
		"a token":            "gateways: {acme: {httpjson: {auth: {token: " + inline + "}}}}",
		"a header":           "gateways: {acme: {httpjson: {secret_headers: {X-Key: " + inline + "}}}}",
		"a proxy":            "gateways: {acme: {httpjson: {proxy: 'http://me:" + inline + "@proxy.example'}}}",
		"a key":              "gateways: {acme: {adapter: stripe, stripe: {key: " + inline + "}}}",
		"a base":             "gateways: {acme: {adapter: stripe, stripe: {key: 'env:K', base_url: 'https://me:" + inline + "@stripe.example'}}}",
		"a hook":             "webhooks: {gateways: {acme: {scheme: hmac, keys: {a: {secret: " + inline + "}}}}}",
		"a number":           "relay: {batch: '" + number + "x', every: " + inline + "}",
		"no YAML":            "nats: {password: \"" + inline + "\n  x: [" + number,
		"an unknown section": "secrets: {a: " + inline + "}",
	} {
		file := s.write("mistake.yaml", line+"\n")
		for _, args := range [][]string{{"config", "check", "--file-only", file}, {"--config", file, "streams", "diff"}, {"--config", file, "config", "check", "-o", "json"}} {
			if out, code := s.run(nil, args...); code != 2 {
				t.Errorf("%s is taken by %s: %d %s", name, args[0], code, out)
			}
		}
	}
	config := []string{"--config", filepath.Join(s.dir, "pollux.yaml")}
	for _, c := range []struct{ env, args []string }{
		{nil, []string{"--set", "nats.password=" + inline, "payments", "list"}},
		{nil, []string{"--set", "database.url=postgres://me:" + inline + "@db.example/payments", "payments", "list"}},
		{[]string{"POLLUX_NATS__PASSWORD=" + inline}, []string{"payments", "list"}},
		{[]string{"POLLUX_DATABASE__URL=postgres://me:" + inline + "@db.example/payments"}, []string{"payments", "list"}},
		{[]string{"POLLUX_DATABASE__URL=env:WRONG", "WRONG=postgres://canary:" + inline + "@" + s.dsn[strings.LastIndex(s.dsn, "@")+1:]}, []string{"payments", "list"}},
		{[]string{"POLLUX_DATABASE__URL=env:WRONG", "WRONG=postgres://me:" + inline + "@127.0.0.1:1/nothing"}, []string{"migrate", "status"}},
		{[]string{"POLLUX_NATS__PASSWORD=env:WRONG", "WRONG=" + inline}, []string{"streams", "diff"}},
	} {
		if out, code := s.run(c.env, append(config, c.args...)...); code == 0 {
			t.Errorf("%v %v: %s", c.env, c.args, out)
		}
	}
}

// reload changes secrets while the consumer runs, to good ones and to bad ones.
func (s *site) reload(consumer *process, values map[string]string) {
	count := func(result string, n int) func() bool {
		return func() bool {
			_, page := consumer.page("/metrics")
			return strings.Contains(string(page), fmt.Sprintf("pollux_config_reloads_total{result=%q} %d\n", result, n))
		}
	}
	s.write("bearer", s.marks.secret("the next secret bearer", ""))
	s.write("stripe", s.marks.secret("the next secret stripe", "sk_live_"))
	consumer.signal(syscall.SIGHUP)
	eventually(s.t, "the new secrets are taken", count("applied", 1))
	s.write("paypal", s.marks.secret("a secret of no use", "")+"\x00\n\n")
	consumer.signal(syscall.SIGHUP)
	eventually(s.t, "what is of no use is refused", count("invalid", 1))
	s.write("paypal", values["paypal"])
	s.write("dsn", "postgres://canary:"+s.marks.secret("the password of another database", "")+"@elsewhere.example/payments")
	consumer.signal(syscall.SIGHUP)
	eventually(s.t, "another database is refused", count("refused", 1))
	s.write("dsn", s.access)
}

// troubles takes the broker and the database away for a moment, with another password each, and keeps what the processes say of it.
func (s *site) troubles(all ...*process) {
	t := s.t
	s.broker.Pause()
	s.exec(`alter role canary password 'another'`)
	s.exec(`select pg_terminate_backend(pid) from pg_stat_activity where usename = 'canary'`)
	for _, p := range all {
		eventually(t, p.name+" is not ready", func() bool {
			code, page := p.page("/readyz")
			s.shown[p.name+"/readyz in trouble"] = page
			return code == http.StatusServiceUnavailable
		})
	}
	for _, args := range [][]string{{"payments", "list"}, {"streams", "diff"}, {"migrate", "status"}} {
		if out, code := s.run(nil, args...); code == 0 {
			t.Errorf("pollux %s in trouble: %s", strings.Join(args, " "), out)
		}
	}
	s.exec(`alter role canary password '` + s.password + `'`)
	if err := s.broker.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		eventually(t, p.name+" is ready again", func() bool { code, _ := p.page("/readyz"); return code == http.StatusOK })
	}
}

// expected are the columns that hold what somebody wrote there on purpose, and the marks that they may hold.
var expected = map[string]string{
	"payments.metadata":   "a card number in metadata", // the payment service's own words,
	"outbox.body":         "a card number in metadata", // which its own services get back with each event
	"webhook_events.body": "a token in a notification", // of what was genuine and could not be read, for a person; card numbers are masked
}

// expectedFiles is the stream whose files hold the same, and which mark.
var expectedFiles = map[string]string{"PAYMENTS_EVENTS": "a card number in metadata"}

// streamOf is the stream that a file of the broker belongs to.
func streamOf(file string) string {
	_, rest, _ := strings.Cut(file, "/streams/")
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// look looks everywhere.
func (s *site) look(metadata string) {
	t := s.t
	if n := len(s.marks.all); n < 30 {
		t.Errorf("only %d marks", n)
	}
	if found := s.marks.in(s.parrot.heard); !slices.Contains(found, "the secret bearer") || !slices.Contains(found, "the secret mercadopago") || !slices.Contains(found, "the secret proxy in a header") {
		t.Errorf("the gateways repeated nothing of what they were sent: %v", found)
	}
	for where, content := range s.shown {
		for _, name := range s.marks.in(content) {
			if !strings.HasSuffix(where, " webhook list -o json") || name != "a token in a notification" { // it shows what the column body has
				t.Errorf("%s: in %s", name, where)
			}
		}
	}
	s.traces.mu.Lock()
	defer s.traces.mu.Unlock()
	if s.traces.spans < len(vendors)*tricks || s.traces.pushes == 0 {
		t.Errorf("only %d spans and %d pushes of metrics", s.traces.spans, s.traces.pushes)
	}
	if !strings.Contains(s.traces.text.String(), `"receive `) {
		t.Error("no notification has a span")
	}
	s.marks.none(t, "what was pushed to the collector", s.traces.text.Bytes())
	for column, content := range s.rows() {
		for _, name := range s.marks.in(content) {
			if expected[column] != name {
				t.Errorf("%s: in the column %s", name, column)
			}
		}
	}
	stored := 0
	for file, content := range files(t, s.store) {
		stored += len(content)
		for _, name := range s.marks.in(content) {
			if expectedFiles[streamOf(file)] != name {
				t.Errorf("%s: in the broker's file %s", name, file)
			}
		}
	}
	if stored < 10_000 || s.number(`select count(*) from pollux.payments where metadata ->> 'card' = '`+metadata+`'`) != len(vendors)*tricks {
		t.Errorf("the broker stored %d bytes", stored)
	}
}
