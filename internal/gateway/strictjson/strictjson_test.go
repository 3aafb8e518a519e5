package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pollux/internal/gateway/strictjson"
)

func TestParseRefuses(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	many := func(last string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range 1000 {
			fmt.Fprintf(&b, `"key%d":%d,`, i, i)
		}
		return b.String() + `"` + last + `":0}`
	}
	for _, c := range []struct {
		doc    string
		reason strictjson.Reason
		offset int
	}{
		{``, strictjson.Cut, 0}, {`  `, strictjson.Cut, 2}, {`{`, strictjson.Cut, 1}, {`{"a"`, strictjson.Cut, 4}, {`{"a":`, strictjson.Cut, 5},
		{`{"a":1`, strictjson.Cut, 6}, {`{"a":1,`, strictjson.Cut, 7}, {`[1`, strictjson.Cut, 2}, {`"a`, strictjson.Cut, 2}, {`"a\`, strictjson.Cut, 3},
		{`"\u12`, strictjson.Cut, 5}, {`tru`, strictjson.Cut, 3}, {`-`, strictjson.Cut, 1}, {`1.`, strictjson.Cut, 2}, {`1e`, strictjson.Cut, 2},
		{`"\ud83d\u`, strictjson.Cut, 9},

		{`{a:1}`, strictjson.Syntax, 1}, {`{'a':1}`, strictjson.Syntax, 1}, {`{"a" 1}`, strictjson.Syntax, 5}, {`{"a":1,}`, strictjson.Syntax, 7},
		{`[1,]`, strictjson.Syntax, 3}, {`[1 2]`, strictjson.Syntax, 3}, {`trux`, strictjson.Syntax, 3}, {`True`, strictjson.Syntax, 0}, {`NaN`, strictjson.Syntax, 0},
		{`-x`, strictjson.Syntax, 1}, {`.5`, strictjson.Syntax, 0}, {`1.x`, strictjson.Syntax, 2}, {`1ex`, strictjson.Syntax, 2}, {`+1`, strictjson.Syntax, 0},
		{`"\x"`, strictjson.Syntax, 2}, {`"\u12g4"`, strictjson.Syntax, 5}, {"\"a\nb\"", strictjson.Syntax, 2}, {"\"a\\n\nb\"", strictjson.Syntax, 4}, {"\"a\x00b\"", strictjson.Syntax, 2},
		{`/* */1`, strictjson.Syntax, 0}, {"\xef\xbb\xbf{}", strictjson.Syntax, 0}, {`<html>`, strictjson.Syntax, 0}, {`{"a":}`, strictjson.Syntax, 5},

		{`{}{}`, strictjson.Trailing, 2}, {`{} x`, strictjson.Trailing, 3}, {`01`, strictjson.Trailing, 1}, {`1 2`, strictjson.Trailing, 2}, {"{}\x00", strictjson.Trailing, 2},

		{`{"a":1,"a":2}`, strictjson.Duplicate, 0}, {`{"a":1,"\u0061":2}`, strictjson.Duplicate, 0}, {`{"\u0061":1,"a":2}`, strictjson.Duplicate, 0},
		{`{"":1,"":2}`, strictjson.Duplicate, 0}, {`[0,{"x":{"a":{},"a":[]}}]`, strictjson.Duplicate, 8}, {many("key0"), strictjson.Duplicate, 0},
		{many(`key\u0039`), strictjson.Duplicate, 0},

		{"{\"a\":\"\xff\"}", strictjson.Encoding, 6}, {"\"\xed\xa0\x80\"", strictjson.Encoding, 1}, {"\"\xc0\x80\"", strictjson.Encoding, 1},
		{"\"\xf4\x90\x80\x80\"", strictjson.Encoding, 1}, {"{\"\xe9\":1}", strictjson.Encoding, 2}, {"\xff", strictjson.Encoding, 0}, {"é\xff", strictjson.Encoding, 2},

		{`"\ud800"`, strictjson.Surrogate, 1}, {`"\udc00"`, strictjson.Surrogate, 1}, {`"\ud800x"`, strictjson.Surrogate, 1}, {`"\ud800\n"`, strictjson.Surrogate, 1},
		{`"\ud800\ud800"`, strictjson.Surrogate, 1}, {`"\uDFFF\uD800"`, strictjson.Surrogate, 1}, {`{"\ud83d":1}`, strictjson.Surrogate, 2},

		{`"\u0000"`, strictjson.NUL, 1}, {`{"a\u0000":1}`, strictjson.NUL, 3},

		{deep(65), strictjson.Depth, 64}, {strings.Repeat("[", 100_000), strictjson.Depth, 64}, {strings.Repeat(`{"a":`, 65) + "1", strictjson.Depth, 64 * 5},

		{`1e308`, strictjson.Range, 0}, {`-1e308`, strictjson.Range, 0}, {`1e-308`, strictjson.Range, 0}, {`0.1e309`, strictjson.Range, 0}, {`10e307`, strictjson.Range, 0},
		{`1e999999999999999999999`, strictjson.Range, 0}, {`0e308`, strictjson.Range, 0}, {`[1,` + strings.Repeat("9", 129) + `]`, strictjson.Range, 3},
	} {
		var d strictjson.Document
		err := d.Parse([]byte(c.doc))
		var e *strictjson.Error
		if !errors.As(err, &e) || e.Reason != c.reason || e.Offset != c.offset {
			t.Errorf("%.40q: %v; want %v at byte %d", c.doc, err, c.reason, c.offset)
		}
		if d.Root().Kind() != strictjson.Absent {
			t.Errorf("%.40q: something is left of it", c.doc)
		}
	}
}

func TestParseRefusesWhatIsTooLarge(t *testing.T) {
	var d strictjson.Document
	var e *strictjson.Error
	if err := d.Parse(bytes.Repeat([]byte(" "), strictjson.MaxBytes+1)); !errors.As(err, &e) || e.Reason != strictjson.Size {
		t.Errorf("got %v", err)
	}
}

func TestParseTakesWhatIsWithinTheLimits(t *testing.T) {
	for _, doc := range []string{
		`null`, ` {} `, `[]`, `""`, `0`, `-0`, `1e307`, `-9.99e307`, `1e-307`, `0.001e-304`, `0e307`, `[[],{}]`, "\t\r\n[ 1 , 2 ]\n",
		strings.Repeat("9", 128), strings.Repeat("[", 64) + strings.Repeat("]", 64), `{"a":1,"A":2,"ſ":3,"s":4}`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`,
		`"` + "\u007f\u2028\ufffd" + `"`, `"\b\f\n\r\t\/\\\""`, `{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}`,
	} {
		var d strictjson.Document
		if err := d.Parse([]byte(doc)); err != nil {
			t.Errorf("%.40q: %v", doc, err)
		}
		if diff := compare(t, doc, &d); diff != "" {
			t.Errorf("%.40q: %s", doc, diff)
		}
	}
}

func TestKeysAreComparedByteForByte(t *testing.T) {
	d := parse(t, `{"Status":"no","STATUS":"no","ſtatus":"no","status":"yes"}`)
	if got := d.Root().Member("status").Text(); got != "yes" {
		t.Errorf("status = %q", got)
	}
	if d.Root().Member("sTATUS").Kind() != strictjson.Absent {
		t.Error("a key in another case was found")
	}
}

func TestNumbersStayExact(t *testing.T) {
	d := parse(t, `[9007199254740993, 0.1, 9223372036854775807, 9223372036854775808, 1.0, -5, 1e2, "7"]`)
	var texts []string
	var ints []any
	for e := range d.Root().Elements() {
		texts = append(texts, e.Text())
		if n, ok := e.Int64(); ok {
			ints = append(ints, n)
		} else {
			ints = append(ints, nil)
		}
	}
	wantTexts := []string{"9007199254740993", "0.1", "9223372036854775807", "9223372036854775808", "1.0", "-5", "1e2", "7"}
	wantInts := []any{int64(9007199254740993), nil, int64(9223372036854775807), nil, nil, int64(-5), nil, nil}
	if diff := cmp.Diff(wantTexts, texts) + cmp.Diff(wantInts, ints); diff != "" {
		t.Error(diff)
	}
}

func TestDocumentIsReused(t *testing.T) {
	var d strictjson.Document
	for i := range 3 {
		doc := fmt.Sprintf(`{"a\n":[%d,"\u00e9"],"b":{}}`, i)
		if err := d.Parse([]byte(doc)); err != nil {
			t.Fatal(err)
		}
		if diff := compare(t, doc, &d); diff != "" {
			t.Fatal(diff)
		}
		if err := d.Parse([]byte(`{"a":`)); err == nil || d.Root().Exists() {
			t.Fatal("a refused document left the one before it")
		}
	}
	doc := []byte(`{"id":"pay_1","status":"succeeded","amount":1000,"list":[1,2,{"a":"\n"}],"k1":1,"k2":1,"k3":1,"k4":1,"k5":1}`)
	if n := testing.AllocsPerRun(100, func() { _ = d.Parse(doc) }); n != 0 {
		t.Errorf("parsing again allocates %v times", n)
	}
}

func TestValuesOfNothingAreAbsent(t *testing.T) {
	var d strictjson.Document
	none := d.Root()
	for range none.Elements() {
		t.Error("an element of nothing")
	}
	for range none.Members() {
		t.Error("a member of nothing")
	}
	if none.Exists() || none.Scalar() || none.Bytes() != nil || none.Text() != "" || none.Member("a").Exists() || none.Element(0).Exists() {
		t.Error("nothing is something")
	}
	root := parse(t, `{"null":null,"list":[1],"text":"x"}`).Root()
	if root.Member("null").Exists() || root.Member("null").Kind() != strictjson.Null || root.Bytes() != nil || root.Member("list").Bytes() != nil {
		t.Error("null, an object or a list is taken for a scalar")
	}
	if root.Member("list").Element(1).Exists() || root.Member("list").Element(-1).Exists() || root.Member("text").Element(0).Exists() {
		t.Error("an element that is not there")
	}
	for k := range root.Members() {
		if k != "null" {
			t.Error("the iteration went on after break")
		}
		break
	}
	for range root.Member("list").Elements() {
		break
	}
}

// TestPointerExamples are those of RFC 6901, section 5.
func TestPointerExamples(t *testing.T) {
	d := parse(t, `{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}`)
	for text, want := range map[string]string{
		"/foo/0": "bar", "/foo/1": "baz", "/": "0", "/a~1b": "1", "/c%d": "2", "/e^f": "3", "/g|h": "4", `/i\j`: "5", `/k"l`: "6", "/ ": "7", "/m~0n": "8",
	} {
		p, err := strictjson.ParsePointer(text)
		if err != nil || p.String() != text {
			t.Errorf("%q: %v, shown as %q", text, err, p)
		}
		if got := d.Root().Lookup(p).Text(); got != want {
			t.Errorf("%q points at %q, want %q", text, got, want)
		}
	}
	whole, err := strictjson.ParsePointer("")
	if err != nil || d.Root().Lookup(whole).Kind() != strictjson.Object {
		t.Errorf("the empty pointer: %v", err)
	}
}

func TestPointerFindsNothing(t *testing.T) {
	d := parse(t, `{"foo":["bar"],"o":{"0":"zero","-":"dash","01":"x"},"s":"text"}`)
	for _, text := range []string{"/foo/1", "/foo/-", "/foo/00", "/foo/01", "/foo/+0", "/foo/-0", "/foo/", "/foo/0x0", "/foo/99999999999999999999", "/bar", "/s/0", "/foo/0/0", "/FOO"} {
		p, err := strictjson.ParsePointer(text)
		if err != nil {
			t.Fatal(err)
		}
		if v := d.Root().Lookup(p); v.Kind() != strictjson.Absent {
			t.Errorf("%q points at %q", text, v.Text())
		}
	}
	for text, want := range map[string]string{"/o/0": "zero", "/o/-": "dash", "/o/01": "x"} {
		p, _ := strictjson.ParsePointer(text)
		if got := d.Root().Lookup(p).Text(); got != want {
			t.Errorf("%q points at %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"foo", "~", "/~", "/a~2", "/~/a", "#/foo", " /foo"} {
		if p, err := strictjson.ParsePointer(text); err == nil {
			t.Errorf("%q is taken as a pointer: %v", text, p)
		}
	}
}

// TestEncodedDocumentsAreRead holds the parser against documents that encoding/json writes.
func TestEncodedDocumentsAreRead(t *testing.T) {
	scalar := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }), rapid.Map(rapid.Int64(), func(n int64) any { return n }),
		rapid.Map(rapid.Float64Range(-1e300, 1e300), func(f float64) any { return f }),
		rapid.Map(rapid.String(), func(s string) any { return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "") }),
	)
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		if depth == 0 {
			return scalar
		}
		key := rapid.Map(rapid.String(), func(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "") })
		return rapid.OneOf(scalar,
			rapid.Map(rapid.SliceOfN(value(depth-1), 0, 4), func(s []any) any { return s }),
			rapid.Map(rapid.MapOfN(key, value(depth-1), 0, 24), func(m map[string]any) any { return m }),
		)
	}
	rapid.Check(t, func(rt *rapid.T) {
		b, err := json.Marshal(value(3).Draw(rt, "value"))
		if err != nil {
			rt.Fatal(err)
		}
		var d strictjson.Document
		if err := d.Parse(b); err != nil {
			if tiny(b) {
				return
			}
			rt.Fatalf("%s: %v", b, err)
		}
		if diff := compare(t, string(b), &d); diff != "" {
			rt.Fatalf("%s: %s", b, diff)
		}
	})
}

