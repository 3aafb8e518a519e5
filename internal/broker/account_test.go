package broker_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
)

// stock is a second service that reads events.
const stock = "stock"

// walled is a site with two readers, on whose server somebody in each account hears all that is sent there.
type walled struct {
	*site
	users   []broker.User
	witness map[string]*nats.Conn // by account
}

func wall(t *testing.T, a broker.Access) *walled {
	t.Helper()
	w := &walled{users: broker.Users(a), witness: map[string]*nats.Conn{}}
	conf, seeds := printed(t, w.users)
	conf = regexp.MustCompile(`(?m)^  (POLLUX\w*) \{$(\n    jetstream: enabled$)?\n    users: \[$`).ReplaceAllString(conf, "$0\n{user: witness_$1, password: w}")
	w.site = &site{natstest.Start(t, natstest.Options{Accounts: conf}), seeds}
	for _, u := range w.users {
		if w.witness[u.Account] == nil {
			w.witness[u.Account] = w.Connect(nats.UserInfo("witness_"+u.Account, "w"))
		}
	}
	return w
}

// record is all that lies in the streams and all that their consumers stand at, but for the consumers of one reader and what operators may write.
func (w *walled) record(t *testing.T, but string) map[string]string {
	t.Helper()
	js, err := jetstream.New(w.witness[broker.Account])
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range []string{message.StreamPoll, message.StreamDeferred, message.StreamEvents, message.StreamDead, "KV_" + broker.FleetBucket} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		for subject, n := range info.State.Subjects {
			if name != "KV_"+broker.FleetBucket {
				all[name+" "+subject] = fmt.Sprint(n)
				continue
			}
			m, err := stream.GetLastMsgForSubject(t.Context(), subject)
			if err != nil {
				t.Fatal(err)
			}
			all[name+" "+subject] = fmt.Sprint(m.Sequence)
		}
		if name != "KV_"+broker.FleetBucket {
			all[name] = fmt.Sprint(info.State.FirstSeq, info.State.LastSeq)
		}
		consumers := stream.ListConsumers(t.Context())
		for c := range consumers.Info() {
			if c.Name != but {
				all[name+" consumer "+c.Name] = fmt.Sprint(c.AckFloor, c.NumAckPending, c.NumRedelivered, c.NumWaiting, c.NumPending)
			}
		}
		if err := consumers.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// request is one that a user may make, whose answers are to go somewhere.
type request struct{ subject, body string }

// requests are those that a user may make, in several ways each.
func requests(u broker.User, acks map[string]string) (all []request) {
	config := func(name string) string {
		return `{"stream_name": "` + message.StreamPoll + `", "config": {"durable_name": "` + name + `", "name": "` + name + `", "ack_policy": "explicit", "filter_subject": "payments.poll.acme.normal"}}`
	}
	for _, subject := range u.Publish {
		bodies := []string{""}
		switch {
		case strings.HasPrefix(subject, "$JS.ACK.*."): // the form of another server
			continue
		case strings.HasPrefix(subject, "$JS.ACK."):
			subject, bodies = acks[subject], []string{"+WPI", "-NAK", "+NXT"}
		case strings.Contains(subject, "CONSUMER.MSG.NEXT."):
			bodies = []string{`{"batch": 1, "no_wait": true}`, `{"batch": 1, "expires": 60000000000}`}
		case strings.Contains(subject, "STREAM.MSG.GET."):
			bodies = []string{`{"last_by_subj": "$KV.pollux_fleet.breaker.acme"}`, `{"seq": 1}`, "nonsense"}
		case strings.Contains(subject, "CONSUMER.CREATE.PAYMENTS_POLL.*"):
			subject, bodies = strings.Replace(strings.Replace(subject, ".*.", ".mine.", 1), ">", "acme.normal", 1), []string{config("mine"), "{}"}
		case strings.HasSuffix(subject, ".*"):
			subject = strings.TrimSuffix(subject, "*") + "poll_acme_normal"
		case strings.HasSuffix(subject, ".>"):
			subject, bodies = strings.TrimSuffix(subject, ">")+"theirs", []string{"x"}
		}
		for _, body := range bodies {
			all = append(all, request{subject, body})
		}
	}
	return all
}

// A server sends what JetStream answers to the subject that a request names. No answer to a user outside of the account of the streams leaves the account of that user.
func TestAnswersReachNobodyButWhoAsked(t *testing.T) {
	a := access
	a.Readers = []string{reader, stock}
	w := wall(t, a)
	w.apply(t)
	if _, err := w.as(t, message.UserMigrator).EnsureReaders(t.Context(), a.Readers); err != nil {
		t.Fatal(err)
	}
	relay, consumer := w.as(t, message.UserRelay), w.as(t, message.UserConsumer)
	poll, event, dead := polls("p", 3), polls("e", 90), polls("d", 90)
	for _, m := range []struct {
		messages []outbox.Message
		subject  string
	}{{poll, message.PollSubject("acme", "normal")}, {event, "payments.resolved.acme.failed"}, {dead, "payments.dead.acme.window"}} {
		for i := range m.messages {
			m.messages[i].Subject = m.subject
		}
		mustPublish(t, relay, m.messages)
	}
	for _, key := range []string{"breaker.acme", "limit.acme"} {
		if _, err := consumer.KV().Put(t.Context(), key, []byte("{}"), 0); err != nil {
			t.Fatal(err)
		}
	}
	// The fleet has a poll in its hands, each reader an event and a dead letter, whose acknowledgements are known to everybody.
	held := fetch(t, subscribe(t, consumer, broker.SubscribeConfig{Queue: access.Queues[0], AckWait: time.Hour, MaxAckPending: 100, Prefetch: 1}), 1, 1)
	defer func() { ackAll(t, held) }()
	acks := map[string]string{}
	for _, name := range a.Readers {
		js, err := jetstream.New(w.raw(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range []string{message.StreamEvents, message.StreamDead} {
			durable, err := js.Consumer(t.Context(), stream, name)
			if err != nil {
				t.Fatal(err)
			}
			m, err := durable.Next(jetstream.FetchMaxWait(30 * time.Second))
			if err != nil {
				t.Fatal(err)
			}
			acks["$JS.ACK."+stream+"."+name+".>"] = m.Reply()
		}
	}
	targets := []string{
		"payments.resolved.acme.succeeded", "payments.poll.acme.normal", "payments.dead.acme.window", "payments.deferred.acme",
		"$KV.pollux_fleet.breaker.acme", "$KV.pollux_fleet.limit.acme",
		"$JS.API.STREAM.PURGE.PAYMENTS_EVENTS", "$JS.API.STREAM.DELETE.PAYMENTS_POLL", "$JS.API.CONSUMER.MSG.NEXT.PAYMENTS_POLL.poll_acme_normal",
		"_INBOX_pollux_relay.x.1", "_INBOX_pollux_consumer.x.1", "_INBOX_pollux_operator.x.1", "_INBOX_pollux_stock.x.1", "anything",
	}
	// Whose acknowledgements a server takes for no place to answer at.
	reserved := []string{"$JS.ACK.PAYMENTS_POLL.poll_acme_normal.1.1.1.1.0", acks["$JS.ACK.PAYMENTS_EVENTS.stock.>"], "_R_.x.y"}

	for _, u := range w.users {
		if u.Account == broker.Account || u.Name == stock {
			continue
		}
		t.Run(u.Name, func(t *testing.T) {
			nc := w.raw(t, u.Name)
			own, err1 := w.witness[u.Account].SubscribeSync(">")
			before := w.record(t, u.Name)
			streams, err2 := w.witness[broker.Account].SubscribeSync("payments.>")
			inboxes, err3 := w.witness[broker.Account].SubscribeSync("_INBOX_pollux_relay.>")
			others, err4 := w.witness["POLLUX_STOCK"].SubscribeSync(">")
			if err := errors.Join(err1, err2, err3, err4, w.witness[u.Account].Flush(), w.witness[broker.Account].Flush(), w.witness["POLLUX_STOCK"].Flush()); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = errors.Join(own.Unsubscribe(), streams.Unsubscribe(), inboxes.Unsubscribe(), others.Unsubscribe())
			}()
			asked := 0
			for _, r := range requests(u, acks) {
				for _, target := range targets {
					if slices.ContainsFunc(u.Publish, func(p string) bool { return covers(p, target) }) || target == "anything" && r.subject == "$SYS.REQ.USER.INFO" {
						continue // which it may send anything to as it is
					}
					if err := nc.PublishRequest(r.subject, target, []byte(r.body)); err != nil {
						t.Fatal(err)
					}
					for {
						m, err := own.NextMsg(30 * time.Second)
						if err != nil {
							t.Fatalf("%s %s with the answer to %s: nobody hears it: %v", r.subject, r.body, target, err)
						}
						if m.Subject == target || strings.HasPrefix(m.Reply, "$JS.ACK.") { // a message is sent with its own subject
							break
						}
					}
					asked++
				}
				for _, target := range reserved {
					if err := errors.Join(nc.PublishRequest(r.subject, target, []byte(r.body)), nc.Flush()); err != nil {
						t.Fatal(err)
					}
					if err := nc.LastError(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), target) {
						t.Errorf("%s with the answer to %s: %v", r.subject, target, err)
					}
				}
			}
			if asked < 100 {
				t.Errorf("only %d requests were made", asked)
			}
			after := w.record(t, u.Name)
			maps.DeleteFunc(after, func(what, _ string) bool { // what the user may do as it is
				return u.Name == message.UserOperator && what == "KV_pollux_fleet $KV.pollux_fleet.breaker.theirs" || u.Name == message.UserMigrator && what == "PAYMENTS_POLL consumer mine"
			})
			if diff := cmp.Diff(before, after); diff != "" {
				t.Error(diff)
			}
			for what, sub := range map[string]*nats.Subscription{"the streams": streams, "the relay's inbox": inboxes, "another account": others} {
				if err := errors.Join(w.witness[broker.Account].Flush(), w.witness["POLLUX_STOCK"].Flush()); err != nil {
					t.Fatal(err)
				}
				if n, _, err := sub.Pending(); err != nil || n != 0 {
					t.Errorf("%d messages reach %s, %v", n, what, err)
				}
			}
		})
	}
}

// covers reports whether a pattern that ends with > or has no wildcard matches a subject.
func covers(pattern, subject string) bool {
	prefix, tail := strings.CutSuffix(pattern, ">")
	return pattern == subject || tail && strings.HasPrefix(subject, prefix)
}

// Who is in the account of the streams has them stored what it is answered, wherever it says: so the test above finds what it looks for, and SECURITY.md says what a relay and a consumer can do.
func TestAnswersInTheAccountOfTheStreamsLieInThem(t *testing.T) {
	w := wall(t, access)
	w.apply(t)
	for _, user := range []string{message.UserRelay, message.UserConsumer} {
		before := w.record(t, "")
		nc := w.raw(t, user)
		if err := nc.PublishRequest("$JS.API.STREAM.INFO.PAYMENTS_POLL", "payments.resolved.acme."+user, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the answer to "+user+" lies among the events", func() bool {
			return w.record(t, "")["PAYMENTS_EVENTS payments.resolved.acme."+user] == "1"
		})
		if cmp.Equal(before, w.record(t, "")) {
			t.Error("the record does not see it")
		}
	}
}

