package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/streams"
)

// Options says what Diff and Apply look at beside the definitions of the streams.
type Options struct {
	// Replicas is how many servers keep each stream: 1, 3 or 5. 0 leaves those of existing streams alone and creates new ones with one.
	Replicas int
	// Consumers are the queues whose consumers are compared with what they should be. Of others, only settings that do harm
	// are looked at: a bound on deliveries and a list of delays.
	Consumers []SubscribeConfig
	// Readers are the services that read events (MissingReaders, EnsureReaders). Diff and Apply do not look at them.
	Readers []string
}

// Difference is one thing that is not as it should be.
type Difference struct {
	Stream   string
	Consumer string // empty: of the stream itself
	Field    string // empty: it is missing altogether
	Have     string
	Want     string
	Blocked  string // why Apply will not change it, and what to do instead; empty when it will
}

// String says it in a line.
func (d Difference) String() string {
	where := d.Stream
	if d.Consumer != "" {
		where += " consumer " + d.Consumer
	}
	if d.Field == "" {
		return where + ": missing"
	}
	s := fmt.Sprintf("%s: %s is %s, wanted %s", where, d.Field, orNone(d.Have), orNone(d.Want))
	if d.Blocked != "" {
		s += " (" + d.Blocked + ")"
	}
	return s
}

func orNone(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

// summary is differences in one line, each without its remedy.
func summary(ds []Difference) string {
	words := make([]string, len(ds))
	for i, d := range ds {
		d.Blocked = ""
		words[i] = d.String()
	}
	return strings.Join(words, "; ")
}

// Diff compares the streams with their definitions, field by field, and their consumers with what they should be. Fields that a
// definition does not name are not looked at. It changes nothing.
func (c *Conn) Diff(ctx context.Context, o Options) ([]Difference, error) {
	var all []Difference
	for _, d := range streams.Definitions() {
		s, err := c.compareStream(ctx, d, o)
		if err != nil {
			return nil, err
		}
		all = append(all, s.differences...)
	}
	consumers, err := c.compareConsumers(ctx, o)
	return append(all, consumers...), err
}

// Check is for a service that starts: it returns an error that names what Diff finds and what to run.
func (c *Conn) Check(ctx context.Context) error {
	ds, err := c.Diff(ctx, Options{})
	if err != nil {
		return err
	}
	if len(ds) > 0 {
		return fmt.Errorf("streams differ from their definitions (%s); run: pollux streams diff", summary(ds))
	}
	return nil
}

// Apply creates missing streams and changes what Diff finds, as far as a running system can bear it: it refuses what needs a stream or
// consumer to be made anew and what would throw away messages, changes nothing at all in that case, and says what to do. What is as it should be is not
// touched: a server forgets held messages when it is given even the same configuration again. It returns what it changed.
func (c *Conn) Apply(ctx context.Context, o Options) ([]Difference, error) {
	found, err := c.Diff(ctx, o)
	if err != nil {
		return nil, err
	}
	var refused []error
	for _, d := range found {
		if d.Blocked != "" {
			refused = append(refused, errors.New(d.String()))
		}
	}
	if len(refused) > 0 {
		return nil, fmt.Errorf("nothing was changed, since this cannot be: %w", errors.Join(refused...))
	}
	for _, d := range streams.Definitions() {
		if err := c.applyStream(ctx, d, o); err != nil {
			return nil, err
		}
	}
	if err := c.applyConsumers(ctx, o, found); err != nil {
		return nil, err
	}
	return found, nil
}

// The stream API's JSON is used as it is: a field that this build does not know, set by a newer server or by an operator, is kept.
type (
	fields      map[string]json.RawMessage
	streamReply struct {
		Config fields    `json:"config"`
		State  state     `json:"state"`
		Error  *apiError `json:"error"`
	}
	state struct {
		Messages  int64     `json:"messages"`
		Bytes     int64     `json:"bytes"`
		FirstTime time.Time `json:"first_ts"`
	}
)

// comparison is a stream beside its definition.
type comparison struct {
	have, want  fields // have is nil when the stream is missing
	differences []Difference
}

func (c *Conn) compareStream(ctx context.Context, d streams.Definition, o Options) (comparison, error) {
	var cmp comparison
	if err := json.Unmarshal(d.JSON, &cmp.want); err != nil {
		return cmp, fmt.Errorf("reading the definition of the stream %s: %w", d.Name, err)
	}
	if o.Replicas > 0 {
		cmp.want["num_replicas"] = json.RawMessage(fmt.Sprint(o.Replicas))
	}
	got, err := c.streamAPI(ctx, "INFO", d.Name, nil)
	var no *apiError
	if errors.As(err, &no) && no.Code == codeStreamNotFound {
		cmp.differences = []Difference{{Stream: d.Name}}
		return cmp, nil
	}
	if err != nil {
		return cmp, err
	}
	if o.Replicas == 0 {
		cmp.want["num_replicas"] = got.Config["num_replicas"]
	}
	cmp.have = got.Config
	for _, field := range sortedKeys(cmp.want) {
		if field == "description" { // for people; no service refuses to start for a sentence
			continue
		}
		if have, want := show(field, got.Config[field]), show(field, cmp.want[field]); have != want {
			cmp.differences = append(cmp.differences, Difference{
				Stream: d.Name, Field: field, Have: have, Want: want,
				Blocked: blocked(field, cmp.want, got.State),
			})
		}
	}
	return cmp, nil
}

// applyStream compares again, so that what somebody else applied meanwhile is not applied twice.
func (c *Conn) applyStream(ctx context.Context, d streams.Definition, o Options) error {
	cmp, err := c.compareStream(ctx, d, o)
	if err != nil || len(cmp.differences) == 0 {
		return err
	}
	verb, config := "CREATE", cmp.want
	if cmp.have != nil {
		verb, config = "UPDATE", cmp.have
		for _, diff := range cmp.differences {
			config[diff.Field] = cmp.want[diff.Field]
		}
	}
	body, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("writing the configuration of the stream %s: %w", d.Name, err)
	}
	_, err = c.streamAPI(ctx, verb, d.Name, body)
	return err
}

