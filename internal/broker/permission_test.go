package broker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/fleet"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
)

// reader is a service that reads events.
const reader = "ledger"

var everybody = append(slices.Clone(message.Users), reader)

// site is a server with the printed permissions, and a seed for each user.
type site struct {
	*natstest.Server
	seeds map[string]string // files
}

var access = broker.Access{Queues: []outbox.Queue{{Gateway: "acme", Lane: "normal"}, {Gateway: "acme", Lane: message.LaneRetry}}, Readers: []string{reader}}

// guarded starts a server whose accounts are the printed ones, with streams once its migrator has made them.
func guarded(t *testing.T) *site {
	t.Helper()
	conf, seeds := printed(t, broker.Users(access))
	return &site{natstest.Start(t, natstest.Options{Accounts: conf}), seeds}
}

// printed is what a server has of users, and a file with a seed for each.
func printed(t *testing.T, users []broker.User) (conf string, seeds map[string]string) {
	t.Helper()
	conf, seeds = broker.Conf(users, broker.NKey), map[string]string{}
	for _, u := range users {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err1 := pair.PublicKey()
		seed, err2 := pair.Seed()
		seeds[u.Name] = filepath.Join(t.TempDir(), u.Name+".nk")
		if err := errors.Join(err1, err2, os.WriteFile(seeds[u.Name], seed, 0o600)); err != nil {
			t.Fatal(err)
		}
		conf = strings.ReplaceAll(conf, "$"+broker.NKey.Variable(u.Name)+"\n", public+"\n")
	}
	return conf, seeds
}

// as connects as a user.
func (s *site) as(t *testing.T, user string, edit ...func(*broker.Config)) *broker.Conn {
	t.Helper()
	return connect(t, s.Server, append(edit, func(c *broker.Config) {
		c.NKeyFile, c.InboxPrefix, c.PublishTimeout = s.seeds[user], message.InboxPrefix(user), 10*time.Minute
	})...)
}

