package reply

import (
	"strconv"
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/strictjson"
)

// Item is where the parts of a payment stand in a list.
type Item struct {
	ID, Amount, Currency strictjson.Value
	Parent, MerchantRef  strictjson.Value // Absent where the gateway has none
	Created              time.Time
}

// Listed reads one payment of a list. read judges it as it judges an answer, and is asked about the very payment that the item says it is.
func (r *Reply) Listed(u Unit, v Item, read func(*Reply) gateway.Answer) gateway.Listed {
	l := gateway.Listed{
		Reference: Text(v.ID), Parent: Text(v.Parent), MerchantRef: Text(v.MerchantRef), // as they are: they are compared with the record
		Currency: strings.ToUpper(r.Hide.Name(Text(v.Currency), 3)), CreatedAt: v.Created,
	}
	one := &Reply{Query: gateway.Query{Reference: Text(v.ID), Currency: l.Currency}, Hide: r.Hide}
	minor, ans, wrong := one.Minor(u, Field{Value: v.Amount, Where: "/amount"})
	if wrong {
		l.Answer = ans
		return l
	}
	l.AmountMinor, one.Query.AmountMinor = minor, minor
	l.Answer = read(one)
	return l
}

// Seconds is the instant that a number of seconds since 1970 names; the zero one for what is none.
func Seconds(v strictjson.Value) time.Time {
	n, err := strconv.ParseInt(Text(v), 10, 64)
	if err != nil || n <= 0 || n > 1<<40 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// Instant is the instant that a text of RFC 3339 names; the zero one for what is none.
func Instant(v strictjson.Value) time.Time {
	at, err := time.Parse(time.RFC3339, Text(v))
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}
