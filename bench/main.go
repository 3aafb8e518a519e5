// Command bench measures Pollux on this machine and prints the figures that the README quotes. Everything runs here: PostgreSQL, JetStream, the
// gateway and Pollux share the processors, as do those that it is compared with. Each figure is the median of several runs; beside it stand the
// runs and, where there is something to compare with, the ratio.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measure is one group of figures.
type measure struct {
	name string
	run  func(context.Context, *bench) error
}

var measures = []measure{
	{"resolve", resolve},
	{"latency", latency},
	{"relay", relay},
	{"intake", intake},
	{"claim", claim},
	{"defer", deferral},
	{"idle", idle},
	{"cost", cost},
}

func run() error {
	runs := flag.Int("runs", 3, "runs of each figure")
	only := flag.String("only", "", "groups to measure, with commas: resolve, latency, relay, intake, claim, defer, idle, cost")
	store := flag.String("nats", "", "be a NATS server with its store in this folder, for those of the figures that want it in a process of its own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *store != "" {
		return serveNATS(ctx, *store, os.Stdout)
	}
	b, err := newBench(ctx, *runs)
	if err != nil {
		return err
	}
	defer b.close()
	fmt.Printf("%s, %d processors, %s/%s; medians of %d runs\n\n", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, *runs)
	for _, m := range measures {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), m.name) {
			continue
		}
		b.begin(m.name)
		if err := m.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		b.end()
	}
	return nil
}

// figure is one line: a value measured several times.
type figure struct {
	name string
	unit string
	runs []float64
	base float64 // what it is compared with; 0 for nothing
	of   string  // and what that is
}

func (f figure) median() float64 {
	s := slices.Sorted(slices.Values(f.runs))
	n := len(s)
	if n == 0 {
		return 0
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}

// begin starts a group.
func (b *bench) begin(name string) {
	fmt.Fprintf(os.Stderr, "measuring %s\n", name)
	b.table = tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintf(b.table, "%s\tMEDIAN\t\tRATIO\tRUNS\n", strings.ToUpper(name))
}

func (b *bench) end() {
	b.table.Flush()
	fmt.Println()
}

// print prints a figure.
func (b *bench) print(f figure) {
	ratio := ""
	if f.base > 0 {
		ratio = fmt.Sprintf("%.2f × %s", f.median()/f.base, f.of)
	}
	runs := make([]string, len(f.runs))
	for i, r := range f.runs {
		runs[i] = number(r)
	}
	fmt.Fprintf(b.table, "%s\t%s\t%s\t%s\t%s\n", f.name, number(f.median()), f.unit, ratio, strings.Join(runs, " "))
}

func number(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.4f", x)
}
