package doctor

import (
	"fmt"
	"strings"
	"time"
)

// psql is how statements are run one after the other, each in a transaction of its own. They have no quotation marks ".
func psql(statements ...string) string {
	return `psql -c "` + strings.Join(statements, `" -c "`) + `"`
}

// together is psql, with all statements in one transaction.
func together(statements ...string) string {
	return strings.Replace(psql(statements...), "psql", "psql -1", 1)
}

// changeServer sets a setting of the whole server.
func changeServer(name, value string) string {
	return psql("alter system set "+name+" = "+value, "select pg_reload_conf()")
}

// oneLine is an error in one line of a table.
func oneLine(err error) string {
	words := strings.Join(strings.Fields(err.Error()), " ")
	const longest = 300
	if r := []rune(words); len(r) > longest {
		return string(r[:longest-1]) + "…"
	}
	return words
}

// long is a time as people say it, in its two largest units.
func long(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return whole(d.Round(time.Second))
	case d < 48*time.Hour:
		return whole(d.Round(time.Minute))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// whole is a time without units that are nothing at its end: 2m and not 2m0s, but 1m30s.
func whole(d time.Duration) string {
	s := d.String()
	if t := strings.TrimSuffix(s, "m0s"); t != s {
		s = t + "m"
	}
	if t := strings.TrimSuffix(s, "h0m"); t != s {
		s = t + "h"
	}
	return s
}

// size is a number of bytes as people say it.
func size(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d B", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}

// counted is a number with its noun.
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// orNothing is a text that may be missing.
func orNothing(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
