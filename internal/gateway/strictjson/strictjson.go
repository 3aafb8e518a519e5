// Package strictjson reads a JSON document that decides over money. It is RFC 8259 without what two readers could understand
// differently: keys twice in an object, bad UTF-8, lone surrogates, NUL, bytes after the document, numbers that do not fit. Keys
// are compared byte for byte. Numbers stay text: nothing passes through a floating-point number.
package strictjson

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"iter"
	"strconv"
	"unicode/utf8"
)

// The limits of a document.
const (
	MaxBytes    = 64 << 20 // the document
	MaxDepth    = 64       // arrays and objects inside each other
	MaxNumber   = 128      // bytes of a number
	MaxExponent = 307      // a number that is not zero is at least 10^-307 and less than 10^308
)

// Reason says why a document was refused.
type Reason uint8

// The reasons.
const (
	Syntax    Reason = iota // it is not JSON
	Cut                     // it ends too early
	Trailing                // something comes after it
	Duplicate               // an object has a key twice
	Encoding                // it is not UTF-8
	Surrogate               // a \u escape is half of a surrogate pair
	NUL                     // a \u0000, which databases refuse
	Depth                   // deeper than MaxDepth
	Range                   // a number that is longer or larger than the limits
	Size                    // larger than MaxBytes
)

var reasonTexts = [...]string{
	Syntax: "not JSON", Cut: "ends too early", Trailing: "something comes after the document", Duplicate: "a key twice in one object",
	Encoding: "not UTF-8", Surrogate: "half of a surrogate pair", NUL: "a NUL character", Depth: "too deep", Range: "a number out of range",
	Size: "too large",
}

// String returns the reason in words.
func (r Reason) String() string {
	if int(r) < len(reasonTexts) {
		return reasonTexts[r]
	}
	return reasonTexts[Syntax]
}

// Error says where a document was refused and why. It never repeats any of the document.
type Error struct {
	Offset int // in bytes, from the start of the document; for Duplicate, where the object begins
	Reason Reason
}

// Error returns the reason and the offset.
func (e *Error) Error() string { return fmt.Sprintf("%s (byte %d)", e.Reason, e.Offset) }

// Kind is the kind of a value.
type Kind uint8

// The kinds of a value. The zero value is of no kind: what is not there.
const (
	Absent Kind = iota
	Null
	False
	True
	Number
	String
	Array
	Object
)

// node is a value. The children of an array or object follow it, keys before their values.
type node struct {
	start, end uint32 // the text of a scalar, in the source or among the unescaped strings
	next       uint32 // the node after this one and all that is in it
	kind       Kind
	unescaped  bool
}

// Document is a document that was read. The zero value is empty and ready for Parse. Parsing again reuses its memory, and makes
// all values of the last document invalid. Reading is safe for concurrent use, parsing is not.
type Document struct {
	src     []byte
	nodes   []node
	strings []byte // strings and keys with escapes, unescaped
	keys    []uint32
	table   []uint32
}

var seed = maphash.MakeSeed()

// Parse reads src, which must not be changed while values of the document are in use. Its error is an *Error, and then the
// document is empty.
func (d *Document) Parse(src []byte) error {
	d.src, d.nodes, d.strings = src, d.nodes[:0], d.strings[:0]
	if err := d.parse(); err != nil {
		d.nodes = d.nodes[:0]
		return err
	}
	return nil
}

func (d *Document) parse() error {
	if len(d.src) > MaxBytes {
		return &Error{MaxBytes, Size}
	}
	i, err := d.value(d.blanks(0), 0)
	if err == nil {
		if i = d.blanks(i); i < len(d.src) {
			err = &Error{i, Trailing}
		}
	}
	// One bad byte makes all of it doubtful, whatever else is wrong.
	if !utf8.Valid(d.src) {
		err = &Error{firstInvalid(d.src), Encoding}
	}
	if err != nil { // not returned as it is: a nil *Error would be an error
		return err
	}
	return nil
}

func firstInvalid(b []byte) int {
	i := 0
	for i < len(b) {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			break
		}
		i += n
	}
	return i
}

// fail is a refusal at i; at the end of the document a syntax error is a cut.
func (d *Document) fail(i int, r Reason) (int, *Error) {
	if r == Syntax && i >= len(d.src) {
		r = Cut
	}
	return i, &Error{i, r}
}

