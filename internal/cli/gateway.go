package cli

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
	"pollux/internal/redelivery"
)

func gatewayCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gateway", Short: "Asks gateways"}
	cmd.AddCommand(gatewayTest(), gatewayList())
	return cmd
}

// trial is one live query as -o json shows it.
type trial struct {
	Gateway   string   `json:"gateway"`
	Adapter   string   `json:"adapter"`
	Mode      string   `json:"mode"` // live, test, or empty where the adapter does not know
	Account   string   `json:"account"`
	Reference string   `json:"reference"`
	Expected  string   `json:"expected"`
	Known     string   `json:"known"` // where what is expected is from: record or command_line
	Record    string   `json:"record"`
	Polling   string   `json:"polling"`
	Calls     []call   `json:"calls"`
	Answer    *said    `json:"answer,omitempty"` // missing when the gateway is never asked
	Decision  decision `json:"decision"`
}

// call is a request and its answer, redacted.
type call struct {
	Method  string       `json:"method"`
	URL     string       `json:"url"`
	Headers []headerLine `json:"headers"`
	Body    string       `json:"body"`
	Status  int          `json:"status"`
	TookMS  int64        `json:"took_ms"`
	Answer  []headerLine `json:"answer_headers"`
	Content string       `json:"content"`
	Error   string       `json:"error"`
}

type headerLine struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// said is what the answer was taken for.
type said struct {
	Class         string `json:"class"`
	Status        string `json:"status"`
	Detail        string `json:"detail"`
	GatewayStatus string `json:"gateway_status"`
	HTTPStatus    int    `json:"http_status"`
	RetryAfter    string `json:"retry_after"`
	Message       string `json:"message"`
}

// decision is what would become of the payment.
type decision struct {
	Verb   string `json:"verb"`
	Reason string `json:"reason"`
	Delay  string `json:"delay"`
	Policy string `json:"policy"`
}

// question is what the command line asks for.
type question struct {
	gateway, reference string
	account            string
	merchantRef        string
	amount             int64
	currency           string
	class              string
}

