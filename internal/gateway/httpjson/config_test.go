package httpjson_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/google/go-cmp/cmp"

	"pollux/internal/gateway/httpjson"
	"pollux/internal/secret"
)

// TestConfigNamesTheKey: each mistake alone, with the key that it is reported under.
func TestConfigNamesTheKey(t *testing.T) {
	hmac := func(change func(*httpjson.HMAC)) func(*httpjson.Config) {
		return func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{
				Kind: "hmac", Credentials: httpjson.Credentials{Key: secret.New("6b6579")},
				HMAC: httpjson.HMAC{Sign: "{timestamp}{body}", Headers: map[string]string{"X-Signature": "{signature}"}},
			}
			change(&c.Auth.HMAC)
		}
	}
	for name, c := range map[string]struct {
		change func(*httpjson.Config)
		want   string // how the error begins
	}{
		"no URL":                      {func(c *httpjson.Config) { c.URL = "" }, "url: missing"},
		"a URL that is none":          {func(c *httpjson.Config) { c.URL = "https://a.example:x/{reference}" }, "url: not a URL"},
		"a URL without a host":        {func(c *httpjson.Config) { c.URL = "https:///{reference}" }, "url: not a URL"},
		"an opaque URL":               {func(c *httpjson.Config) { c.URL = "https:a.example/{reference}" }, "url: not a URL"},
		"a relative URL":              {func(c *httpjson.Config) { c.URL = "/v1/{reference}" }, "url: not a URL"},
		"another scheme":              {func(c *httpjson.Config) { c.URL = "ftp://a.example/{reference}" }, "url: its scheme"},
		"no TLS":                      {func(c *httpjson.Config) { c.URL, c.AllowHTTP = "http://a.example/{reference}", false }, "url: without TLS"},
		"a user in the URL":           {func(c *httpjson.Config) { c.URL = "https://u:p@a.example/{reference}" }, "url: credentials"},
		"a fragment":                  {func(c *httpjson.Config) { c.URL = "https://a.example/{reference}#x" }, "url: a fragment"},
		"a placeholder for the host":  {func(c *httpjson.Config) { c.URL = "https://{account}.a.example/{reference}" }, "url: placeholders"},
		"a placeholder for a port":    {func(c *httpjson.Config) { c.URL = "https://a.example{reference}/" }, "url: placeholders"},
		"an unknown placeholder":      {func(c *httpjson.Config) { c.URL = "https://a.example/{referense}" }, "url: no placeholder {referense}"},
		"half an escape":              {func(c *httpjson.Config) { c.URL = "https://a.example/%{reference}" }, "url: not a URL"},
		"no reference":                {func(c *httpjson.Config) { c.URL = "https://a.example/{account}" }, "url: neither"},
		"another method":              {func(c *httpjson.Config) { c.Method = "PUT" }, "method: "},
		"a method in small letters":   {func(c *httpjson.Config) { c.Method = "get" }, "method: "},
		"a GET with a body":           {func(c *httpjson.Config) { c.Body = "{}" }, "body: a GET has none"},
		"a body that is no JSON":      {func(c *httpjson.Config) { c.Method, c.Body = "POST", "id={reference}" }, "body: not JSON"},
		"a placeholder beside quotes": {func(c *httpjson.Config) { c.Method, c.Body = "POST", `{"id":{reference}}` }, "body: not JSON"},
		"a placeholder in an escape":  {func(c *httpjson.Config) { c.Method, c.Body = "POST", `{"id":"\{reference}"}` }, "body: not JSON"},
		"a form that is none":         {func(c *httpjson.Config) { c.Method, c.BodyType, c.Body = "POST", "form", "a;b=%zz" }, "body: not a form"},
		"an unknown body placeholder": {func(c *httpjson.Config) { c.Method, c.Body = "POST", `{"id":"{amount}"}` }, "body: no placeholder {amount}"},
		"another body type":           {func(c *httpjson.Config) { c.BodyType = "xml" }, "body_type: "},
		"a bad header":                {func(c *httpjson.Config) { c.Headers = map[string]string{"X Y": "z"} }, "headers.X Y: not the name"},
		"a header of HTTP":            {func(c *httpjson.Config) { c.Headers = map[string]string{"host": "z"} }, "headers.host: this header"},
		"a header that is a secret":   {func(c *httpjson.Config) { c.Headers = map[string]string{"X-Api-Key": "z"} }, "headers.X-Api-Key: a secret"},
		"a header that authorises":    {func(c *httpjson.Config) { c.Headers = map[string]string{"Authorization": "z"} }, "headers.Authorization: a secret"},
		"a header with a line break":  {func(c *httpjson.Config) { c.Headers = map[string]string{"X-A": "a\r\nb: c"} }, "headers.X-A: printable"},
		"a header twice":              {func(c *httpjson.Config) { c.Headers = map[string]string{"X-A": "1", "x-a": "2"} }, "headers.x-a: there is"},
		"an unknown header field":     {func(c *httpjson.Config) { c.Headers = map[string]string{"X-A": "{nonce}"} }, "headers.X-A: no placeholder"},
		"an empty secret header":      {func(c *httpjson.Config) { c.SecretHeaders = map[string]secret.Secret{"X-A": {}} }, "secret_headers.X-A: the secret"},
		"a secret with a line break":  {func(c *httpjson.Config) { c.SecretHeaders = map[string]secret.Secret{"X-A": secret.New("a\n")} }, "secret_headers.X-A: the secret"},
		"a secret header twice": {func(c *httpjson.Config) {
			c.Headers, c.SecretHeaders = map[string]string{"X-A": "1"}, map[string]secret.Secret{"x-a": secret.New("a")}
		}, "secret_headers.x-a: there is"},
		"authorised twice":          {func(c *httpjson.Config) { c.SecretHeaders = map[string]secret.Secret{"Authorization": secret.New("a")} }, "auth: auth.kind bearer sets"},
		"another kind":              {func(c *httpjson.Config) { c.Auth.Kind = "digest" }, "auth.kind: "},
		"bearer without a token":    {func(c *httpjson.Config) { c.Auth.Token = secret.Secret{} }, "auth.token: missing"},
		"a token with a line break": {func(c *httpjson.Config) { c.Auth.Token = secret.New(marked + "\n") }, "auth.token: printable"},
		"header without a token":    {func(c *httpjson.Config) { c.Auth = httpjson.Auth{Kind: "header", Header: "X-Key"} }, "auth.token: missing"},
		"header without a name":     {func(c *httpjson.Config) { c.Auth.Kind = "header" }, "auth.header: "},
		"basic with nothing":        {func(c *httpjson.Config) { c.Auth = httpjson.Auth{Kind: "basic"} }, "auth.user: "},
		"basic without a password": {func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{Kind: "basic", Credentials: httpjson.Credentials{User: "u"}}
		}, "auth.user: "},
		"basic with a token too": {func(c *httpjson.Config) { c.Auth.Kind, c.Auth.User, c.Auth.Password = "basic", "u", secret.New("p") }, "auth.user: "},
		"a user with a colon": {func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{Kind: "basic", Credentials: httpjson.Credentials{User: "u:v", Password: secret.New("p")}}
		}, "auth.user: no colon"},
		"an account without a token": {func(c *httpjson.Config) { c.Accounts = map[string]httpjson.Credentials{"tr": {}} }, "accounts.tr.token: missing"},
		"an account without a name":  {func(c *httpjson.Config) { c.Accounts = map[string]httpjson.Credentials{"": {Token: secret.New("t")}} }, "accounts: the default"},
		"hmac without a key":         {func(c *httpjson.Config) { hmac(func(*httpjson.HMAC) {})(c); c.Auth.Key = secret.Secret{} }, "auth.key: missing"},
		"hmac with a bad key id":     {func(c *httpjson.Config) { hmac(func(*httpjson.HMAC) {})(c); c.Auth.KeyID = "a\nb" }, "auth.key_id: "},
		"hmac over nothing":          {hmac(func(h *httpjson.HMAC) { h.Sign = "" }), "auth.hmac.sign: a signature"},
		"hmac over a constant":       {hmac(func(h *httpjson.HMAC) { h.Sign = "constant" }), "auth.hmac.sign: a signature"},
		"hmac over what is unknown":  {hmac(func(h *httpjson.HMAC) { h.Sign = "{url}" }), "auth.hmac.sign: no placeholder"},
		"hmac sent nowhere":          {hmac(func(h *httpjson.HMAC) { h.Headers = map[string]string{"X-Time": "{timestamp}"} }), "auth.hmac.headers: none"},
		"hmac in a bad header":       {hmac(func(h *httpjson.HMAC) { h.Headers["Host"] = "{nonce}" }), "auth.hmac.headers.Host: "},
		"hmac with a bad value":      {hmac(func(h *httpjson.HMAC) { h.Headers["X-A"] = "a\nb" }), "auth.hmac.headers.X-A: printable"},
		"hmac with a bad field":      {hmac(func(h *httpjson.HMAC) { h.Headers["X-A"] = "{reference}" }), "auth.hmac.headers.X-A: no placeholder"},
		"hmac in a taken header": {func(c *httpjson.Config) {
			hmac(func(*httpjson.HMAC) {})(c)
			c.Headers = map[string]string{"x-signature": "a"}
		}, "auth: auth.kind hmac sets"},
		"another hash":                {hmac(func(h *httpjson.HMAC) { h.Hash = "md5" }), "auth.hmac.hash: "},
		"another encoding":            {hmac(func(h *httpjson.HMAC) { h.Encoding = "base32" }), "auth.hmac.encoding: "},
		"another encoding of the key": {hmac(func(h *httpjson.HMAC) { h.KeyEncoding = "pem" }), "auth.hmac.key_encoding: "},
		"a key that is not so encoded": {func(c *httpjson.Config) {
			hmac(func(h *httpjson.HMAC) { h.KeyEncoding = "hex" })(c)
			c.Auth.Key = secret.New(marked)
		}, "auth.key: not hex"},
		"a key that is no base64": {func(c *httpjson.Config) {
			hmac(func(h *httpjson.HMAC) { h.KeyEncoding = "base64" })(c)
			c.Auth.Key = secret.New("!" + marked)
		}, "auth.key: not base64"},
		"another timestamp":           {hmac(func(h *httpjson.HMAC) { h.Timestamp = "rfc822" }), "auth.hmac.timestamp: "},
		"no status":                   {func(c *httpjson.Config) { c.Pointers.Status = "" }, "pointers.status: missing"},
		"a pointer that is none":      {func(c *httpjson.Config) { c.Pointers.Amount = "amount" }, "pointers.amount: "},
		"a pointer with a bad escape": {func(c *httpjson.Config) { c.Pointers.ErrorCode = "/a~2" }, "pointers.error_code: "},
		"a mode that is nowhere":      {func(c *httpjson.Config) { c.Pointers.Mode = "" }, "mode: "},
		"a mode that is not expected": {func(c *httpjson.Config) { c.Mode = "" }, "mode: "},
		"no statuses":                 {func(c *httpjson.Config) { c.Statuses = nil }, "statuses: none means succeeded"},
		"no success":                  {func(c *httpjson.Config) { c.Statuses = map[string]string{"a": "pending"} }, "statuses: none means succeeded"},
		"an unknown meaning":          {func(c *httpjson.Config) { c.Statuses["x"] = "success" }, "statuses.x: "},
		"a detail that is no word":    {func(c *httpjson.Config) { c.Statuses["x"] = "pending/In Review" }, "statuses.x: the detail"},
		"a detail that is empty":      {func(c *httpjson.Config) { c.Statuses["x"] = "pending/" }, "statuses.x: the detail"},
		"a status that is empty":      {func(c *httpjson.Config) { c.Statuses[""] = "pending" }, "statuses.: a gateway's status"},
		"a status that is long":       {func(c *httpjson.Config) { c.Statuses[strings.Repeat("x", 65)] = "pending" }, "statuses.xxx"},
		"a status with a line break":  {func(c *httpjson.Config) { c.Statuses["a\nb"] = "pending" }, "statuses.a\nb: a gateway's status"},
		"a code that ends a payment":  {func(c *httpjson.Config) { c.ErrorCodes["x"] = "final" }, "error_codes.x: "},
		"a code that means failed":    {func(c *httpjson.Config) { c.ErrorCodes["x"] = "failed" }, "error_codes.x: "},
		"a code that is ours":         {func(c *httpjson.Config) { c.ErrorCodes["x"] = "local" }, "error_codes.x: "},
		"codes that are nowhere":      {func(c *httpjson.Config) { c.Pointers.ErrorCode = "" }, "pointers.error_code: missing"},
		"a status in two lists":       {func(c *httpjson.Config) { c.NotFoundStatuses = []int{403} }, "unauthorized_statuses: 403 means not_found already"},
		"a status that is no error":   {func(c *httpjson.Config) { c.NotFoundStatuses = []int{200} }, "not_found_statuses: 200"},
		"success nowhere":             {func(c *httpjson.Config) { c.Success = httpjson.Success{Is: []string{"ok"}} }, "success.pointer: missing"},
		"success without values":      {func(c *httpjson.Config) { c.Success = httpjson.Success{Pointer: "/ok"} }, "success: write is or is_not"},
		"success both ways": {func(c *httpjson.Config) {
			c.Success = httpjson.Success{Pointer: "/ok", Is: []string{"a"}, IsNot: []string{"b"}}
		}, "success: write is or is_not"},
		"success at no pointer":      {func(c *httpjson.Config) { c.Success = httpjson.Success{Pointer: "ok", Is: []string{"a"}} }, "success.pointer: "},
		"another unit":               {func(c *httpjson.Config) { c.Amount.Unit = "cents" }, "amount.unit: "},
		"another check":              {func(c *httpjson.Config) { c.Amount.Check = "never" }, "amount.check: "},
		"decimals of no currency":    {func(c *httpjson.Config) { c.Amount.Exponents = map[string]int{"TL": 2} }, "amount.exponents.TL: "},
		"too many decimals":          {func(c *httpjson.Config) { c.Amount.Exponents = map[string]int{"EUR": 5} }, "amount.exponents.EUR: "},
		"negative decimals":          {func(c *httpjson.Config) { c.Amount.Exponents = map[string]int{"EUR": -1} }, "amount.exponents.EUR: "},
		"decimals of major units":    {func(c *httpjson.Config) { c.Amount.Unit, c.Amount.Exponents = "major", map[string]int{"ISK": 2} }, "amount.exponents: in major"},
		"a currency that is none":    {func(c *httpjson.Config) { c.Amount.Currencies = map[string]string{"949": "TL"} }, "amount.currencies.949: "},
		"a media type that is none":  {func(c *httpjson.Config) { c.ContentTypes = []string{"Text/Plain"} }, "content_types: "},
		"a wait that is too short":   {func(c *httpjson.Config) { c.MaxRetryAfter = time.Millisecond }, "max_retry_after: "},
		"a wait that is too long":    {func(c *httpjson.Config) { c.MaxRetryAfter = 48 * time.Hour }, "max_retry_after: "},
		"a timeout that is too long": {func(c *httpjson.Config) { c.Timeout = time.Hour }, "timeout 1h0m0s: "},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config("https://api.acme.example")
			c.change(&cfg)
			_, err := httpjson.New(cfg)
			if err == nil {
				t.Fatal("it was taken")
			}
			if !strings.HasPrefix(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"+c.want) {
				t.Errorf("got: %v\nwant: %s", err, c.want)
			}
			if strings.Contains(err.Error(), marked) {
				t.Errorf("the error shows a secret: %v", err)
			}
			if again := cfg.Validate(); again == nil || again.Error() != err.Error() {
				t.Errorf("Validate says otherwise: %v", again)
			}
		})
	}
}

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	_, err := httpjson.New(httpjson.Config{Auth: httpjson.Auth{Kind: "bearer"}, Method: "PUT", Mode: "live"})
	for _, key := range []string{"url: missing", "method: ", "auth.token: missing", "pointers.status: missing", "mode: ", "statuses: "} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("nothing about %q in: %v", key, err)
		}
	}
}

