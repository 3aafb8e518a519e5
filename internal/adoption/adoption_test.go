package adoption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/audit"
)

// fake is a stage that tracks all that it is given.
type fake struct {
	rows    []Row
	check   Check
	tracked []int64
	fails   int // the page that fails
	pages   int
}

func (f *fake) Add(_ context.Context, rows []Row) error {
	f.rows = append(f.rows, slices.Clone(rows)...)
	return nil
}

func (f *fake) Check(context.Context, float64) (Check, error) {
	c := f.check
	c.New += int64(len(f.rows))
	return c, nil
}

func (f *fake) Track(_ context.Context, after int64, limit int, _ audit.Act) (last, fresh int64, err error) {
	if f.pages++; f.pages == f.fails {
		return 0, 0, errors.New("the connection is gone")
	}
	for _, r := range f.rows {
		if r.Line > after && fresh < int64(limit) {
			f.tracked, last, fresh = append(f.tracked, r.Line), r.Line, fresh+1
		}
	}
	return last, fresh, nil
}

func run(t *testing.T, f *fake, text string, o Options) (Report, error) {
	t.Helper()
	if o.Rate == 0 {
		o.Rate = 10
	}
	if o.Format.Amounts == "" {
		o.Format.Amounts = MajorUnits
	}
	return Run(t.Context(), f, NewCSV(strings.NewReader(text), ','), o, nil)
}

const header = "gateway,reference,amount,currency\n"

func TestLinesAreReadAsTheFormatSays(t *testing.T) {
	deadline := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, text string
		format     Format
		want       []Row
	}{
		{"major units", header + "acme,p1,19.99,EUR\nacme,p2,1000,JPY\nacme,p3,1.999,KWD\n", Format{},
			[]Row{{Line: 2, Gateway: "acme", Reference: "p1", AmountMinor: 1999, Currency: "EUR"}, {Line: 3, Gateway: "acme", Reference: "p2", AmountMinor: 1000, Currency: "JPY"},
				{Line: 4, Gateway: "acme", Reference: "p3", AmountMinor: 1999, Currency: "KWD"}}},
		{"minor units", header + "acme,p1,1999,EUR\nacme,p2,1999,XBT\n", Format{Amounts: MinorUnits},
			[]Row{{Line: 2, Gateway: "acme", Reference: "p1", AmountMinor: 1999, Currency: "EUR"}, {Line: 3, Gateway: "acme", Reference: "p2", AmountMinor: 1999, Currency: "XBT"}}},
		{"a mark, lines within fields", "\ufeffreference,amount,currency,gateway,merchant_reference\np1,1,EUR,acme,\"two\nlines\"\np2,2,EUR,acme,\n", Format{},
			[]Row{{Line: 2, Gateway: "acme", Reference: "p1", AmountMinor: 100, Currency: "EUR", MerchantReference: "two\nlines"}, {Line: 4, Gateway: "acme", Reference: "p2", AmountMinor: 200, Currency: "EUR"}}},
		{"a mark before a quote", "\ufeff\"reference\",\"amount\",currency,gateway\np1,1,EUR,acme\n", Format{}, []Row{{Line: 2, Gateway: "acme", Reference: "p1", AmountMinor: 100, Currency: "EUR"}}},
		{"names, values, what is ignored", "psp_id,total,note\np1,5,x\n",
			Format{Named: map[string]string{"reference": "psp_id", "amount": "total"}, Fixed: map[string]string{"gateway": "acme", "currency": "EUR"}, Ignored: []string{"note", "other"}},
			[]Row{{Line: 2, Gateway: "acme", Reference: "p1", AmountMinor: 500, Currency: "EUR"}}},
		{"all columns", "gateway,reference,amount,currency,account,class,lane,expires_at,metadata,traceparent\nacme,p1,1,EUR,eu,high,low,2026-12-01 00:00:00+00,\"{\"\"a\"\":1}\",00-x\n", Format{},
			[]Row{{Line: 2, Gateway: "acme", Reference: "p1", AmountMinor: 100, Currency: "EUR", Account: "eu", Class: "high", Lane: "low", ExpiresAt: &deadline, Metadata: `{"a":1}`, TraceParent: "00-x"}}},
	} {
		f := &fake{}
		r, err := run(t, f, c.text, Options{Format: c.format})
		if diff := cmp.Diff(c.want, f.rows); err != nil || diff != "" || r.Lines != int64(len(c.want)) || r.Tracked != int64(len(c.want)) {
			t.Errorf("%s: %v, %+v\n%s", c.name, err, r, diff)
		}
	}
}

