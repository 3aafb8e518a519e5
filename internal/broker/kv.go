package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/fleet"
)

// FleetBucket is the key-value bucket in which the instances of a fleet agree. The nats command reads it: nats kv ls pollux_fleet.
const FleetBucket = "pollux_fleet"

const (
	fleetStream  = "KV_" + FleetBucket
	fleetSubject = "$KV." + FleetBucket + "."
	// watchBuffer is how many changes wait to be looked at; beyond, the watch begins anew.
	watchBuffer = 8192
)

// The further codes of JetStream's errors that mean something to a bucket.
const (
	codeMessageNotFound    = 10037
	codeNoStore            = 10049 // also while the server clears the folder away of a bucket that was just deleted
	codeWrongLastSequence  = 10071
	codeWrongLastSequence2 = 10164 // the same, of a replicated stream
)

// KV is a bucket of NATS as the fleet's store of records. It is safe for concurrent use.
//
// nats.go's own watcher is not used: it goes on for ever in silence when its bucket was lost and made again.
type KV struct{ conn *Conn }

var _ fleet.KV = (*KV)(nil)

// KV returns the fleet's store. It asks nobody: CheckKV says whether the bucket is there.
func (c *Conn) KV() *KV { return &KV{c} }

// EnsureKV makes the fleet's bucket, or gives an existing one the settings that the fleet needs. replicas is how many servers keep it; 0 leaves an
// existing one as it is and makes a new one with one.
func (c *Conn) EnsureKV(ctx context.Context, replicas int) error {
	if !c.Connected() {
		return fmt.Errorf("making the bucket %s: %w", FleetBucket, c.notConnected())
	}
	asked, named := c.asking(ctx, streamInfo(fleetStream), streamCreate(fleetStream), streamUpdate(fleetStream))
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxElapsedTime(requestTimeout))
	err := backoff.Retry(func() error {
		err := c.ensureKV(asked, replicas)
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == codeNoStore {
			return err
		}
		if err != nil {
			return backoff.Permanent(err)
		}
		return nil
	}, backoff.WithContext(b, asked))
	if err = named(err); err != nil {
		return fmt.Errorf("making the bucket %s: %w", FleetBucket, err)
	}
	return nil
}

func (c *Conn) ensureKV(ctx context.Context, replicas int) error {
	s, err := c.js.Stream(ctx, fleetStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = c.js.CreateStream(ctx, fleetConfig(jetstream.StreamConfig{Replicas: max(replicas, 1)}))
		return err
	}
	if err != nil {
		return err
	}
	have := s.CachedInfo().Config
	want := fleetConfig(have)
	if replicas > 0 {
		want.Replicas = replicas
	}
	if len(fleetDifferences(have, want)) == 0 && have.Replicas == want.Replicas {
		return nil
	}
	_, err = c.js.UpdateStream(ctx, want)
	return err
}

// fleetConfig is a configuration with what the fleet needs in it.
func fleetConfig(c jetstream.StreamConfig) jetstream.StreamConfig {
	c.Name = fleetStream
	c.Description = "What the instances of Pollux agree on: breakers, pauses, shares of limits."
	c.Subjects = []string{fleetSubject + ">"}
	c.Retention = jetstream.LimitsPolicy
	c.Storage = jetstream.FileStorage
	c.Discard = jetstream.DiscardNew
	c.MaxMsgsPerSubject = 1
	c.MaxMsgs, c.MaxBytes, c.MaxConsumers = -1, -1, -1
	c.MaxAge = 0                                                  // a breaker's record is as old as its last change
	c.MaxMsgSize = fleet.MaxValueBytes + 1024                     // and headers
	c.AllowRollup, c.DenyDelete, c.DenyPurge = true, true, false  // as the nats command expects of a bucket
	c.AllowDirect = false                                         // a replica may lag behind: a read after a write would not see it
	c.Duplicates, c.NoAck, c.Sealed = 2*time.Minute, false, false // nothing here has an id
	return c
}

// fleetDifferences names what is not as it should be.
func fleetDifferences(have, want jetstream.StreamConfig) []string {
	var ds []string
	for _, f := range []struct {
		name       string
		have, want any
	}{
		{"subjects", strings.Join(have.Subjects, " "), strings.Join(want.Subjects, " ")},
		{"retention", have.Retention, want.Retention},
		{"storage", have.Storage, want.Storage},
		{"max_msgs_per_subject", have.MaxMsgsPerSubject, want.MaxMsgsPerSubject},
		{"max_msgs", have.MaxMsgs, want.MaxMsgs},
		{"max_bytes", have.MaxBytes, want.MaxBytes},
		{"max_age", have.MaxAge, want.MaxAge},
		{"max_msg_size", have.MaxMsgSize, want.MaxMsgSize},
		{"allow_direct", have.AllowDirect, want.AllowDirect},
		{"deny_purge", have.DenyPurge, want.DenyPurge},
	} {
		if f.have != f.want {
			ds = append(ds, fmt.Sprintf("%s is %v, wanted %v", f.name, f.have, f.want))
		}
	}
	return ds
}

