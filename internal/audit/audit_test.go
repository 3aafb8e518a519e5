package audit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pollux/internal/audit"
)

// entry is a row as anybody could have written it.
func entry(t *rapid.T) audit.Entry {
	text := rapid.StringOf(rapid.RuneFrom([]rune("a1 -\n\t\"\\{}é€\u202e\u009b")))
	optional := func(name string) *string {
		if rapid.Bool().Draw(t, name+" is there") {
			s := text.Draw(t, name)
			return &s
		}
		return nil
	}
	return audit.Entry{
		At:    time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "at")).UTC(),
		Actor: text.Draw(t, "actor"), Login: text.Draw(t, "login"), Client: text.Draw(t, "client"), Application: text.Draw(t, "application"),
		Origin: text.Draw(t, "origin"), Action: text.Draw(t, "action"), Outcome: audit.Outcome(text.Draw(t, "outcome")), Reason: text.Draw(t, "reason"),
		Target: text.Draw(t, "target"), Before: optional("before"), After: optional("after"),
	}
}

// chained makes a log of n rows.
func chained(t *rapid.T, n int) []audit.Entry {
	log := make([]audit.Entry, n)
	for i := range log {
		log[i] = entry(t)
		link(log, i)
	}
	return log
}

// link gives row i its number, its link to the row before and its hash.
func link(log []audit.Entry, i int) {
	log[i].Seq = int64(i + 1)
	if i > 0 {
		log[i].Previous = log[i-1].Hash
	}
	log[i].Hash = log[i].Sum()
}

func verify(c *audit.Chain, log []audit.Entry) error {
	for _, e := range log {
		if err := c.Next(e); err != nil {
			return err
		}
	}
	return c.End()
}

func TestNoTwoRowsHaveTheSameText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := entry(t), entry(t)
		if rapid.Bool().Draw(t, "alike") { // what differs is at the border of two columns
			b = a
			s := a.Actor + a.Login
			cutAt := rapid.IntRange(0, len(s)).Draw(t, "border")
			b.Actor, b.Login = s[:cutAt], s[cutAt:]
		}
		if same := cmp.Equal(a, b); same != (string(a.Canonical()) == string(b.Canonical())) {
			t.Fatalf("equal %t\n%+v\n%+v", same, a, b)
		}
	})
}

func TestALineIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := chained(t, 3)
		var chain audit.Chain
		for _, e := range log {
			line, err := e.Line()
			if err != nil {
				t.Fatal(err)
			}
			var v any
			if json.Unmarshal(line, &v) != nil || strings.ContainsRune(string(line), '\n') {
				t.Fatalf("no line of JSON: %s", line)
			}
			again, err := json.Marshal(v) // another program formats it anew
			if err != nil {
				t.Fatal(err)
			}
			got, err := audit.ParseLine(again)
			if err != nil || !cmp.Equal(got, e) {
				t.Fatalf("%v\n%s", err, cmp.Diff(e, got))
			}
			if err := chain.Next(got); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A line that one reader takes for another row than the one that was hashed is no line.
func TestALineSaysOneThingToWhoeverReadsIt(t *testing.T) {
	before := `{"status": "pending"}`
	e := audit.Entry{Seq: 1, At: time.Unix(1, 1000), Actor: "ada", Action: "payment.force", Outcome: audit.Done, Target: audit.Payment(42), Before: &before}
	e.Hash = e.Sum()
	line, err := e.Line()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := audit.ParseLine(line); err != nil || got.Sum() != e.Hash {
		t.Fatalf("%v: %s", err, line)
	}
	for what, c := range map[string][2]string{
		"another spelling, later":   {`"action":"payment.force"`, `"action":"payment.hold","ACTION":"payment.force"`},
		"another spelling, earlier": {`"action":"payment.force"`, `"Action":"payment.hold","action":"payment.force"`},
		"another spelling, alone":   {`"action":`, `"ACTION":`},
		"a letter that folds":       {`"seq":`, "\"\u017feq\":"},
		"twice":                     {`"action":"payment.force"`, `"action":"payment.hold","action":"payment.force"`},
		"twice, escaped":            {`"action":"payment.force"`, `"\u0061ction":"payment.hold","action":"payment.force"`},
		"unknown":                   {`"actor":`, `"approved_by":"bob","actor":`},
		"missing":                   {`"reason":"",`, ``},
		"null":                      {`"reason":""`, `"reason":null`},
		"a finer time":              {`"1970-01-01T00:00:01.000001Z"`, `"1970-01-01T00:00:01.0000019Z"`},
		"two rows":                  {},
		"a list":                    {`{"seq"`, `[{"seq"`},
	} {
		tampered := strings.Replace(string(line), c[0], c[1], 1)
		if what == "two rows" {
			tampered = string(line) + "{}"
		}
		if tampered == string(line) {
			t.Fatalf("%s changed nothing: %s", what, line)
		}
		if got, err := audit.ParseLine([]byte(tampered)); err == nil {
			t.Errorf("%s: read as %+v: %s", what, got, tampered)
		}
	}
}

func TestEveryTamperingIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 8).Draw(t, "rows")
		log := chained(t, n)
		anchor := audit.Anchor{Hash: log[n-1].Hash, Seq: int64(n)}
		if err := verify(&audit.Chain{Expect: &anchor}, log); err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, n-1).Draw(t, "at")
		what := rapid.SampledFrom([]string{"change", "change and hash", "rewrite", "delete", "swap", "insert", "cut"}).Draw(t, "what")
		wrong := int64(at + 1)
		change := func(e *audit.Entry) { e.Reason += "!" }
		switch what {
		case "change":
			change(&log[at])
		case "change and hash":
			change(&log[at])
			log[at].Hash = log[at].Sum()
			if at < n-1 {
				wrong++ // the row itself is sound; what follows does not follow it
			}
		case "rewrite":
			change(&log[at])
			for i := at; i < n; i++ {
				link(log, i)
			}
			wrong = int64(n)
		case "delete":
			log = append(log[:at:at], log[at+1:]...)
		case "swap":
			at = min(at, n-2)
			log[at], log[at+1] = log[at+1], log[at]
			wrong = int64(at + 1)
		case "insert":
			log = append(log[:at+1:at+1], log[at:]...)
		case "cut":
			log, wrong = log[:at], int64(at+1)
		}
		err := verify(&audit.Chain{Expect: &anchor}, log)
		var b *audit.Broken
		if !errors.As(err, &b) || b.Seq != wrong {
			t.Fatalf("%s at row %d: %v, not at row %d", what, at+1, err, wrong)
		}
	})
}

