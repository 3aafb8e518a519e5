package httpjson_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pollux/internal/gateway"
)

// TestTheTableOfInputs polls every row of docs/gateways/inputs.md.
func TestTheTableOfInputs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/gateways/inputs.md")
	if err != nil {
		t.Fatal(err)
	}
	good := regexp.MustCompile("(?m)^`(\\{.*\\})`$").FindStringSubmatch(string(text))[1]
	answer := regexp.MustCompile("^(?:HTTP ([0-9]+) ?)?(?:type `([^`]+)` ?)?(?:encoding `([^`]+)` ?)?(?:`([^`]*)`|nothing)$")
	rows := 0
	for line := range strings.SplitSeq(string(text), "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| **") || strings.HasPrefix(line, "| answer") {
			continue
		}
		rows++
		what := strings.TrimPrefix(cells[0], "| ")
		m := answer.FindStringSubmatch(what)
		want, known := gateway.ClassOf(cells[1])
		if m == nil || !known {
			t.Errorf("not a row: %s", line)
			continue
		}
		status, kind := 200, "application/json"
		if m[1] != "" {
			status, _ = strconv.Atoi(m[1])
		}
		if m[2] != "" {
			kind = m[2]
		}
		body := strings.NewReplacer("GOOD", good, "⟨FF⟩", "\xff").Replace(m[4])
		base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			if m[3] != "" {
				w.Header().Set("Content-Encoding", m[3])
			}
			w.WriteHeader(status)
			if status != http.StatusNoContent {
				io.WriteString(w, body)
			}
		})
		cfg := config(base)
		cfg.Statuses = map[string]string{"paid": "succeeded", "declined": "failed", "open": "pending"}
		cfg.ErrorCodes, cfg.Pointers.Detail = nil, ""
		if ans := poll(t, adapter(t, cfg), query); ans.Class != want {
			t.Errorf("%s: %v, the page says %v: %s", what, ans.Class, want, fmt.Sprintf("%+v", ans))
		}
	}
	if rows < 50 {
		t.Errorf("%d rows were read", rows)
	}
}
