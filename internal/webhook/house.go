package webhook

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// house bounds the connections of a server. When it is full, whoever has dawdled longest is put out: a connection dawdles until a whole request has come
// over it, and again from its answer on. So slow senders, however many they are, push out each other, and a sender that just sends is served.
type house struct {
	max     int
	evicted func()

	mu     sync.Mutex
	guests map[net.Conn]*guest
	idle   *list.List // of *guest: the dawdlers, the longest first
}

type guest struct {
	house *house
	conn  net.Conn
	place *list.Element // among the dawdlers; nil while it is attended to
}

func newHouse(limit int, evicted func()) *house {
	return &house{max: limit, evicted: evicted, guests: map[net.Conn]*guest{}, idle: list.New()}
}

type guestKey struct{}

// arrive is for http.Server.ConnContext: it lets a connection in.
func (h *house) arrive(ctx context.Context, c net.Conn) context.Context {
	g := &guest{house: h, conn: c}
	h.mu.Lock()
	g.place = h.idle.PushBack(g)
	h.guests[c] = g
	out := h.longest()
	h.mu.Unlock()
	if out != nil {
		hangUp(out)
		h.evicted()
	}
	return context.WithValue(ctx, guestKey{}, g)
}

// longest takes whoever dawdles longest off the list, when there are too many.
func (h *house) longest() net.Conn {
	front := h.idle.Front()
	if len(h.guests) <= h.max || front == nil {
		return nil
	}
	g := front.Value.(*guest)
	h.idle.Remove(front)
	g.place = nil
	delete(h.guests, g.conn)
	return g.conn
}

// hangUp closes a connection without a word: a farewell of TLS may wait for seconds.
func hangUp(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close()
}

// changed is for http.Server.ConnState.
func (h *house) changed(c net.Conn, s http.ConnState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.guests[c]
	if g == nil {
		return
	}
	switch s {
	case http.StateActive, http.StateIdle: // the first byte of a request, or the last one of an answer
		if g.place == nil {
			g.place = h.idle.PushBack(g)
		} else {
			h.idle.MoveToBack(g.place)
		}
	case http.StateClosed, http.StateHijacked:
		if g.place != nil {
			h.idle.Remove(g.place)
		}
		delete(h.guests, c)
	}
}

// attended says that the request of a connection has come whole. A context without a connection is one of a test.
func attended(ctx context.Context) {
	g, ok := ctx.Value(guestKey{}).(*guest)
	if !ok {
		return
	}
	g.house.mu.Lock()
	defer g.house.mu.Unlock()
	if g.place != nil {
		g.house.idle.Remove(g.place)
		g.place = nil
	}
}
