package gatewaysim

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkCalls measures whole calls over loopback, keep-alive, the client's own work kept as small as it can be.
func BenchmarkCalls(b *testing.B) {
	s := start(b, Config{}, Conditions{Faults: []Share{{ServerError, 0.001}}})
	payments := s.Generate(10_000, "p")
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		in, out := bufio.NewReader(conn), []byte(nil)
		for i := 0; pb.Next(); i++ {
			out = fmt.Appendf(out[:0], "GET /v1/payments/%s HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\n\r\n",
				payments[i%len(payments)].Reference, DefaultAPIKey)
			if _, err := conn.Write(out); err != nil {
				b.Error(err)
				return
			}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// BenchmarkHandler measures what the simulator adds to net/http.
func BenchmarkHandler(b *testing.B) {
	s := New(Config{})
	if err := s.SetConditions(Conditions{}); err != nil {
		b.Fatal(err)
	}
	p := s.Generate(1, "p")[0]
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := discard{make(http.Header)}
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://gateway"+paymentsPath+p.Reference, nil)
		if err != nil {
			b.Error(err)
			return
		}
		r.Header.Set("Authorization", "Bearer "+DefaultAPIKey)
		for pb.Next() {
			s.ServeHTTP(w, r)
		}
	})
}
