package httpclient_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"pollux/internal/gateway/httpclient"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 9, 10, 6, 0, 0, 0, time.UTC)
	const most = time.Hour
	for _, c := range []struct {
		value, date string
		want        time.Duration
		cut         bool
	}{
		{"120", "", 2 * time.Minute, false}, {" 120 ", "", 2 * time.Minute, false}, {"0", "", 0, false}, {"007", "", 7 * time.Second, false},
		{"3600", "", most, false}, {"3601", "", most, true}, {"99999999", "", most, true}, {strings.Repeat("9", 400), "", most, true},
		{"9223372036854775807", "", most, true}, {"9223372036854775808", "", most, true}, {"18446744073709551617", "", most, true},

		{"Thu, 10 Sep 2026 06:02:00 GMT", "", 2 * time.Minute, false}, {"Thursday, 10-Sep-26 06:02:00 GMT", "", 2 * time.Minute, false},
		{"Thu Sep 10 06:02:00 2026", "", 2 * time.Minute, false}, {"Thu, 10 Sep 2026 06:00:00 GMT", "", 0, false},
		{"Thu, 10 Sep 2026 05:00:00 GMT", "", 0, false}, {"Thu, 01 Jan 1970 00:00:00 GMT", "", 0, false}, {"Thu, 01 Jan 0001 00:00:00 GMT", "", 0, false},
		{"Fri, 31 Dec 9999 23:59:59 GMT", "", most, true}, {"Thu, 10 Sep 2026 08:00:00 GMT", "", most, true},

		// Our clock is an hour off; the gateway's own date is what counts.
		{"Thu, 10 Sep 2026 07:02:00 GMT", "Thu, 10 Sep 2026 07:00:00 GMT", 2 * time.Minute, false},
		{"Thu, 10 Sep 2026 05:02:00 GMT", "Thu, 10 Sep 2026 05:00:00 GMT", 2 * time.Minute, false},
		{"Thu, 10 Sep 2026 06:02:00 GMT", "yesterday", 2 * time.Minute, false}, {"120", "Thu, 10 Sep 2026 07:00:00 GMT", 2 * time.Minute, false},

		{"", "", 0, false}, {"-5", "", 0, false}, {"+5", "", 0, false}, {"1.5", "", 0, false}, {"5s", "", 0, false}, {"soon", "", 0, false}, {"1e3", "", 0, false},
		{"0x10", "", 0, false}, {"١٢٠", "", 0, false}, {"120, 60", "", 0, false}, {"Thu, 10 Sep 2026 06:02:00 CET", "", 0, false}, {"NaN", "", 0, false}, {"\x00", "", 0, false},
		{"2026-09-10T06:02:00Z", "", 0, false},
	} {
		h := http.Header{"Retry-After": {c.value}}
		if c.date != "" {
			h.Set("Date", c.date)
		}
		if got, cut := httpclient.RetryAfter(h, now, most); got != c.want || cut != c.cut {
			t.Errorf("Retry-After: %.40q (Date: %q) is %v, %v; want %v, %v", c.value, c.date, got, cut, c.want, c.cut)
		}
	}
	if got, cut := httpclient.RetryAfter(nil, now, most); got != 0 || cut {
		t.Errorf("without the header: %v, %v", got, cut)
	}
	if got, _ := httpclient.RetryAfter(http.Header{"Retry-After": {"10", "nonsense", "60", "30"}}, now, most); got != time.Minute {
		t.Errorf("of several: %v", got)
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"120", "Thu, 10 Sep 2026 06:02:00 GMT", "-1", "99999999999999999999", "Thu, 01 Jan 0001 00:00:00 GMT"} {
		f.Add(s, "Thu, 10 Sep 2026 06:00:00 GMT", int64(0), int64(time.Hour))
	}
	f.Fuzz(func(t *testing.T, value, date string, now, most int64) {
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		got, cut := httpclient.RetryAfter(h, time.Unix(0, now), time.Duration(most))
		if got < 0 || got > max(time.Duration(most), 0) || cut && got != max(time.Duration(most), 0) {
			t.Fatalf("%q is %v, cut: %v, at most %v", value, got, cut, time.Duration(most))
		}
	})
}

func TestValidHeaders(t *testing.T) {
	for s, want := range map[string]bool{"X-Api-Key": true, "a": true, "!#$%&'*+-.^_`|~09": true, "": false, "X Y": false, "X:": false, "X\n": false, "ü": false, "\x00": false} {
		if got := httpclient.ValidHeaderName(s); got != want {
			t.Errorf("name %q: %v", s, got)
		}
	}
	for s, want := range map[string]bool{"": true, "abc def": true, "a\tb": true, "a\r\nb": false, "a\x00": false, "ü": false, " a": false, "a\n": false, "\x7f": false} {
		if got := httpclient.ValidHeaderValue(s); got != want {
			t.Errorf("value %q: %v", s, got)
		}
	}
}
