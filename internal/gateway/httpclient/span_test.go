package httpclient_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"pollux/internal/gateway/httpclient"
)

func TestASpanOfARequestSaysWhereItWentAndNoSecret(t *testing.T) {
	base := handler(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/gone") {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	defer func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c := client(t, base, nil)
	ask := func(ctx context.Context, where string) {
		h := c.Prepare(http.Header{"Authorization": {"Bearer " + marked}}, http.MethodGet)
		_, _ = c.Do(ctx, httpclient.Request{Method: http.MethodGet, URL: where, Header: h}, nil)
	}
	ctx, parent := provider.Tracer("test").Start(t.Context(), "poll")
	ask(ctx, base+"/path/"+marked+"?key="+marked)
	ask(ctx, base+"/gone")
	ask(context.Background(), base+"/outside")
	c.Close()
	closed := "http://127.0.0.1:1"
	refused := client(t, closed, nil)
	_, _ = refused.Do(ctx, httpclient.Request{Method: http.MethodGet, URL: closed + "/" + marked}, nil)
	parent.End()
	spans := recorder.Ended()
	if len(spans) != 4 {
		t.Fatalf("%d spans, want three requests and the poll", len(spans))
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ status, kind string }{{"200", ""}, {"502", "502"}, {"", "refused"}} {
		got := map[attribute.Key]string{}
		for _, a := range spans[i].Attributes() {
			got[a.Key] = a.Value.String()
			if strings.Contains(a.Value.String(), marked) || strings.Contains(a.Value.String(), "/path") {
				t.Errorf("span %d tells %s=%s", i, a.Key, a.Value.String())
			}
		}
		if spans[i].Name() != "GET" || spans[i].Parent().SpanID() != parent.SpanContext().SpanID() || got["http.response.status_code"] != want.status || got["error.type"] != want.kind {
			t.Errorf("span %d %s: %v", i, spans[i].Name(), got)
		}
		if failed := spans[i].Status().Code == codes.Error; failed != (want.kind != "") {
			t.Errorf("span %d has the status %v", i, spans[i].Status())
		}
		if i == 0 && (got["server.address"] != u.Hostname() || got["server.port"] != u.Port() || got["http.request.method"] != "GET") {
			t.Errorf("span %d: %v", i, got)
		}
	}
}
