package dialect

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// Iyzico speaks as iyzico does about payments (docs.iyzico.com, "Retrieve payment"): requests and answers are signed, and an error comes with HTTP 200.
type Iyzico struct {
	APIKey    string
	SecretKey string // signs requests, answers and notifications
}

// Fit implements gatewaysim.Dialect: a payment that nobody makes is only ever a failure.
func (Iyzico) Fit(s gatewaysim.Script) gatewaysim.Script {
	return without(s, payment.Cancelled, payment.Expired)
}

// Reference implements gatewaysim.Dialect: ids are numbers.
func (Iyzico) Reference(prefix string, n int) string {
	return fmt.Sprintf("%s%07d", number(prefix, 8), n)
}

const iyzicoDetail = "/payment/detail"

// maxRequest bounds the body of a request.
const maxRequest = 64 << 10

// Read implements gatewaysim.Dialect: a payment by its id, or by the conversation that it was made in.
func (v Iyzico) Read(r *http.Request) (gatewaysim.Question, bool) {
	if r.URL.Path != iyzicoDetail {
		return gatewaysim.Question{}, false
	}
	sent, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	var asked struct{ ConversationID, PaymentID, PaymentConversationID string }
	if err == nil {
		err = json.Unmarshal(sent, &asked)
	}
	q := gatewaysim.Question{Reference: asked.PaymentID, Echo: asked.ConversationID, Key: v.opens(r, sent), Bad: r.Method != http.MethodPost || err != nil}
	if asked.PaymentID == "" {
		q.Reference, q.Ours = asked.PaymentConversationID, true
	}
	return q, true
}

// opens checks the signature of a request: IYZWSv2, over a random key, the path and the body (docs.iyzico.com, "HMACSHA256 Auth").
func (v Iyzico) opens(r *http.Request, sent []byte) bool {
	packed, ok := strings.CutPrefix(r.Header.Get("Authorization"), "IYZWSv2 ")
	pair, err := base64.StdEncoding.DecodeString(packed)
	if !ok || err != nil {
		return false
	}
	said := map[string]string{}
	for part := range strings.SplitSeq(string(pair), "&") {
		name, value, _ := strings.Cut(part, ":")
		said[name] = value
	}
	random := said["randomKey"]
	return random != "" && random == r.Header.Get("X-Iyzi-Rnd") && same(said["apiKey"], v.APIKey) &&
		same(said["signature"], mac(v.SecretKey, random+r.URL.Path+string(sent)))
}

// Write implements gatewaysim.Dialect. The price is signed without the zeros at its end.
func (v Iyzico) Write(q gatewaysim.Question, st gatewaysim.State) []byte {
	id := st.Reference
	if q.Ours {
		id = number(st.Reference, 8)
	}
	word, fraud := iyzicoWords(st)
	price, basket := major(st), "B"+id
	signed := strings.Join([]string{id, st.Currency, basket, q.Echo, trimmed(price), trimmed(price)}, ":")
	return body(object{
		"status": "success", "locale": "en", "systemTime": st.Changed.UnixMilli(), "conversationId": q.Echo, "paymentId": id, "basketId": basket,
		"price": json.Number(price), "paidPrice": json.Number(price), "currency": st.Currency, "installment": 1, "paymentStatus": word, "fraudStatus": fraud,
		"signature": mac(v.SecretKey, signed),
	})
}

func trimmed(price string) string {
	if strings.Contains(price, ".") {
		price = strings.TrimRight(strings.TrimRight(price, "0"), ".")
	}
	return price
}

// iyzicoWords are the status and what the fraud check says: 1 is fine, 0 is not done yet.
func iyzicoWords(st gatewaysim.State) (word string, fraud int) {
	switch st.Status {
	case payment.Succeeded:
		return "SUCCESS", 1
	case payment.Failed:
		return "FAILURE", 0
	case payment.Pending:
	default:
		return gatewaysim.UnknownWord, 1
	}
	switch st.Detail {
	case "authorized":
		return "SUCCESS", 0
	case "requires_action":
		return "INIT_THREEDS", 0
	}
	return "INIT_BANK_TRANSFER", 0
}

// Refuse implements gatewaysim.Dialect (docs.iyzico.com, "Error codes"). Only what stands before iyzico says it with HTTP.
func (Iyzico) Refuse(q gatewaysim.Question, o gatewaysim.Outcome) gatewaysim.Refusal {
	code, text, http := "100001", "System error", http.StatusOK
	switch o {
	case gatewaysim.Unauthorized:
		code, text = "1000", "Invalid signature"
	case gatewaysim.NotFound:
		code, text = "5115", "Payment not found"
	case gatewaysim.RateLimited, gatewaysim.Unavailable:
		code, text, http = "100002", "Too many requests", status(o)
	case gatewaysim.BadRequest:
		code, text = "11", "Invalid request"
	}
	return refusal(http, object{"status": "failure", "errorCode": code, "errorMessage": text, "locale": "en", "conversationId": q.Echo})
}

// SignsAmounts implements notify.Vendor: no amount is told.
func (Iyzico) SignsAmounts() bool { return false }

// Notification implements notify.Vendor: X-IYZ-SIGNATURE-V3 (docs.iyzico.com, "Webhook").
func (v Iyzico) Notification(e notify.Event) notify.Notification {
	const kind = "PAYMENT_API"
	secret := signer(v.SecretKey, e)
	signed := secret + kind + e.Signed.Reference + iyzicoConversation(e.Signed) + iyzicoTold(e.Signed)
	return notify.Notification{
		Header: jsonHeader("X-Iyz-Signature-V3", mac(secret, signed)),
		Body: body(object{
			"iyziEventType": kind, "iyziEventTime": e.State.Changed.UnixMilli(), "iyziReferenceCode": e.ID, "merchantId": 1,
			"paymentId": e.State.Reference, "paymentConversationId": iyzicoConversation(e.State), "status": iyzicoTold(e.State),
		}),
	}
}

func iyzicoConversation(st gatewaysim.State) string { return "C" + st.Reference }

func iyzicoTold(st gatewaysim.State) string {
	word, _ := iyzicoWords(st)
	return word
}
