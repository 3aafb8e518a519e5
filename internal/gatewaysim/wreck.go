package gatewaysim

import (
	"net"
	"net/http"
	"strconv"
	"time"
)

// dripEvery is how slowly a dripping body comes: no pause is long enough for an idle timeout, only a total one ends it.
const dripEvery = time.Second

// wreck carries out the faults that break the connection or the time. It returns the HTTP status, 0 when no headers were sent.
func (s *Simulator) wreck(w http.ResponseWriter, r *http.Request, p *reply) int {
	switch p.outcome {
	case Reset:
		reset(seize(w))
	case Timeout:
		s.wait(r.Context(), s.cfg.Patience)
		reset(seize(w))
	case CutHeaders:
		return cut(w, p, 0)
	case CutBody:
		return cut(w, p, 2)
	case Drip:
		return s.drip(w, r, p)
	case GzipBomb:
		return sendBomb(w, p)
	}
	return 0
}

// seize takes the connection away from the server. Where that cannot be done it panics in the way that makes the server drop it.
func seize(w http.ResponseWriter) net.Conn {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return conn
}

// reset closes a connection with RST instead of FIN.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// cut promises the whole body, sends one part in so many of it, none for 0, and closes.
func cut(w http.ResponseWriter, p *reply, parts int) int {
	body := p.appendBody(nil)
	p.told = noWord
	conn := seize(w)
	b := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ")
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	if parts > 0 {
		b = append(b, body[:len(body)/parts]...)
	}
	_, _ = conn.Write(b)
	_ = conn.Close()
	return http.StatusOK
}

// drip sends the body a byte at a time until the client has enough of it.
func (s *Simulator) drip(w http.ResponseWriter, r *http.Request, p *reply) int {
	body := p.appendBody(nil)
	w.Header()["Content-Type"] = asJSON
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	out := http.NewResponseController(w)
	for i := range body {
		if i > 0 && !s.wait(r.Context(), dripEvery) {
			p.told = noWord
			break
		}
		if _, err := w.Write(body[i : i+1]); err != nil {
			p.told = noWord
			break
		}
		_ = out.Flush() // what it could not send, the next write says
	}
	return http.StatusOK
}
