package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// ServerConfig says how connections are dealt with.
type ServerConfig struct {
	HeaderTimeout time.Duration // for the head of a request, and for the handshake before it
	IdleTimeout   time.Duration // between two requests of a connection
	WriteTimeout  time.Duration // from the head of a request to the end of its answer
	MaxHeader     int           // bytes of a head
	MaxConns      int           // connections; beyond it whoever has dawdled longest is put out
	Drain         time.Duration // how long requests that were begun may go on after the end
}

// Serve answers requests from a listener, which it closes, until ctx ends, and then those that were begun. TLS may be nil: then whoever stands before it
// has to speak it.
func Serve(ctx context.Context, cfg ServerConfig, l net.Listener, t *tls.Config, h http.Handler, m Metrics, log *slog.Logger) error {
	house := newHouse(cfg.MaxConns, m.WebhookEvicted)
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: cfg.HeaderTimeout,
		IdleTimeout:       cfg.IdleTimeout,
		WriteTimeout:      cfg.WriteTimeout,
		MaxHeaderBytes:    cfg.MaxHeader,
		ConnContext:       house.arrive,
		ConnState:         house.changed,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what strangers do wrong is no news
		Protocols:         new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true) // a stream of HTTP/2 is no connection, and could not be put out
	if t != nil {
		l = tls.NewListener(l, t)
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
		defer cancel()
		err := srv.Shutdown(drain)
		if err != nil { // somebody dawdles still
			err = srv.Close()
		}
		stopped <- err
	})
	err := srv.Serve(l)
	if !errors.Is(err, http.ErrServerClosed) || stop() {
		return errors.Join(err, srv.Close())
	}
	return <-stopped
}