// Two exports that match one subject, to different accounts: which one counts would be by chance.
func TestNoExportCoversAnother(t *testing.T) {
	all := broker.Exports(broker.Users(broker.Access{Queues: access.Queues, Readers: []string{reader, stock}}))
	if len(all) < 20 {
		t.Fatalf("%d exports", len(all))
	}
	accounts := map[string]*server.Account{}
	for _, e := range all {
		a := server.NewAccount("X")
		if err := a.AddServiceExport(e.Subject, nil); err != nil {
			t.Fatal(err)
		}
		accounts[e.Subject] = a
	}
	for subject, a := range accounts {
		for _, e := range all {
			if e.Subject != subject && a.IsExportService(strings.NewReplacer("*", "x", ">", "x.y").Replace(e.Subject)) {
				t.Errorf("%s covers %s", subject, e.Subject)
			}
		}
	}
}

// serving is a server with accounts.
func serving(t *testing.T, accounts string) *server.Server {
	t.Helper()
	o, err := server.ProcessConfigFile(configured(t, filepath.Join(t.TempDir(), "server.conf"), -1, t.TempDir(), accounts))
	if err != nil {
		t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server takes no connections")
	}
	return srv
}

// configured writes the configuration of a server.
func configured(t *testing.T, file string, port int, store, accounts string) string {
	t.Helper()
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream {store_dir: %q}\n%s", port, store, accounts)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// serverConfig is the variable with which the binary of these tests is a server, until its input ends.
const serverConfig = "POLLUX_TEST_NATS_SERVER"

func TestMain(m *testing.M) {
	if file := os.Getenv(serverConfig); file != "" {
		serve(file)
	}
	os.Exit(m.Run())
}

func serve(file string) {
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		panic(err)
	}
	srv, err := server.NewServer(o)
	if err != nil {
		panic(err)
	}
	srv.ConfigureLogger()
	srv.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// reloadable is a server in a process of its own, which takes other accounts at SIGHUP: a reload beside clients is no place for the race detector, which watches nats-server too.
func reloadable(t *testing.T, accounts string) (url string, change func(accounts string)) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	file, store := filepath.Join(t.TempDir(), "server.conf"), t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverConfig+"="+configured(t, file, port, store, accounts))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready, reloaded := make(chan struct{}), make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			switch line := lines.Text(); {
			case strings.Contains(line, "Server is ready"):
				close(ready)
			case strings.Contains(line, "Reloaded server configuration"):
				reloaded <- struct{}{}
			}
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-told
		_ = cmd.Wait()
	})
	await := func(c <-chan struct{}, what string) {
		t.Helper()
		select {
		case <-c:
		case <-told:
			t.Fatalf("the server has ended before it %s", what)
		case <-time.After(time.Minute):
			t.Fatalf("the server has not said that it %s", what)
		}
	}
	await(ready, "was ready")
	return fmt.Sprintf("nats://127.0.0.1:%d", port), func(accounts string) {
		t.Helper()
		configured(t, file, port, store, accounts)
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		await(reloaded, "reloaded its configuration")
	}
}

