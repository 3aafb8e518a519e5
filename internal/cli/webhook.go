package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
	"pollux/internal/webhook"
)

func webhookCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "webhook", Short: "Shows what gateways told, and checks a saved notification"}
	cmd.AddCommand(webhookList(), webhookShow(), webhookVerify())
	return cmd
}

// maxNotices is how many notices are listed at the most.
const maxNotices = 1000

func webhookList() *cobra.Command {
	var f postgres.WebhookFilter
	var payment int64
	cmd := &cobra.Command{
		Use: "list", Short: "Lists notifications and what became of them, the newest first", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Limit > maxNotices {
				return app.Usage("--limit %d: between 1 and %d", f.Limit, maxNotices)
			}
			if f.Decision != "" && f.Decision != postgres.ForPeople && !slices.Contains(webhook.Decisions, webhook.Decision(f.Decision)) {
				return app.Usage("--decision %q: people, or one of %v", f.Decision, webhook.Decisions)
			}
			f.Payment = payment
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				notices, err := postgres.NewWebhooks(pool, "pollux-cli").ListWebhooks(ctx, f)
				if err != nil {
					return err
				}
				return show(cmd, orEmpty(notices), func(w io.Writer) { printNotices(w, notices, f) })
			})
		},
	}
	cmd.Flags().StringVar(&f.Gateway, "gateway", "", "only this gateway")
	cmd.Flags().StringVar(&f.Decision, "decision", "", "only what became this; people: what somebody has to look at")
	cmd.Flags().Int64Var(&payment, "payment", 0, "only those about the payment with this id")
	cmd.Flags().Int64Var(&f.Before, "before", 0, "the next page: notifications with an id below this one")
	cmd.Flags().IntVar(&f.Limit, "limit", 50, "at most so many")
	return cmd
}

func printNotices(w io.Writer, notices []postgres.WebhookRow, f postgres.WebhookFilter) {
	if len(notices) == 0 {
		row(w, "no notifications")
		return
	}
	row(w, "ID", "CAME", "GATEWAY", "DECISION", "STATUS", "REFERENCE", "PAYMENT", "KIND", "WHY")
	for _, n := range notices {
		name := n.Gateway
		if n.Account != "" {
			name += "/" + n.Account
		}
		id := "-"
		if n.PaymentID != nil {
			id = strconv.FormatInt(*n.PaymentID, 10)
		}
		row(w, n.ID, ago(n.ReceivedAt), name, n.Decision, orDash(n.Status), orDash(cut(n.References, 40)), id, orDash(cut(n.Kind, 40)), orDash(cut(n.Why, 70)))
	}
	if len(notices) == f.Limit {
		row(w, fmt.Sprintf("there may be more: add --before %d", notices[len(notices)-1].ID))
	}
}

func webhookShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Shows what is kept of a notification, what became of it and why, and what to do",
		Long: `Shows what is kept of a notification, what became of it and why, and what to do. The body is kept of what is set aside, and is in -o json as base64: it is what
the gateway sent, and may be about people. Headers are not kept.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usage("webhook show needs the id of one notification, as webhook list has it")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id < 1 {
				return app.Usage("%.40q is not the id of a notification", args[0])
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				d, err := postgres.NewWebhooks(pool, "pollux-cli").ShowWebhook(ctx, id)
				if err != nil {
					return err
				}
				if d == nil {
					return app.Hint(fmt.Errorf("there is no notification %d", id), "pollux webhook list; what is older than webhooks.keep_events is gone")
				}
				return show(cmd, inUTC(d), func(w io.Writer) { printNotice(w, d) })
			})
		},
	}
}

func printNotice(w io.Writer, d *postgres.WebhookDetail) {
	row(w, "gateway", strings.TrimSuffix(d.Gateway+"/"+d.Account, "/"))
	row(w, "event", d.EventID)
	row(w, "kind", orDash(d.Kind))
	row(w, "came", when(d.ReceivedAt))
	if d.OccurredAt != nil {
		row(w, "happened", instant(*d.OccurredAt))
	}
	row(w, "key", orDash(d.Key))
	row(w, "mode", orDash(d.Mode))
	row(w, "effect", d.Effect)
	row(w, "reference", orDash(d.References))
	row(w, "payment", trackedPayment(d))
	row(w, "status", strings.TrimSpace(orDash(d.Status)+" "+d.Detail))
	if d.AmountMinor != nil {
		row(w, "amount", currency.Format(*d.AmountMinor, d.Currency))
	}
	row(w, "decision", fmt.Sprintf("%s  %s", d.Decision, when(d.DecidedAt)))
	row(w, "why", orDash(d.Why))
	row(w, "digest", "sha256:"+d.Digest)
	row(w, "body", keptBody(d))
	row(w, "to do", noticeAdvice(d))
}

func trackedPayment(d *postgres.WebhookDetail) string {
	switch {
	case d.Tracked != nil:
		return strconv.FormatInt(*d.Tracked, 10)
	case d.References == "":
		return "-"
	}
	return "none is tracked by that reference"
}

func keptBody(d *postgres.WebhookDetail) string {
	if len(d.Body) == 0 {
		return "not kept"
	}
	return fmt.Sprintf("%d bytes, in -o json", len(d.Body))
}

// noticeAdvice says what a person does about a notice.
func noticeAdvice(d *postgres.WebhookDetail) string {
	switch {
	case d.Decision == webhook.Quarantined && d.Tracked != nil:
		return fmt.Sprintf("mend what WHY says (an unknown status belongs into statuses); pollux payment poll-now %d asks the gateway meanwhile", *d.Tracked)
	case d.Decision == webhook.Quarantined:
		return "mend what WHY says (an unknown status belongs into statuses); its payment is polled all the same, once it is tracked"
	case d.Decision == webhook.LateHint:
		return fmt.Sprintf("ask with pollux gateway test %s REFERENCE; the payment is a dead letter with the reason late_hint", d.Gateway)
	case d.Decision == webhook.Conflicting && d.Tracked != nil:
		return fmt.Sprintf("pollux payment explain %d, then pollux dlq list: the contradiction is a dead letter there", *d.Tracked)
	case d.Decision == webhook.Mismatched && d.Tracked != nil:
		return fmt.Sprintf("compare the amounts at the gateway; pollux payment explain %d", *d.Tracked)
	case d.Decision == webhook.Waiting && d.LookAt != nil:
		return "nothing; its payment is looked for again at " + instant(*d.LookAt)
	}
	return "nothing"
}

func webhookVerify() *cobra.Command {
	var gateway, account, at string
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Says whether a saved request is genuine, and what it says",
		Long: `Says whether a saved request is genuine, and what it says. The file holds the request as it came: the request line, the headers, an empty line and the body to
