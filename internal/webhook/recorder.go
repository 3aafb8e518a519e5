package webhook

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// RecorderConfig says how arrivals are gathered into transactions.
type RecorderConfig struct {
	Batch    int           // at most so many requests in one transaction
	Writers  int           // transactions at once
	Patience time.Duration // for one transaction, and for a place in one: vendors wait 5 s for an answer, or 10
}

// Recorder keeps arrivals, those of many requests in one transaction: while a transaction commits, the next one's gather. A request that is alone waits
// for nobody. It is safe for concurrent use.
type Recorder struct {
	cfg     RecorderConfig
	record  Record
	metrics Metrics
	log     *slog.Logger
	in      chan entry
	end     chan struct{}
	once    sync.Once
	writers sync.WaitGroup
}

// entry is what one request brought.
type entry struct {
	arrivals []Arrival
	reply    chan<- reply // has room: a writer never waits for a request that went away
}

type reply struct {
	verdicts []Verdict
	err      error
}

// NewRecorder returns a running recorder. Close ends it.
func NewRecorder(cfg RecorderConfig, record Record, metrics Metrics, log *slog.Logger) *Recorder {
	r := &Recorder{cfg: cfg, record: record, metrics: metrics, log: log, in: make(chan entry), end: make(chan struct{})}
	for range cfg.Writers {
		r.writers.Go(r.run)
	}
	return r
}

// Close ends the recorder when what it has begun is written. Nothing may be kept any more.
func (r *Recorder) Close() {
	r.once.Do(func() { close(r.end) })
	r.writers.Wait()
}

var errNoPlace = errors.New("no transaction had a place in time")

// Keep keeps what one request brought and returns a verdict for each when it is committed. After an error nothing was kept, or nobody knows; the
// sender comes again then, and what was kept is a duplicate.
func (r *Recorder) Keep(ctx context.Context, arrivals []Arrival) ([]Verdict, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Patience, errNoPlace)
	defer cancel()
	done := make(chan reply, 1)
	select {
	case r.in <- entry{arrivals, done}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	answer := <-done // a writer has it, and patience of its own
	return answer.verdicts, answer.err
}

func (r *Recorder) run() {
	batch := make([]entry, 0, r.cfg.Batch)
	for {
		select {
		case e := <-r.in:
			batch = append(batch[:0], e)
		case <-r.end:
			return
		}
		batch = r.gather(batch)
		r.write(batch)
		clear(batch)
	}
}

// gather adds to a batch what waits already.
func (r *Recorder) gather(batch []entry) []entry {
	for len(batch) < r.cfg.Batch {
		select {
		case e := <-r.in:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// write keeps a batch. When the database refuses something in it, each half is tried by itself until the one is found, which is set aside.
func (r *Recorder) write(batch []entry) {
	var all []Arrival
	for _, e := range batch {
		all = append(all, e.arrivals...)
	}
	began := time.Now()
	verdicts, err := r.take(all)
	r.metrics.WebhookBatch(len(all), time.Since(began))
	switch {
	case err == nil:
		for _, e := range batch {
			e.reply <- reply{verdicts: verdicts[:len(e.arrivals):len(e.arrivals)]}
			verdicts = verdicts[len(e.arrivals):]
		}
	case !errors.Is(err, ErrRefused):
		for _, e := range batch {
			e.reply <- reply{err: err}
		}
	case len(batch) > 1:
		r.write(batch[:len(batch)/2])
		r.write(batch[len(batch)/2:])
	default:
		verdicts, err := r.singly(batch[0].arrivals)
		batch[0].reply <- reply{verdicts, err}
	}
}

func (r *Recorder) take(arrivals []Arrival) ([]Verdict, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), r.cfg.Patience, errors.New("the database did not answer in time"))
	defer cancel()
	return r.record.Take(ctx, arrivals)
}

// singly keeps the notices of one request one by one, and those that the database refuses set aside, with nothing of the vendor's but their digest.
func (r *Recorder) singly(arrivals []Arrival) ([]Verdict, error) {
	all := make([]Verdict, 0, len(arrivals))
	for i := range arrivals {
		verdicts, err := r.take(arrivals[i : i+1])
		if errors.Is(err, ErrRefused) {
			r.log.Error("the database refuses a notification; it is set aside", "gateway", arrivals[i].Gateway, "kind", arrivals[i].Kind, "error", err)
			verdicts, err = r.take([]Arrival{arrivals[i].stripped(err)})
		}
		if err != nil {
			return nil, err
		}
		all = append(all, verdicts...)
	}
	return all, nil
}

// stripped is what can surely be kept of an arrival.
func (a Arrival) stripped(why error) Arrival {
	a.Notice = Notice{ID: digestID(a.Digest), Fault: why.Error()}
	a.Body = nil
	return a
}
