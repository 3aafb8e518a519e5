package gatewaysim

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// MaxBody is the size of the largest body that is taken, in bytes: some 500,000 payments at once.
const MaxBody = 64 << 20

// MaxGenerate is how many payments one call of /sim/generate makes at most.
const MaxGenerate = 1_000_000

// adminHandler is what lies under /sim/.
func (s *Simulator) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/healthz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"status": "ok"}) })
	mux.HandleFunc("GET /sim/stats", s.serveStats)
	mux.HandleFunc("GET /sim/log", s.serveLog)
	mux.HandleFunc("GET /sim/truth", s.serveTruth)
	mux.HandleFunc("POST /sim/payments", s.serveRegister)
	mux.HandleFunc("POST /sim/generate", s.serveGenerate)
	mux.HandleFunc("GET /sim/scenario", s.serveScenarios)
	mux.HandleFunc("POST /sim/scenario", s.serveScenario)
	mux.HandleFunc("POST /sim/down", s.serveDown)
	return loopbackOnly(http.NewCrossOriginProtection().Handler(mux))
}

// loopbackOnly keeps other machines out, and with the Host header also web pages whose own name was made to lead to loopback.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() || !loopbackHost(r.Host) {
			writeError(w, http.StatusForbidden, "loopback_only", "This is answered to loopback alone, under its own name.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (s *Simulator) serveStats(w http.ResponseWriter, r *http.Request) {
	stats := s.Stats()
	if r.URL.Query().Get("buckets") == "" {
		stats.Buckets, stats.BucketsFrom = nil, time.Time{}
	}
	writeJSON(w, stats)
}

// serveLog writes the log as JSON lines: all of it, from ?since=<seq> on, or what came at or after ?since=<RFC 3339>.
func (s *Simulator) serveLog(w http.ResponseWriter, r *http.Request) {
	from, after, err := parseSince(r.URL.Query().Get("since"))
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_since", "since is a sequence number or an instant like 2026-01-31T12:00:00Z.")
		return
	}
	out := lines(w)
	for {
		calls, next := s.journal.page(from)
		if len(calls) == 0 {
			return
		}
		for i := range calls {
			if calls[i].At.Before(after) {
				continue
			}
			if out.Encode(&calls[i]) != nil {
				return // the reader has gone
			}
		}
		from = next
	}
}

func parseSince(s string) (from int64, after time.Time, err error) {
	if s == "" {
		return 0, after, nil
	}
	if from, err = strconv.ParseInt(s, 10, 64); err == nil {
		return from, after, nil
	}
	after, err = time.Parse(time.RFC3339, s)
	return 0, after, err
}

// serveTruth writes the truth of every payment as JSON lines, or of ?reference= alone.
func (s *Simulator) serveTruth(w http.ResponseWriter, r *http.Request) {
	reference := r.URL.Query().Get("reference")
	if reference == "" {
		out := lines(w)
		s.book.each(func(e entry) { _ = out.Encode(e.verdict()) })
		return
	}
	e, ok := s.book.find(reference)
	if !ok {
		writeError(w, http.StatusNotFound, "payment_not_found", "There is no such payment.")
		return
	}
	_ = lines(w).Encode(e.verdict())
}

// serveRegister registers payments, one a line.
func (s *Simulator) serveRegister(w http.ResponseWriter, r *http.Request) {
	payments, err := readPayments(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		err = s.Register(payments)
	}
	if err != nil {
		refuse(w, "invalid_payments", err)
		return
	}
	writeJSON(w, map[string]int{"registered": len(payments)})
}

// serveGenerate makes ?n= payments whose references begin with ?prefix= and writes them as JSON lines.
func (s *Simulator) serveGenerate(w http.ResponseWriter, r *http.Request) {
	prefix := r.URL.Query().Get("prefix")
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 1 || n > MaxGenerate || !validPrefix(prefix) {
		writeError(w, http.StatusBadRequest, "invalid_generate",
			"n is 1 to "+strconv.Itoa(MaxGenerate)+", prefix 1 to 64 characters that a reference may begin with.")
		return
	}
	payments := s.Generate(n, prefix)
	if len(payments) == 0 {
		refuse(w, "full", errFull)
		return
	}
	out := lines(w)
	for i := range payments {
		if out.Encode(&payments[i]) != nil {
			return // the reader has gone
		}
	}
}

// serveScenarios writes which scenario is set, and which there are.
func (s *Simulator) serveScenarios(w http.ResponseWriter, _ *http.Request) {
	about := make(map[string]string)
	for _, sc := range Scenarios() {
		about[sc.Name] = sc.About
	}
	writeJSON(w, map[string]any{"scenario": s.Scenario(), "scenarios": about})
}

// serveScenario sets the scenario ?name=; its windows count from now.
func (s *Simulator) serveScenario(w http.ResponseWriter, r *http.Request) {
	if err := s.SetScenario(r.URL.Query().Get("name")); err != nil {
		refuse(w, "invalid_scenario", err)
		return
	}
	writeJSON(w, map[string]string{"scenario": s.Scenario()})
}

// serveDown takes the gateway down for ?for=, with ?with=reset, http_503 or timeout; for=0s brings it up again.
func (s *Simulator) serveDown(w http.ResponseWriter, r *http.Request) {
	var with Outcome
	d, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil {
		refuse(w, "invalid_duration", errors.New("for is a duration like 10s"))
		return
	}
	if err = with.UnmarshalText([]byte(r.URL.Query().Get("with"))); err == nil {
		err = s.Down(d, with)
	}
	if err != nil {
		refuse(w, "invalid_down", err)
		return
	}
	writeJSON(w, map[string]string{"down_for": d.String()})
}

// lines begins an answer of JSON lines.
func lines(w http.ResponseWriter) *json.Encoder {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return json.NewEncoder(w)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header()["Content-Type"] = asJSON
	_ = json.NewEncoder(w).Encode(v) // a reader that has gone is no trouble
}

// refuse says what is wrong with a request.
func refuse(w http.ResponseWriter, code string, err error) {
	status := http.StatusBadRequest
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, errFull):
		status = http.StatusInsufficientStorage
	}
	type body struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header()["Content-Type"] = asJSON
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]body{"error": {code, err.Error()}})
}
