package iyzico

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/vendor"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

var _ consumer.Gateway = (*Adapter)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const marked = "marked-secret-5b1c9e0d7f"

func ask(reference, own string) gateway.Query {
	return gateway.Query{Payment: 1, Reference: reference, MerchantRef: own, AmountMinor: 1050, Currency: "TRY"}
}

func config(base string, timeout time.Duration) Config {
	return Config{
		Credentials: Credentials{APIKey: "api-1", SecretKey: secret.New(marked)},
		Config:      vendor.Config{Name: "iyzico", BaseURL: base, Config: httpclient.Config{Timeout: timeout, AllowHTTP: true, AllowLoopback: true}},
	}
}

func adapter(t testing.TB, c Config) *Adapter {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

const unsigned = `{"status":"success","locale":"en","systemTime":1789020000000,"conversationId":"order-7","price":10.5,"paidPrice":10.50,"installment":1,"currency":"TRY",` +
	`"paymentId":"12345678","basketId":"B1","paymentStatus":"SUCCESS","fraudStatus":1,"phase":"AUTH"}`

func replaced(s, change string) string {
	for pair := range strings.SplitSeq(change, " ; ") {
		from, to, _ := strings.Cut(pair, " -> ")
		if !strings.Contains(s, from) {
			panic("nothing to change: " + from)
		}
		s = strings.Replace(s, from, to, 1)
	}
	return s
}

// signed changes the answer and signs it as iyzico does.
func signed(change string) string {
	body := unsigned
	if change != "" {
		body = replaced(body, change)
	}
	return signedBy(body, marked, trimmed)
}

func signedBy(body, key string, spell func(string) string) string {
	var doc map[string]any
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		panic(err)
	}
	text := func(key string) string {
		if doc[key] == nil {
			return ""
		}
		return fmt.Sprint(doc[key])
	}
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "%s:%s:%s:%s:%s:%s", text("paymentId"), text("currency"), text("basketId"), text("conversationId"), spell(text("paidPrice")), spell(text("price")))
	return strings.TrimSuffix(body, "}") + fmt.Sprintf(`,"signature":%q}`, hex.EncodeToString(mac.Sum(nil)))
}

