package gatewaysim

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Header values that every answer shares; net/http only reads them.
var (
	asJSON = []string{"application/json"}
	asHTML = []string{"text/html; charset=utf-8"}
)

// The page of a proxy or of a maintenance window: what a gateway sends when it is not the gateway that answers.
const page = "<html><head><title>Temporarily unavailable</title></head><body><h1>We will be back soon</h1></body></html>\n"

var bodies = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// send sends the reply and returns the HTTP status, 0 when no headers were sent.
func (s *Simulator) send(w http.ResponseWriter, r *http.Request, p *reply) int {
	if p.dialect != nil && p.outcome.refused() {
		return p.refuse(w)
	}
	switch p.outcome {
	case Answered, OtherID, OtherAmount, OtherCurrency, UnknownStatus:
		return sendPayment(w, p)
	case Empty:
		return sendBody(w, asJSON, http.StatusOK, "")
	case EmptyObject:
		return sendBody(w, asJSON, http.StatusOK, "{}")
	case Null:
		return sendBody(w, asJSON, http.StatusOK, "null")
	case HTML:
		return sendBody(w, asHTML, http.StatusOK, page)
	case BadGateway:
		return sendBody(w, asHTML, http.StatusBadGateway, page)
	case ServerError:
		return writeError(w, http.StatusInternalServerError, "internal_error", "Something went wrong on our side.")
	case Unavailable:
		return writeError(w, http.StatusServiceUnavailable, "unavailable", "We are not available at the moment.")
	case Unauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
		return writeError(w, http.StatusUnauthorized, "invalid_api_key", "The API key is unknown or has expired.")
	case NotFound:
		return writeError(w, http.StatusNotFound, "payment_not_found", "There is no such payment.")
	case RateLimited:
		w.Header().Set("Retry-After", p.waitFor(time.Now()))
		return writeError(w, http.StatusTooManyRequests, "rate_limited", "Too many requests.")
	case Redirect:
		w.Header().Set("Location", elsewhere(r)+trapPath+p.reference)
		w.WriteHeader(http.StatusFound)
		return http.StatusFound
	case BadRequest:
		w.Header().Set("Allow", http.MethodGet)
		return writeError(w, http.StatusMethodNotAllowed, "method_not_allowed", "Payments are read with GET.")
	default:
		return s.wreck(w, r, p)
	}
}

// sendPayment sends the payment as JSON.
func sendPayment(w http.ResponseWriter, p *reply) int {
	buf := bodies.Get().(*[]byte)
	*buf = p.appendBody((*buf)[:0])
	w.Header()["Content-Type"] = asJSON
	_, _ = w.Write(*buf) // a client that has gone is noticed with the next call
	bodies.Put(buf)
	return http.StatusOK
}

// appendBody appends the payment as JSON. Nothing in it needs escaping: references and currencies are strict.
func (p *reply) appendBody(b []byte) []byte {
	if p.dialect != nil {
		return append(b, p.dialect.Write(*p.question, p.state())...)
	}
	reference, amount, currency := p.reference, p.amount, p.currency
	switch p.outcome {
	case OtherID:
		reference = "other_" + reference
	case OtherAmount:
		amount = otherAmount(amount)
	case OtherCurrency:
		currency = otherCurrency(currency)
	}
	b = append(b, `{"id":"`...)
	b = append(b, reference...)
	b = append(b, `","status":"`...)
	b = append(b, p.told.String()...)
	b = append(b, `","amount":`...)
	b = strconv.AppendInt(b, amount, 10)
	b = append(b, `,"currency":"`...)
	b = append(b, currency...)
	b = append(b, `","livemode":false,"updated_at":"`...)
	b = time.Unix(p.updated, 0).UTC().AppendFormat(b, time.RFC3339)
	return append(b, '"', '}', '\n')
}

// otherAmount is the mistake that is made most: a unit too large or too small.
func otherAmount(amount int64) int64 {
	if amount >= 100 {
		return amount / 100
	}
	return amount + 1
}

func otherCurrency(currency string) string {
	if currency == "USD" {
		return "EUR"
	}
	return "USD"
}

// waitFor is the value of Retry-After: seconds, or an HTTP date, which is rounded up to a whole second.
func (p *reply) waitFor(now time.Time) string {
	if p.asDate {
		return now.Add(p.retryAfter + time.Second - 1).UTC().Format(http.TimeFormat)
	}
	return strconv.Itoa(int(p.retryAfter / time.Second))
}

func sendBody(w http.ResponseWriter, contentType []string, status int, body string) int {
	w.Header()["Content-Type"] = contentType
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
	return status
}

// writeError sends an error of the dialect. Neither text may need escaping.
func writeError(w http.ResponseWriter, status int, code, message string) int {
	return sendBody(w, asJSON, status, `{"error":{"code":"`+code+`","message":"`+message+`"}}`+"\n")
}

// elsewhere is another host that leads back here: loopback by its other name, on the port that was called.
func elsewhere(r *http.Request) string {
	port := "80"
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		port = strconv.Itoa(a.Port)
	}
	if strings.HasPrefix(r.Host, "localhost") {
		return "http://127.0.0.1:" + port
	}
	return "http://localhost:" + port
}
