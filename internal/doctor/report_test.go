package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheReportIsStable(t *testing.T) {
	s, set := healthy()
	s.Outbox = Know(Outbox{SetAside: 1, Why: "larger than the stream takes"})
	b, err := json.Marshal(Examine(t.Context(), s, set, Record))
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		At       time.Time        `json:"at"`
		Level    string           `json:"level"`
		Counts   map[string]int   `json:"counts"`
		Findings []map[string]any `json:"findings"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Level != "yellow" || r.Counts["yellow"] != 1 || len(r.Counts) != 4 || r.At.IsZero() {
		t.Errorf("%s", b)
	}
	for _, f := range r.Findings {
		var keys []string
		for k := range f {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if strings.Join(keys, " ") != "area found id level mend subject why" || f["area"] != "record" {
			t.Errorf("%v", f)
		}
	}
	if first := r.Findings[0]; first["id"] != "record.set_aside" || first["level"] != "yellow" {
		t.Errorf("the worst does not come first: %v", first)
	}
}

func TestAnExaminationOfNothingIsNoNull(t *testing.T) {
	b, err := json.Marshal(Examine(t.Context(), &Sources{}, &Settings{}, Broker))
	if err != nil || !strings.Contains(string(b), `"findings":[]`) {
		t.Errorf("%s %v", b, err)
	}
}

func TestAFactThatDoesNotComeIsUnknownInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set := healthy()
		s.Tables = Ask(func(ctx context.Context) ([]Table, error) { <-ctx.Done(); return nil, ctx.Err() })
		asked := 0
		s.Sessions = Ask(func(ctx context.Context) (Sessions, error) { asked++; <-ctx.Done(); return Sessions{}, ctx.Err() })
		began := time.Now()
		r := Examine(t.Context(), s, set)
		if took := time.Since(began); took != factTimeout {
			t.Errorf("it took %s", took)
		}
		if asked != 1 {
			t.Errorf("one fact was asked for %d times", asked)
		}
		unknown := 0
		for _, f := range r.Findings {
			if f.Level == Unknown {
				unknown++
				if !strings.Contains(f.Found, "no answer within 5s") {
					t.Errorf("%+v", f)
				}
			}
		}
		if unknown != r.Counts.Unknown || unknown < 6 || r.Level != Unknown {
			t.Errorf("%d unknown: %+v", unknown, r.Counts)
		}
	})
}

func TestOnlyOneArea(t *testing.T) {
	s, set := healthy()
	s.Server = Ask(func(context.Context) (Server, error) { t.Error("the database is asked"); return Server{}, nil })
	r := Examine(t.Context(), s, set, Configuration, Gateways)
	for _, f := range r.Findings {
		if f.Area != Configuration && f.Area != Gateways {
			t.Errorf("%+v", f)
		}
	}
	if len(r.Findings) == 0 {
		t.Error("nothing was looked at")
	}
}

func TestAtTheStart(t *testing.T) {
	s, set := healthy()
	if found := AtStart(t.Context(), s, set); len(found) > 0 || Refused(found) != nil {
		t.Errorf("a healthy system: %v", found)
	}
	s.Server = change(s.Server, func(v *Server) { v.Settings = map[string]string{"fsync": "off", "synchronous_commit": "off"} })
	s.Rights = Know(Rights{Login: "l", Role: "relay", Excessive: []string{"delete on payments"}})
	found := AtStart(t.Context(), s, set)
	if len(found) != 3 || Refused(found) != nil {
		t.Errorf("what is dangerous already is said, and the service works: %+v, %v", found, Refused(found))
	}
	s.Rights = Know(Rights{Login: "l", Role: "relay", Missing: []string{"select on payments"}})
	err := Refused(AtStart(t.Context(), s, set))
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || !strings.Contains(err.Error(), "l lacks 1 right of relay: select on payments") || !strings.Contains(refusal.Hint(), "docs/permissions.md") {
		t.Errorf("%v", err)
	}
	s, set = healthy()
	s.Letters = lost[Letters](errors.New("asked at the start"))
	s.Strays = lost[Strays](errors.New("asked at the start"))
	if found := AtStart(t.Context(), s, set); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestAClockIsReadInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ways := []time.Duration{40 * time.Millisecond, 10 * time.Millisecond, 90 * time.Millisecond}
		i := 0
		c, err := ReadClock(3, func() (time.Time, error) {
			time.Sleep(ways[i])
			theirs := time.Now().Add(3 * time.Second)
			time.Sleep(ways[i])
			i++
			return theirs, nil
		})
		if err != nil || c.Within != 10*time.Millisecond || c.Offset != 3*time.Second {
			t.Errorf("%+v %v", c, err)
		}
		if _, err := ReadClock(3, func() (time.Time, error) { return time.Time{}, errors.New("away") }); err == nil {
			t.Error("no error")
		}
	})
}

const page = "../../docs/doctor.md"

var update = flag.Bool("update", false, "write the tables of docs/doctor.md")

// TestThePageListsTheChecks compares the tables of docs/doctor.md with the checks. With -update it writes them.
func TestThePageListsTheChecks(t *testing.T) {
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)(<!-- checks -->\n).*?(<!-- end -->)`)
	want := block.ReplaceAll(have, []byte("${1}"+table()+"${2}"))
	if *update {
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !block.Match(have) || string(have) != string(want) {
		t.Errorf("%s does not list the checks; write it with -update", page)
	}
}

func table() string {
	var b strings.Builder
	for _, area := range Areas {
		b.WriteString("\n### " + string(area) + "\n\n| check | it is green when | why it matters | at the start of a service |\n|---|---|---|---|\n")
		for _, c := range Checks {
			if c.Area == area {
				b.WriteString("| `" + c.ID + "` | " + c.What + " | " + c.Why + " | " + string(c.Start) + " |\n")
			}
		}
	}
	return b.String()
}

func TestChecksAreNamedAfterTheirAreas(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks {
		if seen[c.ID] || !strings.HasPrefix(c.ID, string(c.Area)+".") || c.What == "" || c.Why == "" || c.examine == nil {
			t.Errorf("%+v", c)
		}
		seen[c.ID] = true
	}
}
