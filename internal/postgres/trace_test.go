package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"pollux/internal/pgtest"
)

func TestAStatementIsASpanOfItsTraceWithoutItsValues(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	defer func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	pool := open(t, Options{URL: pgtest.New(t, migrate), MaxConns: 1, Name: "test", Traced: true})
	const marked = "4111111111111111"
	run := func(ctx context.Context) {
		var n int
		_ = pool.QueryRow(ctx, "\n  select 1\n  where $1::text <> ''", marked).Scan(&n)
		_ = pool.QueryRow(ctx, `select $1::text::integer`, marked+"x").Scan(&n)
		var batch pgx.Batch
		batch.Queue(`update pollux.payments set status_detail = $1 where false`, marked)
		batch.Queue(`select $1::text`, marked)
		if err := pool.SendBatch(ctx, &batch).Close(); err != nil {
			t.Error(err)
		}
	}
	run(t.Context()) // outside of a trace
	if n := len(recorder.Ended()); n != 0 {
		t.Errorf("%d spans outside of a trace", n)
	}
	ctx, parent := provider.Tracer("test").Start(t.Context(), "record results")
	run(ctx)
	parent.End()
	var names []string
	for _, s := range recorder.Ended() {
		names = append(names, s.Name())
		texts := s.Name() + s.Status().Description
		for _, a := range s.Attributes() {
			texts += " " + string(a.Key) + "=" + a.Value.String()
		}
		for _, e := range s.Events() {
			texts += " " + e.Name
			for _, a := range e.Attributes {
				texts += " " + string(a.Key) + "=" + a.Value.String()
			}
		}
		if strings.Contains(texts, marked) {
			t.Errorf("a span has what is in a row: %s", texts)
		}
		if s.Name() == "record results" {
			continue
		}
		if s.Parent().SpanID() != parent.SpanContext().SpanID() || s.SpanKind() != trace.SpanKindClient || !strings.Contains(texts, "db.system.name=postgresql") {
			t.Errorf("%s: %s", s.Name(), texts)
		}
	}
	if got, want := strings.Join(names, " "), "SELECT SELECT BATCH record results"; got != want {
		t.Errorf("spans %s, want %s", got, want)
	}
	ended := recorder.Ended()
	if s := ended[0]; s.Status().Code != codes.Unset {
		t.Errorf("the first has the status %v", s.Status())
	}
	if s := ended[1]; s.Status().Code != codes.Error || s.Status().Description != "22P02" && s.Status().Description != "22003" {
		t.Errorf("the second has the status %v", s.Status())
	}
	if len(ended[2].Events()) != 2 {
		t.Errorf("the batch has %d statements", len(ended[2].Events()))
	}
}
