package fleet

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// The records and their keys:
//
//	breaker.<gateway>[.<account>]   the shared state of a breaker; an operator may read it, and change it with pollux breaker
//	run.<gateway>[.<account>]       how many calls in a row failed in the whole fleet
//	limit.<gateway>[.<account>]     its pause and how far the gateway's complaints have brought its rate down
//	share.<gateway>                 who has which part of its limit
//	beat.<id>                       a number that an instance changes each second
const (
	breakerPrefix = "breaker."
	runPrefix     = "run."
	limitPrefix   = "limit."
	sharePrefix   = "share."
	beatPrefix    = "beat."
)

// BreakerKeys is what the keys of breakers begin with: all that operators change.
const BreakerKeys = breakerPrefix

// Target is an account of a gateway. The empty account is the gateway's default one.
type Target struct {
	Gateway string
	Account string
}

// key is the target's key under a prefix. What a key cannot hold is written as =xx.
func (t Target) key(prefix string) string {
	if t.Account == "" {
		return prefix + t.Gateway
	}
	var b strings.Builder
	b.WriteString(prefix + t.Gateway + ".")
	for _, c := range []byte(t.Account) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02x", c)
		}
	}
	return b.String()
}

// targetOf is the inverse of key. It reports false for a key of another prefix or form.
func targetOf(prefix, key string) (Target, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return Target{}, false
	}
	gateway, escaped, _ := strings.Cut(rest, ".")
	var account strings.Builder
	for i, part := range strings.Split(escaped, "=") {
		if i == 0 {
			account.WriteString(part)
			continue
		}
		if len(part) < 2 {
			return Target{}, false
		}
		c, err := hex.DecodeString(part[:2])
		if err != nil {
			return Target{}, false
		}
		account.WriteByte(c[0])
		account.WriteString(part[2:])
	}
	return Target{gateway, account.String()}, gateway != ""
}
