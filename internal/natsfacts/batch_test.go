package natsfacts_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func atomic(c *jetstream.StreamConfig) { c.AllowAtomicPublish = true }

// batch sends n messages as one atomic batch and returns the code of the error, or the sequence of the last message.
func (w world) batch(id string, n int, msgID func(int) string) (code int, seq uint64) {
	w.t.Helper()
	for i := 1; ; i++ {
		m := &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(i)}, "Nats-Msg-Id": {msgID(i)}}}
		if i < n {
			w.must(w.nc.PublishMsg(m))
			continue
		}
		m.Header.Set("Nats-Batch-Commit", "1")
		reply, err := w.nc.RequestMsgWithContext(w.t.Context(), m)
		w.must(err)
		return answerOf(w.t, reply)
	}
}

func numbered(prefix string) func(int) string {
	return func(i int) string { return fmt.Sprint(prefix, i) }
}

func TestBatchIsStoredUnderConsecutiveSequences(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		w.publish(7)
		code, seq := w.batch("b", 1000, numbered("m"))
		if code != 0 || seq != 1007 {
			t.Fatalf("error %d, sequence %d, want 1007", code, seq)
		}
		s, err := w.js.Stream(t.Context(), "FACTS")
		w.must(err)
		for i := 1; i <= 1000; i++ {
			m, err := s.GetMsg(t.Context(), uint64(7+i))
			w.must(err)
			if got := m.Header.Get("Nats-Msg-Id"); got != fmt.Sprint("m", i) {
				t.Fatalf("sequence %d has %s, want m%d", 7+i, got, i)
			}
		}
	}, atomic)
}

func TestBatchWithOneKnownIDIsRefusedAsAWholeAndAlways(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		_, err := w.js.Publish(t.Context(), subject, nil, jetstream.WithMsgID("m50"))
		w.must(err)
		for _, id := range []string{"b1", "b2"} {
			if code, _ := w.batch(id, 100, numbered("m")); code != 10201 {
				t.Errorf("error %d, want 10201", code)
			}
		}
		if n := w.state().Msgs; n != 1 {
			t.Errorf("%d messages, want the one of before", n)
		}
	}, atomic)
}

func TestBatchWithOneIDTwiceIsRefused(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		if code, _ := w.batch("b", 10, func(i int) string { return fmt.Sprint(i % 9) }); code != 10201 {
			t.Errorf("error %d, want 10201", code)
		}
	}, atomic)
}

func TestBatchOfMoreThanAThousandIsRefused(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		if code, _ := w.batch("b", 1001, numbered("m")); code != 10199 {
			t.Errorf("error %d, want 10199", code)
		}
		if n := w.state().Msgs; n != 0 {
			t.Errorf("%d messages of a refused batch are stored", n)
		}
	}, atomic)
}

func TestBatchIsRefusedByAStreamThatDoesNotAllowIt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		if code, _ := w.batch("b", 10, numbered("m")); code != 10174 {
			t.Errorf("error %d, want 10174", code)
		}
		if n := w.state().Msgs; n != 0 {
			t.Errorf("%d messages of a refused batch are stored", n)
		}
	})
}
