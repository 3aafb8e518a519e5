package gatewaysim

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runCommand runs the command until the test ends, and returns the address that it prints.
func runCommand(t *testing.T, args ...string) (url, printed string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out := make(writes, 10)
	cmd := Command()
	cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
	cmd.SetOut(out)
	cmd.SetErr(out)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case printed = <-out:
	case <-time.After(10 * time.Second):
		t.Fatal("it prints nothing")
	}
	url = regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(printed)
	return url, printed
}

// writes is what a command writes, a write at a time.
type writes chan string

func (w writes) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

func TestCommandServesAndSaysHowToAsk(t *testing.T) {
	url, printed := runCommand(t, "--scenario", "slow", "--latency", "0s")
	for _, want := range []string{url + "/v1/payments/demo_1999_EUR", "Bearer " + DefaultAPIKey, "scenario slow", "/sim/down?for=10s"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is not in\n%s", want, printed)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/payments/demo_1999_EUR", nil)
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+DefaultAPIKey)
	resp, err := freshClient(t).Do(r)
	must(t, err)
	must(t, resp.Body.Close())
	if resp.StatusCode != 200 {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestCommandTakesTheKeyFromAFileAndDoesNotShowIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "it's a key")
	must(t, os.WriteFile(file, []byte("secret-of-mine\n"), 0o600))
	url, printed := runCommand(t, "--api-key-file", file, "--rate", "0.001")
	if strings.Contains(printed, "secret-of-mine") || strings.Contains(printed, DefaultAPIKey) || !strings.Contains(printed, `it'\''s a key`) {
		t.Errorf("printed\n%s", printed)
	}
	ask := func(key string) int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/payments/demo_1999_EUR", nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+key)
		resp, err := freshClient(t).Do(r)
		must(t, err)
		must(t, resp.Body.Close())
		return resp.StatusCode
	}
	if first, second, wrong := ask("secret-of-mine"), ask("secret-of-mine"), ask(DefaultAPIKey); first != 200 || second != 429 || wrong != 401 {
		t.Errorf("got %d, %d over the rate, %d with another key", first, second, wrong)
	}
}

func TestCommandEndsOnSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		out := make(writes, 10)
		cmd := Command()
		cmd.SetArgs([]string{"--listen", "127.0.0.1:0"})
		cmd.SetOut(out)
		ended := make(chan error, 1)
		go func() { ended <- cmd.ExecuteContext(t.Context()) }()
		<-out // it listens, also for signals
		must(t, syscall.Kill(os.Getpid(), sig))
		select {
		case err := <-ended:
			must(t, err)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not end it", sig)
		}
	}
}

func TestCommandRefusesWhatItCannotDo(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, nil, 0o600))
	for want, args := range map[string][]string{
		"one of calm, slow": {"--scenario", "stormy"},
		"no such file":      {"--api-key-file", empty + "-not"},
		"visible ASCII":     {"--api-key-file", empty},
		"loopback":          {"--listen", "0.0.0.0:0"},
		"latency":           {"--latency", "-1s"},
		"limit":             {"--rate", "-1"},
		"unknown command":   {"now"},
	} {
		cmd := Command()
		cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
		cmd.SetOut(make(writes, 10))
		cmd.SetErr(make(writes, 10))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q in it", args, err, want)
		}
	}
}
