// Package natstest gives a test a JetStream server of its own, with the streams of Pollux in it.
package natstest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"pollux/internal/natsembed"
	"pollux/streams"
)

// apiTimeout bounds a request to the server's API. It is long: two cores may be busy with other tests.
const apiTimeout = 30 * time.Second

// Options says which server a test wants. The zero value listens on a free port, keeps its streams in files in a folder of the
// test's own, and has the streams of Pollux.
type Options struct {
	Memory     bool // keep streams in memory: a restart loses them
	InProcess  bool // no port: for a synctest bubble, where sockets would stop virtual time
	SyncAlways bool // sync the disk before each acknowledgement
	NoStreams  bool // start empty
	// Accounts is the part of a server's configuration that has its accounts, as `pollux perms print nats` prints it, with all variables in it. A server with accounts has no streams:
	// who may make them does.
	Accounts  string
	Configure func(*server.Options)
}

// Server is a JetStream server that ends with its test.
type Server struct {
	*natsembed.Server
	t      testing.TB
	memory bool
}

// New starts a server with the default options.
func New(t testing.TB) *Server {
	t.Helper()
	return Start(t, Options{})
}

// Start starts a server.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	configure := o.Configure
	if o.Accounts != "" {
		configure = withAccounts(t, o.Accounts)
	}
	s := On(t, natsembed.Options{
		StoreDir: t.TempDir(), InProcess: o.InProcess, SyncAlways: o.SyncAlways, Configure: configure,
	})
	s.memory = o.Memory
	if !o.NoStreams && o.Accounts == "" {
		s.ApplyStreams()
	}
	return s
}

// withAccounts reads accounts with the server's own parser.
func withAccounts(t testing.TB, text string) func(*server.Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "accounts.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) {
		read, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Errorf("reading the accounts: %v", err)
			return
		}
		o.Accounts, o.Users, o.Nkeys = read.Accounts, read.Users, read.Nkeys
	}
}

// On starts a server on a store that exists, as it is.
func On(t testing.TB, o natsembed.Options) *Server {
	t.Helper()
	srv, err := natsembed.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &Server{Server: srv, t: t}
}

// Connect opens a plain connection that ends with the test. It reconnects quickly and for ever.
func (s *Server) Connect(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	opts = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.InProcessServer(s.inProcess())}, opts...)
	nc, err := nats.Connect(s.URL(), opts...)
	if err != nil {
		s.t.Fatalf("connecting to the embedded NATS server: %v", err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// inProcess is nil for a server with a port, so that tests use real sockets unless they ask not to.
func (s *Server) inProcess() nats.InProcessConnProvider {
	if s.URL() != "" {
		return nil
	}
	return s
}

// ApplyStreams creates the streams of Pollux; those that exist as they should are left alone.
func (s *Server) ApplyStreams() {
	s.t.Helper()
	nc := s.Connect()
	defer nc.Close()
	for _, d := range streams.Definitions() {
		s.create(nc, d)
	}
}

func (s *Server) create(nc *nats.Conn, d streams.Definition) {
	s.t.Helper()
	var config map[string]any
	if err := json.Unmarshal(d.JSON, &config); err != nil {
		s.t.Fatalf("stream %s: %v", d.Name, err)
	}
	if s.memory {
		config["storage"] = "memory"
	}
	body, err := json.Marshal(config)
	if err != nil {
		s.t.Fatalf("stream %s: %v", d.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	for {
		m, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.CREATE."+d.Name, body)
		if err != nil {
			s.t.Fatalf("creating the stream %s: %v", d.Name, err)
		}
		var answer struct {
			Error *struct {
				Code        int    `json:"err_code"`
				Description string `json:"description"`
			} `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			s.t.Fatalf("creating the stream %s: %v", d.Name, err)
		}
		switch {
		case answer.Error == nil:
			return
		case answer.Error.Code != noStore || ctx.Err() != nil:
			s.t.Fatalf("creating the stream %s: %s", d.Name, answer.Error.Description)
		}
	}
}

// noStore is the server's error while it clears the folder away of a stream of that name that was just deleted.
const noStore = 10049

// MustRestart stops the server and starts it again on the same port and store.
func (s *Server) MustRestart() { s.must(s.Restart()) }

// MustResume starts the server again after Pause.
func (s *Server) MustResume() { s.must(s.Resume()) }

// MustCrash restarts the server as after a SIGKILL.
func (s *Server) MustCrash() { s.must(s.Crash()) }

// MustWipe restarts the server with an empty store; the streams are gone until ApplyStreams.
func (s *Server) MustWipe() { s.must(s.Wipe()) }

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
