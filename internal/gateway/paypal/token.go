package paypal

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment/currency"
)

// token is an access token as it is used.
type token struct {
	serial int                  // 1 for the first
	until  time.Time            // when it is too old to be used
	header http.Header          // of requests that are authorised with it; shared
	hide   *httpclient.Redactor // knows it
}

// tokens keep the access token of one account. However many callers need a new one, it is fetched once; and when that fails, it failed for all who
// waited. It is safe for concurrent use.
type tokens struct {
	turn chan struct{} // of the caller who fetches

	mu      sync.Mutex
	now     token
	fetches int            // that ended
	failed  gateway.Answer // of the last fetch, when it failed
}

func newTokens() *tokens { return &tokens{turn: make(chan struct{}, 1)} }

// take returns a token that is newer than the one that was refused (0: none was). It reports true with an answer when there is none.
func (t *tokens) take(ctx context.Context, refused int, fetch func() (token, gateway.Answer)) (token, gateway.Answer, bool) {
	now, before, usable := t.look(refused)
	if usable {
		return now, gateway.Answer{}, false
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return token{}, gateway.Answer{Class: gateway.Local, Message: "gave up while another poll fetched the access token"}, true
	}
	now, fetches, usable := t.look(refused)
	if usable {
		return now, gateway.Answer{}, false
	}
	if fetches != before && t.failed.Class != gateway.Local { // somebody else's, while we waited; only with the turn is failed written
		return token{}, t.failed, true
	}
	fresh, failed := fetch()
	return t.keep(fresh, failed)
}

// look returns the token, how many fetches have ended, and whether the token can be used.
func (t *tokens) look(refused int) (token, int, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now, t.fetches, t.now.serial > refused && time.Now().Before(t.now.until)
}

// keep stores what a fetch brought.
func (t *tokens) keep(fresh token, failed gateway.Answer) (token, gateway.Answer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fetches++
	if fresh.header == nil {
		t.failed = failed
		return token{}, failed, true
	}
	fresh.serial = t.now.serial + 1
	t.now = fresh
	return fresh, gateway.Answer{}, false
}

// fetch asks for a token (RFC 6749, section 4.4). When there is none, the answer says why.
func (a *Adapter) fetch(ctx context.Context, acct *account, q gateway.Query) (token, gateway.Answer) {
	g := &grant{}
	ans := a.desk.Ask(ctx, q, httpclient.Request{
		Method: http.MethodPost, URL: a.desk.URL("/v1/oauth2/token", ""), Header: acct.header,
		Body: []byte("grant_type=client_credentials"), Hide: httpclient.NewRedactor(acct.secrets...),
	}, g)
	if g.text == "" {
		return token{}, ans
	}
	return acct.token(g), gateway.Answer{}
}

func (acct *account) token(g *grant) token {
	h := acct.base.Clone()
	h.Set("Authorization", "Bearer "+g.text)
	return token{
		until:  time.Now().Add(g.lasts - min(time.Minute, g.lasts/10)), // a poll that begins before it ends is answered before it ends
		header: h, hide: httpclient.NewRedactor(append(slices.Clone(acct.secrets), g.text)...),
	}
}

// grant reads the answer to a request for a token.
type grant struct {
	text  string // empty when there is none
	lasts time.Duration
}

// The life of a token: what is assumed when PayPal does not say, and the longest that is believed.
const (
	shortLife = 5 * time.Minute
	longLife  = 24 * time.Hour
)

// Payment implements reply.Reader: what came is a token.
func (g *grant) Payment(r *reply.Reply) gateway.Answer {
	text := r.Root.Member("access_token")
	switch {
	case text.Kind() != strictjson.String || len(text.Bytes()) == 0 || !httpclient.ValidHeaderValue(text.Text()):
		return r.Bad("no access token at /access_token")
	case !strings.EqualFold(reply.Text(r.Root.Member("token_type")), "Bearer"):
		return r.Bad("the access token is not a bearer token")
	}
	g.lasts = shortLife
	if v := r.Root.Member("expires_in"); v.Exists() {
		seconds, err := currency.Minor(reply.Text(v), 0)
		if err != nil || seconds <= 0 {
			return r.Bad("the access token is over already, or /expires_in is no number of seconds")
		}
		g.lasts = time.Duration(min(seconds, int64(longLife/time.Second))) * time.Second
	}
	g.text = text.Text()
	return r.Answer(reply.Meaning{}, "")
}

// Refusal implements reply.Reader.
func (g *grant) Refusal(r *reply.Reply) gateway.Answer {
	code, text := reply.Text(r.Root.Member("error")), reply.Text(r.Root.Member("error_description"))
	if code == "" {
		code, text = reply.Text(r.Root.Member("name")), reply.Text(r.Root.Member("message"))
	}
	class := gateway.Transport
	switch {
	case r.HTTP.Status == 401, r.HTTP.Status == 403, code == "invalid_client", code == "unauthorized_client":
		class = gateway.Unauthorized
	case r.HTTP.Status == 429:
		class = gateway.RateLimited
	}
	return r.Say(class, "the access token: %s", r.Error(class, code, text).Message)
}
