package notify

import (
	"container/heap"
	"context"
	"hash/fnv"
	"sync"
	"time"
)

// agenda is what there is to do, and when. It is safe for concurrent use.
type agenda struct {
	wake chan struct{} // something was added

	mu   sync.Mutex
	todo todo
	open int // to do, and being done
}

func newAgenda() *agenda { return &agenda{wake: make(chan struct{}, 1)} }

// item is one thing to do. What is due at the same instant is done in the order in which it was added.
type item struct {
	at time.Time
	n  int
	do func(context.Context)
}

// todo is a heap of items, the next one first.
type todo struct {
	items []item
	added int
}

func (t *todo) Len() int { return len(t.items) }
func (t *todo) Less(i, j int) bool {
	if a, b := t.items[i], t.items[j]; !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return t.items[i].n < t.items[j].n
}
func (t *todo) Swap(i, j int) { t.items[i], t.items[j] = t.items[j], t.items[i] }
func (t *todo) Push(x any)    { t.items = append(t.items, x.(item)) }
func (t *todo) Pop() any {
	last := len(t.items) - 1
	x := t.items[last]
	t.items[last] = item{}
	t.items = t.items[:last]
	return x
}

// add adds something to do at an instant.
func (a *agenda) add(at time.Time, do func(context.Context)) {
	a.mu.Lock()
	a.todo.added++
	heap.Push(&a.todo, item{at, a.todo.added, do})
	a.open++
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *agenda) empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open == 0
}

func (a *agenda) done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
}

// next takes what is due. It returns how long nothing will be when nothing is.
func (a *agenda) next(now time.Time) (func(context.Context), time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.todo.items) == 0 {
		return nil, time.Hour
	}
	if wait := a.todo.items[0].at.Sub(now); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&a.todo).(item).do, 0
}

// run does what is due, so many things at once, until ctx ends, and waits for those that were begun.
func (a *agenda) run(ctx context.Context, atOnce int) {
	var begun sync.WaitGroup
	defer begun.Wait()
	places := make(chan struct{}, atOnce)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		do, wait := a.next(time.Now())
		if do != nil {
			places <- struct{}{}
			begun.Go(func() {
				defer func() { <-places }()
				defer a.done()
				do(ctx)
			})
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-a.wake:
		}
	}
}

// sum is FNV-1a: the same in every process.
func sum(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return h.Sum64()
}
