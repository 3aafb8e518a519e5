package adoption

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment/currency"
)

// Columns are the columns that are read. The first four are needed.
var Columns = []string{"gateway", "reference", "amount", "currency", "account", "merchant_reference", "class", "lane", "expires_at", "metadata", "traceparent"}

const needed = 4

// Unit is the unit of the amounts.
type Unit string

// The units. There is no default: 1999 is one or the other, and nothing else tells.
const (
	MinorUnits Unit = "minor" // 1999 is 19.99 EUR, 1999 JPY and 1.999 KWD
	MajorUnits Unit = "major" // 19.99 is 19.99 EUR
)

// Format says how lines are read.
type Format struct {
	Amounts Unit
	Named   map[string]string // a column of Columns by the name that it has in the source
	Fixed   map[string]string // a column of Columns that has the same value in all lines
	Ignored []string          // columns of the source that are of no use
}

// Validate returns what is wrong with the format.
func (f Format) Validate() error {
	if f.Amounts != MinorUnits && f.Amounts != MajorUnits {
		return errors.New("--amounts: minor (1999 is 19.99 EUR) or major (19.99 is 19.99 EUR); there is no default")
	}
	for _, m := range []map[string]string{f.Named, f.Fixed} {
		for column, value := range m {
			if !slices.Contains(Columns, column) {
				return fmt.Errorf("there is no column %q: %s", column, strings.Join(Columns, ", "))
			}
			if value == "" {
				return fmt.Errorf("the column %s is given nothing", column)
			}
		}
	}
	return nil
}

// parser reads lines of one source.
type parser struct {
	unit  Unit
	at    map[string]int // of each column in a line
	names map[string]string
	fixed map[string]string
	count int
}

func newParser(header []string, f Format) (*parser, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	p := &parser{unit: f.Amounts, at: map[string]int{}, names: map[string]string{}, fixed: f.Fixed, count: len(header)}
	used := map[string]bool{}
	for _, column := range Columns {
		name := column
		if theirs, ok := f.Named[column]; ok {
			name = theirs
		}
		p.names[column] = name
		at := slices.Index(header, name)
		_, fixed := f.Fixed[column]
		switch {
		case fixed && at >= 0:
			return nil, fmt.Errorf("the column %s is in the source and has a value for all lines: one of them", name)
		case fixed:
			continue
		case at < 0 && (f.Named[column] != "" || slices.Index(Columns, column) < needed):
			return nil, fmt.Errorf("there is no column %s in the source, which has %s; name it with --column %s=THEIRS, or give it a value for all lines with --value %s=…", name, strings.Join(header, ", "), column, column)
		case at >= 0:
			p.at[column], used[name] = at, true
		}
	}
	return p, headerFault(header, used, f.Ignored)
}

// headerFault refuses columns of a source that nobody asked for: one that is misspelled would be taken for one that is not there.
func headerFault(header []string, used map[string]bool, ignored []string) error {
	for i, name := range header {
		if slices.Contains(header[:i], name) {
			return fmt.Errorf("the column %q is in the source twice", name)
		}
		if !used[name] && !slices.Contains(ignored, name) {
			return fmt.Errorf("the column %q is none of ours: %s; name it with --column OURS=%s, or leave it out with --ignore %s", name, strings.Join(Columns, ", "), name, name)
		}
	}
	return nil
}

