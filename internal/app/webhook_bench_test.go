package app

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pollux/internal/pgtest"
)

// strangers send forged notifications as fast as they can, and heads that never end, until they are stopped. They count the forged ones that were answered.
type strangers struct {
	address string
	stop    chan struct{}
	forged  atomic.Int64
	tasks   sync.WaitGroup
}

func (s *strangers) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// forge sends forged notifications, a connection each.
func (s *strangers) forge() {
	body := strings.Repeat("x", 300)
	for !s.stopped() {
		c, err := net.Dial("tcp", s.address)
		if err != nil {
			continue
		}
		fmt.Fprintf(c, "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nStripe-Signature: t=%d,v1=%064d\r\nContent-Length: %d\r\n\r\n%s", time.Now().Unix(), 0, len(body), body)
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
			_ = r.Body.Close()
			s.forged.Add(1)
		}
		_ = c.Close()
	}
}

// dawdle holds a connection for as long as it may, and then another.
func (s *strangers) dawdle() {
	for !s.stopped() {
		c, err := net.Dial("tcp", s.address)
		if err != nil {
			continue
		}
		_, _ = io.WriteString(c, "POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		gone := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, c); close(gone) }()
		select {
		case <-s.stop:
		case <-gone:
		}
		_ = c.Close()
		<-gone
	}
}

// BenchmarkGenuineAmongStrangers finishes b.N payments by notifications of four senders while 16 strangers forge and 200 dawdle. Run it with -benchtime=3000x.
func BenchmarkGenuineAmongStrangers(b *testing.B) {
	d := newWebhookDoor(b)
	d.dsn = pgtest.New(b, migrated)
	d.exec(`select pollux.track_payment('acme', 'pay_' || i, 1999, 'EUR') from generate_series(1, $1::int) as i`, b.N)
	v := d.open()
	eventually(b, "it is ready", d.ready)
	s := &strangers{address: d.address, stop: make(chan struct{})}
	for range 16 {
		s.tasks.Go(s.forge)
	}
	for range 200 {
		s.tasks.Go(s.dawdle)
	}
	next, took := make(chan int), make([]time.Duration, b.N)
	var senders sync.WaitGroup
	for range 4 {
		client := &http.Client{Transport: &http.Transport{}}
		senders.Go(func() {
			defer client.CloseIdleConnections()
			for i := range next {
				took[i] = d.genuine(client, i)
			}
		})
	}
	b.ResetTimer()
	for i := range b.N {
		next <- i
	}
	close(next)
	senders.Wait()
	b.StopTimer()
	close(s.stop)
	s.tasks.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(s.forged.Load())/b.Elapsed().Seconds(), "forged/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "genuine/s")
	b.ReportMetric(float64(took[b.N/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[b.N*99/100].Microseconds())/1000, "ms-p99")
	if err := v.ends(); err != nil {
		b.Error(err)
	}
}

// genuine sends a notification until it is kept and returns how long that took.
func (d *door) genuine(client *http.Client, i int) time.Duration {
	began := time.Now()
	body, id := updated(fmt.Sprint("pay_", i+1), "succeeded"), fmt.Sprint("e", i)
	for time.Since(began) < patience {
		stamp := strconv.FormatInt(time.Now().Unix(), 10)
		r, err := http.NewRequest(http.MethodPost, "http://"+d.address+"/webhooks/acme", strings.NewReader(body))
		if err != nil {
			break
		}
		r.Header.Set("webhook-id", id)
		r.Header.Set("webhook-timestamp", stamp)
		r.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac("standard", id+"."+stamp+"."+body)))
		resp, err := client.Do(r)
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return time.Since(began)
		}
	}
	d.t.Errorf("%s was not kept", id)
	return time.Since(began)
}