func answer(status int, body string) gatewaytest.Reply {
	return gatewaytest.Reply{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func failure(code string) string {
	return fmt.Sprintf(`{"status":"failure","errorCode":%q,"errorMessage":"Ödeme bulunamadı","locale":"tr","systemTime":1789020000000}`, code)
}

func word(class gateway.Class, body string) gatewaytest.Word {
	return gatewaytest.Word{Reply: answer(200, body), Class: class}
}

func final(s payment.Status, detail, body string) gatewaytest.Word {
	return gatewaytest.Word{Reply: answer(200, body), Class: gateway.Final, Status: s, Detail: detail}
}

func waiting(detail, status string) gatewaytest.Word {
	return gatewaytest.Word{Reply: answer(200, signed(`"SUCCESS","fraudStatus":1 -> "`+status+`","fraudStatus":null`)), Class: gateway.Pending, Detail: detail}
}

// proves reports whether a request was signed with a key, by the scheme as iyzico documents it.
func proves(r *http.Request, body []byte, key string) bool {
	coded, ok := strings.CutPrefix(r.Header.Get("Authorization"), "IYZWSv2 ")
	plain, err := base64.StdEncoding.DecodeString(coded)
	fields := map[string]string{}
	for pair := range strings.SplitSeq(string(plain), "&") {
		name, value, _ := strings.Cut(pair, ":")
		fields[name] = value
	}
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(fields["randomKey"] + r.URL.Path + string(body)))
	return ok && err == nil && fields["randomKey"] != "" && fields["randomKey"] == r.Header.Get("X-Iyzi-Rnd") && fields["signature"] == hex.EncodeToString(mac.Sum(nil))
}

func TestConformance(t *testing.T) {
	gatewaytest.Run(t, gatewaytest.Harness{
		New: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			return adapter(t, config(base, timeout))
		},
		Accounts: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			c := config(base, timeout)
			c.Credentials = Credentials{}
			c.Accounts = map[string]Credentials{"eu": {APIKey: "eu", SecretKey: secret.New(marked + "-eu")}, "us": {APIKey: "us", SecretKey: secret.New(marked + "-us")}}
			return adapter(t, c)
		},
		Proof: proves,
		Query: ask("12345678", "order-7"), Secret: marked,
		Replies: map[gatewaytest.Scene]gatewaytest.Reply{
			gatewaytest.Pending:       waiting("", "INIT_THREEDS").Reply,
			gatewaytest.Succeeded:     answer(200, signed("")),
			gatewaytest.Failed:        answer(200, signed(`"SUCCESS" -> "FAILURE"`)),
			gatewaytest.UnknownStatus: answer(200, signed(`"SUCCESS" -> "SETTLING_V2"`)),
			gatewaytest.OtherID:       answer(200, signed("12345678 -> 12345679")),
			gatewaytest.OtherAmount:   answer(200, signed("10.50 -> 1.05")),
			gatewaytest.OtherCurrency: answer(200, signed("TRY -> USD")),
			gatewaytest.NotFound:      answer(200, failure("5115")),
			gatewaytest.Unauthorized:  answer(200, failure("1001")),
			gatewaytest.BusinessError: answer(200, strings.Replace(failure("10051"), "{", `{"paymentStatus":"FAILURE",`, 1)),
		},
		Words: map[string]gatewaytest.Word{
			"SUCCESS":                         final(payment.Succeeded, "succeeded", signed("")),
			"SUCCESS, fraud check under way":  {Reply: answer(200, signed(`"fraudStatus":1 -> "fraudStatus":0`)), Class: gateway.Pending, Detail: "in_review"},
			"SUCCESS, taken for fraud":        final(payment.Failed, "fraud", signed(`"fraudStatus":1 -> "fraudStatus":-1`)),
			"SUCCESS without a fraud check":   word(gateway.UnknownStatus, signed(`"fraudStatus":1, -> `)),
			"SUCCESS with another one":        word(gateway.UnknownStatus, signed(`"fraudStatus":1 -> "fraudStatus":2`)),
			"FAILURE":                         final(payment.Failed, "failed", signed(`"SUCCESS" -> "FAILURE"`)),
			"INIT_THREEDS":                    waiting("requires_action", "INIT_THREEDS"),
			"CALLBACK_THREEDS":                waiting("requires_action", "CALLBACK_THREEDS"),
			"BKM_POS_SELECTED":                waiting("processing", "BKM_POS_SELECTED"),
			"INIT_APM":                        waiting("processing", "INIT_APM"),
			"INIT_BANK_TRANSFER":              waiting("processing", "INIT_BANK_TRANSFER"),
			"INIT_CREDIT":                     waiting("processing", "INIT_CREDIT"),
			"PENDING_CREDIT":                  waiting("processing", "PENDING_CREDIT"),
			"INIT_CONTACTLESS":                waiting("processing", "INIT_CONTACTLESS"),
			"no status":                       word(gateway.Malformed, signed(`"paymentStatus":"SUCCESS", -> `)),
			"nothing about the call":          word(gateway.Malformed, signed(`"status":"success", -> `)),
			"prices as text":                  final(payment.Succeeded, "", signed(`10.50 -> "10.50" ; 10.5, -> "10.5",`)),
			"instalments cost more":           word(gateway.Mismatch, signed("10.50 -> 11.20")),
			"without a price, succeeded":      word(gateway.Malformed, signed(`"paidPrice":10.50, -> `)),
			"without a price, still to come":  {Reply: answer(200, signed(`"paidPrice":10.50, ->  ; "SUCCESS" -> "INIT_THREEDS"`)), Class: gateway.Pending},
			"without a signature":             word(gateway.Malformed, unsigned),
			"signed by somebody else":         word(gateway.Malformed, signedBy(unsigned, "other", trimmed)),
			"another price than was signed":   word(gateway.Malformed, replaced(signed(""), "10.50 -> 99.00")),
			"another payment than was signed": word(gateway.Malformed, replaced(signed(""), "12345678 -> 12345679")),
			"a signature that is none":        word(gateway.Malformed, replaced(unsigned, `"phase":"AUTH" -> "signature":"zz"`)),
			"a signature that is short":       word(gateway.Malformed, replaced(unsigned, `"phase":"AUTH" -> "signature":"00"`)),
			"signed as the libraries do":      final(payment.Succeeded, "", signedBy(replaced(unsigned, "10.50 -> 10.50"), marked, spellings[2])),
			"wrong signature of ours":         word(gateway.Unauthorized, failure("1000")),
			"an error of the bank":            word(gateway.Transport, failure("10051")),
			"an error without a code":         word(gateway.Transport, `{"status":"failure"}`),
			"an error of theirs":              word(gateway.Transport, failure("1")),
			"500":                             {Reply: answer(500, "<html>"), Class: gateway.Transport},
			"404":                             {Reply: answer(404, "<html>"), Class: gateway.Transport},
			"403":                             {Reply: answer(403, "{}"), Class: gateway.Unauthorized},
			"422 with a known code":           {Reply: answer(422, failure("5115")), Class: gateway.NotFound},
		},
	})
}