func TestSmallestConfigIsComplete(t *testing.T) {
	cfg := httpjson.Config{
		URL:      "https://api.acme.example/payments/{reference}",
		Pointers: httpjson.Pointers{Status: "/status"},
		Statuses: map[string]string{"ok": "succeeded"},
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	d := cfg.WithDefaults()
	if d.Timeout != 10*time.Second || d.MaxBodyBytes != 1<<20 || d.MaxInFlight != 64 || d.Method != "GET" || !*d.PropagateTrace || d.MaxRetryAfter != time.Hour {
		t.Errorf("the defaults are %+v", d)
	}
	if diff := cmp.Diff([][]int{{404, 410}, {401, 403}, {429}}, [][]int{d.NotFoundStatuses, d.UnauthorizedStatuses, d.RateLimitedStatuses}); diff != "" {
		t.Error(diff)
	}
	if a := adapter(t, cfg); a.Timeout() != 10*time.Second {
		t.Errorf("the timeout is %v", a.Timeout())
	}
}

// TestConfigIsFilledByItsKeys decodes as the configuration does.
func TestConfigIsFilledByItsKeys(t *testing.T) {
	var got httpjson.Config
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{Result: &got, TagName: "koanf", ErrorUnused: true})
	if err != nil {
		t.Fatal(err)
	}
	err = dec.Decode(map[string]any{
		"url": "https://a.example/{reference}", "timeout": 3 * time.Second, "allow_private": true, "propagate_trace": false, "not_found_statuses": []int{404}, "rate_limited_statuses": []int{},
		"auth":     map[string]any{"kind": "basic", "user": "u", "password": secret.New("p"), "hmac": map[string]any{"hash": "sha512"}},
		"accounts": map[string]any{"tr": map[string]any{"token": secret.New("t")}},
		"pointers": map[string]any{"status": "/s"}, "statuses": map[string]any{"ok": "succeeded"}, "amount": map[string]any{"exponents": map[string]any{"ISK": 2}},
		"success": map[string]any{"pointer": "/r", "is_not": []string{"failure"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Timeout != 3*time.Second || !got.AllowPrivate || *got.PropagateTrace || got.Auth.User != "u" || got.Auth.Password.Reveal() != "p" || got.Auth.HMAC.Hash != "sha512" ||
		got.Accounts["tr"].Token.Reveal() != "t" || got.Amount.Exponents["ISK"] != 2 || got.Success.IsNot[0] != "failure" || got.Pointers.Status != "/s" ||
		len(got.WithDefaults().RateLimitedStatuses) != 0 {
		t.Errorf("got %+v", got)
	}
}
