package telemetry

import (
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/message"
)

// other is the label value of everything that has no label of its own.
const other = "other"

// series is one prepared set of labels. Preparing it once is what keeps a record free of allocation: a set that is built at each call
// costs several, and an option passed by value one more.
type series struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newSeries(labels ...attribute.KeyValue) *series {
	set := metric.WithAttributeSet(attribute.NewSet(labels...))
	return &series{add: []metric.AddOption{set}, record: []metric.RecordOption{set}}
}

// seriesOf prepares a series for each value of a label, and one for all others, behind labels that are the same in all.
func seriesOf(key string, values []string, before ...attribute.KeyValue) []*series {
	all := make([]*series, len(values)+1)
	for i := range all {
		all[i] = newSeries(append(before[:len(before):len(before)], attribute.String(key, nameAt(values, i)))...)
	}
	return all
}

// cell is a series that is prepared when it is first used. Of some hundred combinations of labels a gateway uses a dozen.
type cell struct{ made atomic.Pointer[series] }

func (c *cell) get(make func() *series) *series {
	if s := c.made.Load(); s != nil {
		return s
	}
	c.made.CompareAndSwap(nil, make())
	return c.made.Load()
}

// capped maps names to what is kept for each, for at most max names; all further names share one entry. Names come out of rows of
// the database, so that without a cap a mistake there would be a flood of series here. Reading takes no lock.
type capped[T any] struct {
	max   int
	make  func(index int, name string) *T // index is unique, below max+1
	rest  *T
	known atomic.Pointer[map[string]*T]
	mu    sync.Mutex
}

// newCapped keeps an entry for each of the first names whatever max says, so that a name out of a row never takes the place of a
// configured one.
func newCapped[T any](limit int, first []string, make func(index int, name string) *T) *capped[T] {
	c := &capped[T]{make: make, rest: make(0, other)}
	known := map[string]*T{}
	for _, name := range first {
		if known[name] == nil {
			known[name] = make(len(known)+1, name)
		}
	}
	c.max = max(limit, len(known))
	c.known.Store(&known)
	return c
}

func (c *capped[T]) get(name string) *T {
	known := *c.known.Load()
	if t, ok := known[name]; ok {
		return t
	}
	if len(known) >= c.max || !message.ValidToken(name) {
		return c.rest
	}
	return c.learn(name)
}

// each calls fn with all that is kept, that of all further names last.
func (c *capped[T]) each(fn func(*T)) {
	for _, t := range *c.known.Load() {
		fn(t)
	}
	fn(c.rest)
}

func (c *capped[T]) learn(name string) *T {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := *c.known.Load()
	if t, ok := known[name]; ok {
		return t
	}
	if len(known) >= c.max {
		return c.rest
	}
	more := make(map[string]*T, len(known)+1)
	for k, v := range known {
		more[k] = v
	}
	more[name] = c.make(len(more)+1, name)
	c.known.Store(&more)
	return more[name]
}

// index is the place of a value in a closed set; what is not in it shares the place after the last.
func index(set []string, value string) int {
	for i, s := range set {
		if s == value {
			return i
		}
	}
	return len(set)
}

func nameAt(set []string, i int) string {
	if i < len(set) {
		return set[i]
	}
	return other
}
