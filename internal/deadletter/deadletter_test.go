package deadletter_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pollux/internal/deadletter"
)

// shelf is a record in memory. Its now is a duration since it was made, so that due times can be compared.
type shelf struct {
	letters  []deadletter.Letter
	due      map[int64]time.Duration
	now      time.Duration
	replays  int
	previews int
	fail     int            // the number of the replay that fails
	also     func(s *shelf) // happens after each replay
}

func (s *shelf) add(n int, change func(*deadletter.Letter)) {
	for range n {
		payment := int64(1000 + len(s.letters))
		l := deadletter.Letter{ID: int64(1 + len(s.letters)), PaymentID: &payment, Gateway: "acme", Reason: "window", State: deadletter.Open}
		if change != nil {
			change(&l)
		}
		s.letters = append(s.letters, l)
	}
}

func (s *shelf) List(_ context.Context, f deadletter.Filter, p deadletter.Page) ([]deadletter.Letter, error) {
	state := cmp.Or(f.State, deadletter.Open)
	var page []deadletter.Letter
	for _, l := range slices.Backward(s.letters) {
		chosen := (state == "any" || l.State == state) && (f.Gateway == "" || l.Gateway == f.Gateway) && (p.Before == 0 || l.ID < p.Before)
		if chosen && len(page) < p.Limit {
			page = append(page, l)
		}
	}
	return page, nil
}

func (s *shelf) find(id int64) *deadletter.Letter {
	if id < 1 || id > int64(len(s.letters)) {
		return nil
	}
	return &s.letters[id-1]
}

func (s *shelf) Show(_ context.Context, id int64) (deadletter.Details, error) {
	l := s.find(id)
	if l == nil {
		return deadletter.Details{}, deadletter.ErrNotFound
	}
	return deadletter.Details{Letter: *l}, nil
}

func (s *shelf) Preview(_ context.Context, ids []int64) (letters []deadletter.Letter, refused []deadletter.Refusal, err error) {
	if s.previews++; len(ids) > deadletter.MaxPage {
		return nil, nil, errors.New("a page that is too large")
	}
	for _, id := range ids {
		l := s.find(id)
		switch {
		case l == nil:
			refused = append(refused, deadletter.Refusal{ID: id, Why: "there is no such dead letter"})
		case l.State != deadletter.Open || l.PaymentID == nil:
			refused = append(refused, deadletter.Refusal{ID: id, Why: "it is " + l.State})
		default:
			letters = append(letters, *l)
		}
	}
	return letters, refused, nil
}

var errAway = errors.New("connection refused")

func (s *shelf) Replay(_ context.Context, ids []int64, first, gap time.Duration) (o deadletter.Outcome, err error) {
	s.replays++
	if s.replays == s.fail {
		return o, errAway
	}
	if s.due == nil {
		s.due = map[int64]time.Duration{}
	}
	for _, id := range ids {
		l := s.find(id)
		switch {
		case l == nil:
			o.Refused = append(o.Refused, deadletter.Refusal{ID: id, Why: "there is no such dead letter"})
		case l.State != deadletter.Open || l.PaymentID == nil:
			o.Refused = append(o.Refused, deadletter.Refusal{ID: id, Why: "it is " + l.State})
		default:
			l.State = deadletter.Replaying
			s.due[id] = s.now + first + time.Duration(len(o.Replayed))*gap
			o.Replayed = append(o.Replayed, id)
		}
	}
	if s.also != nil {
		s.also(s)
	}
	return o, nil
}

// dues are all due times in order.
func (s *shelf) dues() []time.Duration {
	var all []time.Duration
	for _, d := range s.due {
		all = append(all, d)
	}
	slices.Sort(all)
	return all
}

func TestReplayIsSpacedOverAllPages(t *testing.T) {
	s := &shelf{}
	s.add(2500, nil)
	s.also = func(s *shelf) { s.now += 3 * time.Second } // a page takes its time
	var seen []int
	o, err := deadletter.NewDesk(s).Replay(t.Context(), nil, deadletter.Filter{}, 100, func(done, all int) { seen = append(seen, done, all) })
	if err != nil || len(o.Replayed) != 2500 || len(o.Refused) != 0 {
		t.Fatalf("%d replayed, %d refused, %v", len(o.Replayed), len(o.Refused), err)
	}
	dues := s.dues()
	if len(dues) != 2500 {
		t.Fatalf("%d are due", len(dues))
	}
	for i := 1; i < len(dues); i++ {
		if gap := dues[i] - dues[i-1]; gap < 10*time.Millisecond {
			t.Fatalf("two are due within %s at 100 a second", gap)
		}
	}
	if o.Takes != 2499*10*time.Millisecond {
		t.Errorf("takes %s", o.Takes)
	}
	if want := []int{1000, 2500, 2000, 2500, 2500, 2500}; !slices.Equal(seen, want) {
		t.Errorf("progress %v", seen)
	}
}

