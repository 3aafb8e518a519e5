// Package natsembed runs a JetStream server inside the process: for a laptop and for tests. Production runs its own servers.
package natsembed

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyTimeout is how long a server may take to open its store and its port.
const readyTimeout = 30 * time.Second

// Options says how the server runs. The zero value listens on a free port of 127.0.0.1 and stores in a temporary folder.
type Options struct {
	// StoreDir is where streams are kept. Empty means a temporary folder that Stop removes.
	StoreDir string
	// Port to listen on, on the loopback address. 0 means a free one, kept over restarts.
	Port int
	// InProcess opens no port at all: the server is reached by InProcessConn only.
	InProcess bool
	// SyncAlways syncs the disk before every acknowledgement, as sync_interval: always does. Otherwise JetStream
	// acknowledges first and syncs every two minutes.
	SyncAlways bool
	// Log takes what the server says. Nil means silence.
	Log *slog.Logger
	// Configure may change the server's own options before each start. Nil changes nothing.
	Configure func(*server.Options)
}

// Server is a running or stopped JetStream server. Its methods are safe for concurrent use.
type Server struct {
	opts    Options
	store   string
	ownsDir bool

	mu   sync.Mutex
	port int
	srv  *server.Server // nil while stopped
}

// Start starts a server and returns when it takes connections. The caller ends it with Stop.
func Start(o Options) (*Server, error) {
	s := &Server{opts: o, store: o.StoreDir, port: o.Port}
	if s.store == "" {
		dir, err := os.MkdirTemp("", "pollux-nats-")
		if err != nil {
			return nil, fmt.Errorf("making a folder for the embedded NATS server: %w", err)
		}
		s.store, s.ownsDir = dir, true
	}
	if err := s.Resume(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// URL is where clients connect, or empty when the server has no port.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opts.InProcess {
		return ""
	}
	return fmt.Sprintf("nats://127.0.0.1:%d", s.port)
}

// StoreDir is where the streams are kept.
func (s *Server) StoreDir() string { return s.store }

// InProcessConn opens a connection without a socket, for nats.InProcessServer. It works inside a synctest bubble, and after a
// restart it reaches the new server.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	srv := s.srv
	s.mu.Unlock()
	if srv == nil {
		return nil, errors.New("the embedded NATS server is stopped")
	}
	return srv.InProcessConn()
}

// Resume starts a server that Pause stopped, on the same port and store. It does nothing when the server runs.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srv != nil {
		return nil
	}
	if err := s.portFree(); err != nil {
		return err
	}
	srv, err := server.NewServer(s.options())
	if err != nil {
		return fmt.Errorf("configuring the embedded NATS server: %w", err)
	}
	if s.opts.Log != nil {
		srv.SetLoggerV2(logger{s.opts.Log}, false, false, false)
	}
	srv.Start()
	if !srv.ReadyForConnections(readyTimeout) {
		srv.Shutdown()
		return fmt.Errorf("the embedded NATS server (store %s, port %d) was not ready within %s", s.store, s.port, readyTimeout)
	}
	s.srv = srv
	if a, ok := srv.Addr().(*net.TCPAddr); ok {
		s.port = a.Port
	}
	return nil
}

// portFree is looked at beforehand: the server itself would wait for its port until the timeout.
func (s *Server) portFree() error {
	if s.port == 0 || s.opts.InProcess {
		return nil
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		return fmt.Errorf("the port of the embedded NATS server: %w", err)
	}
	return l.Close()
}

// Pause stops the server and keeps its store.
func (s *Server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halt()
}

// Restart is Pause and Resume.
func (s *Server) Restart() error {
	s.Pause()
	return s.Resume()
}

// Wipe restarts the server with an empty store: every stream, consumer and message is gone.
func (s *Server) Wipe() error {
	s.Pause()
	if err := s.empty(); err != nil {
		return err
	}
	return s.Resume()
}

// Crash restarts the server on what its store looked like on disk while it ran, which is what a SIGKILL leaves: the server
// gets no chance to write anything on its way out.
func (s *Server) Crash() error {
	image, err := os.MkdirTemp("", "pollux-nats-crash-")
	if err != nil {
		return fmt.Errorf("making a folder for the store as a crash leaves it: %w", err)
	}
	defer os.RemoveAll(image)
	if err := s.CopyStore(image); err != nil {
		return err
	}
	s.Pause()
	if err := s.empty(); err != nil {
		return err
	}
	if err := copyTree(image, s.store); err != nil {
		return fmt.Errorf("putting back the store as a crash leaves it: %w", err)
	}
	return s.Resume()
}

// CopyStore copies the store as it is on disk now, also while the server runs.
func (s *Server) CopyStore(to string) error {
	if err := copyTree(s.store, to); err != nil {
		return fmt.Errorf("copying the store of the embedded NATS server: %w", err)
	}
	return nil
}

// Stop ends the server, and removes its store when it is a temporary one. It may be called again.
func (s *Server) Stop() error {
	s.Pause()
	if !s.ownsDir {
		return nil
	}
	if err := os.RemoveAll(s.store); err != nil {
		return fmt.Errorf("removing the store of the embedded NATS server: %w", err)
	}
	return nil
}

func (s *Server) halt() {
	if s.srv == nil {
		return
	}
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.srv = nil
}

func (s *Server) options() *server.Options {
	port := s.port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	o := &server.Options{
		Host:       "127.0.0.1",
		Port:       port,
		DontListen: s.opts.InProcess,
		JetStream:  true,
		StoreDir:   s.store,
		SyncAlways: s.opts.SyncAlways,
		NoSigs:     true,
		NoLog:      s.opts.Log == nil,

		DisableJetStreamBanner: true,
	}
	if s.opts.Configure != nil {
		s.opts.Configure(o)
	}
	return o
}

// empty removes what is in the store's folder, not the folder.
func (s *Server) empty() error {
	entries, err := os.ReadDir(s.store)
	if err != nil {
		return fmt.Errorf("emptying the store of the embedded NATS server: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(s.store, e.Name())); err != nil {
			return fmt.Errorf("emptying the store of the embedded NATS server: %w", err)
		}
	}
	return nil
}
