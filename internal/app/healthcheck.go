package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/config"
	"pollux/internal/telemetry"
)

// HealthcheckTimeout is how long a page may take to answer a probe. It is answered from memory, so that a second more would change nothing.
const HealthcheckTimeout = 2 * time.Second

// What the flag --healthcheck asks.
const (
	probeFlag  = "healthcheck"
	probeLive  = "live"
	probeReady = "ready"
)

// addProbe makes a service a probe of itself with the flag --healthcheck: an image without a shell has no other program to ask with.
func addProbe(cmd *cobra.Command) {
	cmd.Flags().String(probeFlag, "", "ask the process that runs here whether it lives, or with =ready whether it is ready; say why not, and end with 0 or 1")
	cmd.Flags().Lookup(probeFlag).NoOptDefVal = probeLive
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed(probeFlag) {
			return run(cmd, args)
		}
		what, err := cmd.Flags().GetString(probeFlag)
		if err != nil {
			return err
		}
		page, known := map[string]string{probeLive: "/healthz", probeReady: "/readyz"}[what]
		if !known {
			return Usage("--%s=%s: live or ready", probeFlag, what)
		}
		return Healthcheck(cmd.Context(), config.Options{Flags: cmd.Flags()}, page, HealthcheckTimeout)
	}
}

// Healthcheck asks a page of a process of this configuration that runs on this machine, as CheckPage does. Where it speaks TLS the certificate's name is not looked at, since
// it is not that of this machine; where it asks for a certificate it is shown its own.
func Healthcheck(ctx context.Context, o config.Options, page string, timeout time.Duration) error {
	pages, err := config.Listening(o)
	if err != nil {
		return NotTried(err)
	}
	url, err := pageURL(pages, page)
	if err != nil {
		return err
	}
	secure := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} //nolint:gosec // nothing is told, and what answers is on this machine
	if pair, err := tls.LoadX509KeyPair(pages.CertFile, pages.KeyFile); err == nil {
		secure.Certificates = []tls.Certificate{pair}
	}
	return ask(ctx, url, timeout, secure)
}

// pageURL is where a page is found by somebody on the same machine.
func pageURL(p config.Pages, page string) (string, error) {
	host, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return "", NotTried(fmt.Errorf("telemetry.listen: %w", err))
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	scheme := "http://"
	if p.CertFile != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port) + page, nil
}

// maxPage bounds what is read of a page: a report of all checks has some hundred bytes.
const maxPage = 64 << 10

// CheckPage asks a page such as http://127.0.0.1:9464/readyz and returns an error that says what is wrong unless it answers 200 in time.
func CheckPage(ctx context.Context, url string, timeout time.Duration) error {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil || r.URL.Host == "" || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
		return Usage("%.80q: not the URL of a page; write one such as http://127.0.0.1:9464/readyz", url)
	}
	return ask(ctx, url, timeout, nil)
}

func ask(ctx context.Context, url string, timeout time.Duration, secure *tls.Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Usage("%w", err)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: secure}, // and no proxy: the page is here
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		} else if refusal, ok := errors.AsType[*neturl.Error](err); ok {
			err = refusal.Err // which does not say the URL again
		}
		return Hint(fmt.Errorf("asking %s: %w", url, err), "%s", unansweredHint(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err != nil {
		return Hint(fmt.Errorf("reading %s: %w", url, err), "the process ended, or hangs: its log says which")
	}
	what, hint := wants(resp.StatusCode, body)
	return Hint(fmt.Errorf("%s: %s", url, what), "%s", hint)
}

// unansweredHint is what to do where a page did not answer.
func unansweredHint(err error) string {
	alert, refused := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return "what listens there speaks no TLS: telemetry.cert_file must be here as the service has it"
	case refused && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate"):
		return "it lets in only who shows a certificate: telemetry.cert_file here must be of telemetry.client_ca_file, or leave that one out"
	}
	return "does the process run, and does it listen there? --listen and telemetry.listen must be here as the service has them"
}

// wants is what a page says that is not well, and what to do.
func wants(status int, body []byte) (what, hint string) {
	var r telemetry.Report
	if json.Unmarshal(body, &r) != nil || len(r.Checks) == 0 && !r.Draining {
		hint = "something else listens there: --listen and telemetry.listen must be here as the service has them"
		if status == http.StatusBadRequest {
			hint += "; if it speaks TLS, telemetry.cert_file too"
		}
		return fmt.Sprintf("the status is %d, wanted 200", status), hint
	}
	var words, hints []string
	if r.Draining {
		words = append(words, "it is stopping")
	}
	for _, c := range r.Checks {
		if !c.Ready {
			words = append(words, c.Name+": "+c.Error)
			if c.Hint != "" && !slices.Contains(hints, c.Hint) {
				hints = append(hints, c.Hint)
			}
		}
	}
	if len(hints) == 0 {
		hints = append(hints, "the log of the service says why, and pollux doctor what mends it")
	}
	return "not ready: " + strings.Join(words, "; "), strings.Join(hints, "; ")
}
