package httpclient_test

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pollux/internal/gateway/httpclient"
)

func TestRedactorShowsWhatIsHarmless(t *testing.T) {
	r := httpclient.NewRedactor("open sesame")
	for text, want := range map[string]string{
		"":                                          "",
		"insufficient funds":                        "insufficient funds",
		"Ödeme başarısız: kart limiti":              "Ödeme başarısız: kart limiti",
		"line\nbreak\ttab\r\x00\x1b[31m":            `line\nbreak\ttab\r\x00\x1b[31m`,
		"bad \xff\xc4\xb0\xdd bytes":                `bad \xffİ\xdd bytes`,
		"\u202eright to left\u2028":                 `\u202eright to left\u2028`,
		`{"code":"1001","status":400}`:              `{"code":"1001","status":400}`,
		"requires_payment_method":                   "requires_payment_method",
		"order 20260910-000123 is late":             "order 20260910-000123 is late",
		"1757484120000":                             "1757484120000", // milliseconds: 13 digits, another check digit
		"token expired":                             "token expired",
		"basic authentication failed":               "basic authentication failed",
		"the pin is wrong":                          "the pin is wrong",
		"<html><body>502 Bad Gateway</body></html>": "<html><body>502 Bad Gateway</body></html>",
		"a@b": "[email]", "@": "@", "a@": "a@", "http": "http", "http://": "http://",
	} {
		if got := r.Text(text, 512); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestRedactorHidesWhatIsNot(t *testing.T) {
	r := httpclient.NewRedactor("open sesame", "p@ss/w\"ord", "x")
	for text, want := range map[string]string{
		"say open sesame!":             "say [secret]!",
		"open sesameopen sesame":       "[secret][secret]",
		"p@ss/w\"ord":                  "[secret]",
		`{"echo":"p@ss/w\"ord"}`:       `{"echo":"[secret]"}`,
		url.QueryEscape("p@ss/w\"ord"): "[secret]",
		url.PathEscape("p@ss/w\"ord"):  "[secret]",
		"=" + base64.StdEncoding.EncodeToString([]byte("p@ss/w\"ord")): "=[secret]",
		"http://h/?q=open sesame here":                                 "http://h/[…] here",
		"4111111111111111":                                             "[card]",
		"card 4111 1111 1111 1111 12/26":                               "card [card]/26",
		"12 5500-0000-0000-0004.":                                      "[card].",
		"pan=378282246310005;":                                         "pan=[card];",
		"id_4111111111111111_a":                                        "id_[card]_a",
		"4222222222222":                                                "[card]",
		"6304000000000000000 ":                                         "[card] ",
		"00000000000000000000":                                         "[digits]",
		"Bearer abcdefghijklmnop":                                      "Bearer [token]",
		"Basic dXNlcjE2MzQ1":                                           "Basic [token]",
		"sk_live_abc":                                                  "[token]",
		"whsec_abc":                                                    "whsec_abc",
		"whsec_abcdef":                                                 "[token]",
		"eyJhbGci.eyJzdWIi.c2ln":                                       "[token].[token].c2ln",
		`{"api_key":"abc"}`:                                            `{"api_key":"[token]"}`,
		"password=letmein&a=b":                                         "password=[token]&a=b",
		"Authorization: letmein":                                       "Authorization: [token]",
		"\"client_secret\" : \"s\"":                                    "\"client_secret\" : \"[token]\"",
		"key pi3MtwBwLkdIwHu7ix28a3tqPa":                               "key [token]",
		"jane.doe+x@mail.example.com,":                                 "[email],",
		"see https://user:pw@api.gateway.test:8443/v1/p?key=1#f now": "see https://[…]@api.gateway.test:8443/[…] now",
		"HTTP://API.EXAMPLE.COM":                                     "HTTP://API.EXAMPLE.COM",
		"http://[::1]/":                                              "http:///[…]",
	} {
		if got := r.Text(text, 512); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// TestRedactorHidesASecretHost: of a URL the scheme and the host are shown, unless something secret begins there.
func TestRedactorHidesASecretHost(t *testing.T) {
	r := httpclient.NewRedactor("tenant-4711", "com/key", "s://")
	for text, want := range map[string]string{
		"see http://tenant-4711.example.org/a now": "see [url] now",
		"http://a-tenant-4711tenant-4711":          "[url]",
		"http://a.example.com/key/b":               "[url]",
		"http://tenant-4711:@example.org/":         "[url]",
		"https://example.org":                      "[url]",
		"http://example.org/tenant-4711":           "http://example.org/[…]",
		"http://4111111111111111.example.org/":     "[url]",
		"http://example.org/4111111111111111":      "http://example.org/[…]",
	} {
		if got := r.Text(text, 512); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestRedactorShowsNames(t *testing.T) {
	r := httpclient.NewRedactor("open sesame")
	for name, want := range map[string]string{
		"pi_3MtwBwLkdIwHu7ix28a3tqPa":          "pi_3MtwBwLkdIwHu7ix28a3tqPa",
		"8a829449-515d-198b-0151-5d7cb76f0f4e": "8a829449-515d-198b-0151-5d7cb76f0f4e",
		"a/b?c=d@e":                            "a/b?c=d@e",
		"open sesame\n":                        `[secret]\n`,
		"4111111111111111":                     "[card]",
	} {
		if got := r.Name(name, 64); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}

func TestRedactorKeepsToTheLength(t *testing.T) {
	r := httpclient.NewRedactor("secret-that-is-long-enough")
	for text, want := range map[string]string{
		"1234567890":                    "1234567890",
		"1234567890a":                   "1234567…",
		"123456789é":                    "1234567…",
		"12345 öffnen":                  "12345 …",
		"secret-that-is-long-enough":    "[secret]",
		"ab secret-that-is-long-enough": "ab …",
	} {
		if got := r.Text(text, 10); got != want {
			t.Errorf("%q is cut to %q, want %q", text, got, want)
		}
	}
	for most, want := range map[int]string{-1: "", 0: "", 2: "ab", 3: "…", 4: "a…"} {
		if got := r.Text("abcdefgh", most); got != want {
			t.Errorf("%d bytes: %q, want %q", most, got, want)
		}
	}
	if got := r.Text(strings.Repeat("a ", 1000), 100_000); len(got) > httpclient.MaxSnippet || len(got) < httpclient.MaxSnippet-4 {
		t.Errorf("%d bytes are shown", len(got))
	}
}

// TestRedactorIsNotFooledByTheCut: a secret that lies across the end of what is looked at is not shown in half.
func TestRedactorIsNotFooledByTheCut(t *testing.T) {
	const secret = "ab cd-ef gh" // of words that are not hidden by themselves
	r := httpclient.NewRedactor(secret)
	long := strings.Repeat("x1", 12) // becomes [token]
	for pad := range 40 {
		body := strings.Repeat(long+" ", 400)[:9_900] + strings.Repeat(" ", pad) + secret + strings.Repeat(" .", 10_000)
		if got := r.Snippet([]byte(body), 512); strings.Contains(got, "ab") || len(got) > 512 {
			t.Fatalf("%d: %q", pad, got)
		}
	}
	hidden := strings.Repeat("a", 16<<10-5)
	body := []byte("http://" + hidden[:len(hidden)-7] + "/ " + secret)
	if got := r.Snippet(body, 512); strings.Contains(got, "ab") || strings.Contains(got, "gh") {
		t.Errorf("%q", got)
	}
}

func TestRedactorOfNoSecretsHidesNothingElse(t *testing.T) {
	if got := httpclient.NewRedactor("", "").Text("abc", 512); got != "abc" {
		t.Errorf("got %q", got)
	}
}

// put matches what the redactor puts in the place of something: its marks and escapes. A secret that is found only with their help
// (0AAAAAAAA in \x10AAAAAAAA) was not shown.
var put = regexp.MustCompile(`\[[a-z…]+\]|…|\\(?:[abfnrtv]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})`)

func FuzzRedactor(f *testing.F) {
	for _, s := range []string{"4111 1111 1111 1111", "Bearer x", "http://a@b/c?d", "a@b.c", "\xff\x00\n", strings.Repeat("1", 25), "…", "token:\"q\""} {
		f.Add(s, "hunter-two", 512)
		f.Add("a"+s, "hunter two", 20)
	}
	f.Add("http://", "hunter-two.example", 512) // a host that is a secret
	f.Fuzz(func(t *testing.T, text, secret string, most int) {
		r := httpclient.NewRedactor(secret)
		for _, whole := range []string{text, text + secret + text, secret + text + secret} {
			for _, got := range []string{r.Text(whole, most), r.Snippet([]byte(whole), most)} {
				if !utf8.ValidString(got) || len(got) > max(most, 0) || len(got) > httpclient.MaxSnippet {
					t.Fatalf("%q is shown as %q with at most %d bytes", whole, got, most)
				}
				for _, c := range got {
					if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
						t.Fatalf("%q is shown as %q", whole, got)
					}
				}
				if len(secret) >= 9 && utf8.ValidString(secret) && strings.Contains(put.ReplaceAllString(got, "\xff"), secret) {
					t.Fatalf("%q with the secret %q is shown as %q", whole, secret, got)
				}
			}
		}
	})
}