// spelled is a price as it is signed, in the ways that were seen.
func TestPricesAreOneAndTheSameHoweverTheyAreSpelled(t *testing.T) {
	for said, want := range map[string][3]string{
		"10.50": {"10.50", "10.5", "10.5"}, "10.00": {"10.00", "10", "10.0"}, "10": {"10", "10", "10.0"}, "0.10": {"0.10", "0.1", "0.1"}, "100": {"100", "100", "100.0"},
		"1e2": {"1e2", "1e2", "1e2.0"}, "": {"", "", ".0"},
	} {
		for i, spell := range spellings {
			if got := spell(said); got != want[i] {
				t.Errorf("%q, spelling %d: %q, want %q", said, i, got, want[i])
			}
		}
	}
}

func TestQuestion(t *testing.T) {
	type seen struct {
		uri, body string
		signed    bool
	}
	var got seen
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = seen{r.Method + " " + r.RequestURI, string(body), proves(r, body, marked)}
		w.WriteHeader(500)
	}))
	defer s.Close()
	a := adapter(t, config(s.URL, 10*time.Second))
	for _, c := range []struct {
		q    gateway.Query
		body string
	}{
		{ask("12345678", "order-7"), `{"locale":"en","conversationId":"order-7","paymentId":"12345678"}`},
		{ask("12345678", ""), `{"locale":"en","paymentId":"12345678"}`},
		{ask("order-7", "order-7"), `{"locale":"en","conversationId":"order-7","paymentConversationId":"order-7"}`},
		{ask(`a"b\c`, ""), `{"locale":"en","paymentId":"a\"b\\c"}`},
	} {
		got = seen{}
		a.Poll(context.Background(), c.q)
		if want := (seen{"POST /payment/detail", c.body, true}); got != want {
			t.Errorf("asked %+v, want %+v", got, want)
		}
	}
}

func TestByOurReference(t *testing.T) {
	for _, c := range []struct {
		body string
		want gateway.Class
	}{
		{signed(""), gateway.Final}, {signed("order-7 -> order-8"), gateway.Mismatch}, {signed(`"conversationId":"order-7", -> `), gateway.Malformed}, {failure("5115"), gateway.NotFound},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, c.body)
		}))
		ans := adapter(t, config(s.URL, 10*time.Second)).Poll(context.Background(), ask("order-7", "order-7"))
		s.Close()
		gatewaytest.Check(t, ans, marked)
		if ans.Class != c.want {
			t.Errorf("%s: %+v", c.body, ans)
		}
	}
}

func TestUnsignedAnswersAreTakenOnlyWhereThatIsWritten(t *testing.T) {
	for body, want := range map[string]gateway.Class{unsigned: gateway.Final, signed(""): gateway.Final, signedBy(unsigned, "other", trimmed): gateway.Malformed} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, body)
		}))
		c := config(s.URL, 10*time.Second)
		c.AllowUnsigned = true
		ans := adapter(t, c).Poll(context.Background(), ask("12345678", "order-7"))
		s.Close()
		if ans.Class != want {
			t.Errorf("%s: %+v", body, ans)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no secret":     {func(c *Config) { c.SecretKey = secret.Secret{} }, "secret_key: missing"},
		"no key":        {func(c *Config) { c.APIKey = "" }, "api_key: missing"},
		"no code":       {func(c *Config) { c.NotFoundCodes = []string{"not found"} }, "not_found_codes: "},
		"a bad account": {func(c *Config) { c.Accounts = map[string]Credentials{"eu": {APIKey: "x"}} }, "accounts.eu.secret_key: missing"},
	} {
		cfg := config("http://127.0.0.1:1", 10*time.Second)
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if c := (Config{Config: vendor.Config{Mode: "test"}}).WithDefaults(); c.BaseURL != TestBaseURL {
		t.Errorf("in test mode it asks %s", c.BaseURL)
	}
}