// apply does what `pollux streams apply` does.
func (s *site) apply(t *testing.T) {
	t.Helper()
	migrator := s.as(t, message.UserMigrator)
	_, err1 := migrator.Apply(t.Context(), broker.Options{})
	_, err2 := migrator.EnsureReaders(t.Context(), access.Readers)
	if err := errors.Join(err1, err2, migrator.EnsureKV(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
}

// raw connects as a user with no help, and remembers what it is told.
func (s *site) raw(t *testing.T, user string) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(s.seeds[user])
	if err != nil {
		t.Fatal(err)
	}
	return s.Connect(key, nats.CustomInboxPrefix(message.InboxPrefix(user)), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// publishes are subjects, and who may publish to them.
var publishes = map[string][]string{
	"payments.poll.acme.normal":                    {message.UserRelay},
	"payments.poll.acme.high":                      nil, // no such queue
	"payments.poll.other.normal":                   nil,
	"payments.resolved.acme.succeeded":             {message.UserRelay},
	"payments.resolved.other.failed":               {message.UserRelay}, // of a gateway that is gone
	"payments.late_success.acme":                   {message.UserRelay},
	"payments.review.acme.mismatch":                {message.UserRelay},
	"payments.dead.acme.window":                    {message.UserRelay},
	"payments.deferred.acme":                       {message.UserConsumer},
	"payments.deferred.other":                      nil,
	"orders.created":                               nil,
	"$KV.pollux_fleet.breaker.acme":                {message.UserConsumer, message.UserOperator},
	"$KV.pollux_fleet.limit.acme":                  {message.UserConsumer},
	"$KV.pollux_fleet.beat.x":                      {message.UserConsumer},
	"$KV.other.x":                                  nil,
	"_INBOX_pollux_consumer.x.1":                   nil, // an answer that is forged
	"_INBOX_pollux_relay.x.1":                      nil,
	"_INBOX.x.1":                                   nil,
	"$SYS.REQ.SERVER.PING":                         nil,
	"$SYS.REQ.USER.INFO":                           everybody,
	"$JS.API.INFO":                                 {message.UserOperator, message.UserReadOnly},
	"$JS.API.STREAM.LIST":                          nil,
	"$JS.API.STREAM.NAMES":                         nil,
	"$JS.API.STREAM.INFO.PAYMENTS_POLL":            message.Users,
	"$JS.API.STREAM.INFO.PAYMENTS_EVENTS":          everybody,
	"$JS.API.STREAM.INFO.KV_pollux_fleet":          {message.UserConsumer, message.UserOperator, message.UserReadOnly, message.UserMigrator},
	"$JS.API.STREAM.CREATE.PAYMENTS_POLL":          {message.UserMigrator},
	"$JS.API.STREAM.CREATE.MINE":                   nil,
	"$JS.API.STREAM.UPDATE.PAYMENTS_EVENTS":        {message.UserMigrator},
	"$JS.API.STREAM.UPDATE.KV_pollux_fleet":        {message.UserMigrator},
	"$JS.API.STREAM.DELETE.PAYMENTS_POLL":          nil,
	"$JS.API.STREAM.DELETE.KV_pollux_fleet":        nil,
	"$JS.API.STREAM.PURGE.PAYMENTS_EVENTS":         nil,
	"$JS.API.STREAM.PURGE.PAYMENTS_DEFERRED":       nil,
	"$JS.API.STREAM.PURGE.KV_pollux_fleet":         {message.UserConsumer},
	"$JS.API.STREAM.MSG.DELETE.PAYMENTS_DEAD":      nil,
	"$JS.API.STREAM.MSG.GET.PAYMENTS_POLL":         {message.UserRelay},
	"$JS.API.STREAM.MSG.GET.KV_pollux_fleet":       {message.UserConsumer, message.UserOperator, message.UserReadOnly},
	"$JS.API.DIRECT.GET.PAYMENTS_EVENTS":           {message.UserRelay},
	"$JS.API.STREAM.SNAPSHOT.PAYMENTS_EVENTS":      nil,
	"$JS.API.STREAM.RESTORE.PAYMENTS_EVENTS":       nil,
	"$JS.API.STREAM.LEADER.STEPDOWN.PAYMENTS_POLL": nil,
	"$JS.API.STREAM.PEER.REMOVE.PAYMENTS_POLL":     nil,
	"$JS.API.META.LEADER.STEPDOWN":                 nil,
	"$JS.API.ACCOUNT.PURGE.POLLUX":                 nil,
	"$JS.API.CONSUMER.CREATE.PAYMENTS_POLL":        nil,
	"$JS.API.CONSUMER.CREATE.PAYMENTS_POLL.poll_acme_normal.payments.poll.acme.normal": {message.UserConsumer, message.UserMigrator},
	"$JS.API.CONSUMER.CREATE.PAYMENTS_POLL.mine.payments.poll.acme.normal":             {message.UserMigrator},
	"$JS.API.CONSUMER.CREATE.PAYMENTS_EVENTS.ledger":                                   {message.UserMigrator},
	"$JS.API.CONSUMER.CREATE.PAYMENTS_EVENTS.mine":                                     nil,
	"$JS.API.CONSUMER.CREATE.KV_pollux_fleet":                                          {message.UserConsumer},
	"$JS.API.CONSUMER.DURABLE.CREATE.PAYMENTS_POLL.mine":                               nil,
	"$JS.API.CONSUMER.DELETE.PAYMENTS_POLL.poll_acme_normal":                           nil,
	"$JS.API.CONSUMER.PAUSE.PAYMENTS_POLL.poll_acme_normal":                            nil,
	"$JS.API.CONSUMER.INFO.PAYMENTS_POLL.poll_acme_normal":                             {message.UserRelay, message.UserConsumer, message.UserMigrator},
	"$JS.API.CONSUMER.INFO.PAYMENTS_EVENTS.ledger":                                     {message.UserOperator, message.UserReadOnly, message.UserMigrator, reader},
	"$JS.API.CONSUMER.LIST.PAYMENTS_POLL":                                              message.Users,
	"$JS.API.CONSUMER.LIST.PAYMENTS_EVENTS":                                            {message.UserRelay},
	"$JS.API.CONSUMER.MSG.NEXT.PAYMENTS_POLL.poll_acme_normal":                         {message.UserConsumer},
	"$JS.API.CONSUMER.MSG.NEXT.PAYMENTS_DEFERRED.deferred_acme":                        {message.UserConsumer},
	"$JS.API.CONSUMER.MSG.NEXT.PAYMENTS_EVENTS.ledger":                                 {reader},
	"$JS.API.CONSUMER.MSG.NEXT.PAYMENTS_EVENTS.mine":                                   nil,
	"$JS.ACK.PAYMENTS_POLL.poll_acme_normal.1.1.1.1.0":                                 {message.UserConsumer},
	"$JS.ACK.hub.h4sh.PAYMENTS_POLL.poll_acme_normal.1.1.1.1.0":                        {message.UserConsumer},
	"$JS.ACK.PAYMENTS_DEFERRED.deferred_acme.1.1.1.1.0":                                {message.UserConsumer},
	"$JS.ACK.PAYMENTS_DEAD.ledger.1.1.1.1.0":                                           {reader},
	"$JS.ACK.PAYMENTS_POLL.poll_other_normal.1.1.1.1.0":                                nil,
}

// subscribes are subjects, and who may read them.
var subscribes = map[string][]string{
	">":                        nil,
	"payments.>":               nil,
	"payments.resolved.*.*":    nil,
	"$KV.pollux_fleet.>":       nil,
	"_INBOX.>":                 nil,
	"$JS.API.>":                nil,
	"$JS.ACK.>":                nil,
	"$JS.EVENT.ADVISORY.>":     nil,
	"$SYS.>":                   nil,
	"_INBOX_pollux_relay.>":    {message.UserRelay},
	"_INBOX_pollux_consumer.>": {message.UserConsumer},
	"_INBOX_pollux_operator.>": {message.UserOperator},
	"_INBOX_pollux_readonly.>": {message.UserReadOnly},
	"_INBOX_pollux_migrator.>": {message.UserMigrator},
	"_INBOX_pollux_ledger.>":   {reader},
}

func TestWhatAUserMayNotDoIsRefusedAndNamed(t *testing.T) {
	s := guarded(t)
	for _, user := range everybody {
		nc, refused := s.raw(t, user), 0
		check := func(what, subject string, may []string, do func() error) {
			t.Helper()
			if err := errors.Join(do(), nc.FlushTimeout(30*time.Second)); err != nil {
				t.Fatal(err)
			}
			last := nc.LastError()
			no := errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), what+` to "`+subject+`"`)
			if no == slices.Contains(may, user) {
				t.Errorf("%s, %s to %s: forbidden %t, %v", user, what, subject, no, last)
			}
			if no {
				refused++
			}
		}
		for subject, may := range publishes {
			check("Publish", subject, may, func() error { return nc.Publish(subject, nil) })
		}
		for subject, may := range subscribes {
			check("Subscription", subject, may, func() error { _, err := nc.Subscribe(subject, func(*nats.Msg) {}); return err })
		}
		if refused < 30 {
			t.Errorf("only %d acts are forbidden to %s", refused, user)
		}
	}
}

// What a user may not do is an error with a name, at once: nothing here waits for its timeout.
func TestAForbiddenActOfOursIsNamedAtOnce(t *testing.T) {
	s := guarded(t)
	for _, user := range everybody { // nothing is there yet
		if user == message.UserMigrator {
			continue
		}
		_, err := s.as(t, user).Apply(t.Context(), broker.Options{})
		requireForbidden(t, user+" makes streams", err)
		requireForbidden(t, user+" makes the bucket", s.as(t, user).EnsureKV(t.Context(), 0))
		_, err = s.as(t, user).EnsureReaders(t.Context(), access.Readers)
		requireForbidden(t, user+" makes readers", err)
	}
	s.apply(t)
	poll, event := polls("x", 1), polls("x", 1)
	poll[0].Subject, event[0].Subject = message.PollSubject("acme", "normal"), "payments.resolved.acme.failed"
	sleep := polls("y", 1)
	sleep[0].Subject = message.DeferredSubject("acme")
	many := polls("z", 200)
	for i := range many {
		many[i].Subject = message.PollSubject("acme", "normal")
	}
	q := broker.SubscribeConfig{Queue: access.Queues[0], AckWait: time.Minute, MaxAckPending: 100, Prefetch: 10}
	for _, act := range []struct {
		what string
		may  []string
		do   func(context.Context, *broker.Conn) error
	}{
		{"publish a poll", []string{message.UserRelay}, func(ctx context.Context, c *broker.Conn) error { return c.Publish(ctx, poll)[0].Err }},
		{"publish many", []string{message.UserRelay}, func(ctx context.Context, c *broker.Conn) error { return c.Publish(ctx, many)[199].Err }},
		{"publish an event", []string{message.UserRelay}, func(ctx context.Context, c *broker.Conn) error { return c.Publish(ctx, event)[0].Err }},
		{"put to sleep", []string{message.UserConsumer}, func(ctx context.Context, c *broker.Conn) error { return c.Publish(ctx, sleep)[0].Err }},
		{"look at a stream", []string{message.UserRelay}, func(ctx context.Context, c *broker.Conn) error {
			_, err := c.Stream(ctx, message.StreamEvents)
			return err
		}},
		{"see that the stream of the polls is there", message.Users, func(ctx context.Context, c *broker.Conn) error { return c.CheckStream(ctx, message.StreamPoll) }},
		{"survey", []string{message.UserRelay}, func(ctx context.Context, c *broker.Conn) error { _, err := c.Survey(ctx); return err }},
		{"ask for a backlog", []string{message.UserRelay, message.UserConsumer, message.UserMigrator}, func(ctx context.Context, c *broker.Conn) error {
			_, _, err := c.Backlog(ctx, access.Queues[0])
			return err
		}},
		{"compare", message.Users, func(ctx context.Context, c *broker.Conn) error { _, err := c.Diff(ctx, broker.Options{}); return err }},
		{"look for the bucket", []string{message.UserConsumer, message.UserOperator, message.UserReadOnly, message.UserMigrator}, func(ctx context.Context, c *broker.Conn) error { return c.CheckKV(ctx) }},
		{"find the consumer", []string{message.UserConsumer, message.UserMigrator}, func(ctx context.Context, c *broker.Conn) error {
			source, err := c.Subscribe(ctx, q)
			if err != nil {
				return err
			}
			return source.Close()
		}},
		{"change a breaker", []string{message.UserConsumer, message.UserOperator}, func(ctx context.Context, c *broker.Conn) error {
			_, err := c.KV().Put(ctx, "breaker.acme", []byte("x"), 0)
			if errors.Is(err, fleet.ErrConflict) {
				return nil
			}
			return err
		}},
		{"change a limit", []string{message.UserConsumer}, func(ctx context.Context, c *broker.Conn) error {
			_, err := c.KV().Put(ctx, "limit.acme", []byte("x"), 0)
			return err
		}},
		{"read a record", []string{message.UserConsumer, message.UserOperator, message.UserReadOnly}, func(ctx context.Context, c *broker.Conn) error { _, err := c.KV().Get(ctx, "breaker.acme"); return err }},
		{"read all records", []string{message.UserConsumer, message.UserOperator, message.UserReadOnly}, func(ctx context.Context, c *broker.Conn) error { _, err := c.KV().All(ctx); return err }},
		{"follow the bucket", []string{message.UserConsumer}, func(ctx context.Context, c *broker.Conn) error {
			ctx, stop := context.WithCancel(ctx)
			err := c.KV().Watch(ctx, func(fleet.Entry) { stop() })
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}},
		{"delete a record", []string{message.UserConsumer}, func(ctx context.Context, c *broker.Conn) error { return c.KV().Delete(ctx, "limit.acme") }},
	} {
		for _, user := range everybody {
			err := act.do(t.Context(), s.as(t, user, always))
			switch {
			case slices.Contains(act.may, user):
				if err != nil {
					t.Errorf("%s may %s: %v", user, act.what, err)
				}
			default:
				requireForbidden(t, user+", "+act.what, err)
			}
		}
	}
}

// requireForbidden fails unless an error names a permission and is no timeout.
func requireForbidden(t *testing.T, what string, err error) {
	t.Helper()
	var no *broker.PermissionError
	if !errors.As(err, &no) || no.Subject == "" || !errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "the NATS user may not ") || !strings.Contains(err.Error(), "pollux perms print nats") {
		t.Errorf("%s: %v, want an error that names a permission", what, err)
	}
}