func (d *Document) blanks(i int) int {
	for i < len(d.src) && (d.src[i] == ' ' || d.src[i] == '\n' || d.src[i] == '\r' || d.src[i] == '\t') {
		i++
	}
	return i
}

// add appends a scalar.
func (d *Document) add(k Kind, start, end int) {
	d.nodes = append(d.nodes, node{start: uint32(start), end: uint32(end), next: uint32(len(d.nodes) + 1), kind: k})
}

// value reads the value that begins at i and returns where it ends. Depth is how many arrays and objects it is in.
func (d *Document) value(i, depth int) (int, *Error) {
	if i >= len(d.src) {
		return d.fail(i, Syntax)
	}
	switch c := d.src[i]; {
	case c == '"':
		return d.text(i)
	case c == '{':
		return d.object(i, depth+1)
	case c == '[':
		return d.array(i, depth+1)
	case c == '-' || c >= '0' && c <= '9':
		return d.number(i)
	case c == 't':
		return d.word(i, "true", True)
	case c == 'f':
		return d.word(i, "false", False)
	case c == 'n':
		return d.word(i, "null", Null)
	}
	return d.fail(i, Syntax)
}

func (d *Document) word(i int, word string, k Kind) (int, *Error) {
	for n := range len(word) {
		if i+n >= len(d.src) || d.src[i+n] != word[n] {
			return d.fail(i+n, Syntax)
		}
	}
	d.add(k, i, i+len(word))
	return i + len(word), nil
}

func (d *Document) array(i, depth int) (int, *Error) {
	if depth > MaxDepth {
		return d.fail(i, Depth)
	}
	at := len(d.nodes)
	d.add(Array, i, i)
	i = d.blanks(i + 1)
	if i < len(d.src) && d.src[i] == ']' {
		return i + 1, nil
	}
	for {
		var err *Error
		if i, err = d.value(i, depth); err != nil {
			return i, err
		}
		i = d.blanks(i)
		switch {
		case i < len(d.src) && d.src[i] == ',':
			i = d.blanks(i + 1)
		case i < len(d.src) && d.src[i] == ']':
			d.nodes[at].next = uint32(len(d.nodes))
			return i + 1, nil
		default:
			return d.fail(i, Syntax)
		}
	}
}

func (d *Document) object(i, depth int) (int, *Error) {
	if depth > MaxDepth {
		return d.fail(i, Depth)
	}
	at := len(d.nodes)
	d.add(Object, i, i)
	i = d.blanks(i + 1)
	if i < len(d.src) && d.src[i] == '}' {
		return i + 1, nil
	}
	for {
		var err *Error
		if i, err = d.member(i, depth); err != nil {
			return i, err
		}
		i = d.blanks(i)
		switch {
		case i < len(d.src) && d.src[i] == ',':
			i = d.blanks(i + 1)
		case i < len(d.src) && d.src[i] == '}':
			d.nodes[at].next = uint32(len(d.nodes))
			if d.twice(at) {
				return d.fail(int(d.nodes[at].start), Duplicate)
			}
			return i + 1, nil
		default:
			return d.fail(i, Syntax)
		}
	}
}

func (d *Document) member(i, depth int) (int, *Error) {
	if i >= len(d.src) || d.src[i] != '"' {
		return d.fail(i, Syntax)
	}
	i, err := d.text(i)
	if err != nil {
		return i, err
	}
	i = d.blanks(i)
	if i >= len(d.src) || d.src[i] != ':' {
		return d.fail(i, Syntax)
	}
	return d.value(d.blanks(i+1), depth)
}