// BucketError is the error of a bucket that is missing or not as it should be. EnsureKV mends it.
type BucketError struct {
	Why     string
	Missing bool
}

// Error says what to run.
func (e *BucketError) Error() string {
	return "the bucket " + FleetBucket + " " + e.Why + "; run: pollux streams apply"
}

// Hint says it alone.
func (e *BucketError) Hint() string { return applyStreams }

// CheckKV is for a service that starts: it returns a *BucketError, which says what to run, when the bucket is missing or not as it should be.
func (c *Conn) CheckKV(ctx context.Context) error {
	if !c.Connected() {
		return fmt.Errorf("looking for the bucket %s: %w", FleetBucket, c.notConnected())
	}
	ctx, named := c.asking(ctx, streamInfo(fleetStream))
	s, err := c.js.Stream(ctx, fleetStream)
	err = named(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return &BucketError{Why: "does not exist", Missing: true}
	}
	if err != nil {
		return fmt.Errorf("looking for the bucket %s: %w", FleetBucket, err)
	}
	have := s.CachedInfo().Config
	if ds := fleetDifferences(have, fleetConfig(have)); len(ds) > 0 {
		return &BucketError{Why: "is not as it should be (" + strings.Join(ds, "; ") + ")"}
	}
	return nil
}

var fleetKey = regexp.MustCompile(`^[-_=a-zA-Z0-9]+(\.[-_=a-zA-Z0-9]+)*$`)

func validKey(key string) error {
	if len(key) > 1024 || !fleetKey.MatchString(key) {
		return fmt.Errorf("the key %.80q is not one that NATS takes", key)
	}
	return nil
}

// Get implements fleet.KV. The stream's leader answers, so that what was written before is seen.
func (k *KV) Get(ctx context.Context, key string) (fleet.Entry, error) {
	if err := validKey(key); err != nil {
		return fleet.Entry{}, err
	}
	body, err := json.Marshal(map[string]string{"last_by_subj": fleetSubject + key})
	if err != nil {
		return fleet.Entry{}, err
	}
	var r struct {
		Error   *apiError `json:"error"`
		Message struct {
			Sequence uint64 `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	if err := k.request(ctx, messageGet(fleetStream), body, &r); err != nil {
		return fleet.Entry{}, err
	}
	if r.Error != nil && r.Error.Code == codeMessageNotFound {
		return fleet.Entry{}, fleet.ErrNotFound
	}
	if r.Error != nil {
		return fleet.Entry{}, r.Error
	}
	header, err := nats.DecodeHeadersMsg(r.Message.Header)
	if len(r.Message.Header) > 0 && err != nil {
		return fleet.Entry{}, fmt.Errorf("reading the headers of a record: %w", err)
	}
	return fleet.Entry{Key: key, Value: value(header, r.Message.Data), Revision: r.Message.Sequence}, nil
}

// All implements fleet.KV. It makes no consumer, so that who may only look may call it.
func (k *KV) All(ctx context.Context) ([]fleet.Entry, error) {
	body, err := json.Marshal(map[string]string{"subjects_filter": fleetSubject + ">"})
	if err != nil {
		return nil, err
	}
	var r struct {
		Error *apiError `json:"error"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"` // up to 100,000, of which the fleet has some hundreds
		} `json:"state"`
	}
	if err := k.request(ctx, streamInfo(fleetStream), body, &r); err != nil {
		return nil, err
	}
	if r.Error != nil && r.Error.Code == codeStreamNotFound {
		return nil, &BucketError{Why: "does not exist", Missing: true}
	}
	if r.Error != nil {
		return nil, r.Error
	}
	var all []fleet.Entry
	for subject := range r.State.Subjects {
		e, err := k.Get(ctx, strings.TrimPrefix(subject, fleetSubject))
		if errors.Is(err, fleet.ErrNotFound) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if e.Value != nil {
			all = append(all, e)
		}
	}
	return all, nil
}

// value is nil for a message that says that there is none any more.
func value(h nats.Header, data []byte) []byte {
	if h.Get("KV-Operation") != "" || h.Get("Nats-Marker-Reason") != "" {
		return nil
	}
	if data == nil {
		return []byte{}
	}
	return data
}

