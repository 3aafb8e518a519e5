package broker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/broker"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outage"
	"pollux/internal/outbox"
	"pollux/internal/secret"
)

func always(c *broker.Config) { c.Batches = broker.BatchesAlways }
func never(c *broker.Config)  { c.Batches = broker.BatchesNever }

func jetStream(t testing.TB, s *natstest.Server) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.Connect())
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func stream(t testing.TB, s *natstest.Server, name string) jetstream.Stream {
	t.Helper()
	st, err := jetStream(t, s).Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// reconfigure changes a stream's configuration behind Pollux's back.
func reconfigure(t testing.TB, s *natstest.Server, name string, edit func(*jetstream.StreamConfig)) {
	t.Helper()
	cfg := stream(t, s, name).CachedInfo().Config
	edit(&cfg)
	if _, err := jetStream(t, s).UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// stored is the id of the message with a sequence.
func stored(t testing.TB, st jetstream.Stream, seq uint64) string {
	t.Helper()
	m, err := st.GetMsg(t.Context(), seq)
	if err != nil {
		t.Fatalf("message %d: %v", seq, err)
	}
	return m.Header.Get(message.HeaderID)
}

func refusal(err error) bool {
	var r *outbox.Refusal
	return errors.As(err, &r)
}

func TestReceiptsCarryTheSequencesUnderWhichMessagesAreStored(t *testing.T) {
	for name, edit := range map[string]func(*broker.Config){"singly": never, "in batches": always} {
		t.Run(name, func(t *testing.T) {
			s := natstest.New(t)
			c := connect(t, s, edit)
			ms := polls("p", 2345) // two full batches, and a third; or singly
			rs := mustPublish(t, c, ms)
			st := stream(t, s, message.StreamPoll)
			for _, i := range []int{0, 1, 998, 999, 1000, 1001, 1999, 2000, 2344} {
				if got := stored(t, st, rs[i].Sequence); got != ms[i].ID {
					t.Errorf("receipt %d says sequence %d, where %q is, want %q", i, rs[i].Sequence, got, ms[i].ID)
				}
				if rs[i].Stream != message.StreamPoll || rs[i].Duplicate {
					t.Errorf("receipt %d: %+v", i, rs[i])
				}
			}
			if n := st.CachedInfo().State.Msgs; n != uint64(len(ms)) {
				t.Errorf("%d messages stored, want %d", n, len(ms))
			}
		})
	}
}

func TestMessagePublishedAgainIsReportedAsDuplicateWithItsFirstSequence(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	first := mustPublish(t, c, polls("p", 3))
	again := mustPublish(t, c, polls("p", 3))
	for i := range again {
		if !again[i].Duplicate || again[i].Sequence != first[i].Sequence {
			t.Errorf("message %d again: %+v, at first %+v", i, again[i], first[i])
		}
	}
}

func TestBatchWithAStoredMessageIsPublishedSingly(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s, always)
	first := mustPublish(t, c, polls("p", 150)[149:])
	ms := polls("p", 300)
	ms[200] = ms[10] // and one that is in the batch twice
	rs := mustPublish(t, c, ms)
	for i, r := range rs {
		if want := i == 149 || i == 200; r.Duplicate != want {
			t.Errorf("message %d: duplicate %v, want %v", i, r.Duplicate, want)
		}
	}
	if rs[149].Sequence != first[0].Sequence || rs[200].Sequence != rs[10].Sequence {
		t.Errorf("duplicates have sequences %d and %d, want %d and %d", rs[149].Sequence, rs[200].Sequence, first[0].Sequence, rs[10].Sequence)
	}
	if n := stream(t, s, message.StreamPoll).CachedInfo().State.Msgs; n != 299 {
		t.Errorf("%d messages stored, want 299", n)
	}
}

func TestStreamThatTakesNoBatchesGetsSingleMessages(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *natstest.Server{
		"disabled": func(t *testing.T) *natstest.Server {
			s := natstest.New(t)
			reconfigure(t, s, message.StreamPoll, func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
			return s
		},
		"smaller batches only": func(t *testing.T) *natstest.Server {
			return natstest.Start(t, natstest.Options{Configure: func(o *server.Options) { o.JetStreamLimits.MaxBatchSize = 100 }})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			c, log := connectLogged(t, s, always)
			mustPublish(t, c, polls("a", 300))
			mustPublish(t, c, polls("b", 300))
			if n := stream(t, s, message.StreamPoll).CachedInfo().State.Msgs; n != 600 {
				t.Errorf("%d messages stored, want 600", n)
			}
			if n := strings.Count(log.String(), "atomic batches are not taken"); n != 1 {
				t.Errorf("said %d times that batches are not taken, want once", n)
			}
		})
	}
}

func TestTooManyBatchesUnderWayFallBackToSingleMessages(t *testing.T) {
	s := natstest.Start(t, natstest.Options{Configure: func(o *server.Options) { o.JetStreamLimits.MaxBatchInflightPerStream = 1 }})
	// One batch that somebody began and does not finish takes the only place.
	nc := s.Connect()
	if err := nc.PublishMsg(batchStart(message.PollSubject("stripe", "normal"))); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, connect(t, s, always), polls("p", 300))
	if n := stream(t, s, message.StreamPoll).CachedInfo().State.Msgs; n != 300 {
		t.Errorf("%d messages stored, want 300", n)
	}
}

