package dialect

import (
	"encoding/base64"
	"fmt"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// Own tells of payments in the simulator's own dialect, signed by Standard Webhooks (https://www.standardwebhooks.com).
type Own struct {
	Secret string // whsec_ and base64
}

// SignsAmounts implements notify.Vendor.
func (Own) SignsAmounts() bool { return true }

// Notification implements notify.Vendor.
func (v Own) Notification(e notify.Event) notify.Notification {
	id, stamp := "msg_"+e.ID, fmt.Sprint(e.At.Unix())
	key, _ := base64.StdEncoding.DecodeString(v.Secret[len("whsec_"):])
	if e.Stranger {
		key = []byte(stranger(v.Secret))
	}
	sum := rawMAC(key, id+"."+stamp+"."+string(ownEvent(e.Signed)))
	return notify.Notification{
		Header: jsonHeader("Webhook-Id", id, "Webhook-Timestamp", stamp, "Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(sum)),
		Body:   ownEvent(e.State),
	}
}

func ownEvent(st gatewaysim.State) []byte {
	return body(object{"type": "payment.updated", "timestamp": rfc3339(st.Changed), "data": object{
		"id": st.Reference, "status": ownWord(st), "amount": st.AmountMinor, "currency": st.Currency, "livemode": false,
	}})
}

func ownWord(st gatewaysim.State) string {
	switch st.Status {
	case payment.Pending:
		return st.Detail
	case payment.Cancelled:
		return "canceled"
	case "":
		return gatewaysim.UnknownWord
	}
	return string(st.Status)
}