// parse reads a line. What depends on nothing but the text is checked here, the rest by the database.
func (p *parser) parse(line int64, fields []string) (Row, []Problem) {
	if len(fields) != p.count {
		return Row{}, []Problem{{Line: line, Why: fmt.Sprintf("%d fields, the header has %d", len(fields), p.count)}}
	}
	var problems []Problem
	bad := func(column, format string, a ...any) {
		problems = append(problems, Problem{Line: line, Column: p.names[column], Why: fmt.Sprintf(format, a...)})
	}
	value := func(column string) string {
		s, ok := p.fixed[column]
		if i, there := p.at[column]; there && !ok {
			s = fields[i]
		}
		switch {
		case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
			bad(column, "not UTF-8 text without NUL")
			return ""
		case s == "" && slices.Index(Columns, column) < needed:
			bad(column, "it is needed and empty")
		}
		return s
	}
	row := Row{Line: line, Gateway: value("gateway"), Reference: value("reference"), Currency: value("currency"), Account: value("account"),
		MerchantReference: value("merchant_reference"), Class: value("class"), Lane: value("lane"), TraceParent: value("traceparent")}
	var err error
	if text := value("amount"); text != "" && row.Currency != "" {
		if row.AmountMinor, err = p.amount(text, row.Currency); err != nil {
			bad("amount", "%.60q: %v", text, err)
		}
	}
	if text := value("expires_at"); text != "" {
		if row.ExpiresAt, err = instant(text); err != nil {
			bad("expires_at", "%.60q: %v", text, err)
		}
	}
	if text := value("metadata"); text != "" {
		if row.Metadata = text; objectFault(text) != "" {
			bad("metadata", "%s", objectFault(text))
		}
	}
	return row, problems
}

func (p *parser) amount(text, code string) (int64, error) {
	if p.unit == MinorUnits {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || text[0] == '+' {
			return 0, errors.New("not a whole number of minor units")
		}
		return n, nil
	}
	exponent, ok := currency.Exponent(code)
	if !ok {
		return 0, fmt.Errorf("%.10q is no currency of ISO 4217, so its decimals are not known; give amounts in minor units", code)
	}
	return currency.Minor(text, exponent)
}

// layouts are how instants are read: RFC 3339, and as PostgreSQL writes them. All have a zone.
var layouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999Z07:00"}

func instant(text string) (*time.Time, error) {
	for _, layout := range layouts {
		if t, err := time.Parse(layout, text); err == nil {
			return &t, nil
		}
	}
	return nil, errors.New("write an instant with its zone, such as 2026-11-30T12:00:00Z")
}

// objectFault says why a text is no JSON object that the database takes; empty when it is one. What jsonb refuses by itself ends a whole page without a word about the line.
func objectFault(text string) string {
	var d strictjson.Document
	var bad *strictjson.Error
	switch err := d.Parse([]byte(text)); {
	case errors.As(err, &bad) && bad.Reason != strictjson.Syntax:
		return "not a JSON object: " + bad.Error()
	case err != nil || d.Root().Kind() != strictjson.Object:
		return "not a JSON object"
	}
	return ""
}

const byteOrderMark = "\ufeff"

// CSV reads lines of comma-separated values (RFC 4180) whose first line is the header. A byte order mark before it is taken off.
type CSV struct{ r *csv.Reader }

// NewCSV returns the lines of r, whose fields are separated by comma.
func NewCSV(r io.Reader, comma rune) *CSV {
	b := bufio.NewReader(r)
	if mark, err := b.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		_, _ = b.Discard(len(mark)) // before the reader: a quote after it would be within a field
	}
	c := csv.NewReader(b)
	c.Comma = comma
	c.FieldsPerRecord = -1 // the parser says which line has too many
	return &CSV{c}
}

// Header implements Source.
func (c *CSV) Header() ([]string, error) {
	header, err := c.r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the source is empty: its first line names the columns")
	case err != nil:
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	return header, nil
}

// Next implements Source.
func (c *CSV) Next() (int64, []string, error) {
	fields, err := c.r.Read()
	var parse *csv.ParseError
	switch {
	case errors.As(err, &parse):
		return 0, nil, &LineError{Line: int64(parse.StartLine), Why: fmt.Sprintf("column %d: %v", parse.Column, parse.Err)}
	case errors.Is(err, io.EOF):
		return 0, nil, io.EOF
	case err != nil:
		return 0, nil, fmt.Errorf("reading the source: %w", err)
	}
	line, _ := c.r.FieldPos(0)
	return int64(line), fields, nil
}