// twice reports whether an object has a key twice. Few keys are compared with each other, many go through a hash table with a seed
// of this process: a hostile document costs no more than another one.
func (d *Document) twice(object int) bool {
	d.keys = d.keys[:0]
	for k := uint32(object) + 1; k < d.nodes[object].next; k = d.nodes[k+1].next {
		d.keys = append(d.keys, k)
	}
	if len(d.keys) <= 8 {
		for i, k := range d.keys {
			for _, o := range d.keys[:i] {
				if bytes.Equal(d.bytes(k), d.bytes(o)) {
					return true
				}
			}
		}
		return false
	}
	size := 16
	for size < 2*len(d.keys) {
		size *= 2
	}
	if cap(d.table) < size {
		d.table = make([]uint32, size)
	}
	d.table = d.table[:size]
	clear(d.table)
	for _, k := range d.keys {
		slot := maphash.Bytes(seed, d.bytes(k)) & uint64(size-1)
		for d.table[slot] != 0 { // node 0 is the root, never a key
			if bytes.Equal(d.bytes(k), d.bytes(d.table[slot])) {
				return true
			}
			slot = (slot + 1) & uint64(size-1)
		}
		d.table[slot] = k
	}
	return false
}

// bytes is the text of a scalar.
func (d *Document) bytes(n uint32) []byte {
	x := &d.nodes[n]
	if x.unescaped {
		return d.strings[x.start:x.end]
	}
	return d.src[x.start:x.end]
}

// plain are the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return t
}()

// text reads the string or key whose quote is at i.
func (d *Document) text(i int) (int, *Error) {
	start := i + 1
	i = start
	for i < len(d.src) && plain[d.src[i]] {
		i++
	}
	if i < len(d.src) && d.src[i] == '"' {
		d.add(String, start, i)
		return i + 1, nil
	}
	from := len(d.strings)
	d.strings = append(d.strings, d.src[start:i]...)
	for i < len(d.src) {
		switch c := d.src[i]; {
		case c == '"':
			d.add(String, from, len(d.strings))
			d.nodes[len(d.nodes)-1].unescaped = true
			return i + 1, nil
		case c == '\\':
			var err *Error
			if i, err = d.escape(i); err != nil {
				return i, err
			}
		case c < 0x20:
			return d.fail(i, Syntax)
		default:
			d.strings = append(d.strings, c)
			i++
		}
	}
	return d.fail(i, Syntax)
}

// escape reads the escape at i and appends what it stands for.
func (d *Document) escape(i int) (int, *Error) {
	if i+1 >= len(d.src) {
		return d.fail(i+1, Syntax)
	}
	c := d.src[i+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return d.unicode(i)
	default:
		return d.fail(i+1, Syntax)
	}
	d.strings = append(d.strings, c)
	return i + 2, nil
}

// unicode reads the \u escape, or the pair of them, at i.
func (d *Document) unicode(i int) (int, *Error) {
	r, bad := d.hex(i + 2)
	if bad >= 0 {
		return d.fail(bad, Syntax)
	}
	end := i + 6
	switch {
	case r == 0:
		return d.fail(i, NUL)
	case r >= 0xDC00 && r < 0xE000:
		return d.fail(i, Surrogate)
	case r >= 0xD800 && r < 0xDC00:
		if end < len(d.src) && d.src[end] != '\\' || end+1 < len(d.src) && d.src[end+1] != 'u' {
			return d.fail(i, Surrogate)
		}
		low, bad := d.hex(end + 2)
		if bad >= 0 {
			return d.fail(bad, Syntax)
		}
		if low < 0xDC00 || low >= 0xE000 {
			return d.fail(i, Surrogate)
		}
		r = 0x10000 + (r-0xD800)<<10 + (low - 0xDC00)
		end += 6
	}
	d.strings = utf8.AppendRune(d.strings, r)
	return end, nil
}

// hex reads four hexadecimal digits at i, or says where one is missing.
func (d *Document) hex(i int) (r rune, bad int) {
	for n := i; n < i+4; n++ {
		if n >= len(d.src) {
			return 0, len(d.src)
		}
		c := d.src[n]
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, n
		}
	}
	return r, -1
}

