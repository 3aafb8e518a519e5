package deadletter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment/currency"
	"pollux/internal/redelivery"
)

// Filter chooses letters: all of its terms hold. The zero value chooses what is open. Its grammar is in docs/deadletters.md.
type Filter struct{ Terms []Term }

// Term is one condition on a letter.
type Term struct {
	Field    string
	Op       Op
	Texts    []string // of texts; of a fingerprint its beginning
	Numbers  []int64  // of numbers; of an age microseconds, of an amount minor units of Currency
	Currency string   // of an amount

	at      int      // where the term begins, counted in characters from 1; 0 for one that was not parsed
	written []string // the values as they were written
}

// Op is how a term compares.
type Op string

// The operators.
const (
	Is      Op = "="  // equals one of the values
	IsNot   Op = "!=" // equals none of the values
	Has     Op = "~"  // contains the text, in capitals or not
	HasNot  Op = "!~"
	Above   Op = ">"
	AtLeast Op = ">="
	Below   Op = "<"
	AtMost  Op = "<="
)

// operators in the order in which they are looked for: no one stands before a longer one that it begins.
var operators = []Op{IsNot, HasNot, AtLeast, AtMost, Is, Has, Above, Below}

// Nobody is the owner of a letter that has none, and Any the state of every letter.
const (
	Nobody = "none"
	Any    = "any"
)

// sort is what the values of a field are.
type sort uint8

const (
	token  sort = iota // a name as in subjects
	word               // one of a few words
	text               // any text
	number             // a whole number
	age                // a duration that has passed
	amount             // money
	print              // the beginning of a fingerprint
)

// field is something that a filter can ask about.
type field struct {
	sort  sort
	words []string // of a word; nil for currencies
}

// fields are all that a filter can ask about.
var fields = map[string]field{
	"id":          {sort: number},
	"payment":     {sort: number},
	"gateway":     {sort: token},
	"account":     {sort: text},
	"class":       {sort: token},
	"reason":      {sort: word, words: reasons()},
	"state":       {sort: word, words: append(slices.Clone(States), Any)},
	"fingerprint": {sort: print},
	"answer":      {sort: word, words: classes()},
	"http":        {sort: number},
	"age":         {sort: age},
	"first":       {sort: age},
	"amount":      {sort: amount},
	"currency":    {sort: word},
	"attempts":    {sort: number},
	"failures":    {sort: number},
	"deferrals":   {sort: number},
	"replays":     {sort: number},
	"owner":       {sort: text},
	"reference":   {sort: text},
	"text":        {sort: text},
	"replay":      {sort: number},
}

