package vendor_test

import (
	"net/url"
	"strings"
	"testing"

	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/vendor"
)

// FuzzURL puts anything where an id belongs. What is sent stays one segment of the path, or one parameter, and comes back as it was.
func FuzzURL(f *testing.F) {
	desk, errs := vendor.Open(vendor.Config{}.WithDefaults("https://api.example/base", ""))
	if len(errs) > 0 {
		f.Fatal(errs)
	}
	f.Cleanup(desk.Close)
	for _, s := range []string{"pi_1", "../../admin", "a/b?c#d", "%2e%2e", "..;/", "@evil.example", "a b+c&d=e", "\x00", "\xff", "é", "//x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if httpclient.Unsendable(value) != "" {
			return
		}
		segment, err := url.Parse(desk.URL("/v1/x/", value))
		if err != nil {
			t.Fatal(err)
		}
		rest, ok := strings.CutPrefix(segment.EscapedPath(), "/base/v1/x/")
		back, err := url.PathUnescape(rest)
		if !ok || err != nil || back != value || strings.Contains(rest, "/") || segment.Host != "api.example" || segment.RawQuery != "" || segment.Fragment != "" || segment.User != nil {
			t.Fatalf("%q becomes %s", value, segment)
		}
		if clean := segment.JoinPath(); clean.EscapedPath() != segment.EscapedPath() {
			t.Fatalf("%q changes the path: %s becomes %s", value, segment, clean)
		}
		parameter, err := url.Parse(desk.URL("/v1/x?a=b&id=", value))
		if err != nil {
			t.Fatal(err)
		}
		if q, err := url.ParseQuery(parameter.RawQuery); err != nil || len(q) != 2 || q.Get("id") != value || parameter.Path != "/base/v1/x" || parameter.Fragment != "" {
			t.Fatalf("%q becomes %s", value, parameter)
		}
	})
}
