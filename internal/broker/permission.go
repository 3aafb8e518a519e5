package broker

import (
	"maps"
	"slices"
	"strings"

	"pollux/internal/fleet"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/streams"
)

// Account is the account of the streams, and of the programs that fill and empty them.
const Account = "POLLUX"

// User is a user of NATS: what it may publish to, and what it may read. Subjects may have wildcards.
type User struct {
	Name        string   `json:"user"`
	Account     string   `json:"account"`
	Does        string   `json:"does"` // who it is for
	InboxPrefix string   `json:"inbox_prefix"`
	Publish     []string `json:"publish"`
	Subscribe   []string `json:"subscribe"`
}

// Access is what the permissions depend on.
type Access struct {
	Queues  []outbox.Queue // that polls are published to
	Admins  []string       // people who may do everything with the streams, each with a user
	Readers []string       // services that read the events, each with a user and a durable consumer of that name
}

// Imports are the subjects for which the account of the user asks that of the streams; none when it is that account. They are what the user may publish to, and accountInfo: an account that does
// not have that from another gets the whole API of JetStream from the server, which answers every request a second time, that JetStream is not enabled.
func (u User) Imports() []string {
	if u.Account == Account {
		return nil
	}
	all := append(slices.Clone(u.Publish), accountInfo)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(subject string) bool { return subject == userInfo }) // which each account has of its own
}

// Export is what the account of the streams answers to others.
type Export struct {
	Subject  string   `json:"subject"`
	Accounts []string `json:"accounts"`
	Stream   bool     `json:"stream"` // a request has many answers, and may wait for them
}

// Exports are what users in accounts of their own ask for, in order and each once.
func Exports(users []User) []Export {
	accounts := map[string][]string{}
	for _, u := range users {
		for _, subject := range u.Imports() {
			accounts[subject] = append(accounts[subject], u.Account)
		}
	}
	var all []Export
	for _, subject := range slices.Sorted(maps.Keys(accounts)) {
		all = append(all, Export{subject, accounts[subject], strings.HasPrefix(subject, nextPrefix)})
	}
	return all
}

// Users are the users with the least that each needs, the subjects in order and each once.
//
// JetStream sends its answer to whatever subject a request names, and looks at no permission. A server that brings a request from one account to another sends the answer back to the account that
// asked. So whoever need not be in the account of the streams has one of its own: its answers reach nobody else, and no stream. The relay and the consumer are in it: all polls go through them, and
// the consumer has messages pushed.
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
		u.Account = Account
		if u.Name != message.UserRelay && u.Name != message.UserConsumer {
			u.Account += "_" + strings.ToUpper(u.Name)
		}
		u.InboxPrefix = message.InboxPrefix(u.Name)
		u.Publish = append(u.Publish, userInfo)
		slices.Sort(u.Publish)
		u.Publish = slices.Compact(u.Publish)
		u.Subscribe = []string{u.InboxPrefix + ".>"}
	}
	for _, name := range a.Admins {
		users = append(users, User{Name: name, Account: Account, Does: "a person who runs the servers: everything, also what deletes streams", InboxPrefix: message.InboxPrefix(name),
			Publish: []string{">"}, Subscribe: []string{">"}})
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

// AnyPoll is what a relay may publish polls to where no gateway is configured.
var AnyPoll = message.PollSubject("*", "*")

func relayMay(a Access) []string {
	all := append(look(), consumerInfo(message.StreamPoll, "*"))
	for _, q := range a.Queues {
		all = append(all, message.PollSubject(q.Gateway, q.Lane))
	}
	if len(a.Queues) == 0 { // a relay can do without gateways in its configuration: it publishes polls of whatever the record has
		all = append(all, AnyPoll)
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
