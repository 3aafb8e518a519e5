package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/breaker"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/doctor"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/postgres"
)

// Patient is a system that the doctor examines: where its facts come from, and what its configuration says. It connects when it is asked.
type Patient struct {
	Sources  doctor.Sources
	Settings doctor.Settings

	pool   *pgxpool.Pool // nil: noPool says why
	noPool error
	conn   *doctor.Fact[*broker.Conn]
}

// examinerConns is how many facts of the record are asked for at once.
const examinerConns = 4

// Programs are those whose rights a login can be held against: a user of NATS and a role of PostgreSQL are called after each.
var Programs = []string{message.UserOperator, message.UserReadOnly, message.UserMigrator, message.UserRelay, message.UserConsumer, programWebhook}

// programWebhook needs no broker, and has no user there: what is asked of the broker is left to an operator.
const programWebhook = "webhook"

// NewPatient returns the system of a configuration, whose login and user are those of a program, and of which some secrets and certificates may be unusable. The caller ends it with Close.
func NewPatient(c config.Config, program string, unusable ...config.Problem) (*Patient, error) {
	p := &Patient{Settings: doctorSettings(c)}
	p.Settings.NoGateways = Unused(program)&config.SkipGateways != 0 && program != message.UserOperator && program != message.UserReadOnly
	for _, u := range unusable {
		p.Settings.Unusable = append(p.Settings.Unusable, doctor.Unusable{Key: u.Key, Where: u.Where, Why: u.What})
	}
	pool, err := postgres.Open(postgres.Options{URL: c.Database.Access(), MaxConns: examinerConns, Name: "pollux-doctor"})
	if err != nil && len(unusable) == 0 {
		return nil, err
	}
	if c.Database.URL.Reveal() == "" {
		err = errNoURL
	}
	p.pool, p.noPool = pool, err
	p.askRecord(postgres.NewExaminer(pool, examineOptions(c, program)), roleOf(program))
	p.askBroker(c, program)
	p.askHere(c)
	return p, nil
}

