package httpclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"pollux/internal/gateway"
)

func TestRefusedAddresses(t *testing.T) {
	const yes, loop, private, never = "", "loopback", "private", "never" // what allows them
	for address, allowed := range map[string]string{
		"93.184.215.14": yes, "8.8.8.8": yes, "2606:4700::1111": yes, "100.63.255.255": yes, "100.128.0.0": yes, "172.32.0.1": yes, "::ffff:8.8.8.8": yes,
		"64:ff9b::8.8.8.8": private, "64:ff9b:1::8.8.8.8": private,
		"127.0.0.1": loop, "127.255.255.254": loop, "::1": loop, "::ffff:127.0.0.1": loop,
		"10.0.0.1": private, "172.16.0.1": private, "172.31.255.255": private, "192.168.1.1": private, "fd00::1": private, "fc00::1": private,
		"100.64.0.1": private, "100.127.255.255": private, "198.18.0.1": private, "198.19.255.255": private, "::ffff:10.0.0.1": private, "::ffff:100.64.0.1": private,
		"64:ff9b::10.0.0.1":      private,
		"64:ff9b::127.0.0.1":     "both",
		"169.254.169.254":        never,
		"::ffff:169.254.169.254": never, "64:ff9b::169.254.169.254": never, "fe80::1": never, "fe80::1%eth0": never, "0.0.0.0": never, "::": never, "0.1.2.3": never,
		"224.0.0.1": never, "239.255.255.255": never, "ff02::1": never, "255.255.255.255": never, "240.0.0.1": never, "192.0.2.1": never, "192.0.0.1": never,
		"198.51.100.1": never, "203.0.113.1": never, "2001:db8::1": never, "2002:7f00:1::": never, "2001::1": never, "::127.0.0.1": never, "fec0::1": never, "100::1": never,
		"192.88.99.1": never, "::ffff:0:10.0.0.1": never, "2001:2::1": never, "2001:1ff::1": never, "2001:200::1": yes, "3fff::1": never, "5f00::1": never,
	} {
		a := netip.MustParseAddr(address)
		for name, c := range map[string]Config{"nothing": {}, "loopback": {AllowLoopback: true}, "private": {AllowPrivate: true}, "both": {AllowLoopback: true, AllowPrivate: true}} {
			want := allowed == yes || allowed == name || name == "both" && allowed != never
			if why := c.refused(a); (why == "") != want {
				t.Errorf("%s with %s allowed: %q", address, name, why)
			}
			err := c.guard(context.Background(), "tcp", netip.AddrPortFrom(a, 443).String(), nil)
			if (err == nil) != want {
				t.Errorf("dialling %s with %s allowed: %v", address, name, err)
			}
		}
	}
	if err := (Config{AllowLoopback: true, AllowPrivate: true}).guard(context.Background(), "tcp", "host.example:443", nil); err == nil {
		t.Error("a name was taken for an address")
	}
}

func TestEnvironmentHasNoProxyForUs(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://evil.example:3128")
	tr, err := Config{Hosts: []string{"a.example"}}.transport()
	if err != nil {
		t.Fatal(err)
	}
	if tr.Proxy != nil || !tr.DisableCompression || tr.TLSClientConfig.InsecureSkipVerify || tr.TLSClientConfig.MinVersion < 0x0303 {
		t.Errorf("the transport is %+v", tr)
	}
	if tr.MaxConnsPerHost != DefaultMaxInFlight || tr.MaxIdleConnsPerHost != DefaultMaxInFlight {
		t.Errorf("%d connections, %d idle", tr.MaxConnsPerHost, tr.MaxIdleConnsPerHost)
	}
}

func op(err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(8, 8, 8, 8), Port: 443}, Err: os.NewSyscallError("connect", err)}
}

