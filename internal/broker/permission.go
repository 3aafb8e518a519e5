package broker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pollux/internal/fleet"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/streams"
)

// Account is the account that the streams and all users are in.
const Account = "POLLUX"

// User is a user of the account: what it may publish to, and what it may read. Subjects may have wildcards.
type User struct {
	Name        string   `json:"user"`
	Does        string   `json:"does"` // who it is for
	InboxPrefix string   `json:"inbox_prefix"`
	Publish     []string `json:"publish"`
	Subscribe   []string `json:"subscribe"`
}

// Access is what the permissions depend on.
type Access struct {
	Queues  []outbox.Queue // that polls are published to
	Readers []string       // services that read the events, each with a user and a durable consumer of that name
}

// Users are the users with the least that each needs, the subjects in order and each once.
//
// Who may make a consumer says in the request where its messages are delivered, and the server asks nobody whether they may go there (see natsfacts). So only the users make consumers who
// must: the migrator, and the programs that follow the fleet's bucket. The durable consumers of the readers are made by the migrator (EnsureReaders).
func Users(a Access) []User {
	users := []User{
		{Name: message.UserRelay, Does: "outbox-relay: publishes polls and events, and looks after the streams", Publish: relayMay(a)},
		{Name: message.UserConsumer, Does: "consumer: takes polls, puts them to sleep, follows the fleet's bucket", Publish: consumerMay(a)},
		{Name: message.UserOperator, Does: "people who act with pollux: look, and force breakers", Publish: operatorMay(a)},
		{Name: message.UserReadOnly, Does: "people and dashboards that look", Publish: lookAt(a)},
		{Name: message.UserMigrator, Does: "pollux streams apply: makes and changes streams, the bucket and consumers", Publish: migratorMay(a)},
	}
	for _, name := range a.Readers {
		users = append(users, User{Name: name, Does: "a service that reads events with its durable consumer " + name, Publish: readerMay(name)})
	}
	for i := range users {
		u := &users[i]
		u.InboxPrefix = message.InboxPrefix(u.Name)
		u.Publish = append(u.Publish, userInfo)
		slices.Sort(u.Publish)
		u.Publish = slices.Compact(u.Publish)
		u.Subscribe = []string{u.InboxPrefix + ".>"}
	}
	return users
}

// look is what it takes to compare the streams with their definitions.
func look() []string {
	all := []string{consumerList(message.StreamPoll)}
	for _, d := range streams.Definitions() {
		all = append(all, streamInfo(d.Name))
	}
	return all
}

func lookAround() []string {
	return append(look(), consumerList(message.StreamDeferred), streamInfo(fleetStream), messageGet(fleetStream))
}

func relayMay(a Access) []string {
	all := append(look(), consumerInfo(message.StreamPoll, "*"))
	for _, q := range a.Queues {
		all = append(all, message.PollSubject(q.Gateway, q.Lane))
	}
	for _, d := range streams.Definitions() {
		all = append(all, lastGet(d), consumerList(d.Name))                 // Survey
		if d.Name == message.StreamEvents || d.Name == message.StreamDead { // of any gateway that ever had a payment
			all = append(all, d.Subjects...)
		}
	}
	return all
}

func consumerMay(a Access) []string {
	all := append(lookAround(), streamPurge(fleetStream), tailCreate(fleetStream), fleetSubject+">")
	gateways := map[string]bool{}
	for _, q := range a.Queues {
		all = append(all, take(SubscribeConfig{Queue: q})...)
		gateways[q.Gateway] = true
	}
	for _, name := range slices.Sorted(maps.Keys(gateways)) {
		all = append(all, take(SubscribeConfig{Queue: outbox.Queue{Gateway: name, Lane: message.LaneDeferred}})...)
		all = append(all, message.DeferredSubject(name))
	}
	return all
}

// take is what it takes to make a queue's consumer and to take and answer its deliveries.
func take(c SubscribeConfig) []string {
	return append(read(c.stream(), c.name()), consumerCreate(c.stream(), c.name(), c.subject()))
}

// read is what it takes to take and answer the deliveries of a consumer that is there.
func read(stream, name string) []string {
	return append(ackSubjects(stream, name), consumerInfo(stream, name), nextSubject(stream, name))
}

// lookAt is what it takes to look at all that there is, the consumers of readers too.
func lookAt(a Access) []string {
	all := append(lookAround(), accountInfo)
	for _, name := range a.Readers {
		for _, stream := range readStreams {
			all = append(all, consumerInfo(stream, name))
		}
	}
	return all
}

func operatorMay(a Access) []string {
	return append(lookAt(a), fleetSubject+fleet.BreakerKeys+">")
}

func migratorMay(a Access) []string {
	all := append(look(), streamInfo(fleetStream), streamCreate(fleetStream), streamUpdate(fleetStream), consumerInfo(message.StreamPoll, "*"))
	for _, d := range streams.Definitions() {
		all = append(all, streamCreate(d.Name), streamUpdate(d.Name))
		if d.Name == message.StreamPoll {
			for _, subject := range d.Subjects {
				all = append(all, consumerCreate(d.Name, "*", subject))
			}
		}
	}
	for _, name := range a.Readers {
		for _, stream := range readStreams {
			all = append(all, consumerInfo(stream, name), readerCreate(stream, name))
		}
	}
	return all
}

// readStreams are the streams that other services read.
var readStreams = []string{message.StreamEvents, message.StreamDead}

func readerMay(name string) (all []string) {
	for _, stream := range readStreams {
		all = append(all, streamInfo(stream))
		all = append(all, read(stream, name)...)
	}
	return all
}

// readerCreate is where a reader's consumer is made, which has no filter.
func readerCreate(stream, name string) string { return tailCreate(stream) + "." + name }

// Auth is how users prove who they are.
type Auth string

// The ways. What proves it is no part of what is printed: the server has it from variables of its environment, or of the file.
const (
	NKey     Auth = "nkey"
	Password Auth = "password"
)

// Variable is the variable of a server's configuration that has a user's public nkey, or its password.
func (a Auth) Variable(user string) string {
	return "POLLUX_" + strings.ToUpper(user) + "_" + strings.ToUpper(string(a))
}

// Conf is the account with its users as the configuration of nats-server has it.
func Conf(users []User, a Auth) string {
	var b strings.Builder
	line := func(depth int, format string, args ...any) {
		fmt.Fprintf(&b, strings.Repeat("  ", depth)+format+"\n", args...)
	}
	line(0, "accounts {")
	line(1, "%s {", Account)
	line(2, "jetstream: enabled")
	line(2, "users: [")
	for _, u := range users {
		line(3, "# %s; nats.inbox_prefix is %s", u.Does, u.InboxPrefix)
		line(3, "{")
		switch a {
		case Password:
			line(4, "user: %q", u.Name)
			line(4, "password: $%s", a.Variable(u.Name))
		default:
			line(4, "nkey: $%s", a.Variable(u.Name))
		}
		line(4, "permissions: {")
		for _, way := range []struct {
			name     string
			subjects []string
		}{{"publish", u.Publish}, {"subscribe", u.Subscribe}} {
			line(5, "%s: {allow: [", way.name)
			for _, s := range way.subjects {
				line(6, "%q", s)
			}
			line(5, "]}")
		}
		line(4, "}")
		line(3, "}")
	}
	line(2, "]")
	line(1, "}")
	line(0, "}")
	return b.String()
}