// Close ends what was opened.
func (p *Patient) Close() {
	if p.pool != nil {
		p.pool.Close()
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if conn, err := p.conn.Get(ended); err == nil { // nobody dials any more
		conn.Close()
	}
}

// gate is something which must be there before anything can be asked of it: all that is asked fails with the same words when it is not.
type gate[S any] struct {
	*doctor.Fact[S]
	beyond func(error) bool // an error is that of what the program has no right to, and is meant to have none
}

// through is a fact that is asked of what is behind a gate.
func through[S, T any](g gate[S], ask func(S, context.Context) (T, error)) *doctor.Fact[T] {
	return doctor.Ask(func(ctx context.Context) (value T, err error) {
		at, err := g.Get(ctx)
		if err != nil {
			return value, err
		}
		if value, err = ask(at, ctx); err != nil && g.beyond(err) {
			err = fmt.Errorf("%w: %w", doctor.ErrNotOurs, err)
		}
		return value, err
	})
}

// errNoURL is why no database can be reached.
var errNoURL = errors.New("the secret of database.url cannot be used: see configuration.secrets")

// errNoSchema is why nothing of the record can be looked at.
var errNoSchema = errors.New("there is no schema pollux")

func (p *Patient) askRecord(examiner *postgres.Examiner, role postgres.Role) {
	s := &p.Sources
	reached := gate[*postgres.Examiner]{beyond: role.Beyond}
	reached.Fact = doctor.Ask(func(ctx context.Context) (*postgres.Examiner, error) {
		if p.noPool != nil {
			return nil, p.noPool
		}
		if err := postgres.Reach(ctx, p.pool); err != nil {
			return nil, err
		}
		return examiner, nil
	})
	s.Server = through(reached, (*postgres.Examiner).Server)
	s.Clock = through(reached, (*postgres.Examiner).Clock)
	s.Schema = through(reached, (*postgres.Examiner).Schema)
	s.Sessions = through(reached, (*postgres.Examiner).Sessions)
	s.Connections = through(reached, (*postgres.Examiner).Connections)

	there := gate[*postgres.Examiner]{beyond: role.Beyond}
	there.Fact = through(reached, func(e *postgres.Examiner, ctx context.Context) (*postgres.Examiner, error) {
		if v, err := s.Schema.Get(ctx); err != nil {
			return nil, err
		} else if v.Have == 0 {
			return nil, errNoSchema
		}
		return e, nil
	})
	s.Tables = through(there, (*postgres.Examiner).Tables)
	s.Structure = through(there, (*postgres.Examiner).Structure)
	s.Partitions = through(there, (*postgres.Examiner).Partitions)
	s.Strays = through(there, (*postgres.Examiner).Strays)
	s.Ahead = through(there, (*postgres.Examiner).Ahead)
	s.Queues = through(there, (*postgres.Examiner).Queues)
	s.Outbox = through(there, (*postgres.Examiner).Outbox)
	s.Letters = through(there, (*postgres.Examiner).Letters)
	s.Silence = through(there, (*postgres.Examiner).Silence)
	s.Chain = through(there, (*postgres.Examiner).Chain)
	s.Rights = through(there, (*postgres.Examiner).Rights)
	s.Logins = through(there, (*postgres.Examiner).Logins)
	s.Roles = through(there, (*postgres.Examiner).Roles)
}

// dialTimeout is for NATS to be reached: below the time of a fact, so that the error is the server's and not the clock's.
const dialTimeout = 3 * time.Second

func (p *Patient) askBroker(c config.Config, program string) {
	s := &p.Sources
	user := userOf(c, program)
	p.conn = doctor.Ask(func(ctx context.Context) (*broker.Conn, error) {
		switch {
		case user.Name == "":
			return nil, fmt.Errorf("%w: %s has no user at the broker", doctor.ErrNotOurs, program)
		case len(c.NATS.URLs) == 0: // see Diagnose: nobody but a migrator does without
			return nil, fmt.Errorf("%w: the configuration names no broker", doctor.ErrNotOurs)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no connection within %s", dialTimeout))
		defer cancel()
		return Dial(ctx, c, "pollux-"+program)
	})
	at := gate[*broker.Conn]{p.conn, user.Beyond}
	s.Hub = through(at, (*broker.Conn).Hub)
	s.BrokerClock = through(at, (*broker.Conn).Clock)
	s.Streams = through(at, (*broker.Conn).Streams)
	s.Consumers = through(at, (*broker.Conn).Consumers)
	s.Account = through(at, (*broker.Conn).Account)
	s.Drift = through(at, func(conn *broker.Conn, ctx context.Context) ([]doctor.Difference, error) {
		ds, err := conn.Drift(ctx, broker.Options{Consumers: Subscriptions(c), Readers: visibleReaders(c, program)})
		if err != nil {
			return nil, err
		}
		more, err := conn.FleetDrift(ctx)
		if err != nil && !user.Beyond(err) {
			return nil, err
		}
		return append(ds, more...), nil
	})
	s.Fleet = through(at, readFleet)
	s.Access = through(at, func(conn *broker.Conn, ctx context.Context) (doctor.Rights, error) {
		return accessOf(ctx, conn, c, program, s.Queues)
	})
	s.Disk = doctor.Ask(func(ctx context.Context) (doctor.Disk, error) { return broker.ReadDisk(ctx, c.NATS.MonitorURL) })
}

// userOf is the user that a program has at the broker, as it should be; none when it has none.
func userOf(c config.Config, program string) broker.User {
	for _, u := range broker.Users(Access(c)) {
		if u.Name == program {
			return u
		}
	}
	return broker.User{}
}

// roleOf is the role that the login of a program should have.
func roleOf(program string) postgres.Role { return postgres.Role("pollux_" + program) }

// visibleReaders are the services that read events, for a program that may look at their consumers; a relay and a consumer have no business with them.
func visibleReaders(c config.Config, program string) []string {
	if program == message.UserRelay || program == message.UserConsumer {
		return nil
	}
	return c.NATS.Readers
}

// accessOf compares what our user of NATS may do with what a program needs. A relay without gateways may publish polls of any, and has to publish those of the queues that the record has.
func accessOf(ctx context.Context, conn *broker.Conn, c config.Config, program string, recorded *doctor.Fact[[]doctor.Queue]) (doctor.Rights, error) {
	h, err := conn.Rights(ctx, userOf(c, program))
	if err == nil && program == message.UserRelay && len(c.Gateways) == 0 {
		h.Missing, err = missingPolls(ctx, conn, h.Missing, recorded)
	}
	r := doctor.Rights{Login: cmp.Or(h.User, "nobody"), Role: program, Missing: h.Missing, Excessive: h.Excess}
	if h.Everything {
		r.Everything = "the server has no permissions for it"
	}
	return r, err
}

// missingPolls are the rights that a relay lacks which may publish polls of any queue: in their place those of the queues that the record has.
func missingPolls(ctx context.Context, conn *broker.Conn, missing []string, recorded *doctor.Fact[[]doctor.Queue]) ([]string, error) {
	queues, err := recorded.Get(ctx)
	if err != nil {
		return nil, err
	}
	var need broker.User
	for _, q := range queues {
		need.Publish = append(need.Publish, message.PollSubject(q.Gateway, q.Lane))
	}
	polls, err := conn.Rights(ctx, need)
	missing = slices.DeleteFunc(missing, func(right string) bool { return strings.HasSuffix(right, " "+broker.AnyPoll) })
	return append(missing, polls.Missing...), err
}

// freshComplaint is how long a gateway's complaint counts here: by default its rate has risen again by then.
const freshComplaint = 2 * time.Minute

// readFleet reads what the instances have agreed on.
func readFleet(conn *broker.Conn, ctx context.Context) (doctor.Fleet, error) {
	roster, err := fleet.ReadRoster(ctx, conn.KV())
	if err != nil {
		return doctor.Fleet{}, err
	}
	f := doctor.Fleet{Instances: roster.Beats, Shares: map[string]doctor.Share{}}
	for name, parties := range roster.Shares {
		share := doctor.Share{Members: parties.Members, Sum: parties.Sum}
		if parties.Err != nil {
			share.Unread = parties.Err.Error()
		}
		f.Shares[name] = share
		f.Instances = max(f.Instances, parties.Members)
	}
	records, err := fleet.List(ctx, conn.KV())
	for _, r := range records {
		f.Breakers = append(f.Breakers, breakerOf(r))
	}
	return f, err
}

func breakerOf(r fleet.Record) doctor.Breaker {
	b := doctor.Breaker{Gateway: r.Gateway, Account: r.Account, State: r.Breaker.Kind.String(), Cause: string(r.Breaker.Cause), Since: r.Breaker.Since.Time(), Rate: 1}
	if r.Err != nil {
		b.Unread = r.Err.Error()
	}
	if forced := r.Breaker.Forced; forced.On() && forced.Until > breaker.At(time.Now()) {
		b.Forced, b.Actor, b.Reason, b.Until = forced.Mode.String(), forced.Actor, forced.Reason, forced.Until.Time()
	}
	if cut := r.Limit.CutAt.Time(); !cut.IsZero() && time.Since(cut) < freshComplaint {
		b.Rate = r.Limit.Factor
	}
	return b
}

func (p *Patient) askHere(c config.Config) {
	p.Sources.Machine = doctor.Ask(func(context.Context) (doctor.Machine, error) { return thisMachine(), nil })
	p.Sources.Files = doctor.Ask(func(context.Context) ([]doctor.File, error) { return lookAtFiles(c.Files()), nil })
}

func examineOptions(c config.Config, program string) postgres.ExamineOptions {
	o := postgres.ExamineOptions{KeepEvents: c.Relay.KeepEvents, KeepAttempts: c.Relay.KeepAttempts, Retry: c.Relay.Retry, Role: roleOf(program)}
	for _, name := range hookNames(c) {
		if s := c.Webhooks.Gateways[name].Silence; s.After > 0 {
			o.Watched = append(o.Watched, postgres.Watched{Gateway: name, After: s.After, Pending: s.Pending})
		}
	}
	return o
}

// doctorSettings is what the doctor needs of a configuration.
func doctorSettings(c config.Config) doctor.Settings {
	s := doctor.Settings{
		AckWait: c.Consumer.AckWait, ConsumerLease: c.Consumer.Lease, RelayLease: c.Relay.Lease,
		PublishTimeout: c.Relay.PublishTimeout, Retry: c.Relay.Retry, HoldBudget: c.Consumer.HoldBudget, MaxAckPending: c.Consumer.MaxAckPending,
		MaxConns: c.Database.MaxConns, Writers: c.Consumer.Record.Writers, InFlight: c.Relay.InFlight,
		TelemetryOff: c.Telemetry.Listen == "", Now: time.Now(),
	}
	for _, q := range consumed(config.Config{Consumer: c.Consumer, Gateways: map[string]config.Gateway{"any": {}}}) {
		s.Lanes = append(s.Lanes, q.Lane)
	}
	for _, name := range gatewayNames(c) {
		s.Gateways = append(s.Gateways, doctorGateway(c, name))
	}
	for _, name := range hookNames(c) {
		h := c.Webhooks.Gateways[name]
		add := func(account string, keys map[string]config.HookKey) {
			for key, k := range keys {
				s.Keys = append(s.Keys, doctor.Key{Gateway: name, Account: account, Name: key, Until: k.Until})
			}
		}
		add("", h.Keys)
		for account, a := range h.Accounts {
			add(account, a.Keys)
		}
	}
	return s
}

func doctorGateway(c config.Config, name string) doctor.Gateway {
	g := c.Gateways[name]
	limits := g.LimitConfig()
	d := doctor.Gateway{
		Name: name, Timeout: g.Timeout(), Rate: float64(limits.Rate), Concurrency: limits.Concurrency, Seats: limits.Seats(), Workers: g.Workers,
		NeverAsked: g.Capabilities().Polling == gateway.Never,
	}
	if d.Rate > 0 || d.Concurrency > 0 {
		d.MaxWait = limits.MaxWait
	}
	for _, classes := range []map[string]string{c.Classes, g.Classes} {
		for class := range classes {
			d.HoldLimit = max(d.HoldLimit, c.Policy(name, class).HoldLimit)
		}
	}
	return d
}