func TestErrorsOfTheSystem(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		err   error
		at    phase
		kind  Kind
		class gateway.Class
	}{
		{op(syscall.EMFILE), asking, Local, gateway.Local},
		{op(syscall.ENFILE), asking, Local, gateway.Local},
		{op(syscall.EADDRNOTAVAIL), asking, Local, gateway.Local},
		{op(syscall.ENOBUFS), asking, Local, gateway.Local},
		{op(syscall.ENETUNREACH), asking, Local, gateway.Local},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "lookup a.example: too many open files"}}, asking, Local, gateway.Local},
		{op(syscall.ECONNREFUSED), asking, Refused, gateway.Transport},
		{op(syscall.EHOSTUNREACH), asking, Unreachable, gateway.Transport},
		{op(syscall.ETIMEDOUT), asking, Timeout, gateway.Transport},
		{op(syscall.ECONNRESET), asking, Reset, gateway.Transport},
		{op(syscall.EPIPE), asking, Reset, gateway.Transport},
		{op(syscall.ECONNRESET), reading, CutBody, gateway.Transport},
		{io.EOF, asking, Reset, gateway.Transport},
		{io.ErrUnexpectedEOF, reading, CutBody, gateway.Transport},
		{errors.New("http: server closed idle connection"), asking, Reset, gateway.Transport},
		{os.ErrDeadlineExceeded, asking, Timeout, gateway.Transport},
		{errors.New("something new"), asking, Other, gateway.Transport},
		{fmt.Errorf("dialling: %w", &blockedError{"10.0.0.1", "private"}), asking, Blocked, gateway.Transport},
	} {
		e := classify(ctx, ctx, c.err, c.at)
		if e.Kind != c.kind || e.Kind.Class() != c.class {
			t.Errorf("%v: %v of class %v, want %v of class %v", c.err, e.Kind, e.Kind.Class(), c.kind, c.class)
		}
	}
}

// nameServer answers every question with a code (RFC 1035, section 4.1.1), or not at all when it is negative.
func nameServer(t *testing.T, code int) string {
	t.Helper()
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 512)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			if code >= 0 {
				binary.BigEndian.PutUint16(b[2:], 0x8180|uint16(code))
				binary.BigEndian.PutUint16(b[10:], 0) // without the additional record of the question
				p.WriteTo(b[:n], from)
			}
		}
	})
	t.Cleanup(func() { p.Close(); wg.Wait() })
	return p.LocalAddr().String()
}

func TestNamesThatDoNotResolve(t *testing.T) {
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := closed.LocalAddr().String()
	closed.Close()
	for name, c := range map[string]struct {
		server string
		kind   Kind
		class  gateway.Class
	}{
		"no such name":               {nameServer(t, 3), DNS, gateway.Transport},
		"its servers are in trouble": {nameServer(t, 2), DNS, gateway.Transport},
		"our resolver is down":       {refusing, Resolver, gateway.Local},
	} {
		t.Run(name, func(t *testing.T) {
			r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "udp", c.server)
			}}
			d := net.Dialer{Resolver: r}
			_, err := d.DialContext(context.Background(), "tcp", "gateway.example.:443")
			e := classify(context.Background(), context.Background(), err, asking)
			if e.Kind != c.kind || e.Kind.Class() != c.class {
				t.Errorf("%v: %v of class %v, want %v of class %v", err, e.Kind, e.Kind.Class(), c.kind, c.class)
			}
		})
	}
}

func TestKindsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for k := Other; k <= Unasked; k++ {
		if k.String() == "" || seen[k.String()] || kindTexts[k] == "" {
			t.Errorf("kind %d is called %q", k, k)
		}
		seen[k.String()] = true
	}
	if unknown := Unasked + 1; unknown.String() != "other" || unknown.Class() != gateway.Transport || (&Error{Kind: unknown}).Error() == "" {
		t.Error("a kind that does not exist")
	}
}

func TestWaitingTakesFromTheGatewaysTime(t *testing.T) {
	c, err := New(Config{Hosts: []string{"127.0.0.1:1"}, AllowHTTP: true, AllowLoopback: true, MaxInFlight: 1, Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it accepts in the kernel and never answers
	c.hosts = []string{l.Addr().String()}
	c.slots <- struct{}{}
	timer := time.AfterFunc(100*time.Millisecond, func() { <-c.slots })
	defer timer.Stop()
	_, err = c.Do(context.Background(), Request{Method: http.MethodGet, URL: "http://" + l.Addr().String()}, nil)
	var e *Error
	if !errors.As(err, &e) || e.Kind != Busy {
		t.Errorf("a call that had waited for a third of its time: %v", err)
	}
}
