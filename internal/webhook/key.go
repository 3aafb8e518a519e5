package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"time"
)

// Key is a secret that a vendor signs with, and when it counts.
type Key struct {
	Name   string // for logs and the record: which key it was
	Secret []byte
	From   time.Time // zero: always has
	Until  time.Time // zero: until further notice
}

// Valid reports whether the key counts at an instant.
func (k Key) Valid(at time.Time) bool {
	return (k.From.IsZero() || !at.Before(k.From)) && (k.Until.IsZero() || at.Before(k.Until))
}

// Keys are the keys of one account. While a vendor's key is changed there are two: what it sent before is sent again with the old one, for days.
type Keys []Key

// Match returns the name of a key that counts at an instant and that made a signature. It tries them all, so that it takes as long whichever it is.
func (k Keys) Match(at time.Time, made func(secret []byte) bool) (name string, ok bool) {
	for _, key := range k {
		if key.Valid(at) && made(key.Secret) && !ok {
			name, ok = key.Name, true
		}
	}
	return name, ok
}

// SHA256 is the HMAC-SHA256 (RFC 2104) of the parts one after the other.
func SHA256(secret []byte, parts ...[]byte) []byte { return MAC(sha256.New, secret, parts...) }

// MAC is the HMAC (RFC 2104) of the parts one after the other.
func MAC(h func() hash.Hash, secret []byte, parts ...[]byte) []byte {
	mac := hmac.New(h, secret)
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}

// WithLogin returns a scheme whose requests must carry a user and a password too (RFC 7617), as some vendors can be told to send.
func WithLogin(s Scheme, user, password string) Scheme {
	want := sha256.Sum256([]byte("Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))))
	if p, ok := s.(Preparer); ok {
		return struct {
			login
			Preparer
		}{login{s, want}, p}
	}
	return login{s, want}
}

// login is a scheme behind a user and a password. Their digests are compared, so that it takes as long whatever differs.
type login struct {
	Scheme
	want [sha256.Size]byte
}

// Glance implements Scheme.
func (l login) Glance(r *Request) error {
	got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	if !hmac.Equal(got[:], l.want[:]) {
		return RefusedSender
	}
	return l.Scheme.Glance(r)
}

// Tolerance is how far a signature's time may be from ours, both ways.
type Tolerance struct {
	Past   time.Duration // how old it may be
	Future time.Duration // how far a vendor's clock may be ahead of ours
}

// Holds reports whether a notification that was signed then may come now.
func (t Tolerance) Holds(signed, now time.Time) bool {
	return !signed.Before(now.Add(-t.Past)) && !signed.After(now.Add(t.Future))
}

// UnixTime reads seconds since 1970 as vendors write them: digits only, within four-digit years.
func UnixTime(s string) (time.Time, bool) { return unixTime(s, 10, 1) }

// UnixMilliTime reads milliseconds since 1970.
func UnixMilliTime(s string) (time.Time, bool) { return unixTime(s, 13, 1000) }

func unixTime(s string, longest int, perSecond int64) (time.Time, bool) {
	if s == "" || len(s) > longest {
		return time.Time{}, false
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return time.Time{}, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return time.UnixMilli(n * (1000 / perSecond)).UTC(), true
}