func TestMessageThatCannotBePublishedIsRefusedAndTheRestFlows(t *testing.T) {
	const id = "8d4d5c1e"
	poll := message.PollSubject("stripe", "normal")
	small := natstest.Start(t, natstest.Options{Configure: func(o *server.Options) { o.MaxPayload = 16 << 10 }})
	cases := map[string]struct {
		m    outbox.Message
		says string
	}{
		"wildcard":             {outbox.Message{Subject: "payments.poll.*.normal", ID: id}, "payments.poll.*.normal"},
		"dot in a token":       {outbox.Message{Subject: "payments.poll.a..b", ID: id}, "tokens"},
		"JetStream's own":      {outbox.Message{Subject: "$JS.API.STREAM.DELETE.PAYMENTS_POLL", ID: id}, "payments."},
		"NUL":                  {outbox.Message{Subject: "payments.poll.a\x00b.normal", ID: id}, "tokens"},
		"no stream":            {outbox.Message{Subject: "payments.other.stripe", ID: id}, "no stream"},
		"no id":                {outbox.Message{Subject: poll}, "id"},
		"id with a line break": {outbox.Message{Subject: poll, ID: "a\r\nNats-Rollup: all"}, "id"},
		"id too long":          {outbox.Message{Subject: poll, ID: strings.Repeat("x", 201)}, "id"},
		"body over the server": {outbox.Message{Subject: "payments.dead.stripe.poison", ID: id, Body: make([]byte, 16<<10)}, "max_payload"},
		"body over the stream": {outbox.Message{Subject: poll, ID: id, Body: make([]byte, 5000)}, "max_msg_size"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := connect(t, small)
			ms := polls(strings.ReplaceAll(name, " ", "-"), 2)
			rs := c.Publish(t.Context(), []outbox.Message{ms[0], tc.m, ms[1]})
			if rs[0].Err != nil || rs[2].Err != nil {
				t.Errorf("the messages beside it: %v, %v", rs[0].Err, rs[2].Err)
			}
			if !refusal(rs[1].Err) || !strings.Contains(rs[1].Err.Error(), tc.says) {
				t.Errorf("got %v, want a refusal that says %q", rs[1].Err, tc.says)
			}
		})
	}
}

func TestOneMessageTooLargeForTheStreamDoesNotHinderItsBatch(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s, always)
	ms := polls("p", 200)
	ms[77].Body = make([]byte, 5000)
	for i, r := range c.Publish(t.Context(), ms) {
		if want := i == 77; refusal(r.Err) != want || (r.Err == nil) == want {
			t.Errorf("message %d: %v", i, r.Err)
		}
	}
}

func TestFullStreamThatDiscardsNewIsNamedAndNoRefusal(t *testing.T) {
	for name, edit := range map[string]func(*broker.Config){"singly": never, "in batches": always} {
		t.Run(name, func(t *testing.T) {
			s := natstest.New(t)
			reconfigure(t, s, message.StreamDead, func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 })
			c := connect(t, s, edit)
			ms := polls("p", 150)
			for i := range ms {
				ms[i].Subject = message.DeadSubject("stripe", "attempts")
			}
			ok := 0
			for _, r := range c.Publish(t.Context(), ms) {
				switch {
				case r.Err == nil:
					ok++
				case refusal(r.Err) || !strings.Contains(r.Err.Error(), message.StreamDead+" is full"):
					t.Fatalf("got %v, want an ordinary error that says that the stream is full", r.Err)
				}
			}
			if ok != 100 {
				t.Errorf("%d messages stored, want 100", ok)
			}
		})
	}
}