// tiny reports whether a document has a number that is too close to zero for strictjson.
func tiny(b []byte) bool { return bytes.Contains(b, []byte("e-3")) }

// FuzzParse holds the parser against encoding/json: what is accepted has the same value there, and what is refused is either refused
// there too or for a reason that encoding/json does not know.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"id":"pay_1","status":"succeeded","amount":1000,"currency":"EUR"}`, `{"a":1,"\u0061":2}`, `[1,-2.5e3,true,false,null,"\ud83d\ude00"]`,
		`{"a":{"b":[{"c":"d"}]}}`, `"\ud800"`, `{"a":1}{`, "\"\xff\"", `1e999`, strings.Repeat("[", 65), `{"k1":1,"k2":1,"k3":1,"k4":1,"k5":1,"k6":1,"k7":1,"k8":1,"k9":1,"k1":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var d strictjson.Document
		err := d.Parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("the source was changed")
		}
		if err == nil {
			if diff := compare(t, string(b), &d); diff != "" {
				t.Fatal(diff)
			}
			return
		}
		var e *strictjson.Error
		if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(b) {
			t.Fatalf("the error is %#v", err)
		}
		switch e.Reason {
		case strictjson.Syntax, strictjson.Cut, strictjson.Trailing:
			if json.Valid(b) {
				t.Fatalf("refused for %v, but encoding/json takes it", e)
			}
		case strictjson.Encoding:
			if utf8.Valid(b) {
				t.Fatalf("refused for %v, but it is UTF-8", e)
			}
		}
	})
}

func FuzzPointer(f *testing.F) {
	for _, s := range []string{"", "/", "/a/0", "/a~1b~0", "~", "/~2", "/-"} {
		f.Add(s, `{"a":[1,{"b":2}],"a/b~":3,"":4}`)
	}
	f.Fuzz(func(t *testing.T, text, doc string) {
		p, err := strictjson.ParsePointer(text)
		if err != nil {
			return
		}
		var d strictjson.Document
		if d.Parse([]byte(doc)) != nil {
			return
		}
		if got, want := plain(d.Root().Lookup(p)), follow(d.Root(), text); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q in %s points at %v, want %v", text, doc, got, want)
		}
	})
}

// follow is RFC 6901 on decoded values, written a second time.
func follow(v strictjson.Value, pointer string) any {
	x := plain(v)
	if pointer == "" {
		return x
	}
	for _, part := range strings.Split(pointer, "/")[1:] {
		key := strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch c := x.(type) {
		case map[string]any:
			m, ok := c[key]
			if !ok {
				return absent{}
			}
			x = m
		case []any:
			found := false
			for i := range c {
				if fmt.Sprint(i) == part {
					x, found = c[i], true
					break
				}
			}
			if !found {
				return absent{}
			}
		default:
			return absent{}
		}
	}
	return x
}

type absent struct{}

// plain is a value as encoding/json decodes it with UseNumber.
func plain(v strictjson.Value) any {
	switch v.Kind() {
	case strictjson.Null:
		return nil
	case strictjson.True, strictjson.False:
		return v.Kind() == strictjson.True
	case strictjson.Number:
		return json.Number(v.Text())
	case strictjson.String:
		return v.Text()
	case strictjson.Array:
		s := []any{}
		for e := range v.Elements() {
			s = append(s, plain(e))
		}
		return s
	case strictjson.Object:
		m := map[string]any{}
		for k, e := range v.Members() {
			m[k] = plain(e)
		}
		return m
	}
	return absent{}
}

// compare decodes the document with encoding/json, as exact numbers and as floating-point numbers.
func compare(t *testing.T, doc string, d *strictjson.Document) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(doc))
	dec.UseNumber()
	var want, floats any
	if err := dec.Decode(&want); err != nil {
		return fmt.Sprintf("encoding/json refuses it: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return "encoding/json finds something after it"
	}
	if err := json.Unmarshal([]byte(doc), &floats); err != nil {
		return fmt.Sprintf("encoding/json cannot put it into memory: %v", err)
	}
	if got := plain(d.Root()); !reflect.DeepEqual(got, want) { // go-cmp takes exponential time in the depth
		return fmt.Sprintf("got %.300q, encoding/json has %.300q", fmt.Sprint(got), fmt.Sprint(want))
	}
	return ""
}

func parse(t *testing.T, doc string) *strictjson.Document {
	t.Helper()
	var d strictjson.Document
	if err := d.Parse([]byte(doc)); err != nil {
		t.Fatal(err)
	}
	return &d
}

func BenchmarkParse(b *testing.B) {
	doc := []byte(`{"id":"pay_0000000000000001","object":"payment","status":"succeeded","status_detail":"captured","amount":1000,"amount_refunded":0,"currency":"EUR",
"livemode":true,"created_at":"2026-09-10T06:00:00Z","updated_at":"2026-09-10T06:00:02Z","merchant_reference":"order-1234","description":"Coffee \u0026 cake",
"customer":{"id":"cus_1","country":"DE"},"method":{"type":"card","brand":"visa","last4":"4242"},"refunds":[],"links":{"self":"/v1/payments/pay_0000000000000001"}}`)
	status, _ := strictjson.ParsePointer("/status")
	b.Run("strictjson", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		var d strictjson.Document
		for b.Loop() {
			if err := d.Parse(doc); err != nil || !d.Root().Lookup(status).Exists() {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding_json", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			var m map[string]any
			if err := json.Unmarshal(doc, &m); err != nil || m["status"] == nil {
				b.Fatal(err)
			}
		}
	})
}
