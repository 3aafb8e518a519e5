package paypal

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/gateway"
)

// fetching counts fetches that take a second.
type fetching struct {
	n    int
	fail gateway.Answer // instead of a token, where it has a message
}

func (f *fetching) fetch() (token, gateway.Answer) {
	f.n++
	time.Sleep(time.Second)
	if f.fail.Message != "" {
		return token{}, f.fail
	}
	return token{header: http.Header{}, until: time.Now().Add(time.Hour)}, gateway.Answer{}
}

func many(n int, do func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(do)
	}
	wg.Wait()
}

func TestTokensAreSharedAndKeptUntilTheyAreOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens, f := newTokens(), &fetching{}
		take := func() {
			if got, ans, failed := tokens.take(t.Context(), 0, f.fetch); failed || got.header == nil {
				t.Errorf("no token: %+v", ans)
			}
		}
		many(50, take)
		time.Sleep(time.Hour - 2*time.Second)
		many(50, take)
		if f.n != 1 {
			t.Errorf("%d fetches, one was needed", f.n)
		}
		time.Sleep(2 * time.Second)
		many(50, take)
		if f.n != 2 {
			t.Errorf("%d fetches after the first token was too old", f.n-1)
		}
	})
}

func TestAFailedFetchFailedForAllWhoWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens, f := newTokens(), &fetching{fail: gateway.Answer{Class: gateway.Unauthorized, Message: "no"}}
		many(50, func() {
			if _, ans, failed := tokens.take(t.Context(), 0, f.fetch); !failed || ans.Class != gateway.Unauthorized {
				t.Errorf("got %+v", ans)
			}
		})
		if f.n != 1 {
			t.Errorf("%d fetches", f.n)
		}
		f.fail = gateway.Answer{}
		if _, _, failed := tokens.take(t.Context(), 0, f.fetch); failed || f.n != 2 {
			t.Errorf("whoever comes later does not try again: %d fetches", f.n)
		}
	})
}

func TestACallerWhoGivesUpTakesNobodyWithHim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens, f := newTokens(), &fetching{}
		var wg sync.WaitGroup
		wg.Go(func() { // fetches, and its poll is cancelled meanwhile
			_, ans, failed := tokens.take(t.Context(), 0, func() (token, gateway.Answer) {
				time.Sleep(time.Second)
				return token{}, gateway.Answer{Class: gateway.Local, Message: "cancelled by ourselves"}
			})
			if !failed || ans.Class != gateway.Local {
				t.Errorf("got %+v", ans)
			}
		})
		synctest.Wait()
		wg.Go(func() { // waits, and goes
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, ans, failed := tokens.take(ctx, 0, f.fetch); !failed || ans.Class != gateway.Local {
				t.Errorf("got %+v", ans)
			}
		})
		wg.Go(func() { // waits, and fetches itself
			if _, ans, failed := tokens.take(t.Context(), 0, f.fetch); failed {
				t.Errorf("got %+v", ans)
			}
		})
		wg.Wait()
		if f.n != 1 {
			t.Errorf("%d fetches", f.n)
		}
	})
}

func TestARefusedTokenIsReplacedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens, f := newTokens(), &fetching{}
		first, _, _ := tokens.take(t.Context(), 0, f.fetch)
		many(50, func() {
			if got, _, failed := tokens.take(t.Context(), first.serial, f.fetch); failed || got.serial != first.serial+1 {
				t.Errorf("token %d after %d was refused", got.serial, first.serial)
			}
		})
		if f.n != 2 {
			t.Errorf("%d fetches", f.n)
		}
	})
}