// request asks the JetStream API.
func (k *KV) request(ctx context.Context, subject string, body []byte, answer any) error {
	if !k.conn.Connected() {
		return k.conn.notConnected()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, named := k.conn.asking(ctx, subject)
	m, err := k.conn.nc.RequestWithContext(ctx, subject, body)
	if err = named(err); err != nil {
		return err
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return fmt.Errorf("reading the answer of the JetStream API: %w", err)
	}
	return nil
}

// Put implements fleet.KV.
func (k *KV) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if err := validKey(key); err != nil {
		return 0, err
	}
	if len(value) > fleet.MaxValueBytes {
		return 0, fmt.Errorf("a record of %d bytes, at most %d are kept", len(value), fleet.MaxValueBytes)
	}
	if !k.conn.Connected() { // nats.go would keep it until there is a connection
		return 0, k.conn.notConnected()
	}
	ctx, named := k.conn.asking(ctx, fleetSubject+key)
	ack, err := k.conn.js.PublishMsg(ctx, &nats.Msg{Subject: fleetSubject + key, Data: value},
		jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithExpectStream(fleetStream))
	err = named(err)
	var no *jetstream.APIError
	if errors.As(err, &no) && (no.ErrorCode == codeWrongLastSequence || no.ErrorCode == codeWrongLastSequence2) {
		return 0, fleet.ErrConflict
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// Delete implements fleet.KV. The record leaves nothing behind, and watchers are not told.
func (k *KV) Delete(ctx context.Context, key string) error {
	if err := validKey(key); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"filter": fleetSubject + key})
	if err != nil {
		return err
	}
	var r struct {
		Error *apiError `json:"error"`
	}
	if err := k.request(ctx, streamPurge(fleetStream), body, &r); err != nil {
		return err
	}
	if r.Error != nil {
		return r.Error
	}
	return nil
}

// Watch implements fleet.KV. Whatever interrupts the flow of changes ends it: a connection made again, a consumer lost with its stream or its
// server, a message missed. A bucket that is missing is an error at once.
func (k *KV) Watch(ctx context.Context, see func(fleet.Entry)) error {
	if !k.conn.Connected() {
		return k.conn.notConnected()
	}
	status := k.conn.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer k.conn.nc.RemoveStatusListener(status)
	messages := make(chan *nats.Msg, watchBuffer)
	sub, err := k.conn.nc.ChanSubscribe(k.conn.nc.NewInbox(), messages)
	if err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	defer sub.Unsubscribe() // fails only when the connection is closed, and the subscription with it
	present, err := k.tail(ctx, sub.Subject)
	if err != nil {
		return err
	}
	w := watch{see: see, present: present}
	w.begin()
	silent := time.NewTimer(silence)
	defer silent.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-status:
			return errors.New("the connection was lost")
		case <-silent.C:
			return fmt.Errorf("no heartbeat for %s", silence)
		case m := <-messages:
			if err := w.take(m); err != nil {
				return err
			}
			silent.Reset(silence)
		}
	}
}

// tail makes a consumer that sends the last message of each key, and then what comes, to a subject. It returns how many keys there are. The server removes it when nobody
// listens any more.
func (k *KV) tail(ctx context.Context, to string) (present uint64, err error) {
	body, err := json.Marshal(map[string]any{
		"stream_name": fleetStream,
		"config": map[string]any{
			"deliver_subject": to, "deliver_policy": "last_per_subject", "filter_subject": fleetSubject + ">",
			"ack_policy": "none", "max_deliver": 1, "replay_policy": "instant", "idle_heartbeat": heartbeat,
			"inactive_threshold": 10 * time.Second, "mem_storage": true, "num_replicas": 1,
		},
	})
	if err != nil {
		return 0, err
	}
	var r struct {
		Error   *apiError `json:"error"`
		Pending uint64    `json:"num_pending"`
		// What was sent before the answer was written is not pending any more.
		Delivered struct {
			Consumer uint64 `json:"consumer_seq"`
		} `json:"delivered"`
	}
	if err := k.request(ctx, tailCreate(fleetStream), body, &r); err != nil {
		return 0, fmt.Errorf("watching the bucket %s: %w", FleetBucket, err)
	}
	if r.Error != nil && r.Error.Code == codeStreamNotFound {
		return 0, fmt.Errorf("the bucket %s does not exist; run: pollux streams apply", FleetBucket)
	}
	if r.Error != nil {
		return 0, fmt.Errorf("watching the bucket %s: %w", FleetBucket, r.Error)
	}
	return r.Pending + r.Delivered.Consumer, nil
}

// watch is what a watch has seen.
type watch struct {
	see      func(fleet.Entry)
	present  uint64 // records that there were at its beginning
	last     uint64 // number of the last message
	complete bool   // all that were there have been seen
}

func (w *watch) begin() { w.caughtUp(w.present == 0) }

func (w *watch) caughtUp(yes bool) {
	if yes && !w.complete {
		w.complete = true
		w.see(fleet.Entry{})
	}
}

// take takes a message or a heartbeat. It returns an error when one was missed.
func (w *watch) take(m *nats.Msg) error {
	if m.Header.Get("Status") != "" {
		if last := m.Header.Get("Nats-Last-Consumer"); last != "" && last != fmt.Sprint(w.last) {
			return fmt.Errorf("changes were missed: %d have come, %s were sent", w.last, last)
		}
		return nil
	}
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("reading where a message is from: %w", err)
	}
	if meta.Sequence.Consumer != w.last+1 {
		return fmt.Errorf("changes were missed: number %d came after %d", meta.Sequence.Consumer, w.last)
	}
	w.last++
	if key, ok := strings.CutPrefix(m.Subject, fleetSubject); ok {
		w.see(fleet.Entry{Key: key, Value: value(m.Header, m.Data), Revision: meta.Sequence.Stream})
	}
	w.caughtUp(meta.NumPending == 0 || w.last >= w.present)
	return nil
}
