package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/internal/survey"
	"pollux/streams"
)

var _ survey.Broker = (*Conn)(nil)

// Survey implements survey.Broker. It is a few requests for each stream, whatever is in it.
func (c *Conn) Survey(ctx context.Context) (survey.Streams, error) {
	var all survey.Streams
	if !c.Connected() {
		return all, c.notConnected()
	}
	differences, err := c.Diff(ctx, Options{})
	if err != nil {
		return all, err
	}
	drift := map[string]int{}
	for _, d := range differences {
		drift[d.Stream]++
	}
	for _, d := range streams.Definitions() {
		asked, named := c.asking(ctx, streamInfo(d.Name), consumerList(d.Name))
		s, err := c.surveyStream(asked, d.Name, &all)
		err = named(err)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound): // what is missing differs; the others are told as they are
			s = survey.Stream{Name: d.Name}
		case err != nil:
			return all, fmt.Errorf("looking at the stream %s: %w", d.Name, err)
		}
		s.Drift = drift[d.Name]
		all.Streams = append(all.Streams, s)
	}
	return all, nil
}

// surveyStream looks at a stream and its consumers, and adds the polls that are there.
func (c *Conn) surveyStream(ctx context.Context, name string, all *survey.Streams) (survey.Stream, error) {
	s, err := c.js.Stream(ctx, name)
	if err != nil {
		return survey.Stream{}, err
	}
	var filter []jetstream.StreamInfoOpt
	if name == message.StreamDeferred { // a work queue: what is in it sleeps
		filter = append(filter, jetstream.WithSubjectFilter(message.DeferredSubject("*")))
	}
	info, err := s.Info(ctx, filter...)
	if err != nil {
		return survey.Stream{}, err
	}
	found := survey.Stream{Name: name, Messages: int64(info.State.Msgs), Bytes: int64(info.State.Bytes)}
	if info.State.Msgs > 0 && !info.TimeStamp.IsZero() {
		found.Oldest = max(info.TimeStamp.Sub(info.State.FirstTime), 0)
	}
	for subject, n := range info.State.Subjects {
		all.Deferred = append(all.Deferred, survey.Load{Gateway: strings.TrimPrefix(subject, message.DeferredSubject("")), N: int64(n)})
	}
	consumers := s.ListConsumers(ctx)
	for consumer := range consumers.Info() {
		found.Lag = max(found.Lag, int64(consumer.NumPending))
		gateway, lane, ours := queueOf(name, consumer.Config.FilterSubject)
		if !ours {
			continue
		}
		all.Unacked = append(all.Unacked, survey.Load{Gateway: gateway, Lane: lane, N: int64(consumer.NumAckPending)})
		if name == message.StreamPoll {
			all.Waiting += int64(consumer.NumPending)
		}
	}
	return found, consumers.Err()
}

// queueOf is the queue whose polls a consumer takes.
func queueOf(stream, subject string) (gateway, lane string, ours bool) {
	switch stream {
	case message.StreamPoll:
		queue, ok := strings.CutPrefix(subject, "payments.poll.")
		gateway, lane, found := strings.Cut(queue, ".")
		return gateway, lane, ok && found
	case message.StreamDeferred:
		gateway, ok := strings.CutPrefix(subject, message.DeferredSubject(""))
		return gateway, message.LaneDeferred, ok
	}
	return "", "", false
}
