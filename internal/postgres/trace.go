package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// spans makes spans of statements, inside the span that their context has, if that is recorded. A statement outside of one costs a look into its context.
//
// A span has the text of its statement, which is ours and the same for all rows, and nothing of its arguments, which are in them.
type spans struct{}

var (
	_ pgx.QueryTracer = spans{}
	_ pgx.BatchTracer = spans{}
)

// maxStatement bounds the text of a statement in a span.
const maxStatement = 2048

// TraceQueryStart implements pgx.QueryTracer.
func (spans) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return begin(ctx, operationOf(q.SQL), func() attribute.KeyValue { return semconv.DBQueryText(statement(q.SQL)) })
}

// TraceQueryEnd implements pgx.QueryTracer.
func (spans) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	finish(ctx, q.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (spans) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	return begin(ctx, "BATCH", func() attribute.KeyValue { return semconv.DBOperationBatchSize(b.Batch.Len()) })
}

// TraceBatchQuery implements pgx.BatchTracer. The statements of a batch have no times of their own.
func (spans) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if s := own(ctx); s != nil {
		s.AddEvent(operationOf(q.SQL), trace.WithAttributes(semconv.DBQueryText(statement(q.SQL))))
	}
}

// TraceBatchEnd implements pgx.BatchTracer.
func (spans) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchEndData) {
	finish(ctx, b.Err)
}

type spanKey struct{}

// own is the span that was begun here, or nil.
func own(ctx context.Context) trace.Span {
	s, _ := ctx.Value(spanKey{}).(trace.Span)
	return s
}

func begin(ctx context.Context, name string, what func() attribute.KeyValue) context.Context {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx
	}
	ctx, span := parent.TracerProvider().Tracer("pollux").Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.DBSystemNamePostgreSQL, semconv.DBOperationName(name), what()))
	return context.WithValue(ctx, spanKey{}, span)
}

// finish ends the span. The text of an error may hold what is in a row.
func finish(ctx context.Context, err error) {
	s := own(ctx)
	if s == nil {
		return
	}
	if err != nil {
		code := sqlState(err)
		s.SetAttributes(semconv.ErrorTypeKey.String(code))
		s.SetStatus(codes.Error, code)
	}
	s.End()
}

// operationOf is the first word of a statement.
func operationOf(sql string) string {
	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")
	if word, _, _ = strings.Cut(word, "\n"); len(word) > 16 {
		return "statement"
	}
	return strings.ToUpper(word)
}

// statement is the text of a statement in one line.
func statement(sql string) string {
	sql = strings.Join(strings.Fields(sql), " ")
	return sql[:min(len(sql), maxStatement)]
}