func TestAServerThatMayStoreNoMoreIsNamedAndNoRefusal(t *testing.T) {
	for name, edit := range map[string]func(*broker.Config){"singly": never, "in batches": always} {
		t.Run(name, func(t *testing.T) {
			s := natstest.Start(t, natstest.Options{Configure: func(o *server.Options) { o.JetStreamMaxStore = 20_000 }})
			c := connect(t, s, edit, func(c *broker.Config) { c.PublishTimeout = time.Second }) // the server answers no batch that is too much for it
			failed := 0
			for _, r := range slices.Concat(c.Publish(t.Context(), polls("p", 150)), c.Publish(t.Context(), polls("q", 150))) { // a batch is looked at when it begins
				if r.Err == nil {
					continue
				}
				failed++
				if refusal(r.Err) || !strings.Contains(outage.Hint(r.Err), "max_file_store") {
					t.Fatalf("got %v with the hint %q, want an ordinary error that names the limit", r.Err, outage.Hint(r.Err))
				}
			}
			if failed == 0 {
				t.Error("everything was stored")
			}
		})
	}
}

func TestMissingStreamIsNamedAsSuch(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true})
	r := connect(t, s).Publish(t.Context(), polls("p", 1))[0]
	if r.Err == nil || refusal(r.Err) || !strings.Contains(r.Err.Error(), "pollux streams") {
		t.Errorf("got %v, want an ordinary error that says what to run", r.Err)
	}
}

// users starts a server with one user who may do everything, "admin", and one with permissions, "relay".
func users(t *testing.T, p *server.Permissions) *natstest.Server {
	t.Helper()
	s := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "relay", Password: "r", Permissions: p}}
		o.NoAuthUser = "admin" // whom natstest connects as
	}})
	s.ApplyStreams()
	return s
}

func asRelay(c *broker.Config) { c.User, c.Password = "relay", secret.New("r") }

func TestForbiddenPublishIsNamedAtOnce(t *testing.T) {
	for name, edit := range map[string]func(*broker.Config){"singly": never, "in batches": always} {
		t.Run(name, func(t *testing.T) {
			s := users(t, &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"payments.poll.stripe.>"}}})
			c := connect(t, s, asRelay, edit, func(c *broker.Config) { c.PublishTimeout = 10 * time.Minute })
			ms := polls("p", 100)
			ms[99].Subject = message.PollSubject("adyen", "normal")
			rs := c.Publish(t.Context(), ms)
			for i, r := range rs[:99] {
				if r.Err == nil || refusal(r.Err) || !strings.Contains(r.Err.Error(), "may not publish to payments.poll.stripe.normal") {
					t.Fatalf("message %d: %v, want an ordinary error that names the permission", i, r.Err)
				}
			}
			if name == "singly" && rs[99].Err != nil {
				t.Errorf("the message that is allowed: %v", rs[99].Err)
			}
		})
	}
}

// noAnswers lets a user subscribe to its inboxes, and keeps the acknowledgements of its first five messages from it without a word.
var noAnswers = &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.*.1.0", "_INBOX.*.1.1", "_INBOX.*.1.2", "_INBOX.*.1.3", "_INBOX.*.1.4"}}}

func TestPublishWithoutAnAnswerIsUnknownAndMayBeStored(t *testing.T) {
	s := users(t, noAnswers)
	c := connect(t, s, asRelay, func(c *broker.Config) { c.PublishTimeout = 300 * time.Millisecond })
	r := c.Publish(t.Context(), polls("p", 1))[0]
	if r.Err == nil || refusal(r.Err) || !strings.Contains(r.Err.Error(), "unknown") {
		t.Errorf("got %v, want an ordinary error that says that the outcome is unknown", r.Err)
	}
	if got := outage.Hint(r.Err); !strings.Contains(got, "disk of NATS full") {
		t.Errorf("the hint is %q, and does not name a full disk", got)
	}
	if n := stream(t, s, message.StreamPoll).CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d messages stored, want 1", n)
	}
}

func TestPublishEndsWithItsContextAndWithItsConnection(t *testing.T) {
	for name, end := range map[string]func(*natstest.Server, context.CancelFunc){
		"context":    func(_ *natstest.Server, cancel context.CancelFunc) { cancel() },
		"connection": func(s *natstest.Server, _ context.CancelFunc) { s.Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			s := users(t, noAnswers)
			c := connect(t, s, asRelay, func(c *broker.Config) { c.PublishTimeout = 10 * time.Minute })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan []outbox.Receipt)
			go func() { done <- c.Publish(ctx, polls("p", 5)) }()
			st := stream(t, s, message.StreamPoll)
			eventually(t, "the messages are stored", func() bool {
				info, err := st.Info(t.Context())
				return err == nil && info.State.Msgs == 5
			})
			end(s, cancel)
			for i, r := range <-done {
				if r.Err == nil || !strings.Contains(r.Err.Error(), "unknown") {
					t.Errorf("message %d: %v, want an unknown outcome", i, r.Err)
				}
			}
		})
	}
}