func TestEachUserDoesItsWorkWithAKeyOfItsOwn(t *testing.T) {
	s := guarded(t)
	s.apply(t)
	relay, consumer, operator, watcher := s.as(t, message.UserRelay), s.as(t, message.UserConsumer), s.as(t, message.UserOperator), s.as(t, message.UserReadOnly)
	for _, c := range []*broker.Conn{relay, consumer, operator, watcher} {
		if err := c.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// A poll goes to the consumer, and is held, returned and answered.
	q := broker.SubscribeConfig{Queue: access.Queues[0], AckWait: time.Minute, MaxAckPending: 100, Prefetch: 10}
	source := subscribe(t, consumer, q)
	poll := polls("p", 100)
	for i := range poll {
		poll[i].Subject = message.PollSubject("acme", "normal")
	}
	mustPublish(t, relay, poll)
	ds := fetch(t, source, 1, 1)
	if err := ds[0].Return(0); err != nil {
		t.Error(err)
	}
	ackAll(t, fetch(t, source, 100, 10))
	eventually(t, "the relay sees that all was taken", func() bool {
		n, exists, err := relay.Backlog(t.Context(), access.Queues[0])
		return err == nil && exists && n == 0
	})
	// One sleeps, and is woken.
	asleep := polls("d", 1)
	asleep[0].Subject = message.DeferredSubject("acme")
	mustPublish(t, consumer, asleep)
	deferred := q
	deferred.Queue.Lane = message.LaneDeferred
	ackAll(t, fetch(t, subscribe(t, consumer, deferred), 1, 1))
	// An event reaches the service that reads it.
	event := polls("e", 1)
	event[0].Subject = "payments.resolved.acme.failed"
	mustPublish(t, relay, event)
	if st, err := relay.Stream(t.Context(), message.StreamEvents); err != nil || st.LastID != event[0].ID {
		t.Errorf("%+v, %v", st, err)
	}
	js, err := jetstream.New(s.raw(t, reader))
	if err != nil {
		t.Fatal(err)
	}
	durable, err := js.Consumer(t.Context(), message.StreamEvents, reader)
	if err != nil {
		t.Fatal(err)
	}
	m, err := durable.Next(jetstream.FetchMaxWait(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(t.Context()); err != nil || m.Headers().Get(message.HeaderID) != event[0].ID {
		t.Errorf("%v, %v", m.Headers(), err)
	}
	// An operator forces a breaker, a consumer sees it at once, and who looks sees it too.
	seen := watch(t.Context(), consumer.KV())
	if _, err := operator.KV().Put(t.Context(), "breaker.acme", []byte("open"), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the consumer sees the breaker", func() bool { return seen.of("breaker.acme") == "open" })
	all, err := watcher.KV().All(t.Context())
	if err != nil || len(all) != 1 || all[0].Key != "breaker.acme" || string(all[0].Value) != "open" {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAnInboxThatIsForbiddenIsNamedAtOnce(t *testing.T) {
	s := guarded(t)
	_, err := broker.Connect(t.Context(), broker.Config{URLs: []string{s.URL()}, NKeyFile: s.seeds[message.UserRelay]}, discard())
	var no *broker.PermissionError
	if !errors.As(err, &no) || !no.Subscribe || !strings.HasPrefix(no.Subject, "_INBOX.") || !strings.Contains(err.Error(), "nats.inbox_prefix") {
		t.Errorf("%v", err)
	}
}

func TestASourceThatMayNotAskSaysSo(t *testing.T) {
	s := users(t, &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.MSG.NEXT.>"}}})
	c, log := connectLogged(t, s, asRelay)
	subscribe(t, c, config(10))
	eventually(t, "the log names the permission", func() bool {
		return strings.Contains(log.String(), "deliveries interrupted") && strings.Contains(log.String(), "may not publish to $JS.API.CONSUMER.MSG.NEXT.PAYMENTS_POLL.poll_stripe_normal")
	})
}

func TestRightsAreComparedWithWhatAUserNeeds(t *testing.T) {
	s := guarded(t)
	users := map[string]broker.User{}
	for _, u := range broker.Users(access) {
		users[u.Name] = u
	}
	for _, user := range everybody {
		if h, err := s.as(t, user).Rights(t.Context(), users[user]); err != nil || !h.Exact() || h.User == "" {
			t.Errorf("%s: %v, %+v", user, err, h)
		}
	}
	h, err := s.as(t, message.UserReadOnly).Rights(t.Context(), users[message.UserOperator])
	if err != nil || !slices.Equal(h.Missing, []string{"publish to $KV.pollux_fleet.breaker.>", "subscribe to _INBOX_pollux_operator.>"}) ||
		!slices.Equal(h.Excess, []string{"subscribe to _INBOX_pollux_readonly.>"}) {
		t.Errorf("%v, %+v", err, h)
	}
	together := broker.Users(access)
	for i := range together {
		together[i].Account = broker.Account
	}
	conf, seeds := printed(t, together)
	former := &site{natstest.Start(t, natstest.Options{Accounts: conf}), seeds}
	h, err = former.as(t, message.UserOperator).Rights(t.Context(), users[message.UserOperator])
	if err != nil || len(h.Missing) != 0 || len(h.Excess) != 1 || !strings.Contains(h.Excess[0], "account POLLUX, not in POLLUX_OPERATOR") {
		t.Errorf("a user that is in the account of the streams still: %v, %+v", err, h)
	}
	if h, err := former.as(t, message.UserRelay).Rights(t.Context(), users[message.UserRelay]); err != nil || !h.Exact() {
		t.Errorf("%v, %+v", err, h)
	}
	open := natstest.Start(t, natstest.Options{NoStreams: true})
	if h, err := connect(t, open).Rights(t.Context(), users[message.UserRelay]); err != nil || !h.Everything || h.Exact() {
		t.Errorf("a server without permissions: %v, %+v", err, h)
	}
}

func TestUsersFollowTheConfiguration(t *testing.T) {
	of := func(a broker.Access, user string) []string {
		for _, u := range broker.Users(a) {
			if u.Name == user {
				return u.Publish
			}
		}
		return nil
	}
	if relay := of(broker.Access{}, message.UserRelay); !slices.Contains(relay, "payments.poll.*.*") || slices.Contains(of(access, message.UserRelay), "payments.poll.*.*") {
		t.Errorf("a relay without gateways, and only that, may publish any poll: %v", relay)
	}
	more := access
	more.Queues = append(slices.Clone(access.Queues), outbox.Queue{Gateway: "stripe", Lane: "high"})
	var added []string
	for _, user := range message.Users {
		before := of(access, user)
		for _, subject := range of(more, user) {
			if !slices.Contains(before, subject) {
				added = append(added, user+" "+subject)
			}
		}
	}
	want := []string{
		"relay payments.poll.stripe.high",
		"consumer $JS.ACK.*.*.PAYMENTS_DEFERRED.deferred_stripe.>",
		"consumer $JS.ACK.*.*.PAYMENTS_POLL.poll_stripe_high.>",
		"consumer $JS.ACK.PAYMENTS_DEFERRED.deferred_stripe.>",
		"consumer $JS.ACK.PAYMENTS_POLL.poll_stripe_high.>",
		"consumer $JS.API.CONSUMER.CREATE.PAYMENTS_DEFERRED.deferred_stripe.payments.deferred.stripe",
		"consumer $JS.API.CONSUMER.CREATE.PAYMENTS_POLL.poll_stripe_high.payments.poll.stripe.high",
		"consumer $JS.API.CONSUMER.INFO.PAYMENTS_DEFERRED.deferred_stripe",
		"consumer $JS.API.CONSUMER.INFO.PAYMENTS_POLL.poll_stripe_high",
		"consumer $JS.API.CONSUMER.MSG.NEXT.PAYMENTS_DEFERRED.deferred_stripe",
		"consumer $JS.API.CONSUMER.MSG.NEXT.PAYMENTS_POLL.poll_stripe_high",
		"consumer payments.deferred.stripe",
	}
	if diff := cmp.Diff(want, added); diff != "" {
		t.Error(diff)
	}
}

// deploy/nats is an example that a server takes.
func TestTheExampleOfAServerTakesTheAccounts(t *testing.T) {
	for _, user := range message.Users {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(broker.NKey.Variable(user), public)
	}
	o, err := server.ProcessConfigFile("../../deploy/nats/server.conf")
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Nkeys) != len(message.Users) || len(o.Accounts) != 4 || !o.JetStream || !o.SyncAlways {
		t.Errorf("%d users, %d accounts, JetStream %t, synced %t", len(o.Nkeys), len(o.Accounts), o.JetStream, o.SyncAlways)
	}
	for _, u := range o.Nkeys {
		if u.Permissions == nil || len(u.Permissions.Publish.Allow) == 0 || len(u.Permissions.Subscribe.Allow) != 1 {
			t.Errorf("a user may do anything: %+v", u)
		}
	}
}