its last byte; - is the standard input. Nothing is written, and nobody is asked.

Exit code 3 when it is not genuine, or of no use.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usage("webhook verify needs the file of one saved request")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := app.Load(config.Options{Flags: cmd.Flags(), Skip: config.SkipDatabase | config.SkipBroker | config.SkipGateways})
			if err != nil {
				return err
			}
			r, err := savedRequest(cmd, args[0], at)
			if err != nil {
				return err
			}
			if gateway != "" {
				r.Path = webhook.Endpoint{Gateway: gateway, Account: account}.Path()
			}
			endpoint, err := endpointOf(cfg, r.Path)
			if err != nil {
				return err
			}
			return printVerified(cmd, r, endpoint)
		},
	}
	cmd.Flags().StringVar(&gateway, "gateway", "", "the gateway that sent it; otherwise its path says so")
	cmd.Flags().StringVar(&account, "account", "", "the account that it was sent for")
	cmd.Flags().StringVar(&at, "at", "", "when it came, such as 2026-01-31T12:00:00Z: signatures with a time grow old; otherwise now")
	return cmd
}

// maxSaved bounds a saved request.
const maxSaved = 32 << 20

// savedRequest reads a request from a file.
func savedRequest(cmd *cobra.Command, name, at string) (*webhook.Request, error) {
	came := time.Now()
	if at != "" {
		var err error
		if came, err = time.Parse(time.RFC3339, at); err != nil {
			return nil, app.Usage("--at %q: write an instant such as 2026-01-31T12:00:00Z", at)
		}
	}
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, app.NotTried(err)
		}
		defer f.Close()
		in = f
	}
	saved, err := io.ReadAll(io.LimitReader(in, maxSaved))
	if err != nil {
		return nil, err
	}
	return parseSaved(saved, came)
}

var errNotSaved = errors.New("this is no saved request")

// parseSaved takes a request apart. Its body is all that follows the empty line, whatever Content-Length says: a file may have lost or won a line break, and then it
// is said.
func parseSaved(saved []byte, came time.Time) (*webhook.Request, error) {
	const hint = "write the request line, the headers, an empty line and the body, for instance: POST /webhooks/acme HTTP/1.1"
	head, body, found := bytes.Cut(saved, []byte("\r\n\r\n"))
	if before, after, plain := bytes.Cut(saved, []byte("\n\n")); plain && (!found || len(before) < len(head)) {
		head, body, found = before, after, true
	}
	if !found {
		return nil, app.Hint(errNotSaved, hint)
	}
	r, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(head), strings.NewReader("\r\n\r\n"))))
	if err != nil {
		return nil, app.Hint(errNotSaved, hint)
	}
	if r.ContentLength >= 0 && r.Header.Get("Content-Length") != "" && int64(len(body)) != r.ContentLength {
		return nil, app.Hint(fmt.Errorf("its body has %d bytes, and its Content-Length is %d", len(body), r.ContentLength),
			"a signature is over each byte: save it again, without a line break at the end that was not there")
	}
	if len(r.TransferEncoding) > 0 {
		return nil, app.Hint(errors.New("its body is in chunks"), "save it without Transfer-Encoding")
	}
	return &webhook.Request{Method: r.Method, Host: r.Host, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery, Header: r.Header, Body: body, At: came}, nil
}

