package canary

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// parrot is the API of all vendors, and a proxy: it repeats what it was sent, with card numbers and tokens of its own, in the place of the answer that the reference names.
type parrot struct {
	*httptest.Server
	card, token, access string // that it says of its own accord

	mu    sync.Mutex
	asked map[string]bool // the tricks that were played, by vendor
	heard []byte          // all that it was sent
}

// tricks is how many there are.
const tricks = 10

// reference is the id of the payment for which a vendor plays a trick.
func reference(vendor string, trick int) string {
	switch vendor {
	case "stripe":
		return fmt.Sprintf("pi_canary_%d", trick)
	case "paypal":
		return fmt.Sprintf("CANARY-%d", trick)
	case "razorpay":
		return fmt.Sprintf("pay_canary_%d", trick)
	case "mercadopago", "iyzico":
		return fmt.Sprintf("900000%d", trick)
	}
	return fmt.Sprintf("canary_%d", trick)
}

var referenced = regexp.MustCompile(`(?:canary_|CANARY-|900000)(\d)`)

func newParrot(t *testing.T, m *marks) *parrot {
	p := &parrot{card: m.card("the card number of gateways"), token: m.secret("the token of gateways", "tok_"), access: m.secret("the access token of PayPal", "A21AA"), asked: map[string]bool{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if strings.HasSuffix(r.URL.Path, "/oauth2/token") {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": 3600}`, p.access)
		return
	}
	var sent strings.Builder
	_ = r.Header.Write(&sent)
	bare := bare(r.Header)
	echo := fmt.Sprintf("%s was refused. %s %s %s card %s and %s token=%s", bare, strings.ReplaceAll(sent.String(), "\r\n", " "), r.URL, body, p.card, grouped(p.card, " "), p.token)
	found := referenced.FindStringSubmatch(r.URL.Path + " " + string(body))
	if found == nil {
		http.Error(w, echo, http.StatusNotFound)
		return
	}
	p.note(strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")[0]+found[1], echo)
	p.play(w, found[1], echo, bare, r)
}

// bare is what a request was authorised with, without a word that names it.
func bare(h http.Header) string {
	for _, name := range []string{"Authorization", "X-Api-Key", "Proxy-Authorization", "X-Signature"} {
		if v := strings.Fields(h.Get(name)); len(v) > 0 {
			return v[len(v)-1]
		}
	}
	return "nobody"
}

func (p *parrot) note(trick, echo string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[trick] = true
	p.heard = append(p.heard, echo...)
}

func (p *parrot) play(w http.ResponseWriter, trick, echo, bare string, r *http.Request) {
	said, _ := json.Marshal(echo)
	line := strings.Map(func(c rune) rune {
		if c < ' ' {
			return ' '
		}
		return c
	}, echo)
	h := w.Header()
	h.Set("Set-Cookie", "session="+p.token)
	h.Set("X-Echo", line)
	h.Set("Content-Type", "application/json")
	all := fmt.Sprintf(`"message":%[1]s,"name":%[2]q,"description":%[1]s,"errorMessage":%[1]s,"errorCode":%[2]q,"debug_id":%[1]s,"updated_at":%[1]s,`+
		`"details":[{"issue":%[1]s,"description":%[1]s}],"cause":[{"code":%[2]q,"description":%[1]s}]`, said, p.card)
	status := func(code int, kind, text string) {
		h.Set("Content-Type", kind)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
	object := fmt.Sprintf(`{"error":{"message":%s,"type":%s,"code":%q,"description":%s,"reason":%s},%s}`, said, said, p.card, said, said, all)
	switch trick {
	case "0":
		status(500, "text/html", "<html><h1>"+echo+"</h1>")
	case "1":
		status(422, "application/json", object)
	case "2":
		h.Set("Location", "https://elsewhere.example/"+p.card+"?token="+p.token+"&authorization="+r.Header.Get("Authorization"))
		status(302, "text/html", echo)
	case "3":
		status(200, "text/html; charset="+p.card, echo)
	case "4": // a status, an id and money that are card numbers
		status(200, "application/json", fmt.Sprintf(`{"status":%[1]q,"id":%[1]q,"object":"payment_intent","amount":%[1]s,"currency":%[1]q,"intent":%[1]q,"paymentStatus":%[1]q,%[2]s}`, p.card, all))
	case "5":
		h.Set("WWW-Authenticate", line)
		status(401, "application/json", strings.ReplaceAll(object, strconv.Quote(p.card), strconv.Quote(bare))) // codes that are our own key
	case "6": // it breaks off
		h.Set("Content-Length", "100000")
		status(200, "application/json", `{"id":`+string(said)+`,"status":`)
	case "7": // keys twice
		status(200, "application/json", fmt.Sprintf(`{%[1]s:1,%[1]s:2,%[2]q:1,%[2]q:2}`, said, p.card))
	case "8":
		h.Set("Retry-After", line)
		status(429, "application/json", object)
	case "9":
		status(200, "application/json", fmt.Sprintf(`{"id":%q,"status":%q,"amount":%s,"currency":"JPY","mode":%q,%s}`, lastOf(r.URL.Path), bare, p.card, p.card, all))
	}
}

func lastOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