// everyone connects everybody who uses our own connection, and the reader as any service does.
func everyone(t *testing.T, url string, seeds map[string]string) (ours map[string]*broker.Conn, service *nats.Conn) {
	t.Helper()
	ours = map[string]*broker.Conn{}
	for _, user := range message.Users {
		c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{url}, NKeyFile: seeds[user], InboxPrefix: message.InboxPrefix(user)}, discard())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		ours[user] = c
	}
	key, err := nats.NkeyOptionFromSeed(seeds[reader])
	if err != nil {
		t.Fatal(err)
	}
	service, err = nats.Connect(url, key, nats.CustomInboxPrefix(message.InboxPrefix(reader)), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(service.Close)
	migrator := ours[message.UserMigrator]
	_, err1 := migrator.Apply(t.Context(), broker.Options{})
	_, err2 := migrator.EnsureReaders(t.Context(), access.Readers)
	if err := errors.Join(err1, err2, migrator.EnsureKV(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	return ours, service
}

// A service reads events with nats.go as it likes, from an account of its own, and the server keeps nothing of it.
func TestAServiceReadsEventsFromAnAccountOfItsOwn(t *testing.T) {
	conf, seeds := printed(t, broker.Users(access))
	srv := serving(t, conf)
	ours, service := everyone(t, srv.ClientURL(), seeds)
	account, err := srv.LookupAccount(broker.Account)
	if err != nil {
		t.Fatal(err)
	}
	events := func(prefix string, n int) {
		t.Helper()
		all := polls(prefix, n)
		for i := range all {
			all[i].Subject = "payments.resolved.acme.failed"
		}
		mustPublish(t, ours[message.UserRelay], all)
	}
	events("e", 3000)
	js, err := jetstream.New(service)
	if err != nil {
		t.Fatal(err)
	}
	durable, err := js.Consumer(t.Context(), message.StreamEvents, reader)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	saw := func(m jetstream.Msg) { seen[m.Headers().Get(message.HeaderID)] = true }
	for len(seen) < 1000 {
		batch, err := durable.Fetch(100, jetstream.FetchMaxWait(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			saw(m)
			if err := m.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := batch.Error(); err != nil {
			t.Fatal(err)
		}
	}
	held, err := durable.Next(jetstream.FetchMaxWait(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(held.InProgress(), held.Nak()); err != nil { // held, and taken again
		t.Fatal(err)
	}
	messages, err := durable.Messages()
	if err != nil {
		t.Fatal(err)
	}
	for len(seen) < 3000 {
		m, err := messages.Next()
		if err != nil {
			t.Fatal(err)
		}
		saw(m)
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	messages.Stop()
	eventually(t, "all is acknowledged", func() bool {
		info, err := durable.Info(t.Context())
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0 && info.AckFloor.Stream == 3000
	})
	if err := service.Flush(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server keeps no way back", func() bool { return account.NumPendingAllResponses() == 0 })

	// A pull that nobody answers for longer than its expiry goes on, and what it leaves goes with the connection.
	idle, err := durable.Messages(jetstream.PullExpiry(time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	late := make(chan string, 1)
	go func() {
		m, err := idle.Next()
		if err != nil {
			late <- err.Error()
			return
		}
		late <- m.Headers().Get(message.HeaderID)
	}()
	eventually(t, "it asked several times", func() bool { return account.NumPendingAllResponses() > 2 })
	events("late", 1)
	if id := <-late; id != "late-0" {
		t.Error(id)
	}
	service.Close()
	eventually(t, "nothing is left of it", func() bool { return account.NumPendingAllResponses() == 0 })
}

// The accounts of before had everybody in one. A server that runs takes the printed ones with the users where they are: those that move connect again, and go on. The first reload makes the
// new accounts and moves the users; it is the second one that has the server listen to what they ask for (2.15.2).
func TestAServerThatRunsTakesTheAccounts(t *testing.T) {
	users := broker.Users(access)
	conf, seeds := printed(t, users)
	together := slices.Clone(users)
	for i := range together {
		together[i].Account = broker.Account
	}
	former := broker.Conf(together, broker.NKey)
	for _, u := range users { // with the same keys
		public := regexp.MustCompile(`\$` + broker.NKey.Variable(u.Name) + `\n`)
		key, err := nkeys.FromSeed(readSeed(t, seeds[u.Name]))
		if err != nil {
			t.Fatal(err)
		}
		name, err := key.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		former = public.ReplaceAllString(former, name+"\n")
	}
	url, change := reloadable(t, former)
	ours, service := everyone(t, url, seeds)
	js, err := jetstream.New(service)
	if err != nil {
		t.Fatal(err)
	}
	durable, err := js.Consumer(t.Context(), message.StreamEvents, reader)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := durable.Messages(jetstream.PullExpiry(2*time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	read := func(id string) {
		t.Helper()
		event := polls(id, 1)
		event[0].Subject = "payments.resolved.acme.failed"
		mustPublish(t, ours[message.UserRelay], event)
		for range 100 {
			m, err := messages.Next()
			if errors.Is(err, jetstream.ErrNoHeartbeat) { // it was asked in the middle of the change
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := m.DoubleAck(t.Context()); err == nil && m.Headers().Get(message.HeaderID) == event[0].ID {
				return
			}
		}
		t.Fatalf("%s is not read", id)
	}
	read("before")
	change(conf)
	change(conf)
	read("after")
	for _, user := range message.Users {
		eventually(t, user+" goes on", func() bool { _, err := ours[user].Diff(t.Context(), broker.Options{}); return err == nil })
	}
	for _, u := range users {
		if u.Name == reader {
			continue
		}
		if h, err := ours[u.Name].Rights(t.Context(), u); err != nil || !h.Exact() {
			t.Errorf("%s: %v, %+v", u.Name, err, h)
		}
	}
	if _, err := ours[message.UserOperator].KV().Put(t.Context(), "breaker.acme", []byte("open"), 0); err != nil {
		t.Error(err)
	}
	change(strings.ReplaceAll(conf, `"5m"`, `"6m"`)) // and goes on when they change
	read("changed")
}

func readSeed(t *testing.T, file string) []byte {
	t.Helper()
	seed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}
