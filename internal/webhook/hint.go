package webhook

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

// Rumour is a request that was not believed, as a reason to ask the gateway itself.
type Rumour struct {
	Gateway    string
	Account    string
	References []string      // as those of a Notice
	Rest       time.Duration // since what was done last for the payment; before it is over no poll is due
}

// Rumours is what the record does with rumours.
type Rumours interface {
	// Nudge makes the poll of a known pending payment due earlier, but not before its Rest nor before the time that its gateway asked for, and reports whether
	// it did. It changes nothing else and keeps nothing.
	Nudge(ctx context.Context, r Rumour) (bool, error)
}

// HintOutcome is what became of a request that was not believed.
type HintOutcome string

// The outcomes of hints.
const (
	HintNudged  HintOutcome = "nudged"  // a poll is due earlier
	HintUseless HintOutcome = "useless" // it names no pending payment, or one whose poll is due as early as it may be
	HintLimited HintOutcome = "limited" // too many came; it was not looked at
)

// HintOutcomes are all outcomes of hints, in a fixed order.
var HintOutcomes = []HintOutcome{HintNudged, HintUseless, HintLimited}

// Unverified says how much heed is paid to requests that are not believed, of one gateway and all of its accounts.
type Unverified struct {
	Rate float64       // requests a second that are looked at, of all that come; those at once are as many, and one at the least
	Rest time.Duration // as that of a Rumour
}

// hintQueue bounds the requests that wait to be looked at, and with the largest body the memory that they take.
const hintQueue = 16

// hintPatience is for the database to make one poll due.
const hintPatience = 4 * time.Second

// Hints looks at requests that are not believed, behind their answer and off its path: whoever sent one learns nothing from the answer, nor from when it comes. Nothing
// of them is kept. It is safe for concurrent use.
type Hints struct {
	cfg      map[string]Unverified
	limiters map[string]*rate.Limiter
	in       chan suspect
	record   Rumours
	metrics  Metrics
	log      *slog.Logger
}

type suspect struct {
	endpoint Endpoint
	request  *Request
}

// NewHints returns hints of the gateways in cfg; requests of others are not looked at.
func NewHints(cfg map[string]Unverified, record Rumours, metrics Metrics, log *slog.Logger) *Hints {
	h := &Hints{cfg: cfg, limiters: make(map[string]*rate.Limiter, len(cfg)), in: make(chan suspect, hintQueue), record: record, metrics: metrics, log: log}
	for gateway, u := range cfg {
		h.limiters[gateway] = rate.NewLimiter(rate.Limit(u.Rate), max(1, int(u.Rate)))
	}
	return h
}

// Run looks at what comes until ctx ends. It returns nil.
func (h *Hints) Run(ctx context.Context) error {
	for {
		select {
		case s := <-h.in:
			h.look(ctx, s)
		case <-ctx.Done():
			return nil
		}
	}
}

// admits reports whether a request that was refused may be looked at. Nil hints admit nothing.
func (h *Hints) admits(e Endpoint, err error) bool {
	if h == nil || h.limiters[e.Gateway] == nil {
		return false
	}
	var why Refusal
	if !errors.As(err, &why) || why != RefusedUnsigned && why != RefusedTimestamp && why != RefusedSignature {
		return false
	}
	if !h.limiters[e.Gateway].Allow() {
		h.metrics.WebhookHint(e.Gateway, HintLimited)
		return false
	}
	return true
}

// offer hands a request over, unless too many wait.
func (h *Hints) offer(e Endpoint, r *Request) {
	select {
	case h.in <- suspect{e, r}:
	default:
		h.metrics.WebhookHint(e.Gateway, HintLimited)
	}
}

func (h *Hints) look(ctx context.Context, s suspect) {
	outcome := HintUseless
	if references := rumoured(s); len(references) > 0 {
		ctx, cancel := context.WithTimeoutCause(ctx, hintPatience, errors.New("the database did not answer in time"))
		defer cancel()
		nudged, err := h.record.Nudge(ctx, Rumour{Gateway: s.endpoint.Gateway, Account: s.endpoint.Account, References: references, Rest: h.cfg[s.endpoint.Gateway].Rest})
		if err != nil {
			h.log.DebugContext(ctx, "a hint is lost; the payment is polled as planned", "gateway", s.endpoint.Gateway, "error", err)
		}
		if nudged {
			outcome = HintNudged
		}
	}
	h.metrics.WebhookHint(s.endpoint.Gateway, outcome)
}

// rumoured are the references of the first notice that could say something about a payment's status.
func rumoured(s suspect) []string {
	notices, err := s.endpoint.Scheme.Parse(s.request)
	if err != nil {
		return nil
	}
	for _, n := range notices {
		if n = n.sound(s.endpoint.Mode); n.Refused == "" && n.Effect != Nothing {
			return n.References
		}
	}
	return nil
}

// suspect takes a hint from a request that is not believed, where that is wanted, and returns why it is not believed, which is answered.
func (r *Receiver) suspect(w http.ResponseWriter, req *http.Request, n *Request, e Endpoint, why error) error {
	if !r.cfg.Hints.admits(e, why) {
		return why
	}
	if n.Body == nil && r.read(w, req, n) != nil {
		return why
	}
	told := *n
	told.Header = n.Header.Clone()
	r.cfg.Hints.offer(e, &told)
	return why
}