// streamAPI makes one request. The error is an *apiError when the server says no.
func (c *Conn) streamAPI(ctx context.Context, verb, name string, body []byte) (streamReply, error) {
	var r streamReply
	fail := func(err error) (streamReply, error) {
		return streamReply{}, fmt.Errorf("stream %s, %s: %w", name, strings.ToLower(verb), err)
	}
	if !c.Connected() {
		return fail(c.notConnected())
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	subject := map[string]string{"INFO": streamInfo(name), "CREATE": streamCreate(name), "UPDATE": streamUpdate(name)}[verb]
	ctx, named := c.asking(ctx, subject)
	m, err := c.nc.RequestWithContext(ctx, subject, body)
	if err = named(err); err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return fail(fmt.Errorf("reading the answer: %w", err))
	}
	if r.Error != nil {
		return fail(r.Error)
	}
	return r, nil
}

// needsNew are the settings that a server does not change, or not without harm.
var needsNew = []string{"name", "retention", "storage", "max_consumers"}

// blocked says why a running stream must not get a field's new value. A lower limit throws away what exceeds it at once.
func blocked(field string, want fields, have state) string {
	if slices.Contains(needsNew, field) {
		return "cannot be changed; stop the services, delete the stream, run: pollux streams apply. What was in it is published again from the database"
	}
	var limit int64
	if json.Unmarshal(want[field], &limit) != nil || limit <= 0 {
		return ""
	}
	lost := false
	switch discardsOld := string(want["discard"]) == `"old"`; field {
	case "max_msgs":
		lost = discardsOld && have.Messages > limit
	case "max_bytes":
		lost = discardsOld && have.Bytes > limit
	case "max_age":
		lost = have.Messages > 0 && time.Since(have.FirstTime) > time.Duration(limit)
	}
	if lost {
		return fmt.Sprintf("would throw away messages, the stream has %d; purge it first, or change it with the nats tool", have.Messages)
	}
	return ""
}

// show makes a value comparable and readStreams: a missing one is the same as a zero one, durations are in words.
func show(field string, raw json.RawMessage) string {
	var v any
	if len(raw) > 0 && json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	switch x := v.(type) {
	case nil:
		return ""
	case bool:
		if !x {
			return ""
		}
		return "true"
	case float64:
		return showNumber(field, raw)
	case string:
		return x
	case []any:
		return showList(x)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return string(raw)
	}
	return compact.String()
}

func showNumber(field string, raw json.RawMessage) string {
	var n int64
	if json.Unmarshal(raw, &n) != nil {
		return string(raw)
	}
	switch {
	case n == 0:
		return ""
	case n == -1:
		return "unlimited"
	case field == "max_age" || field == "duplicate_window":
		return time.Duration(n).String()
	}
	return fmt.Sprint(n)
}