func gatewayTest() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use: "test GATEWAY REFERENCE", Short: "Asks a gateway about one payment, and shows what came, what it means and what would be decided", Args: arguments("acme pay_1", "a gateway", "the reference of a payment"),
		Long: `test asks the gateway once, really, and changes nothing: no status, no counter, no schedule. It goes past the breaker and the limits. What
is shown of the request and of the answer is redacted: no secret, no card number, and of a body its beginning.

What the payment should come to is read from the record. With --amount and --currency it need not be there, and no database is needed.

Exit code 3 when the answer is neither a status that Pollux waits with nor one that ends the payment.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.gateway, q.reference = args[0], args[1]
			return q.run(cmd)
		},
	}
	cmd.Flags().StringVar(&q.account, "account", "", "the gateway's account; empty is the default one")
	cmd.Flags().Int64Var(&q.amount, "amount", 0, "what is expected, in the minor unit of the currency: 1999 for 19.99 EUR")
	cmd.Flags().StringVar(&q.currency, "currency", "", "the currency of --amount, such as EUR")
	cmd.Flags().StringVar(&q.merchantRef, "merchant-reference", "", "our own reference, for payments that are not in the record")
	cmd.Flags().StringVar(&q.class, "class", config.Standard, "the class, for payments that are not in the record")
	return cmd
}

func (q question) run(cmd *cobra.Command) error {
	cfg, err := app.Load(config.Options{Flags: cmd.Flags(), Skip: config.SkipBroker | config.SkipDatabase | config.SkipWebhooks, Gateway: q.gateway})
	if err != nil {
		return err
	}
	g, known := cfg.Gateways[q.gateway]
	if !known {
		return app.Usage("gateway %q is not in the configuration", q.gateway)
	}
	job, from, err := q.expected(cmd)
	if err != nil {
		return err
	}
	t, err := try(cmd.Context(), cfg, g, job)
	if err != nil {
		return err
	}
	t.Known = from
	if err := show(cmd, t, func(w io.Writer) { printTrial(w, t) }); err != nil {
		return err
	}
	if t.Answer != nil && t.Answer.Class != gateway.Pending.String() && t.Answer.Class != gateway.Final.String() {
		return app.ErrFindings
	}
	return nil
}

// expected is what the record says about the payment, or what the command line does, and which of them it was.
func (q question) expected(cmd *cobra.Command) (job consumer.Job, from string, err error) {
	if cmd.Flags().Changed("amount") || cmd.Flags().Changed("currency") {
		if _, ok := currency.Exponent(q.currency); !ok || q.amount < 0 {
			return job, "", app.Usage("--amount %d --currency %q: write both, the amount in minor units and a currency of ISO 4217 such as EUR", q.amount, q.currency)
		}
		return consumer.Job{Payment: payment.Payment{
			Gateway: q.gateway, Account: q.account, Reference: q.reference, MerchantReference: q.merchantRef, Class: q.class,
			AmountMinor: q.amount, Currency: q.currency, Status: payment.Pending,
		}}, "command_line", nil
	}
	err = withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		found, err := false, error(nil)
		job, found, err = postgres.NewJobs(pool).Find(ctx, q.gateway, q.account, q.reference)
		if err == nil && !found {
			return app.Hint(fmt.Errorf("no payment %q of %s is in the record", q.reference, q.gateway), "say what to expect with --amount and --currency")
		}
		return err
	})
	return job, "record", err
}

// watcher collects what a client is asked to do.
type watcher struct {
	mu    sync.Mutex
	calls []call
}

func (w *watcher) watch(x httpclient.Exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call{
		Method: x.Method, URL: x.URL, Headers: headerLines(x.Header), Body: x.Body, Status: x.Status, TookMS: x.Took.Milliseconds(),
		Answer: headerLines(x.Answer), Content: x.Content, Error: x.Error,
	})
}

func headerLines(lines []httpclient.Line) []headerLine {
	list := make([]headerLine, len(lines))
	for i, l := range lines {
		list[i] = headerLine(l)
	}
	return list
}

// try asks once and decides as a consumer would that has the payment's lease.
func try(ctx context.Context, cfg config.Config, g config.Gateway, job consumer.Job) (trial, error) {
	var w watcher
	if client := g.Section().Client(); client != nil {
		client.Watch = w.watch
	}
	adapter, err := app.Adapter(g)
	if err != nil {
		return trial{}, err
	}
	if c, ok := adapter.(interface{ Close() }); ok {
		defer c.Close()
	}
	p := job.Payment
	t := trial{
		Gateway: p.Gateway, Adapter: g.Adapter, Account: p.Account, Reference: p.Reference, Expected: currency.Format(p.AmountMinor, p.Currency),
		Record: string(p.Status), Polling: polling(g.Capabilities()), Calls: []call{},
	}
	if m, ok := adapter.(interface{ Mode() gateway.Mode }); ok {
		t.Mode = string(m.Mode())
	}
	policy := cfg.Policy(p.Gateway, p.Class)
	o := redelivery.Observation{
		Tracked: true, Status: p.Status, TokenCurrent: true, Age: job.Age, HasDeadline: job.HasDeadline, UntilDeadline: job.UntilEnd,
		Counters: job.Counters, Previous: job.Previous, HoldsLeft: cfg.Consumer.HoldBudget, Chance: 0.5,
	}
	if !policy.NeverPoll {
		ans := adapter.Poll(ctx, gateway.Query{
			Payment: p.ID, Account: p.Account, Reference: p.Reference, MerchantRef: p.MerchantReference, AmountMinor: p.AmountMinor, Currency: p.Currency,
		})
		o.Answer, t.Answer = &ans, &said{
			Class: ans.Class.String(), Status: string(ans.Status), Detail: ans.Detail, GatewayStatus: ans.GatewayStatus, HTTPStatus: ans.HTTPStatus,
			RetryAfter: ans.RetryAfter.String(), Message: ans.Message,
		}
		t.Calls = orEmpty(w.calls)
	}
	d := policy.Decide(o)
	t.Decision = decision{Verb: d.Verb.String(), Reason: string(d.Reason), Delay: d.Delay.Round(time.Millisecond).String(), Policy: policy.Name}
	return t, nil
}

// polling says how often a gateway is asked.
func polling(c gateway.Capabilities) string {
	switch c.Polling {
	case gateway.Never:
		return "never: it reports by webhook"
	case gateway.Sparingly:
		return fmt.Sprintf("sparingly: at least %s between two polls of one payment", c.MinInterval)
	}
	return "as often as the policy says"
}

func printTrial(w io.Writer, t trial) {
	name := t.Adapter
	if t.Mode != "" {
		name += ", " + t.Mode
	}
	row(w, "gateway", fmt.Sprintf("%s (%s)", t.Gateway, name))
	row(w, "account", orDash(t.Account))
	row(w, "reference", t.Reference)
	row(w, "expected", t.Expected+", says "+map[string]string{"record": "the record", "command_line": "the command line"}[t.Known])
	row(w, "polled", t.Polling)
	for _, c := range t.Calls {
		printCall(w, c)
	}
	row(w)
	if a := t.Answer; a != nil {
		row(w, "class", a.Class)
		row(w, "it says", orDash(a.GatewayStatus))
		row(w, "that means", fmt.Sprintf("%s %s", a.Status, a.Detail))
		if a.RetryAfter != "0s" {
			row(w, "it asks for", "a wait of "+a.RetryAfter)
		}
		if a.Message != "" {
			row(w, "message", a.Message)
		}
	}
	if t.Record != string(payment.Pending) {
		row(w, "the record", t.Record+" already")
	}
	row(w, "decision", t.Decision.text())
}

func printCall(w io.Writer, c call) {
	row(w)
	row(w, "request", c.Method+" "+c.URL)
	for _, h := range c.Headers {
		row(w, "", h.Name+": "+h.Value)
	}
	if c.Body != "" {
		row(w, "", c.Body)
	}
	switch {
	case c.Status == 0:
		row(w, "answer", c.Error)
		return
	case c.Error != "":
		row(w, "answer", fmt.Sprintf("HTTP %d after %d ms: %s", c.Status, c.TookMS, c.Error))
	default:
		row(w, "answer", fmt.Sprintf("HTTP %d after %d ms", c.Status, c.TookMS))
	}
	for _, h := range c.Answer {
		row(w, "", h.Name+": "+h.Value)
	}
	if c.Content != "" {
		row(w, "", c.Content)
	}
}

func (d decision) text() string {
	text := d.Verb
	if d.Delay != "0s" {
		text += " for about " + d.Delay
	}
	return fmt.Sprintf("%s: %s, by the policy %s", text, d.Reason, d.Policy)
}
