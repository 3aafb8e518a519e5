package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"pollux/internal/card"
	"pollux/internal/outage"
)

// Prefix is what the paths of notifications begin with; the gateway follows, and the account if there is one.
const Prefix = "/webhooks/"

// Endpoint is where the notifications of one account of a gateway are received.
type Endpoint struct {
	Gateway string
	Account string
	Scheme  Scheme
	Mode    string // "live" or "test": what is about the other is set aside; empty: both are taken
}

// ReceiverConfig says what a receiver takes.
type ReceiverConfig struct {
	MaxBody     int64         // bytes of a notification
	BodyTimeout time.Duration // for all of it to come
	Checking    int           // notifications that are verified at once: as many as there are processors, and a few
	Keeping     int           // verified notifications that wait for their commit at once; what is not verified takes none of these places
	Hints       *Hints        // of what is not believed; nil: it is refused, and that is all
}

// Receiver is the door for notifications. Cheap checks come first: a request whose head alone tells that it is not genuine is read no further. It is
// an http.Handler and safe for concurrent use.
type Receiver struct {
	cfg       ReceiverConfig
	endpoints atomic.Pointer[map[string]Endpoint] // by path
	recorder  *Recorder
	metrics   Metrics
	tracer    Tracer // nil: nothing is traced
	log       *slog.Logger
	unkept    *outage.Log
	checking  chan struct{}
	keeping   chan struct{}
}

// NewReceiver returns a receiver of endpoints.
func NewReceiver(cfg ReceiverConfig, endpoints []Endpoint, recorder *Recorder, metrics Metrics, log *slog.Logger) *Receiver {
	r := &Receiver{cfg: cfg, recorder: recorder, metrics: metrics, log: log,
		unkept: outage.New(log, outage.Words{Begins: "notifications are not kept; their senders come again", Over: "notifications are kept again",
			Hint: "can PostgreSQL be reached where database.url says? When it can, and every place is taken: webhooks.keeping"}),
		checking: make(chan struct{}, cfg.Checking), keeping: make(chan struct{}, cfg.Keeping)}
	r.Replace(endpoints)
	return r
}

// WithTracer returns the receiver with a tracer, which hears of nothing that was not believed: strangers begin no span. It is called before the first request.
func (r *Receiver) WithTracer(t Tracer) *Receiver {
	r.tracer = t
	return r
}

// Replace makes others the endpoints, with other keys. Requests that are being looked at go on with those that they came to.
func (r *Receiver) Replace(endpoints []Endpoint) {
	all := make(map[string]Endpoint, len(endpoints))
	for _, e := range endpoints {
		all[e.Path()] = e
	}
	r.endpoints.Store(&all)
}

// Path is where the endpoint is.
func (e Endpoint) Path() string {
	if e.Account == "" {
		return Prefix + e.Gateway
	}
	return Prefix + e.Gateway + "/" + e.Account
}

var (
	errFull = errors.New("every place for verified notifications is taken")
	retryIn = strconv.Itoa(5) // seconds: what Retry-After asks for
)

// ServeHTTP takes one notification.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	began := time.Now()
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, "notifications are posted")
		return
	}
	e, known := (*r.endpoints.Load())[req.URL.Path]
	err := error(RefusedUnknown)
	if known {
		err = r.receive(w, req, e, began)
	}
	r.metrics.WebhookRequest(e.Gateway, r.conclude(req.Context(), w, e, err), time.Since(began))
}

// conclude answers. Whoever was not believed learns nothing but that.
func (r *Receiver) conclude(ctx context.Context, w http.ResponseWriter, e Endpoint, err error) Outcome {
	var refusal Refusal
	switch {
	case err == nil:
		r.unkept.Well(ctx, e.Gateway)
		answer(w, http.StatusOK, "[accepted]") // the words that older endpoints of Adyen look for; nobody else reads them
		return Accepted
	case errors.As(err, &refusal):
		r.metrics.WebhookRefused(e.Gateway, refusal)
		r.log.DebugContext(ctx, "a notification is refused", "gateway", e.Gateway, "account", e.Account, "reason", string(refusal))
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // what is left of it is not read; a writer of a test has no deadlines
		answer(w, http.StatusUnauthorized, "refused")
		return Refused
	}
	w.Header().Set("Retry-After", retryIn)
	answer(w, http.StatusServiceUnavailable, "not kept; send it again")
	r.unkept.Failed(ctx, e.Gateway, err)
	if errors.Is(err, errFull) {
		return Full
	}
	return Unavailable
}

func answer(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a sender that is gone comes again
}

