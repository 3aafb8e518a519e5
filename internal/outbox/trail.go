package outbox

import (
	"sync"
	"time"
)

// trail is what this relay knows of a stream from its own publishing: a stream that gives a sequence which it had given before has lost what had it, and
// so has one with another message at the last sequence that it gave here. What a relay published since anybody last looked is known to nobody
// else. The zero value knows nothing. It is safe for concurrent use.
type trail struct {
	mu      sync.Mutex
	created time.Time // of the stream, as last looked at; zero before
	last    Mark
	lost    bool
}

// seen returns the last message that the stream acknowledged, and whether it has lost messages since somebody looked.
func (t *trail) seen() (last Mark, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.lost
}

// note takes the receipts of messages that were sent after before was seen.
func (t *trail) note(before Mark, messages []Message, receipts []Receipt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range receipts {
		if r.Err != nil || r.Duplicate {
			continue
		}
		t.lost = t.lost || r.Sequence <= before.Sequence
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
		t.last, t.lost = Mark{}, false
	}
	return same
}

// forget begins anew, once a loss was put right.
func (t *trail) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.lost = Mark{}, false
}
