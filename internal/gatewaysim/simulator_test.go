package gatewaysim

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestStartListensOnLoopbackAlone(t *testing.T) {
	s := New(Config{})
	if err := s.Start("0.0.0.0:0"); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v", err)
	}
	if s.URL() != "" {
		t.Errorf("it is at %s", s.URL())
	}
	must(t, s.Start("127.0.0.1:0"))
	if err := s.Start("127.0.0.1:0"); err == nil {
		t.Error("it started twice")
	}
	must(t, s.Close())
	must(t, s.Close())
	must(t, New(Config{}).Close())
}

func TestStartSaysWhatIsWrongWithTheConfiguration(t *testing.T) {
	err := New(Config{APIKey: "with blank", LogLimit: -1, Capacity: -1, Patience: -1}).Start("127.0.0.1:0")
	for _, want := range []string{"api key", "log limit", "capacity", "patience"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "with blank") {
		t.Error("the key is in the error")
	}
}

func TestCloseEndsCallsThatAreNeverAnswered(t *testing.T) {
	for name, c := range map[string]Conditions{"timeout": allOf(Timeout), "latency": {Latency: 30 * time.Minute}, "drip": allOf(Drip)} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Config{Patience: time.Hour}, c)
			client := freshClient(t)
			client.Timeout = 0
			failed := make(chan error, 1)
			go func() {
				resp, err := ask(context.Background(), client, s, "demo_1999_EUR")
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				failed <- err
			}()
			for deadline := time.Now().Add(10 * time.Second); s.Stats().Calls == 0 && time.Now().Before(deadline); {
				<-time.After(time.Millisecond)
			}
			must(t, s.Close())
			if err := <-failed; err == nil {
				t.Error("the call was answered")
			}
			logged(t, s, 1)
		})
	}
}

func TestClientThatLeavesIsLoggedAsAbandoned(t *testing.T) {
	s := start(t, Config{}, Conditions{Latency: 30 * time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := ask(ctx, freshClient(t), s, "demo_1999_EUR"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if c := logged(t, s, 1)[0]; c.Outcome != Abandoned || c.Status != 0 || c.Told != "" {
		t.Errorf("logged %+v", c)
	}
	if v := s.Truths()[0]; v.Tellings != 0 || v.Calls != 1 {
		t.Errorf("%+v", v)
	}
}

func TestAdjustChangesEveryScenario(t *testing.T) {
	s := New(Config{Scenario: "throttled", Adjust: func(c Conditions) Conditions { c.Latency = time.Minute; return c }})
	if c := s.climate.Load(); c.Latency != time.Minute || c.bucket == nil {
		t.Errorf("%+v", c)
	}
	must(t, s.SetScenario("slow"))
	if c := s.climate.Load(); c.Latency != time.Minute || c.bucket != nil {
		t.Errorf("%+v", c)
	}
}

// TestEverythingAtOnce is for the race detector: calls, registrations, switches and readers, all together.
func TestEverythingAtOnce(t *testing.T) {
	s := start(t, Config{LogLimit: 100, Patience: time.Millisecond}, Conditions{})
	tr := &http.Transport{MaxIdleConnsPerHost: 8}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 5 * time.Second}
	payments := s.Generate(50, "p")
	var wg sync.WaitGroup
	var answered atomic.Int64
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				resp, err := ask(ctx, client, s, payments[i%len(payments)].Reference)
				if err == nil {
					answered.Add(1)
					_, _ = io.CopyN(io.Discard, resp.Body, 100)
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			if err := s.SetScenario([]string{"wrong", "errors", "throttled", "flapping"}[i%4]); err != nil {
				t.Error(err)
			}
			_ = s.Down(time.Duration(i%2)*time.Millisecond, Answered)
			s.Generate(20, "q")
		}
	})
	wg.Go(func() {
		for range 50 {
			_, _, _ = s.Log(), s.Truths(), s.Stats()
		}
	})
	wg.Wait()
	calls := s.Stats().Calls
	if n := answered.Load(); n == 0 || calls < n {
		t.Errorf("%d calls, %d were answered", calls, n)
	}
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		if kept, dropped := s.journal.counts(); kept+dropped == calls {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d calls came, %d were logged", calls, kept+dropped)
		}
	}
}