// receive reads, verifies and keeps a notification.
func (r *Receiver) receive(w http.ResponseWriter, req *http.Request, e Endpoint, at time.Time) error {
	n := &Request{Method: req.Method, Host: req.Host, Path: req.URL.EscapedPath(), RawQuery: req.URL.RawQuery, Header: req.Header, At: at}
	if req.ContentLength > r.cfg.MaxBody {
		return RefusedSize
	}
	if err := e.Scheme.Glance(n); err != nil {
		return r.suspect(w, req, n, e, err)
	}
	if p, ok := e.Scheme.(Preparer); ok {
		if err := p.Prepare(req.Context(), n); err != nil {
			return r.suspect(w, req, n, e, err)
		}
	}
	if err := r.read(w, req, n); err != nil {
		return err
	}
	attended(req.Context())
	arrivals, err := r.verify(req.Context(), n, e)
	if err != nil {
		return r.suspect(w, req, n, e, err)
	}
	if len(arrivals) == 0 {
		return nil
	}
	select {
	case r.keeping <- struct{}{}:
		defer func() { <-r.keeping }()
	default:
		return errFull
	}
	return r.keep(req.Context(), e, arrivals, at)
}

func (r *Receiver) read(w http.ResponseWriter, req *http.Request, n *Request) error {
	_ = http.NewResponseController(w).SetReadDeadline(n.At.Add(r.cfg.BodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.cfg.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return RefusedSize
	case err != nil:
		return RefusedSlow
	}
	n.Body = body
	return nil
}

// verify returns what a genuine notification brings.
func (r *Receiver) verify(ctx context.Context, n *Request, e Endpoint) ([]Arrival, error) {
	select {
	case r.checking <- struct{}{}:
	case <-ctx.Done():
		return nil, RefusedSlow
	}
	defer func() { <-r.checking }()
	arrivals, refused, err := check(ctx, n, e)
	for _, reason := range refused {
		r.metrics.WebhookRefused(e.Gateway, reason)
		r.log.WarnContext(ctx, "a part of a notification is not genuine; the others are taken", "gateway", e.Gateway, "account", e.Account)
	}
	return arrivals, err
}

// Check verifies a request and returns what it brings, and why single parts of it are not believed. Its error is a Refusal, or ErrUnavailable. What is
// genuine and cannot be read is brought to be set aside.
func Check(ctx context.Context, n *Request, e Endpoint) (arrivals []Arrival, refused []Refusal, err error) {
	if err := e.Scheme.Glance(n); err != nil {
		return nil, nil, err
	}
	if p, ok := e.Scheme.(Preparer); ok {
		if err := p.Prepare(ctx, n); err != nil {
			return nil, nil, err
		}
	}
	return check(ctx, n, e)
}

func check(ctx context.Context, n *Request, e Endpoint) (arrivals []Arrival, refused []Refusal, err error) {
	key, err := e.Scheme.Verify(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	notices, err := e.Scheme.Parse(n)
	if err != nil {
		notices = []Notice{{Fault: err.Error()}}
	}
	digest := sha256.Sum256(n.Body)
	for _, notice := range notices {
		if notice.Refused != "" {
			refused = append(refused, notice.Refused)
			continue
		}
		if notice.Fault != "" && !token(notice.ID) {
			notice.ID = digestID(digest)
		}
		a := Arrival{Notice: notice.sound(e.Mode), Gateway: e.Gateway, Account: e.Account, Key: key, Digest: digest}
		if a.Fault != "" {
			a.Body = []byte(card.Mask(string(n.Body))) // for a person; the digest is that of what came
			if !token(a.ID) {
				a.ID = digestID(digest)
			}
		}
		arrivals = append(arrivals, a)
	}
	if arrivals == nil && refused != nil {
		return nil, nil, refused[0]
	}
	return arrivals, refused, nil
}

// DigestID is the id of an event that has none of its own: the same body is the same event.
func DigestID(body []byte) string { return digestID(sha256.Sum256(body)) }

func digestID(digest [32]byte) string { return "sha256:" + hex.EncodeToString(digest[:]) }

// keep records what a notification brings and tells of it.
func (r *Receiver) keep(ctx context.Context, e Endpoint, arrivals []Arrival, came time.Time) error {
	verdicts, err := r.recorder.Keep(context.WithoutCancel(ctx), arrivals) // a sender that goes away comes again
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		v.count(r.metrics)
		tell(ctx, r.log, arrivals[i], v)
	}
	if r.tracer != nil {
		r.tracer.Took(e.Gateway, came, verdicts)
	}
	return nil
}

// tell logs what somebody asks about, and what somebody must look at.
func tell(ctx context.Context, log *slog.Logger, a Arrival, v Verdict) {
	level, text := slog.LevelDebug, "a notification was taken"
	if v.Decision.ForPerson() || v.Altered {
		level, text = slog.LevelError, "a notification needs a person: pollux webhook list"
	}
	attrs := []slog.Attr{slog.String("gateway", v.Gateway), slog.String("account", a.Account), slog.String("event_id", a.ID),
		slog.String("kind", clip(a.Kind)), slog.String("decision", string(v.Decision)), slog.String("reason", v.Why), slog.Bool("altered", v.Altered)}
	switch {
	case v.Payment != 0:
		attrs = append(attrs, slog.Int64("payment_id", int64(v.Payment)))
	case len(a.References) > 0: // one that is set aside, or comes before its payment, has nothing else that tells which it is about
		attrs = append(attrs, slog.String("reference", clip(a.References[0])))
	}
	log.LogAttrs(ctx, level, text, attrs...)
}

// clip bounds a vendor's word for a log.
func clip(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return strings.ToValidUTF8(s, "")
}