func TestReplayTakesWhatTheFilterChoseWhenItBegan(t *testing.T) {
	s := &shelf{}
	s.add(1500, nil)
	s.also = func(s *shelf) { s.add(10, nil) } // they die while it goes on
	o, err := deadletter.NewDesk(s).Replay(t.Context(), nil, deadletter.Filter{}, 1000, nil)
	if err != nil || len(o.Replayed) != 1500 {
		t.Errorf("%d replayed, %v", len(o.Replayed), err)
	}
}

func TestReplayThatWasInterruptedIsCalledAgain(t *testing.T) {
	s := &shelf{fail: 2}
	s.add(1800, nil)
	desk := deadletter.NewDesk(s)
	first, err := desk.Replay(t.Context(), nil, deadletter.Filter{}, 1000, nil)
	if !errors.Is(err, errAway) || len(first.Replayed) != 1000 {
		t.Fatalf("%d replayed, %v", len(first.Replayed), err)
	}
	second, err := desk.Replay(t.Context(), nil, deadletter.Filter{}, 1000, nil)
	if err != nil || len(second.Replayed) != 800 || len(second.Refused) != 0 {
		t.Errorf("then %d replayed, %d refused, %v", len(second.Replayed), len(second.Refused), err)
	}
	if len(s.due) != 1800 {
		t.Errorf("%d are due", len(s.due))
	}
}

func TestEachLetterIsReportedOnce(t *testing.T) {
	s := &shelf{}
	s.add(3, nil)
	s.add(1, func(l *deadletter.Letter) { l.State = deadletter.Resolved })
	o, err := deadletter.NewDesk(s).Replay(t.Context(), []int64{2, 99, 2, 4, 1, 2}, deadletter.Filter{}, 10, nil)
	want := deadletter.Outcome{Replayed: []int64{2, 1}, Takes: 100 * time.Millisecond,
		Refused: []deadletter.Refusal{{ID: 99, Why: "there is no such dead letter"}, {ID: 4, Why: "it is resolved"}}}
	if diff := gocmp.Diff(want, o); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestReplayOfNothingIsNoError(t *testing.T) {
	o, err := deadletter.NewDesk(&shelf{}).Replay(t.Context(), nil, deadletter.Filter{}, 10, nil)
	if err != nil || len(o.Replayed)+len(o.Refused) != 0 || o.Takes != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestRatesThatCannotBeMeant(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), deadletter.MinRate / 2, deadletter.MaxRate * 2, math.SmallestNonzeroFloat64} {
		s := &shelf{}
		s.add(1, nil)
		if _, err := deadletter.NewDesk(s).Replay(t.Context(), nil, deadletter.Filter{}, rate, nil); err == nil || !strings.Contains(err.Error(), "--rate") {
			t.Errorf("%g: %v", rate, err)
		}
		if s.replays != 0 {
			t.Errorf("%g: something was replayed", rate)
		}
	}
	s := &shelf{}
	s.add(40_000, nil)
	if _, err := deadletter.NewDesk(s).Replay(t.Context(), nil, deadletter.Filter{}, deadletter.MinRate, nil); err == nil || s.replays != 0 {
		t.Errorf("a replay that takes 463 days: %v", err)
	}
}

func TestOnlyOpenLettersAreReplayed(t *testing.T) {
	s := &shelf{}
	s.add(2, nil)
	for _, state := range []string{deadletter.Replaying, deadletter.Resolved, deadletter.Discarded, "any"} {
		if _, err := deadletter.NewDesk(s).Replay(t.Context(), nil, deadletter.Filter{State: state}, 10, nil); err == nil || s.replays != 0 {
			t.Errorf("%s: %v", state, err)
		}
	}
	if _, err := deadletter.NewDesk(s).Replay(t.Context(), nil, deadletter.Filter{Gateway: "a.b"}, 10, nil); err == nil || s.replays != 0 {
		t.Errorf("a filter that is not one: %v", err)
	}
}

