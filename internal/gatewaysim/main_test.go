package gatewaysim

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a simulator under conditions, on a free port, until the test ends.
func start(t testing.TB, cfg Config, c Conditions) *Simulator {
	t.Helper()
	s := New(cfg)
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.SetConditions(c); err != nil {
		t.Fatal(err)
	}
	return s
}

// freshClient opens a connection for every call, so that the transport has no reason to send one again, and does nothing by itself.
func freshClient(t testing.TB) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{
		Transport:     tr,
		Timeout:       time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask calls for a payment with the default key. The caller closes the body.
func ask(ctx context.Context, c *http.Client, s *Simulator, reference string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+paymentsPath+reference, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+DefaultAPIKey)
	return c.Do(r)
}

// read calls for a payment and returns the status and body of an answer that has to come whole.
func read(t testing.TB, c *http.Client, s *Simulator, reference string) (*http.Response, string) {
	t.Helper()
	resp, err := ask(t.Context(), c, s, reference)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// logged waits until the log has n calls, and returns it.
func logged(t testing.TB, s *Simulator, n int) []Call {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if calls := s.Log(); len(calls) >= n {
			return calls
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log has %d calls after 10 s, want %d", len(s.Log()), n)
		}
		<-time.After(time.Millisecond)
	}
}

// allOf conditions give every call the same fault.
func allOf(o Outcome) Conditions { return Conditions{Faults: []Share{{o, 1}}} }
