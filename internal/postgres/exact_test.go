package postgres

import (
	"flag"
	"runtime"
	"testing"
)

var exact = flag.Bool("rights.exact", false, "take every single right away, column by column, and see that somebody cannot work; some minutes")

// watched is a test that is to fail.
type watched struct {
	testing.TB
	failed bool
}

func (w *watched) Errorf(string, ...any) { w.failed = true }
func (w *watched) Error(...any)          { w.failed = true }
func (w *watched) Fatalf(string, ...any) { w.failed = true; runtime.Goexit() }
func (w *watched) Fatal(...any)          { w.failed = true; runtime.Goexit() }

// fails reports whether a test fails, without failing itself.
func fails(t *testing.T, test func(testing.TB)) bool {
	w := &watched{TB: t}
	done := make(chan struct{})
	go func() { // of its own, since a fatal error ends it
		defer close(done)
		test(w)
	}()
	<-done
	return w.failed
}

// No role has a right that its work does not need: with any taken away it fails. Without -rights.exact the last right of each role is looked at.
func TestEveryRightIsNeeded(t *testing.T) {
	for _, role := range logins {
		var single []right
		for _, r := range role.rights() {
			if len(r.columns) == 0 {
				single = append(single, r)
			}
			for _, c := range r.columns {
				single = append(single, right{r.privilege, []string{c}, r.object})
			}
		}
		if !*exact {
			single = single[len(single)-1:]
		}
		for _, one := range single {
			t.Run(string(role)+" "+one.String(), func(t *testing.T) {
				r := newGranted(t)
				r.exec(t, "revoke "+one.sql()+" from "+string(role))
				if !fails(t, func(tb testing.TB) { everybodyWorks(tb, r) }) {
					t.Error("nobody needs it")
				}
			})
		}
	}
}