// number reads the number at i and checks that it is within the limits.
func (d *Document) number(i int) (int, *Error) {
	start := i
	if d.src[i] == '-' {
		i++
	}
	whole := i
	switch {
	case i < len(d.src) && d.src[i] == '0':
		i++
	default:
		if i = d.digits(i); i == whole {
			return d.fail(i, Syntax)
		}
	}
	point := i
	if i < len(d.src) && d.src[i] == '.' {
		if i = d.digits(i + 1); i == point+1 {
			return d.fail(i, Syntax)
		}
	}
	mantissa, exponent := d.src[whole:i], 0
	if i < len(d.src) && d.src[i]|0x20 == 'e' {
		i++
		sign := i
		if i < len(d.src) && (d.src[i] == '+' || d.src[i] == '-') {
			i++
		}
		first := i
		if i = d.digits(i); i == first {
			return d.fail(i, Syntax)
		}
		exponent = smallInt(d.src[first:i])
		if d.src[sign] == '-' {
			exponent = -exponent
		}
	}
	if i-start > MaxNumber || !inRange(mantissa, point-whole, exponent) {
		return d.fail(start, Range)
	}
	d.add(Number, start, i)
	return i, nil
}

func (d *Document) digits(i int) int {
	for i < len(d.src) && d.src[i] >= '0' && d.src[i] <= '9' {
		i++
	}
	return i
}

// smallInt is the value of digits, or something far beyond every limit.
func smallInt(digits []byte) int {
	n := 0
	for _, c := range digits {
		if n = n*10 + int(c-'0'); n > 1<<20 {
			return 1 << 20
		}
	}
	return n
}

// inRange reports whether mantissa·10^exponent is zero or of a size within the limits. Its first point bytes are the whole part.
func inRange(mantissa []byte, point, exponent int) bool {
	for n, c := range mantissa {
		if c == '0' || c == '.' {
			continue
		}
		size := exponent + point - 1 - n // the power of ten of the first digit that is not zero
		if n > point {
			size++
		}
		return size >= -MaxExponent && size <= MaxExponent
	}
	return exponent >= -MaxExponent && exponent <= MaxExponent
}

// Root returns the whole document: Absent before the first Parse and after one that failed.
func (d *Document) Root() Value {
	if len(d.nodes) == 0 {
		return Value{}
	}
	return Value{d: d}
}

// Value is a value in a document. The zero value is Absent. It is valid until the document is parsed again.
type Value struct {
	d *Document
	n uint32
}

// Kind returns the kind of the value.
func (v Value) Kind() Kind {
	if v.d == nil {
		return Absent
	}
	return v.d.nodes[v.n].kind
}

// Exists reports whether there is a value that is not null.
func (v Value) Exists() bool { return v.Kind() > Null }

// Bytes returns the text of a scalar: the contents of a string, the digits of a number as they stand, true, false or null. It
// must not be changed. It is nil for arrays, objects and what is absent.
func (v Value) Bytes() []byte {
	switch v.Kind() {
	case Absent, Array, Object:
		return nil
	}
	return v.d.bytes(v.n)
}

// Text returns a copy of Bytes.
func (v Value) Text() string { return string(v.Bytes()) }

// Scalar reports whether the value is a string, a number or a boolean.
func (v Value) Scalar() bool { return v.Exists() && v.Kind() < Array }

// Member returns the value of an object's key, Absent when there is none.
func (v Value) Member(key string) Value {
	if v.Kind() != Object {
		return Value{}
	}
	nodes := v.d.nodes
	for k := v.n + 1; k < nodes[v.n].next; k = nodes[k+1].next {
		if string(v.d.bytes(k)) == key {
			return Value{v.d, k + 1}
		}
	}
	return Value{}
}

// Element returns the i-th element of an array, from 0, Absent when there is none.
func (v Value) Element(i int) Value {
	if v.Kind() != Array || i < 0 {
		return Value{}
	}
	for e := range v.Elements() {
		if i == 0 {
			return e
		}
		i--
	}
	return Value{}
}

// Elements are the elements of an array in their order; nothing for another kind.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind() != Array {
			return
		}
		for e := v.n + 1; e < v.d.nodes[v.n].next; e = v.d.nodes[e].next {
			if !yield(Value{v.d, e}) {
				return
			}
		}
	}
}

// Members are the keys and values of an object in their order; nothing for another kind.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != Object {
			return
		}
		for k := v.n + 1; k < v.d.nodes[v.n].next; k = v.d.nodes[k+1].next {
			if !yield(string(v.d.bytes(k)), Value{v.d, k + 1}) {
				return
			}
		}
	}
}

// Int64 returns a number that is written as a whole number and fits.
func (v Value) Int64() (int64, bool) {
	if v.Kind() != Number {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.Bytes()), 10, 64)
	return n, err == nil
}
