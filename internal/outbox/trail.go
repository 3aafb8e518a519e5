package outbox

import (
	"slices"
	"sync"
	"time"
)

// maxMarks is how many marks of earlier sessions are kept until somebody looks.
const maxMarks = 16

// trail is what this relay knows of a stream from its own publishing: a stream that gives a sequence which it had given before has lost what had it, and
// so has one with another message at the last sequence that it gave here before the connection broke. What a relay published since anybody last looked
// is known to nobody else. The zero value knows nothing. It is safe for concurrent use.
type trail struct {
	mu      sync.Mutex
	created time.Time // of the stream, as last looked at; zero before
	session uint64    // of the last receipt
	last    Mark      // that came by it
	before  []Mark    // the last ones of earlier sessions, not looked at yet
	lost    bool
}

// seen returns marks that must hold, the last one first, and whether the stream has lost messages since somebody looked.
func (t *trail) seen() (marks []Mark, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Mark{t.last}, t.before...), t.lost
}

// note takes the receipts, as far as they are of the stream, of messages that were sent after the mark was the last one.
func (t *trail) note(stream string, after Mark, messages []Message, receipts []Receipt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range receipts {
		if r.Err != nil || r.Duplicate || r.Stream != stream {
			continue
		}
		if r.Session != t.session && t.last.Sequence > 0 {
			t.before = append(t.before, t.last)
			t.before = t.before[max(len(t.before)-maxMarks, 0):]
			t.last = Mark{}
		}
		t.session = r.Session
		t.lost = t.lost || r.Sequence <= after.Sequence
		if r.Sequence > t.last.Sequence {
			t.last = Mark{r.Sequence, messages[i].ID}
		}
	}
}

// of reports whether what is known is of the stream that was created then. If not it is forgotten.
func (t *trail) of(created time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := t.created.IsZero() || t.created.Equal(created)
	if t.created = created; !same {
		t.last, t.before, t.lost = Mark{}, nil, false
	}
	return same
}

// held ends what is to be said of marks that held.
func (t *trail) held(marks []Mark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.before = slices.DeleteFunc(t.before, func(m Mark) bool { return slices.Contains(marks, m) })
}

// forget begins anew, once a loss was put right.
func (t *trail) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.before, t.lost = Mark{}, nil, false
}
