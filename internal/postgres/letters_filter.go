package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pollux/internal/deadletter"
)

// clauses gathers the clauses of a statement and its arguments. Values are arguments always, never a part of the text.
type clauses struct{ args []any }

// arg adds an argument and returns its name.
func (c *clauses) arg(v any) string {
	c.args = append(c.args, v)
	return "$" + strconv.Itoa(len(c.args))
}

// letterColumn is where a field of a filter is, in letterTables.
var letterColumn = map[string]string{
	"id": "d.id", "payment": "d.payment_id", "gateway": "d.gateway", "account": "d.account", "class": "d.class", "reason": "d.reason", "state": "d.state",
	"fingerprint": "d.fingerprint", "answer": "d.last_class", "http": "d.http_status", "age": "d.died_at", "first": "d.created_at", "amount": "d.amount_minor",
	"currency": "coalesce(d.currency, '')", "attempts": "d.attempts", "failures": "d.failures", "deferrals": "d.deferrals", "replays": "d.replays",
	"owner": "d.owner", "reference": "coalesce(p.reference, '')", "text": "d.message",
}

// searched is what text~ looks into.
const searched = `d.message || ' ' || d.gateway_status || ' ' || coalesce(p.reference, '')`

// filter returns the condition that a filter is.
func (c *clauses) filter(f deadletter.Filter) string {
	all := []string{"true"}
	for _, t := range f.Terms {
		if s := c.term(t); s != "" {
			all = append(all, s)
		}
	}
	return strings.Join(all, " and ")
}

// selection returns the condition that a selection is.
func (c *clauses) selection(s deadletter.Selection) string {
	if s.ByID() {
		return "d.id = any (" + c.arg(s.IDs) + "::bigint[])"
	}
	return c.filter(s.Filter.Opened())
}

func (c *clauses) term(t deadletter.Term) string {
	column := letterColumn[t.Field]
	switch t.Field {
	case "state":
		if t.Op == deadletter.Is && strings.Join(t.Texts, ",") == deadletter.Any {
			return ""
		}
	case "fingerprint":
		return c.prefixes(column, t)
	case "age", "first":
		return c.age(column, t)
	case "amount":
		return fmt.Sprintf("(d.currency = %s and %s)", c.arg(t.Currency), c.numbers(column, t))
	case "replay":
		return c.replay(t)
	case "owner":
		if t.Texts = slices.Clone(t.Texts); slices.Contains(t.Texts, deadletter.Nobody) {
			t.Texts[slices.Index(t.Texts, deadletter.Nobody)] = ""
		}
	}
	if t.Numbers != nil {
		return c.numbers(column, t)
	}
	return c.texts(column, t)
}

func (c *clauses) texts(column string, t deadletter.Term) string {
	if t.Field == "text" && (t.Op == deadletter.Has || t.Op == deadletter.HasNot) {
		column = searched
	}
	switch {
	case t.Op == deadletter.Has:
		return "position(lower(" + c.arg(t.Texts[0]) + "::text) in lower(" + column + ")) > 0"
	case t.Op == deadletter.HasNot:
		return "position(lower(" + c.arg(t.Texts[0]) + "::text) in lower(" + column + ")) = 0"
	case t.Op == deadletter.IsNot:
		return column + " <> all (" + c.arg(t.Texts) + "::text[])"
	case len(t.Texts) == 1: // an equality keeps the order of an index behind it
		return column + " = " + c.arg(t.Texts[0]) + "::text"
	}
	return column + " = any (" + c.arg(t.Texts) + "::text[])"
}

func (c *clauses) numbers(column string, t deadletter.Term) string {
	switch {
	case t.Op == deadletter.IsNot:
		return column + " <> all (" + c.arg(t.Numbers) + "::bigint[])"
	case t.Op == deadletter.Is && len(t.Numbers) > 1:
		return column + " = any (" + c.arg(t.Numbers) + "::bigint[])"
	}
	return column + " " + string(t.Op) + " " + c.arg(t.Numbers[0]) + "::bigint"
}

// turned are the comparisons of instants that compare their ages.
var turned = map[deadletter.Op]string{deadletter.Above: "<", deadletter.AtLeast: "<=", deadletter.Below: ">", deadletter.AtMost: ">="}

func (c *clauses) age(column string, t deadletter.Term) string {
	return column + " " + turned[t.Op] + " now() - " + c.arg(t.Numbers[0]) + "::bigint * interval '1 microsecond'"
}

// prefixes are ranges, which an index has at one place: behind all digits comes a g.
func (c *clauses) prefixes(column string, t deadletter.Term) string {
	parts := make([]string, len(t.Texts))
	for i, v := range t.Texts {
		from := c.arg(v) + "::text"
		parts[i] = fmt.Sprintf("%s >= %s and %s < %s || 'g'", column, from, column, from)
	}
	s := "(" + strings.Join(parts, " or ") + ")"
	if t.Op == deadletter.IsNot {
		return "not " + s
	}
	return s
}

// replay are the letters that are or were in a replay.
func (c *clauses) replay(t deadletter.Term) string {
	s := "exists (select from pollux.replay_items i where i.letter_id = d.id and " + c.numbers("i.replay_id", positive(t)) + ")"
	if t.Op == deadletter.IsNot {
		return "not " + s
	}
	return s
}

// positive is a term without its negation.
func positive(t deadletter.Term) deadletter.Term {
	if t.Op == deadletter.IsNot {
		t.Op = deadletter.Is
	}
	return t
}
