package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/adoption"
	"pollux/internal/app"
	"pollux/internal/audit"
	"pollux/internal/config"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
)

// adoptionOrder is what an operator says about an import.
type adoptionOrder struct {
	order
	format    adoption.Format
	amounts   string
	delimiter string
	rate      float64
	dryRun    bool
	query     string
	from      string
}

func paymentsImport() *cobra.Command {
	var o adoptionOrder
	cmd := &cobra.Command{
		Use:   "import FILE.csv|- --amounts minor|major",
		Short: "Brings in the pending payments that a team already has, from a file or from a table",
		Long: `import tracks the pending payments of a CSV file, of standard input (-), or of a query of another database (--query, --from). The first line names the columns:
gateway, reference, amount and currency, and if you like account, merchant_reference, class, lane, expires_at, metadata and traceparent.

Everything is read and checked first; when a line is wrong nothing is tracked at all, and each is named. Then the payments are tracked in pages. An import that was
interrupted is run again: what is tracked already is left as it is. What is tracked with another amount is refused and named; exit code 3 then.

The first polls are spread over time by --rate, for each account of a gateway, so that a gateway is not asked about all of them at once.`,
		Args: atMostOne("one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd, args); err != nil {
				return err
			}
			if o.query != "" {
				return o.fromQuery(cmd)
			}
			return readFile(cmd, args[0], func(r io.Reader) error {
				comma, _ := utf8.DecodeRuneInString(o.delimiter)
				return o.run(cmd, filepath.Base(args[0]), adoption.NewCSV(r, comma))
			})
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.amounts, "amounts", "", "minor (1999 is 19.99 EUR) or major (19.99 is 19.99 EUR); there is no default")
	cmd.Flags().StringToStringVar(&o.format.Named, "column", nil, "a column of ours by its name in the source, such as reference=psp_id; may be repeated")
	cmd.Flags().StringToStringVar(&o.format.Fixed, "value", nil, "a value that a column of ours has in all lines, such as gateway=acme; may be repeated")
	cmd.Flags().StringSliceVar(&o.format.Ignored, "ignore", nil, "columns of the source that are of no use; may be repeated")
	cmd.Flags().StringVar(&o.delimiter, "delimiter", ",", "what is between two fields of a line")
	cmd.Flags().Float64Var(&o.rate, "rate", 10, "first polls a second, for each account of a gateway")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "read and check all, and track nothing")
	cmd.Flags().StringVar(&o.query, "query", "", "the payments are the rows of this query")
	cmd.Flags().StringVar(&o.from, "from", "", "the database of the query: file:/path or env:NAME of a secret that holds its URL")
	return cmd
}

func (o *adoptionOrder) complete(cmd *cobra.Command, args []string) error {
	o.format.Amounts = adoption.Unit(o.amounts)
	switch {
	case (o.query == "") == (len(args) == 0):
		return app.Usage("name a file, or - for standard input, or give --query: one of them")
	case (o.query == "") != (o.from == ""):
		return app.Usage("--query and --from go together: what is asked, and whom")
	case utf8.RuneCountInString(o.delimiter) != 1 || strings.ContainsAny(o.delimiter, "\"\r\n\ufffd"):
		return app.Usage("--delimiter %q: one character, such as ; or a tab", o.delimiter)
	case !(o.rate >= adoption.MinRate && o.rate <= adoption.MaxRate):
		return app.Usage("--rate %g: between %g and %d payments a second", o.rate, adoption.MinRate, adoption.MaxRate)
	}
	if err := o.format.Validate(); err != nil {
		return app.Usage("%w", err)
	}
	return o.order.complete(false)
}

func (o *adoptionOrder) fromQuery(cmd *cobra.Command) error {
	url, err := config.ReadURL(o.from)
	if err != nil {
		return app.Usage("--from: %w", err)
	}
	source, err := postgres.NewQuerySource(cmd.Context(), url.Reveal(), o.query)
	if err != nil {
		return err
	}
	defer source.Close()
	return o.run(cmd, "query", source)
}

// run imports from a source whose name is for the audit log.
func (o *adoptionOrder) run(cmd *cobra.Command, name string, source adoption.Source) error {
	cfg, err := load(cmd, config.SkipBroker)
	if err != nil {
		return err
	}
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		stage, err := postgres.NewStage(ctx, pool)
		if err != nil {
			return err
		}
		defer stage.Close()
		target := audit.Text("import:"+name+"@"+time.Now().UTC().Format("20060102T150405Z"), 255)
		report, err := adoption.Run(ctx, stage, source, adoption.Options{
			Format: o.format, Rate: o.rate, DryRun: o.dryRun, By: o.act("payments.import", audit.Done, audit.Change{Target: target}),
		}, func(r adoption.Report) {
			if r.New > 10*adoption.Page {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d\n", r.Tracked, r.New)
			}
		})
		return o.end(cmd, cfg, report, err)
	})
}

// end shows what became of an import that ended with err.
func (o *adoptionOrder) end(cmd *cobra.Command, cfg config.Config, r adoption.Report, err error) error {
	if err != nil && !errors.Is(err, adoption.ErrWrong) {
		if r.Tracked > 0 {
			return app.Hint(fmt.Errorf("after %d of %d payments: %w", r.Tracked, r.New, err), "run it again: what is tracked already is left as it is")
		}
		return err
	}
	if shown := show(cmd, r, func(w io.Writer) { o.print(w, cfg, r) }); shown != nil {
		return shown
	}
	switch {
	case err != nil:
		return app.Hint(err, "mend the lines and run it again")
	case r.Refusals > 0:
		return app.ErrFindings
	}
	return nil
}

func (o *adoptionOrder) print(w io.Writer, cfg config.Config, r adoption.Report) {
	row(w, counted(int(r.Lines), "line", "lines")+" read")
	for _, p := range r.Problems {
		row(w, p)
	}
	if more := r.Wrong - int64(len(r.Problems)); more > 0 {
		row(w, fmt.Sprintf("and %d more problems", more))
	}
	for _, p := range r.Refused {
		row(w, fmt.Sprintf("line %d is refused: %s", p.Line, p.Why))
	}
	if more := r.Refusals - int64(len(r.Refused)); more > 0 {
		row(w, fmt.Sprintf("and %d more are refused", more))
	}
	for _, g := range r.Gateways {
		if _, ok := cfg.Gateways[g]; !ok {
			row(w, fmt.Sprintf("gateway %s is not in the configuration here: nobody polls its payments until it is", g))
		}
	}
	if r.Wrong > 0 {
		return
	}
	what := "tracked"
	if o.dryRun {
		what = "would be tracked; nothing was changed"
	}
	row(w, fmt.Sprintf("%s %s; %d known already, %d named twice, %d refused", counted(int(r.New), "payment", "payments"), what, r.Known, r.Twice, r.Refusals))
	for _, m := range r.Money {
		row(w, fmt.Sprintf("%s, %s", counted(int(m.Count), "payment", "payments"), currency.Format(m.AmountMinor, m.Currency)))
	}
	if r.New > 0 {
		row(w, "first polls "+takes(time.Duration(r.Span*float64(time.Second))))
	}
}
