package dialect

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// Adyen cannot be asked about a payment, and tells what became of it (docs.adyen.com, "Webhooks").
type Adyen struct {
	HMACKey         string // in hexadecimal
	MerchantAccount string
}

// adyenDecimals are those of currencies that Adyen writes otherwise than ISO 4217 (docs.adyen.com, "Currency codes and minor units").
var adyenDecimals = map[string]int{"CLP": 2, "CVE": 0, "IDR": 0, "ISK": 2}

// Fit implements gatewaysim.Dialect. What is pending is always authorised: there is no notification before that.
func (Adyen) Fit(s gatewaysim.Script) gatewaysim.Script {
	s.Detail = "authorized"
	return s
}

// Reference implements gatewaysim.Dialect.
func (Adyen) Reference(prefix string, n int) string {
	return fmt.Sprintf("%s%07d", capitals(prefix), n)
}

// Read implements gatewaysim.Dialect: there is nothing to ask.
func (Adyen) Read(*http.Request) (gatewaysim.Question, bool) { return gatewaysim.Question{}, false }

// Write implements gatewaysim.Dialect. It is never called.
func (Adyen) Write(gatewaysim.Question, gatewaysim.State) []byte { return nil }

// Refuse implements gatewaysim.Dialect. It is never called.
func (Adyen) Refuse(_ gatewaysim.Question, o gatewaysim.Outcome) gatewaysim.Refusal {
	return refusal(status(o), object{"status": status(o), "errorCode": "00_404", "message": "Not found", "errorType": "validation"})
}

// SignsAmounts implements notify.Vendor.
func (Adyen) SignsAmounts() bool { return true }

// Notification implements notify.Vendor. What happened to an authorised payment has an id of its own and names the payment as its original.
func (v Adyen) Notification(e notify.Event) notify.Notification {
	item := v.item(e.ID, e.State)
	item["additionalData"] = object{"hmacSignature": v.sign(v.item(e.ID, e.Signed), e.Stranger)}
	return notify.Notification{
		Header: http.Header{},
		Body:   body(object{"live": "false", "notificationItems": []object{{"NotificationRequestItem": item}}}),
	}
}

func (v Adyen) item(id string, st gatewaysim.State) object {
	code, success := adyenWords(st)
	o := object{
		"pspReference": st.Reference, "merchantAccountCode": v.MerchantAccount, "merchantReference": "order " + st.Reference, "eventCode": code,
		"success": strconv.FormatBool(success), "eventDate": rfc3339(st.Changed), "paymentMethod": "visa", "reason": "",
		"amount": object{"value": minor(st, adyenDecimals), "currency": st.Currency},
	}
	if code != "AUTHORISATION" {
		o["pspReference"], o["originalReference"] = strings.ToUpper(id), st.Reference
	}
	if !success {
		o["reason"] = "Refused"
	}
	return o
}

func adyenWords(st gatewaysim.State) (code string, success bool) {
	switch st.Status {
	case payment.Succeeded:
		return "CAPTURE", true
	case payment.Failed:
		return "AUTHORISATION", false
	case payment.Cancelled:
		return "CANCELLATION", true
	case payment.Expired:
		return "EXPIRE", true
	}
	return "AUTHORISATION", true
}

// sign is hmacSignature (docs.adyen.com, "Verify HMAC signatures").
func (v Adyen) sign(item object, byStranger bool) string {
	key, _ := hex.DecodeString(v.HMACKey) // one that is none signs as the empty key does
	if byStranger {
		key = []byte(stranger(v.HMACKey))
	}
	text := func(field any) string {
		if field == nil {
			return ""
		}
		return fmt.Sprint(field)
	}
	amount := item["amount"].(object)
	signed := strings.Join([]string{
		text(item["pspReference"]), text(item["originalReference"]), text(item["merchantAccountCode"]), text(item["merchantReference"]),
		text(amount["value"]), text(amount["currency"]), text(item["eventCode"]), text(item["success"]),
	}, ":")
	return base64.StdEncoding.EncodeToString(rawMAC(key, signed))
}
