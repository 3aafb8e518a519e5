package gatewaysim

import (
	"sync"
	"time"
)

// Call is one entry of the request log. Calls are logged when they end, so their instants are not in order; Seq is.
type Call struct {
	Seq       int64         `json:"seq"`           // from 0, without gaps
	At        time.Time     `json:"at"`            // when the call came
	Reference string        `json:"reference"`     // of the payment, also of one that the gateway does not know
	N         int           `json:"n"`             // the payment's n-th call, from 1; 0 for a payment that the gateway does not know
	Outcome   Outcome       `json:"outcome"`       // what was done
	Status    int           `json:"http_status"`   // 0 when no headers were sent
	Told      string        `json:"told"`          // the gateway's word for the status in the answer; empty when there was none
	Took      time.Duration `json:"took_ns"`       // until the last byte was written or the client had gone, to a microsecond
	Down      bool          `json:"down,omitzero"` // the gateway was down when the call came
}

const chunkSize = 4096

// record is a Call in few bytes, without a pointer but the reference's.
type record struct {
	reference string
	at        int64  // Unix nanoseconds
	took      uint32 // microseconds, which are enough for an hour
	n         uint32
	status    uint16
	outcome   Outcome
	told      word
	down      bool
}

// journal is the request log: append-only, in chunks. When it is full its oldest chunk goes.
type journal struct {
	mu     sync.Mutex
	chunks [][]record
	first  int64 // the sequence number of the first record kept
	next   int64 // and of the next one to come
	limit  int64
}

// newJournal returns a journal that keeps at least limit records and at most a chunk more.
func newJournal(limit int) *journal { return &journal{limit: int64(limit)} }

func (j *journal) add(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := len(j.chunks) - 1
	if last < 0 || len(j.chunks[last]) == chunkSize {
		if j.next-j.first >= j.limit+chunkSize {
			j.chunks[0] = nil
			j.chunks = j.chunks[1:]
			j.first += chunkSize
			last--
		}
		j.chunks = append(j.chunks, make([]record, 0, chunkSize))
		last++
	}
	j.chunks[last] = append(j.chunks[last], r)
	j.next++
}

// page returns up to a chunk of calls from a sequence number on, and the number to go on with. It is empty at the end.
func (j *journal) page(from int64) ([]Call, int64) {
	j.mu.Lock()
	from = max(from, j.first)
	if from >= j.next {
		j.mu.Unlock()
		return nil, from
	}
	offset := from - j.first
	records := j.chunks[offset/chunkSize][offset%chunkSize:] // what is written is never written again
	j.mu.Unlock()

	calls := make([]Call, len(records))
	for i, r := range records {
		calls[i] = r.call(from + int64(i))
	}
	return calls, from + int64(len(calls))
}

// counts returns how many calls are kept and how many were dropped.
func (j *journal) counts() (kept, dropped int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - j.first, j.first
}

func (r record) call(seq int64) Call {
	return Call{
		Seq: seq, At: time.Unix(0, r.at).UTC(), Reference: r.reference, N: int(r.n), Outcome: r.outcome, Status: int(r.status),
		Told: r.told.String(), Took: time.Duration(r.took) * time.Microsecond, Down: r.down,
	}
}