// Fields are the names of all fields, in order.
func Fields() []string {
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func reasons() []string {
	all := make([]string, len(redelivery.Reasons))
	for i, r := range redelivery.Reasons {
		all[i] = string(r)
	}
	return all
}

func classes() []string {
	all := make([]string, len(gateway.Classes))
	for i, c := range gateway.Classes {
		all[i] = c.String()
	}
	return all
}

// ops are the operators that a field takes.
func (f field) ops() []Op {
	switch f.sort {
	case token, word:
		return []Op{Is, IsNot}
	case print:
		return []Op{Is, IsNot}
	case text:
		return []Op{Is, IsNot, Has, HasNot}
	case age:
		return []Op{Above, AtLeast, Below, AtMost}
	}
	return []Op{Is, IsNot, Above, AtLeast, Below, AtMost}
}

// SyntaxError says what is wrong with a filter, and where.
type SyntaxError struct {
	At   int // characters from 1
	What string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("at character %d: %s", e.At, e.What) }

func wrong(at int, format string, a ...any) error { return &SyntaxError{at, fmt.Sprintf(format, a...)} }

// MaxFilter is the longest filter, in characters.
const MaxFilter = 4096

// Parse reads a filter such as
//
//	gateway=stripe reason=window,attempts age>2h amount>=100.00 currency=EUR fingerprint=ab12 text~timeout owner=none
//
// The error is a *SyntaxError. An empty text is the filter that chooses what is open.
func Parse(s string) (Filter, error) {
	p := &parser{rest: []rune(s), at: 1}
	if len(p.rest) > MaxFilter {
		return Filter{}, wrong(1, "a filter has at most %d characters", MaxFilter)
	}
	var f Filter
	for p.blanks(); len(p.rest) > 0; p.blanks() {
		t, err := p.term()
		if err != nil {
			return Filter{}, err
		}
		f.Terms = append(f.Terms, t)
	}
	return f, f.resolve()
}

// And returns the filter with one condition more, as Parse would read field=value: for flags that are short for a term.
func (f Filter) And(name string, op Op, values ...string) (Filter, error) {
	f.Terms = append(slices.Clone(f.Terms), Term{Field: name, Op: op, written: values})
	return f, f.resolve()
}

// parser reads a filter from the left.
type parser struct {
	rest []rune
	at   int
}

func (p *parser) take(n int) string {
	s := string(p.rest[:n])
	p.rest, p.at = p.rest[n:], p.at+n
	return s
}

func (p *parser) while(ok func(rune) bool) string {
	n := 0
	for n < len(p.rest) && ok(p.rest[n]) {
		n++
	}
	return p.take(n)
}

func (p *parser) blanks() { p.while(unicode.IsSpace) }

func (p *parser) term() (Term, error) {
	t := Term{at: p.at}
	t.Field = p.while(func(r rune) bool { return r >= 'a' && r <= 'z' || r == '_' })
	if t.Field == "" {
		return t, wrong(p.at, "a term begins with the name of a field, as in gateway=acme; the fields are %s", strings.Join(Fields(), ", "))
	}
	if _, known := fields[t.Field]; !known {
		return t, wrong(t.at, "there is no field %s%s; the fields are %s", t.Field, meant(t.Field), strings.Join(Fields(), ", "))
	}
	for _, op := range operators {
		if strings.HasPrefix(string(p.rest[:min(len(p.rest), 2)]), string(op)) {
			t.Op = op
			p.take(len(op))
			break
		}
	}
	if t.Op == "" {
		return t, wrong(p.at, "an operator follows %s: one of %s", t.Field, list(fields[t.Field].ops()))
	}
	for {
		v, err := p.value(t)
		if err != nil {
			return t, err
		}
		t.written = append(t.written, v)
		if len(p.rest) == 0 || p.rest[0] != ',' {
			break
		}
		p.take(1)
	}
	if len(p.rest) > 0 && !unicode.IsSpace(p.rest[0]) {
		return t, wrong(p.at, "a blank separates terms")
	}
	return t, nil
}

// value is a word, or a text in double quotes in which \" and \\ stand for a quote and a backslash.
func (p *parser) value(t Term) (string, error) {
	at := p.at
	if len(p.rest) == 0 || p.rest[0] != '"' {
		v := p.while(func(r rune) bool { return !unicode.IsSpace(r) && r != ',' && r != '"' })
		if v == "" {
			return "", wrong(at, "%s%s has no value; leave the term out to choose all", t.Field, t.Op)
		}
		return v, nil
	}
	p.take(1)
	var b strings.Builder
	for len(p.rest) > 0 {
		switch r := p.take(1); {
		case r == `"` && b.Len() == 0:
			return "", wrong(at, "%s%s has no value; leave the term out to choose all", t.Field, t.Op)
		case r == `"`:
			return b.String(), nil
		case r == `\` && len(p.rest) > 0:
			b.WriteString(p.take(1))
		default:
			b.WriteString(r)
		}
	}
	return "", wrong(at, "the quote is not closed")
}

// meant is the field that somebody may have meant.
func meant(name string) string {
	for _, f := range Fields() {
		if strings.HasPrefix(f, name) || strings.HasPrefix(name, f) || near(f, name) {
			return "; did you mean " + f + "?"
		}
	}
	return ""
}

// near reports whether two words differ by one letter, or by two that changed places.
func near(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch len(b) - len(a) {
	case 1:
		return a[i:] == b[i+1:]
	case 0:
		return a[min(i+1, len(a)):] == b[min(i+1, len(b)):] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
	}
	return false
}

func list(ops []Op) string {
	words := make([]string, len(ops))
	for i, o := range ops {
		words[i] = string(o)
	}
	return strings.Join(words, " ")
}

// resolve reads the values of all terms.
func (f Filter) resolve() error {
	for i := range f.Terms {
		if err := f.Terms[i].resolve(f); err != nil {
			return err
		}
	}
	return nil
}

func (t *Term) resolve(f Filter) error {
	kind := fields[t.Field]
	if !slices.Contains(kind.ops(), t.Op) {
		return wrong(t.at, "%s takes %s, not %s", t.Field, list(kind.ops()), t.Op)
	}
	if len(t.written) > 1 && t.Op != Is && t.Op != IsNot {
		return wrong(t.at, "%s%s takes one value; lists are for = and !=", t.Field, t.Op)
	}
	t.Texts, t.Numbers = nil, nil
	for _, v := range t.written {
		if err := t.read(kind, v, f); err != nil {
			return err
		}
	}
	return nil
}

func (t *Term) read(kind field, v string, f Filter) error {
	switch kind.sort {
	case token:
		if !message.ValidToken(v) {
			return wrong(t.at, "%s %q: 1 to 64 of a-z, 0-9, _ and -", t.Field, v)
		}
	case word:
		if !kind.knows(v) {
			return wrong(t.at, "%s %q: one of %s", t.Field, v, kind.all())
		}
	case print:
		v = strings.ToLower(v)
		if len(v) < 4 || len(v) > 12 || strings.Trim(v, "0123456789abcdef") != "" {
			return wrong(t.at, "fingerprint %q: 4 to 12 of 0-9 and a-f, as pollux dlq groups prints them", v)
		}
	case number:
		return t.count(v)
	case age:
		return t.past(v)
	case amount:
		return t.money(v, f)
	}
	if strings.ContainsRune(v, 0) {
		return wrong(t.at, "%s: no text has a zero byte", t.Field)
	}
	t.Texts = append(t.Texts, v)
	return nil
}

// knows reports whether a word may be given; of currencies all that there are.
func (f field) knows(v string) bool {
	if f.words != nil {
		return slices.Contains(f.words, v)
	}
	_, known := currency.Exponent(v)
	return known
}

func (f field) all() string {
	if f.words == nil {
		return "the codes of ISO 4217, such as EUR"
	}
	return strings.Join(f.words, ", ")
}

func (t *Term) count(v string) error {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return wrong(t.at, "%s %q: a whole number from 0 on", t.Field, v)
	}
	t.Numbers = append(t.Numbers, n)
	return nil
}

func (t *Term) past(v string) error {
	d, err := ParseAge(v)
	if err != nil {
		return wrong(t.at, "%s %q: %v", t.Field, v, err)
	}
	t.Numbers = append(t.Numbers, d.Microseconds())
	return nil
}

// money reads 100.00 where the filter names the one currency that it is in, or 100.00EUR by itself.
func (t *Term) money(v string, f Filter) error {
	digits := strings.TrimRightFunc(v, func(r rune) bool { return r >= 'A' && r <= 'Z' })
	code := v[len(digits):]
	if code == "" {
		code = f.currency()
	}
	if code == "" {
		return wrong(t.at, "amount %q: in which currency? write amount%s%sEUR, or add currency=EUR", v, t.Op, v)
	}
	exponent, known := currency.Exponent(code)
	if !known {
		return wrong(t.at, "amount %q: %s is no currency of ISO 4217", v, code)
	}
	n, err := currency.Minor(digits, exponent)
	if err != nil {
		return wrong(t.at, "amount %q: %v", v, err)
	}
	if t.Currency != "" && t.Currency != code && len(t.Numbers) > 0 {
		return wrong(t.at, "amount: one currency in a term")
	}
	t.Currency, t.Numbers = code, append(t.Numbers, n)
	return nil
}

// currency is the one currency that the filter asks for.
func (f Filter) currency() string {
	code := ""
	for _, t := range f.Terms {
		if t.Field == "currency" && t.Op == Is && len(t.written) == 1 {
			code = t.written[0]
		}
	}
	return code
}

// ParseAge reads a duration with days in front: 30d, 1d12h, 90m.
func ParseAge(s string) (time.Duration, error) {
	const day = 24 * time.Hour
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "0", s
	}
	n, err := strconv.ParseUint(days, 10, 16)
	var d time.Duration
	if err == nil && (rest != "" || !found) {
		d, err = time.ParseDuration(rest)
	}
	if err != nil || d < 0 || d > redelivery.MaxDelay*100 {
		return 0, fmt.Errorf("a duration such as 90m, 2h or 30d")
	}
	return time.Duration(n)*day + d, nil
}

// Has reports whether the filter says something about a field.
func (f Filter) Has(name string) bool {
	return slices.ContainsFunc(f.Terms, func(t Term) bool { return t.Field == name })
}

// Opened returns the filter with what it means when it says nothing about the state: what is open.
func (f Filter) Opened() Filter {
	if f.Has("state") {
		return f
	}
	f.Terms = append(slices.Clone(f.Terms), Term{Field: "state", Op: Is, Texts: []string{Open}, written: []string{Open}})
	return f
}

// String is the filter as Parse reads it, the same for the same terms.
func (f Filter) String() string {
	words := make([]string, len(f.Terms))
	for i, t := range f.Terms {
		values := make([]string, len(t.written))
		for j, v := range t.written {
			values[j] = quoted(v)
		}
		words[i] = t.Field + string(t.Op) + strings.Join(values, ",")
	}
	return strings.Join(words, " ")
}

func quoted(v string) string {
	if v != "" && strings.IndexFunc(v, func(r rune) bool { return unicode.IsSpace(r) || r == ',' || r == '"' }) < 0 {
		return v
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
}