func TestWhatCannotBeKnownIsNotClaimed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := chained(t, 6)
		cutAt := rapid.IntRange(0, 6).Draw(t, "cut")
		if err := verify(&audit.Chain{}, log[:cutAt]); err != nil {
			t.Errorf("without an anchor a cut end cannot be told: %v", err)
		}
		from := rapid.IntRange(0, 5).Draw(t, "from")
		part := audit.Chain{Part: true}
		if err := verify(&part, log[from:]); err != nil || part.Rows() != int64(6-from) || part.Head().Seq != 6 {
			t.Errorf("a part: %v, %d rows", err, part.Rows())
		}
		if err := verify(&audit.Chain{}, log[from:]); (err == nil) != (from == 0) {
			t.Errorf("from row %d on: %v", from+1, err)
		}
	})
}

func TestAnchorsAreReadAsTheyAreWritten(t *testing.T) {
	a := audit.Anchor{Hash: audit.Entry{Seq: 7}.Sum(), Seq: 7}
	if got, err := audit.ParseAnchor(a.String()); err != nil || got != a {
		t.Errorf("%v, %v", got, err)
	}
	good := a.Hash.String()
	for _, s := range []string{"", "@", good, good + "@", good + "@0", good + "@-1", good + "@x", good[1:] + "@7", good + "0@7", strings.Repeat("g", 64) + "@7", "7@" + good} {
		if a, err := audit.ParseAnchor(s); err == nil {
			t.Errorf("%q is read as %v", s, a)
		}
	}
}

func TestTextsAreFitForTheLog(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "as it is": "as it is", "a\x00b\nc\u202ed": "a b c d", "\xff\xfe": " ", "übergabe": "übergabe", strings.Repeat("ä", 20): strings.Repeat("ä", 10),
	} {
		if got := audit.Text(in, 21); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
	for got, want := range map[string]string{
		audit.Payment(42): "payment:42", audit.Letter(7): "dead_letter:7", audit.Breaker("acme", ""): "breaker:acme", audit.Breaker("acme", "eu"): "breaker:acme/eu",
	} {
		if got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	line, err := audit.Entry{Seq: 1, At: time.Unix(1, 0)}.Line()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"seq":1e999}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := audit.ParseLine(b)
		if err != nil {
			return
		}
		again, err := e.Line()
		if err != nil { // a time that JSON does not have
			return
		}
		if got, err := audit.ParseLine(again); err != nil || got.Sum() != e.Sum() {
			t.Errorf("%v: %s became %s", err, b, again)
		}
	})
}

func ExampleChain() {
	first := audit.Entry{Seq: 1, Actor: "ada", Action: "payment.hold", Target: audit.Payment(42)}
	first.Hash = first.Sum()
	second := audit.Entry{Seq: 2, Actor: "ada", Action: "payment.force", Target: audit.Payment(42), Previous: first.Hash}
	second.Hash = second.Sum()
	second.Target = audit.Payment(43) // somebody wanted it to be another one

	var chain audit.Chain
	fmt.Println(chain.Next(first))
	fmt.Println(chain.Next(second))
	// Output:
	// <nil>
	// row 2: it was changed: its hash is not that of its columns
}