func TestEveryWrongLineIsNamedAndNothingIsTracked(t *testing.T) {
	f := &fake{}
	r, err := run(t, f, "gateway,reference,amount,currency,expires_at,metadata\n"+strings.Join([]string{
		"acme,p1,19.99,EUR,,",
		"acme,p2,19.999,EUR,,",
		"acme,,x,EUR,tomorrow,[1]",
		"acme,p4,1",
		"acme,p5,1,XXX,,",
		"acme,\xff,,,,",
		`acme,p"7,1,EUR,,`,
		`acme,p8,1,EUR,2026-12-01T00:00:00,"{""a"":""\u0000""}"`,
		"acme,p9,9e99,EUR,,null",
		"acme,p10,1,EUR,2026-12-01T00:00:00+02:00,{}",
		`acme,p11,1,EUR,,"{""a"":""\ud800""}"`,
		`acme,p12,1,EUR,,"{""a"":1e999999}"`,
	}, "\n"), Options{})
	if !errors.Is(err, ErrWrong) || f.pages != 0 || r.Tracked != 0 || r.Lines != 12 {
		t.Errorf("%v, %+v", err, r)
	}
	var got []string
	for _, p := range r.Problems {
		got = append(got, p.String())
	}
	want := []string{
		`line 3, amount: "19.999": more decimals than the currency has`,
		`line 4, reference: it is needed and empty`,
		`line 4, amount: "x": not a decimal number`,
		`line 4, expires_at: "tomorrow": write an instant with its zone, such as 2026-11-30T12:00:00Z`,
		`line 4, metadata: not a JSON object`,
		`line 5: 3 fields, the header has 6`,
		`line 6, amount: "1": "XXX" is no currency of ISO 4217, so its decimals are not known; give amounts in minor units`,
		`line 7, reference: not UTF-8 text without NUL`,
		`line 7, currency: it is needed and empty`,
		`line 7, amount: it is needed and empty`,
		`line 8: column 7: bare " in non-quoted-field`,
		`line 9, expires_at: "2026-12-01T00:00:00": write an instant with its zone, such as 2026-11-30T12:00:00Z`,
		`line 9, metadata: not a JSON object: a NUL character (byte 6)`,
		`line 10, amount: "9e99": larger than an amount can be`,
		`line 10, metadata: not a JSON object`,
		`line 12, metadata: not a JSON object: half of a surrogate pair (byte 6)`,
		`line 13, metadata: not a JSON object: a number out of range (byte 5)`,
	}
	if diff := cmp.Diff(want, got); diff != "" || r.Wrong != int64(len(want)) {
		t.Errorf("%d\n%s", r.Wrong, diff)
	}
}

func TestASourceThatIsNotWhatItSeemsIsRefused(t *testing.T) {
	for text, why := range map[string]string{
		"":                                   "the source is empty",
		"gateway,reference,amount\n":         "there is no column currency in the source",
		"gateway,reference,amount,curency\n": "there is no column currency",
		header[:len(header)-1] + ",amont\n":  `the column "amont" is none of ours`,
		header[:len(header)-1] + ",amount\n": `the column "amount" is in the source twice`,
		"\"gateway\n":                        "reading the header",
	} {
		if _, err := run(t, &fake{}, text, Options{}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for why, f := range map[string]Format{
		"--amounts":                      {Amounts: "cents"},
		`there is no column "price"`:     {Amounts: MinorUnits, Named: map[string]string{"price": "x"}},
		`there is no column "cur"`:       {Amounts: MinorUnits, Fixed: map[string]string{"cur": "EUR"}},
		"the column gateway is given":    {Amounts: MinorUnits, Fixed: map[string]string{"gateway": ""}},
		"and has a value for all lines":  {Amounts: MinorUnits, Fixed: map[string]string{"gateway": "x"}},
		"there is no column psp_account": {Amounts: MinorUnits, Named: map[string]string{"account": "psp_account"}},
	} {
		if _, err := run(t, &fake{}, header, Options{Format: f}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, rate := range []float64{-1, 1e-9, 1e9} {
		if _, err := run(t, &fake{}, header, Options{Rate: rate}); err == nil {
			t.Errorf("a rate of %g", rate)
		}
	}
}

func TestAnAdoptionGoesPageByPageAndCanBeRunAgain(t *testing.T) {
	var b strings.Builder
	b.WriteString(header)
	for i := range 2*Page + 5 {
		fmt.Fprintf(&b, "acme,p%d,1,EUR\n", i)
	}
	f := &fake{fails: 3}
	r, err := run(t, f, b.String(), Options{})
	if err == nil || r.Tracked != 2*Page || len(f.tracked) != 2*Page {
		t.Errorf("%v, %d of %d", err, r.Tracked, r.New)
	}
	f = &fake{}
	if r, err := run(t, f, b.String(), Options{}); err != nil || r.Tracked != 2*Page+5 || f.pages != 4 {
		t.Errorf("%v, %d in %d pages", err, r.Tracked, f.pages)
	}
	f = &fake{}
	if r, err := run(t, f, b.String(), Options{DryRun: true}); err != nil || r.Tracked != 0 || f.pages != 0 || r.New != 2*Page+5 {
		t.Errorf("a dry run: %v, %+v", err, r)
	}
	f = &fake{check: Check{Span: 400 * 24 * time.Hour}}
	if _, err := run(t, f, b.String(), Options{}); err == nil || f.pages != 0 {
		t.Errorf("polls after more than a year: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	f = &fake{}
	if _, err := Run(ctx, f, NewCSV(strings.NewReader(b.String()), ','), Options{Rate: 1, Format: Format{Amounts: MajorUnits}}, nil); !errors.Is(err, context.Canceled) || f.pages != 0 {
		t.Errorf("interrupted: %v", err)
	}
}

func FuzzCSV(f *testing.F) {
	f.Add(header + "acme,p1,19.99,EUR\n")
	f.Add("\ufeffgateway;\"")
	f.Fuzz(func(t *testing.T, text string) {
		stage := &fake{}
		r, err := run(t, stage, text, Options{})
		if err == nil && r.Wrong == 0 && r.Lines != int64(len(stage.rows)) {
			t.Errorf("%d lines, %d rows", r.Lines, len(stage.rows))
		}
		for i, row := range stage.rows {
			if row.Gateway == "" || row.Reference == "" || row.Currency == "" || i > 0 && row.Line <= stage.rows[i-1].Line {
				t.Errorf("%+v", row)
			}
		}
	})
}