func showList(list []any) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = fmt.Sprint(v)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func sortedKeys(f fields) []string {
	keys := make([]string, 0, len(f))
	for k := range f {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// compareConsumers looks at all consumers of polls. Missing ones are no difference: services make theirs at start.
func (c *Conn) compareConsumers(ctx context.Context, o Options) ([]Difference, error) {
	all, err := c.pollConsumers(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the consumers of %s: %w", message.StreamPoll, err)
	}
	var ds []Difference
	for _, info := range all {
		if !strings.HasPrefix(info.Config.Durable, "poll_") {
			continue
		}
		if want, ok := wanted(o.Consumers, info.Config.Durable); ok {
			ds = append(ds, consumerDifferences(info.Config, want)...)
			continue
		}
		ds = append(ds, consumerDifferences(info.Config, SubscribeConfig{}.consumer(), "max_deliver", "backoff")...)
	}
	return ds, nil
}

// pollConsumers are all consumers of PAYMENTS_POLL.
func (c *Conn) pollConsumers(ctx context.Context) (all []*jetstream.ConsumerInfo, err error) {
	ctx, named := c.asking(ctx, streamInfo(message.StreamPoll), consumerList(message.StreamPoll))
	stream, err := c.js.Stream(ctx, message.StreamPoll)
	if err != nil {
		return nil, named(err)
	}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		all = append(all, info)
	}
	return all, named(list.Err())
}

func wanted(cs []SubscribeConfig, name string) (jetstream.ConsumerConfig, bool) {
	for _, c := range cs {
		if c.name() == name {
			return c.consumer(), true
		}
	}
	return jetstream.ConsumerConfig{}, false
}

// MissingReaders are the streams, by reader, in which a service that reads events lacks its durable consumer.
func (c *Conn) MissingReaders(ctx context.Context, readers []string) ([]Difference, error) {
	var ds []Difference
	for _, name := range readers {
		for _, stream := range readStreams {
			asked, named := c.asking(ctx, consumerInfo(stream, name))
			_, err := c.js.Consumer(asked, stream, name)
			err = named(err)
			switch {
			case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
				ds = append(ds, Difference{Stream: stream, Consumer: name})
			case err != nil && !errors.Is(err, jetstream.ErrNotPullConsumer):
				return nil, fmt.Errorf("looking for the consumer %s of %s: %w", name, stream, err)
			}
		}
	}
	return ds, nil
}

// EnsureReaders makes the durable consumers of services that read events, where they are missing, and returns those that it made: from the oldest event that is kept, each delivered until it
// is acknowledged. One that exists belongs to its service and is left alone.
func (c *Conn) EnsureReaders(ctx context.Context, readers []string) ([]Difference, error) {
	missing, err := c.MissingReaders(ctx, readers)
	if err != nil {
		return nil, err
	}
	for _, d := range missing {
		asked, named := c.asking(ctx, readerCreate(d.Stream, d.Consumer))
		_, err := c.js.CreateConsumer(asked, d.Stream, jetstream.ConsumerConfig{
			Durable: d.Consumer, Description: "Events for " + d.Consumer, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1,
		})
		if err = named(err); err != nil {
			return nil, fmt.Errorf("making the consumer %s of %s: %w", d.Consumer, d.Stream, err)
		}
	}
	return missing, nil
}

// applyConsumers gives each consumer with differences its new settings in one update. A new AckWait moves delays that already run by as much;
// the rows put that right.
func (c *Conn) applyConsumers(ctx context.Context, o Options, found []Difference) error {
	done := map[string]bool{}
	for _, d := range found {
		if d.Consumer == "" || done[d.Consumer] {
			continue
		}
		done[d.Consumer] = true
		if err := c.applyConsumer(ctx, d.Consumer, o); err != nil {
			return fmt.Errorf("updating the consumer %s: %w", d.Consumer, err)
		}
	}
	return nil
}

func (c *Conn) applyConsumer(ctx context.Context, name string, o Options) error {
	asked, named := c.asking(ctx, consumerInfo(message.StreamPoll, name))
	got, err := c.js.Consumer(asked, message.StreamPoll, name)
	if err = named(err); err != nil {
		return err
	}
	have := got.CachedInfo().Config
	want, known := wanted(o.Consumers, name)
	var ds []Difference
	if known {
		ds = consumerDifferences(have, want)
	} else {
		want = SubscribeConfig{}.consumer()
		ds = consumerDifferences(have, want, "max_deliver", "backoff")
	}
	if len(ds) == 0 {
		return nil
	}
	for _, f := range consumerFields {
		if slices.ContainsFunc(ds, func(d Difference) bool { return d.Field == f.name }) && f.update != nil {
			f.update(&have, want)
		}
	}
	ctx, named = c.asking(ctx, consumerCreate(message.StreamPoll, name, have.FilterSubject))
	_, err = c.js.UpdateConsumer(ctx, message.StreamPoll, have)
	return named(err)
}