func TestPublishWithoutConnectionSendsNothingAndWorksAgainLater(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	s.Pause()
	eventually(t, "the connection is noticed to be lost", func() bool { return !c.Connected() })
	if r := c.Publish(t.Context(), polls("p", 1))[0]; !errors.Is(r.Err, broker.ErrNotConnected) {
		t.Errorf("got %v, want ErrNotConnected", r.Err)
	}
	if _, err := c.Stream(t.Context(), message.StreamPoll); !errors.Is(err, broker.ErrNotConnected) {
		t.Errorf("Stream: %v, want ErrNotConnected", err)
	}
	if _, _, err := c.Backlog(t.Context(), queue); !errors.Is(err, broker.ErrNotConnected) {
		t.Errorf("Backlog: %v, want ErrNotConnected", err)
	}
	s.MustResume()
	eventually(t, "the connection is back", c.Connected)
	if r := mustPublish(t, c, polls("q", 1))[0]; r.Sequence != 1 {
		t.Errorf("sequence %d: something was sent that was said not to be", r.Sequence)
	}
}

func TestOnlyOurOwnHeadersArePublished(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s := natstest.New(t)
	c := connect(t, s)
	ms := polls("p", 3)
	ms[0].TraceParent = trace
	ms[1].TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\n"
	rs := mustPublish(t, c, ms)
	for i, want := range []map[string][]string{
		{message.HeaderID: {"p-0"}, message.HeaderTraceParent: {trace}},
		{message.HeaderID: {"p-1"}},
		{message.HeaderID: {"p-2"}},
	} {
		m, err := stream(t, s, message.StreamPoll).GetMsg(t.Context(), rs[i].Sequence)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, map[string][]string(m.Header)); d != "" {
			t.Errorf("message %d: %s", i, d)
		}
	}
}

func TestMessagesOfSeveralStreamsGoToTheirOwn(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s, always)
	subjects := map[string]string{
		message.StreamPoll:     message.PollSubject("stripe", "normal"),
		message.StreamDeferred: message.DeferredSubject("stripe"),
		message.StreamEvents:   "payments.resolved.stripe.succeeded",
		message.StreamDead:     message.DeadSubject("stripe", "attempts"),
	}
	names := slices.Sorted(maps.Keys(subjects))
	ms := polls("p", 400)
	for i := range ms {
		ms[i].Subject = subjects[names[i%4]]
	}
	for i, r := range mustPublish(t, c, ms) {
		if r.Stream != names[i%4] || r.Sequence != uint64(i/4+1) {
			t.Fatalf("message %d: %+v, want it in %s as %d", i, r, names[i%4], i/4+1)
		}
	}
}

func TestManyPublishersShareOneConnection(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s, func(c *broker.Config) { c.MaxOutstanding = 1000 })
	var all sync.WaitGroup
	for p := range 8 {
		all.Go(func() {
			for i, r := range c.Publish(t.Context(), polls(fmt.Sprint(p), 1500)) {
				if r.Err != nil {
					t.Errorf("publisher %d, message %d: %v", p, i, r.Err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := stream(t, s, message.StreamPoll).CachedInfo().State.Msgs; n != 8*1500 {
		t.Errorf("%d messages stored, want %d", n, 8*1500)
	}
}

func TestBacklogCountsWhatIsNotDelivered(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	mustPublish(t, c, polls("p", 10))
	if _, exists, err := c.Backlog(t.Context(), queue); exists || err != nil {
		t.Errorf("without a consumer: exists %v, error %v", exists, err)
	}
	src := subscribe(t, c, broker.SubscribeConfig{Queue: queue, AckWait: time.Minute, MaxAckPending: 100, Prefetch: 4})
	fetch(t, src, 4, 4)
	eventually(t, "four are handed out, three or four prefetched, the others wait", func() bool { // it asks when there is room for half
		n, exists, err := c.Backlog(t.Context(), queue)
		return err == nil && exists && (n == 2 || n == 3)
	})
}

func TestStreamStateTellsARecreatedStreamAndALostTail(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	mustPublish(t, c, polls("p", 10))
	before, err := c.Stream(t.Context(), message.StreamPoll)
	if err != nil {
		t.Fatal(err)
	}
	if before.Name != message.StreamPoll || before.LastSequence != 10 || before.Created.IsZero() {
		t.Errorf("state %+v", before)
	}
	if err := jetStream(t, s).DeleteStream(t.Context(), message.StreamPoll); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stream(t.Context(), message.StreamPoll); err == nil || !strings.Contains(err.Error(), "pollux streams apply") {
		t.Errorf("of a missing stream: %v, want an error that says what to run", err)
	}
	s.ApplyStreams()
	after, err := c.Stream(t.Context(), message.StreamPoll)
	if err != nil {
		t.Fatal(err)
	}
	if after.Created.Equal(before.Created) || after.LastSequence != 0 {
		t.Errorf("state %+v after %+v", after, before)
	}
}