// Preview shows exactly what Replay takes and refuses, and changes nothing.
func TestPreviewIsWhatIsReplayed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &shelf{}
		states := rapid.SampledFrom([]string{deadletter.Open, deadletter.Replaying, deadletter.Resolved, deadletter.Discarded})
		s.add(rapid.SampledFrom([]int{0, 1, 7, deadletter.MaxPage, deadletter.MaxPage + 1}).Draw(t, "open"), nil)
		s.add(rapid.IntRange(0, 9).Draw(t, "others"), func(l *deadletter.Letter) {
			l.State = states.Draw(t, "state")
			if rapid.Bool().Draw(t, "of a payment") {
				l.PaymentID = nil
				l.State = deadletter.Resolved
			}
		})
		ids := rapid.SliceOfN(rapid.Int64Range(1, int64(len(s.letters)+2)), 0, 5).Draw(t, "ids")
		desk, before := deadletter.NewDesk(s), slices.Clone(s.letters)
		preview, err := desk.Preview(context.Background(), ids, deadletter.Filter{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(before, s.letters); diff != "" {
			t.Fatalf("the preview changed:\n%s", diff)
		}
		o, err := desk.Replay(context.Background(), ids, deadletter.Filter{}, 10, nil)
		if err != nil {
			t.Fatal(err)
		}
		var shown []int64
		for _, l := range preview.Letters {
			shown = append(shown, l.ID)
		}
		if !slices.Equal(shown, o.Replayed) || !slices.Equal(preview.Refused, o.Refused) || preview.Takes != o.Takes {
			t.Fatalf("shown %v and refused %v in %s, replayed %v and refused %v in %s",
				shown, preview.Refused, preview.Takes, o.Replayed, o.Refused, o.Takes)
		}
	})
}

func TestPreviewAsksForAPageAtATime(t *testing.T) {
	s := &shelf{}
	s.add(2500, nil)
	p, err := deadletter.NewDesk(s).Preview(t.Context(), nil, deadletter.Filter{}, 100)
	if err != nil || len(p.Letters) != 2500 || len(p.Refused) != 0 || p.Takes != 2499*10*time.Millisecond {
		t.Errorf("%d letters, %d refused, takes %s, %v", len(p.Letters), len(p.Refused), p.Takes, err)
	}
	if s.previews != 3 || s.replays != 0 {
		t.Errorf("%d pages looked at, %d replayed", s.previews, s.replays)
	}
}

func TestPreviewSaysWhatReplayWouldRefuse(t *testing.T) {
	p, err := deadletter.NewDesk(&shelf{}).Preview(t.Context(), []int64{7}, deadletter.Filter{}, 10)
	if err != nil || len(p.Letters) != 0 || len(p.Refused) != 1 || p.Refused[0].ID != 7 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := deadletter.NewDesk(&shelf{}).Preview(t.Context(), nil, deadletter.Filter{}, 0); err == nil {
		t.Error("a rate that Replay refuses is shown as if it were taken")
	}
}

func TestPagesAreOfASensibleSize(t *testing.T) {
	s := &shelf{}
	s.add(3, nil)
	desk := deadletter.NewDesk(s)
	for _, limit := range []int{-1, 0, deadletter.MaxPage + 1} {
		if _, err := desk.List(t.Context(), deadletter.Filter{}, deadletter.Page{Limit: limit}); err == nil || !strings.Contains(err.Error(), "--limit") {
			t.Errorf("%d: %v", limit, err)
		}
	}
	page, err := desk.List(t.Context(), deadletter.Filter{}, deadletter.Page{Before: 3, Limit: 1})
	if err != nil || len(page) != 1 || page[0].ID != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	if _, err := desk.List(t.Context(), deadletter.Filter{State: "lost"}, deadletter.Page{Limit: 1}); err == nil {
		t.Error("a state that there is not")
	}
}

func TestFilterSaysAllThatIsWrongWithIt(t *testing.T) {
	good := deadletter.Filter{Gateway: "acme", Account: "any account: #1", Class: "high_value", Reason: "window", State: "any", Older: time.Hour, Newer: 24 * time.Hour}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if err := (deadletter.Filter{}).Validate(); err != nil {
		t.Error(err)
	}
	err := deadletter.Filter{Gateway: "A", Class: "b.c", Reason: ">", State: "closed", Older: -1}.Validate()
	for _, part := range []string{"--gateway", "--class", "--reason", "--state", "--older"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in %v", part, err)
		}
	}
}