// endpointOf is the endpoint of a path.
func endpointOf(cfg config.Config, p string) (webhook.Endpoint, error) {
	all, err := app.Endpoints(cfg)
	if err != nil {
		return webhook.Endpoint{}, err
	}
	var known []string
	for _, e := range all {
		if e.Path() == p {
			return e, nil
		}
		known = append(known, path.Base(e.Path()))
	}
	if known == nil {
		return webhook.Endpoint{}, app.Hint(errors.New("no gateway sends notifications: webhooks.gateways is empty"), "write one; docs/webhooks.md says how")
	}
	return webhook.Endpoint{}, app.Hint(fmt.Errorf("no notifications are taken at %.80q", p), "--gateway says which gateway sent it")
}

// verified is what a saved request turned out to be, as -o json shows it.
type verified struct {
	Path    string         `json:"path"`
	Genuine bool           `json:"genuine"`
	Reason  string         `json:"reason"`
	Key     string         `json:"key"`
	Parts   []verifiedPart `json:"notices"`
	Refused int            `json:"refused_parts"`
}

type verifiedPart struct {
	ID         string     `json:"event_id"`
	Kind       string     `json:"kind"`
	References []string   `json:"references"`
	Effect     string     `json:"effect"`
	Status     string     `json:"status"`
	Detail     string     `json:"detail"`
	Amount     string     `json:"amount"`
	OccurredAt *time.Time `json:"occurred_at"`
	Mode       string     `json:"mode"`
	Fault      string     `json:"fault"`
}

var effectNames = map[webhook.Effect]string{webhook.Report: "report", webhook.Hint: "hint", webhook.Nothing: "nothing"}

func printVerified(cmd *cobra.Command, r *webhook.Request, e webhook.Endpoint) error {
	arrivals, refused, err := webhook.Check(cmd.Context(), r, e)
	v := verified{Path: e.Path(), Genuine: err == nil, Parts: []verifiedPart{}, Refused: len(refused)}
	bad := err != nil || refused != nil
	if err != nil {
		v.Reason = err.Error()
	}
	for _, a := range arrivals {
		v.Key = a.Key
		bad = bad || a.Fault != ""
		v.Parts = append(v.Parts, partOf(a.Notice))
	}
	if err := show(cmd, v, func(w io.Writer) { printVerification(w, v) }); err != nil {
		return err
	}
	if bad {
		return app.ErrFindings
	}
	return nil
}

func partOf(n webhook.Notice) verifiedPart {
	p := verifiedPart{ID: n.ID, Kind: n.Kind, References: orEmpty(n.References), Effect: effectNames[n.Effect], Status: string(n.Status), Detail: n.Detail, Mode: n.Mode, Fault: n.Fault}
	if n.Money != nil {
		p.Amount = currency.Format(n.Money.Minor, n.Money.Currency)
	}
	if !n.OccurredAt.IsZero() {
		p.OccurredAt = utc(&n.OccurredAt)
	}
	return p
}

// refusalHints say what to look at when a request is not believed.
var refusalHints = map[webhook.Refusal]string{
	webhook.RefusedUnsigned:  "the header with the signature is missing, or not as this scheme writes it",
	webhook.RefusedTimestamp: "it was signed too long before it came: --at says when that was",
	webhook.RefusedSignature: "another key, or a body that is not byte for byte what came",
	webhook.RefusedSender:    "what it names as its proof is not the vendor's",
}

func printVerification(w io.Writer, v verified) {
	row(w, "endpoint", v.Path)
	if !v.Genuine {
		row(w, "genuine", "no: "+v.Reason)
		if hint := refusalHints[webhook.Refusal(strings.TrimPrefix(v.Reason, "refused: "))]; hint != "" {
			row(w, "look at", hint)
		}
		return
	}
	row(w, "genuine", "yes, by the key "+orDash(v.Key))
	if v.Refused > 0 {
		row(w, "not genuine", counted(v.Refused, "part", "parts"))
	}
	for _, p := range v.Parts {
		row(w)
		row(w, "event", p.ID)
		row(w, "kind", orDash(p.Kind))
		if p.Fault != "" {
			row(w, "set aside", p.Fault)
			continue
		}
		row(w, "effect", p.Effect)
		row(w, "payment", orDash(strings.Join(p.References, " or ")))
		row(w, "status", strings.TrimSpace(orDash(p.Status)+" "+p.Detail))
		row(w, "amount", orDash(p.Amount))
		if p.OccurredAt != nil {
			row(w, "happened", instant(*p.OccurredAt))
		}
		row(w, "mode", orDash(p.Mode))
	}
}
