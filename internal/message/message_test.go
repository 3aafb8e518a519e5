package message_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

const (
	token = "0195a3b2-7c4d-7e1f-8a90-b1c2d3e4f506"
	body  = `{"v":1,"payment":42,"token":"` + token + `","revision":7}`
)

func TestPollSurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := message.Poll{
			Payment:  payment.ID(rapid.Int64Range(1, math.MaxInt64).Draw(t, "payment")),
			Token:    rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`).Draw(t, "token"),
			Revision: rapid.Int64Range(0, math.MaxInt64).Draw(t, "revision"),
		}
		encoded := message.EncodePoll(want)
		if len(encoded) > message.MaxPollBytes {
			t.Fatalf("%d bytes: more than are read", len(encoded))
		}
		got, err := message.DecodePoll(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestPollBodyIsStable(t *testing.T) {
	// Messages outlive the build that wrote them: a change of this text needs another version.
	got := string(message.EncodePoll(message.Poll{Payment: 42, Token: token, Revision: 7}))
	if got != body {
		t.Errorf("body %s, want %s", got, body)
	}
}

func TestPollThatTheRelayCannotHaveWrittenIsRefused(t *testing.T) {
	for name, b := range map[string]string{
		"empty":               ``,
		"null":                `null`,
		"array":               `[]`,
		"text":                `"poll"`,
		"cut":                 body[:len(body)-1],
		"two objects":         body + body,
		"trailing blank":      body + "\n",
		"trailing garbage":    body + "}",
		"leading blank":       " " + body,
		"byte order mark":     "\ufeff" + body,
		"inner blank":         strings.Replace(body, ",", ", ", 1),
		"unknown field":       strings.Replace(body, `"v":1`, `"v":1,"x":1`, 1),
		"other version":       strings.Replace(body, `"v":1`, `"v":2`, 1),
		"no version":          strings.Replace(body, `"v":1,`, ``, 1),
		"repeated field":      strings.Replace(body, `"payment":42`, `"payment":41,"payment":42`, 1),
		"field in capitals":   strings.Replace(body, `"payment"`, `"PAYMENT"`, 1),
		"field folded":        strings.Replace(body, `"revision"`, `"reviſion"`, 1),
		"payment 0":           strings.Replace(body, `42`, `0`, 1),
		"negative payment":    strings.Replace(body, `42`, `-42`, 1),
		"payment as a text":   strings.Replace(body, `42`, `"42"`, 1),
		"payment overflows":   strings.Replace(body, `42`, `9223372036854775808`, 1),
		"payment a fraction":  strings.Replace(body, `42`, `42.5`, 1),
		"payment exponential": strings.Replace(body, `42`, `42e0`, 1),
		"no token":            strings.Replace(body, token, ``, 1),
		"token in capitals":   strings.Replace(body, token, strings.ToUpper(token), 1),
		"token escaped":       strings.Replace(body, `"0195`, `"\u0030195`, 1),
		"token with newline":  strings.Replace(body, token, token+`\n`, 1),
		"no revision":         strings.Replace(body, `,"revision":7`, ``, 1),
		"revision null":       strings.Replace(body, `:7`, `:null`, 1),
		"negative revision":   strings.Replace(body, `:7`, `:-7`, 1),
		"too long":            body + strings.Repeat(" ", message.MaxPollBytes),
		"NUL":                 body + "\x00",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := message.DecodePoll([]byte(b))
			if err == nil {
				t.Fatalf("%s was read", b)
			}
			if p != (message.Poll{}) {
				t.Errorf("refused, but returned %+v", p)
			}
			if strings.Contains(err.Error(), token) {
				t.Errorf("error carries the body: %v", err)
			}
		})
	}
}

func FuzzDecodePoll(f *testing.F) {
	f.Add([]byte(body))
	f.Add([]byte(`{"v":1,"payment":1,"payment":2,"token":"` + token + `","revision":0}`))
	f.Add([]byte(`{"v":1e0}`))
	f.Add([]byte("\xff\xfe{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		p, err := message.DecodePoll(b)
		if !slices.Equal(before, b) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			if p != (message.Poll{}) {
				t.Fatalf("refused, but returned %+v", p)
			}
			return
		}
		if p.Payment <= 0 || p.Revision < 0 || len(p.Token) != 36 {
			t.Fatalf("accepted %+v", p)
		}
		if again := message.EncodePoll(p); !slices.Equal(again, b) {
			t.Fatalf("%q was read as %q", b, again)
		}
	})
}

func TestTokensOfSubjects(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, s := range []string{"a", "0", "stripe", "stripe-eu_2", "a_", "a-", long} {
		if !message.ValidToken(s) {
			t.Errorf("%q is refused", s)
		}
	}
	for _, s := range []string{
		"", " ", "_a", "-a", "A", "aB", "a.b", "a b", "*", ">", "a*", "$JS", "a\x00", "a\n", "\na", "é", "ſ", "\xff", long + "a",
	} {
		if message.ValidToken(s) {
			t.Errorf("%q is accepted", s)
		}
	}
}

func TestSubjects(t *testing.T) {
	for _, s := range []string{"payments.a", "payments.resolved.stripe.succeeded", message.DeadSubject("stripe", "attempts"), message.PollSubject("stripe", "high")} {
		if !message.ValidSubject(s) {
			t.Errorf("%q is refused", s)
		}
	}
	long := "payments." + strings.Repeat("a.", 123) // 255 bytes
	if s := long[:len(long)-1]; !message.ValidSubject(s) {
		t.Errorf("a subject of %d bytes is refused", len(s))
	}
	for _, s := range []string{
		"", "payments", "payments.", "payment.a", ".payments.a", "payments..a", "payments.a.", "payments.*", "payments.>", "payments.$js", "payments.a b", "payments.A",
		"payments.a\n", "$JS.API.STREAM.DELETE.PAYMENTS_POLL", "Payments.a", long + "aa",
	} {
		if message.ValidSubject(s) {
			t.Errorf("%q is accepted", s)
		}
	}
}

func FuzzValidSubject(f *testing.F) {
	f.Add("payments.resolved.stripe.succeeded")
	f.Add("payments.>")
	f.Add("payments..")
	f.Fuzz(func(t *testing.T, s string) {
		if !message.ValidSubject(s) {
			return
		}
		if len(s) > 255 || !strings.HasPrefix(s, "payments.") {
			t.Fatalf("%q is accepted", s)
		}
		for _, part := range strings.Split(s, ".") {
			if part == "" || len(part) > 64 || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
				t.Fatalf("%q is accepted with the token %q", s, part)
			}
		}
	})
}

// Whatever a valid gateway, lane and reason are put into is a subject of its own that the broker takes literally.
func TestEverySubjectOfAGatewayIsValidAndItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,63}`)
		one, other := name.Draw(t, "one"), name.Draw(t, "other")
		subjects := func(gateway string) []string {
			all := []string{message.DeferredSubject(gateway)}
			for _, lane := range message.Lanes {
				all = append(all, message.PollSubject(gateway, lane), message.ConsumerName(gateway, lane))
			}
			for _, r := range redelivery.Reasons {
				all = append(all, message.DeadSubject(gateway, string(r)))
			}
			return all
		}
		seen := map[string]bool{}
		for _, s := range subjects(one) {
			if !message.ValidSubject(s) && !strings.HasPrefix(s, "poll_") {
				t.Fatalf("%q is not a subject", s)
			}
			if seen[s] {
				t.Fatalf("%q twice", s)
			}
			seen[s] = true
		}
		if one == other {
			return
		}
		for _, s := range subjects(other) {
			if seen[s] {
				t.Fatalf("%q belongs to %s and %s", s, one, other)
			}
		}
	})
}

func BenchmarkDecodePoll(b *testing.B) {
	raw := []byte(body)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := message.DecodePoll(raw); err != nil {
			b.Fatal(err)
		}
	}
}
