package vendor_test

import (
	"errors"
	"strings"
	"testing"

	"pollux/internal/gateway"
	"pollux/internal/gateway/vendor"
)

// echo makes an account of a text; one that says "bad" is refused.
func echo(s string) (string, []error) {
	if s == "bad" || s == "" {
		return "", []error{errors.New("key: " + s + " is no key")}
	}
	return s, nil
}

func TestAccounts(t *testing.T) {
	all, errs := vendor.Accounting("acme", "own", map[string]string{"eu": "of eu"}, echo)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	alone, errs := vendor.Accounting("acme", "own", nil, echo)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	named, errs := vendor.Accounting("acme", "", map[string]string{"eu": "of eu"}, echo)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, c := range []struct {
		in   vendor.Accounts[string]
		name string
		want string // empty: none
	}{{all, "", "own"}, {all, "eu", "of eu"}, {all, "us", ""}, {alone, "", "own"}, {alone, "us", "own"}, {named, "", ""}, {named, "eu", "of eu"}, {vendor.Accounts[string]{}, "", ""}} {
		got, ans, missing := c.in.Of(c.name)
		if got != c.want || missing != (c.want == "") || missing && (ans.Class != gateway.Unauthorized || ans.Message == "") {
			t.Errorf("%q: %q, %t, %+v", c.name, got, missing, ans)
		}
	}
	if got := all.Named(); len(got) != 1 || got[0] != "eu" {
		t.Errorf("named are %v", got)
	}
}

func TestWrongAccountsAreNamed(t *testing.T) {
	_, errs := vendor.Accounting("acme", "", map[string]string{"eu": "bad", "us": "good"}, echo)
	if err := errors.Join(errs...); err == nil || err.Error() != "accounts.eu.key: bad is no key" {
		t.Errorf("got %v", err)
	}
	_, errs = vendor.Accounting("acme", "", nil, echo)
	if err := errors.Join(errs...); err == nil || err.Error() != "key:  is no key" {
		t.Errorf("got %v", err)
	}
}

func TestPathsAreNothingButPaths(t *testing.T) {
	c := vendor.Config{}.WithDefaults("https://live.example/api/", "https://test.example")
	desk, errs := vendor.Open(c)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	defer desk.Close()
	if got := desk.URL("/v1/x/", "a/../b?c#d"); got != "https://live.example/api/v1/x/a%2F..%2Fb%3Fc%23d" {
		t.Errorf("got %s", got)
	}
	if c := (vendor.Config{Mode: "test"}).WithDefaults("https://live.example", "https://test.example"); c.BaseURL != "https://test.example" || c.Live() {
		t.Errorf("in test mode %+v", c)
	}
	for base, want := range map[string]string{"": "not a URL", "//x": "not a URL", "ftp://x": "not a URL", "https:///x": "not a URL", "https://x?a=b": "no user, query", "http://x": "without TLS"} {
		c.BaseURL = base
		if _, errs := vendor.Open(c); !strings.Contains(errors.Join(errs...).Error(), "base_url: "+want) {
			t.Errorf("%q: %v", base, errs)
		}
	}
}
