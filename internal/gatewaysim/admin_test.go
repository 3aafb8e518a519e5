package gatewaysim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// call calls an address of the simulator and returns the status and body.
func call(t testing.TB, s *Simulator, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
	must(t, err)
	resp, err := freshClient(t).Do(r)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}

// jsonLines reads JSON lines.
func jsonLines[T any](t testing.TB, text string) []T {
	t.Helper()
	var out []T
	for in := bufio.NewScanner(strings.NewReader(text)); in.Scan(); {
		var v T
		must(t, json.Unmarshal(in.Bytes(), &v))
		out = append(out, v)
	}
	return out
}

func TestPaymentsAreRegisteredOverHTTP(t *testing.T) {
	s := start(t, Config{}, Conditions{})
	lines := `{"reference":"a","amount_minor":1999,"currency":"EUR","script":{"pending":1,"detail":"authorized","final":"failed"}}

		{"reference":"b","amount_minor":5,"currency":"JPY"}
		{"reference":"c","amount_minor":5,"currency":"JPY","script":{"flaw":"other_amount"}}
	`
	for range 2 { // the second time changes nothing
		if status, body := call(t, s, "POST", "/sim/payments", lines); status != 200 || body != "{\"registered\":3}\n" {
			t.Fatalf("got %d %s", status, body)
		}
	}
	client := freshClient(t)
	_, first := read(t, client, s, "a")
	_, second := read(t, client, s, "a")
	if decode(t, first).Status != "authorized" || decode(t, second).Status != "failed" {
		t.Errorf("%s%s", first, second)
	}
	read(t, client, s, "c")

	_, body := call(t, s, "GET", "/sim/truth", "")
	got := map[string]Verdict{}
	for _, v := range jsonLines[Verdict](t, body) {
		got[v.Reference] = v
	}
	want := map[string]Verdict{
		"a": {"a", 1999, "EUR", "failed", 2, 1}, "b": {"b", 5, "JPY", "succeeded", 0, 0}, "c": {"c", 5, "JPY", Review, 1, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	inProcess := map[string]Verdict{}
	for _, v := range s.Truths() {
		inProcess[v.Reference] = v
	}
	if diff := cmp.Diff(got, inProcess); diff != "" {
		t.Error(diff)
	}
	if _, one := call(t, s, "GET", "/sim/truth?reference=a", ""); jsonLines[Verdict](t, one)[0] != want["a"] {
		t.Errorf("got %s", one)
	}
	if status, _ := call(t, s, "GET", "/sim/truth?reference=nobody", ""); status != 404 {
		t.Errorf("the truth of nobody: %d", status)
	}
}

func TestBadRegistrationsNameTheLine(t *testing.T) {
	s := start(t, Config{}, Conditions{})
	const good = `{"reference":"a","amount_minor":1,"currency":"EUR"}` + "\n"
	for line, status := range map[string]int{
		`{`:                             400,
		`{"ref":"b"}`:                   400,
		`null`:                          400,
		good[:50] + `,1`:                400,
		strings.TrimSpace(good) + ` {}`: 400,
		`{"reference":"a b","amount_minor":1,"currency":"EUR"}`:                      400,
		`{"reference":"b","amount_minor":1.5,"currency":"EUR"}`:                      400,
		`{"reference":"b","amount_minor":1,"currency":"EUR","script":{"flaw":"x"}}`:  400,
		`{"reference":"b","amount_minor":1,"currency":"` + strings.Repeat("E", 5000): 400,
	} {
		got, body := call(t, s, "POST", "/sim/payments", good+line)
		if got != status || !strings.Contains(body, "line 2") {
			t.Errorf("%.60s: %d %s", line, got, body)
		}
	}
	if got, body := call(t, s, "POST", "/sim/payments", strings.Repeat(strings.Repeat(" ", 1023)+"\n", MaxBody/1024+1)); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %d %s", got, body)
	}
	if n := s.Stats().Payments; n != 0 {
		t.Errorf("%d payments are registered", n)
	}
}

func TestPaymentsAreGeneratedOverHTTP(t *testing.T) {
	s := start(t, Config{Capacity: 5}, Conditions{Mix: Mix{MaxPending: 2}})
	_, body := call(t, s, "POST", "/sim/generate?n=3&prefix=x", "")
	if got := jsonLines[Payment](t, body); len(got) != 3 || got[2].Reference != "x_000002" || got[2].Currency == "" {
		t.Errorf("got %s", body)
	}
	for query, want := range map[string]int{"": 400, "?n=0&prefix=x": 400, "?n=1": 400, "?n=1&prefix=a%2Fb": 400, "?n=9000000&prefix=x": 400} {
		if got, body := call(t, s, "POST", "/sim/generate"+query, ""); got != want {
			t.Errorf("%q: %d %s", query, got, body)
		}
	}
	call(t, s, "POST", "/sim/generate?n=2&prefix=x", "")
	if got, _ := call(t, s, "POST", "/sim/generate?n=2&prefix=x", ""); got != http.StatusInsufficientStorage {
		t.Errorf("a full simulator: %d", got)
	}
}

func TestLogIsReadOverHTTP(t *testing.T) {
	s := start(t, Config{}, Conditions{})
	client := freshClient(t)
	for i := range 3 {
		read(t, client, s, fmt.Sprintf("p%d_1_EUR", i))
	}
	read(t, client, s, "nobody")
	want := logged(t, s, 4)
	get := func(query string) []Call {
		t.Helper()
		status, body := call(t, s, "GET", "/sim/log"+query, "")
		if status != 200 {
			t.Fatalf("%s: %d %s", query, status, body)
		}
		return jsonLines[Call](t, body)
	}
	if diff := cmp.Diff(want, get("")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[2:], get("?since=2")); diff != "" {
		t.Error(diff)
	}
	if got := get("?since=99"); len(got) != 0 {
		t.Errorf("beyond the end: %+v", got)
	}
	if diff := cmp.Diff(want, get("?since="+want[0].At.Format(time.RFC3339))); diff != "" {
		t.Error(diff)
	}
	if got := get("?since=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339)); len(got) != 0 {
		t.Errorf("the future: %+v", got)
	}
	if status, _ := call(t, s, "GET", "/sim/log?since=yesterday", ""); status != 400 {
		t.Errorf("since yesterday: %d", status)
	}
	if last := want[3]; last.Reference != "nobody" || last.N != 0 || last.Outcome != NotFound || last.Status != 404 {
		t.Errorf("%+v", last)
	}
	if first := want[0]; first.Told != "succeeded" || first.N != 1 || first.Took <= 0 || time.Since(first.At) > time.Minute {
		t.Errorf("%+v", first)
	}
}

func TestStatsAreReadOverHTTP(t *testing.T) {
	s := start(t, Config{Patience: time.Millisecond}, Conditions{})
	client := freshClient(t)
	for range 3 {
		read(t, client, s, "demo_1_EUR")
	}
	must(t, s.SetConditions(allOf(ServerError)))
	read(t, client, s, "demo_1_EUR")
	logged(t, s, 4)
	stats := func(query string) (out Stats) {
		t.Helper()
		_, body := call(t, s, "GET", "/sim/stats"+query, "")
		must(t, json.Unmarshal([]byte(body), &out))
		return out
	}
	got := stats("")
	want := map[string]int64{"answered": 3, "http_500": 1}
	if diff := cmp.Diff(want, got.Outcomes); diff != "" {
		t.Error(diff)
	}
	if got.Calls != 4 || got.Logged != 4 || got.Dropped != 0 || got.Payments != 1 || got.Down || got.CallsDown != 0 || got.Scenario != "custom" {
		t.Errorf("%+v", got)
	}
	if got.PeakPerSecond < 1 || got.PeakPerSecond > 4 || got.Buckets != nil {
		t.Errorf("%+v", got)
	}
	var sum uint32
	for _, n := range stats("?buckets=1").Buckets {
		sum += n
	}
	if sum != 4 {
		t.Errorf("%d calls in the buckets", sum)
	}
}

func TestConditionsAreSwitchedOverHTTP(t *testing.T) {
	s := start(t, Config{}, Conditions{})
	if status, body := call(t, s, "POST", "/sim/scenario?name=throttled", ""); status != 200 || s.Scenario() != "throttled" {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, s, "GET", "/sim/scenario", ""); status != 200 || !strings.Contains(body, `"scenario":"throttled"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, s, "POST", "/sim/scenario?name=stormy", ""); status != 400 || !strings.Contains(body, "one of calm, slow") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, s, "POST", "/sim/down?for=1h&with=http_503", ""); status != 200 || !s.Stats().Down {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := call(t, s, "POST", "/sim/down?for=0s", ""); status != 200 || s.Stats().Down {
		t.Errorf("up again: %d", status)
	}
	for _, query := range []string{"", "?for=soon", "?for=1s&with=html", "?for=1s&with=what"} {
		if status, body := call(t, s, "POST", "/sim/down"+query, ""); status != 400 || s.Stats().Down {
			t.Errorf("%q: %d %s", query, status, body)
		}
	}
	if status, body := call(t, s, "GET", "/sim/healthz", ""); status != 200 || body != "{\"status\":\"ok\"}\n" {
		t.Errorf("%d %s", status, body)
	}
}

func TestAdminAnswersToLoopbackAloneAndToNoWebPage(t *testing.T) {
	s := New(Config{})
	serve := func(remote, host, site string) int {
		r := httptest.NewRequest("POST", "/sim/down?for=0s", nil)
		r.RemoteAddr, r.Host = remote, host
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		remote, host, site string
		want               int
	}{
		{"127.0.0.1:5", "127.0.0.1:8089", "", 200},
		{"127.0.0.1:5", "localhost:8089", "", 200},
		{"[::1]:5", "[::1]:8089", "", 200},
		{"[::ffff:127.0.0.1]:5", "localhost", "", 200},
		{"10.0.0.7:5", "127.0.0.1:8089", "", 403},
		{"nonsense", "127.0.0.1:8089", "", 403},
		{"127.0.0.1:5", "evil.example", "", 403},
		{"127.0.0.1:5", "127.0.0.1:8089", "cross-site", 403},
	} {
		if got := serve(c.remote, c.host, c.site); got != c.want {
			t.Errorf("from %s for %s, site %q: %d, want %d", c.remote, c.host, c.site, got, c.want)
		}
	}
}
