package breaker

// Run is how many calls in a row failed, and how many in a row were refused for our credentials.
type Run struct {
	Failures int `json:"failures,omitempty"`
	Refused  int `json:"refused,omitempty"`
}

// Word is what an instance has to tell the others about its calls since it last did: of a gateway that is seldom asked no instance alone would
// see enough failures. The zero value says nothing.
type Word struct {
	Run          // since the last call that ended them
	Worked  bool // a call ended the failures before
	Granted bool // a call ended the refusals before
}

// After is the run in the whole fleet when the word is added to one.
func (w Word) After(r Run) Run {
	if w.Worked {
		r.Failures = 0
	}
	if w.Granted {
		r.Refused = 0
	}
	return Run{r.Failures + w.Failures, r.Refused + w.Refused}
}

// Then is the word that says both, next being the later one.
func (w Word) Then(next Word) Word {
	return Word{next.After(w.Run), w.Worked || next.Worked, w.Granted || next.Granted}
}

// hear takes how many calls in a row failed in the whole fleet. Where they are fewer than here, a call of another instance has worked since: the trouble is
// not the gateway's alone.
func (x *step) hear(r Run) {
	x.settle()
	if x.s.Shared.Kind != Closed || x.s.Shared.Forced.On() {
		return
	}
	l := &x.s.Local
	r = l.Word.After(r) // what has happened here since this instance spoke
	l.Consecutive, l.Refused = min(l.Consecutive, max(r.Failures, 0)), min(l.Refused, max(r.Refused, 0))
	switch {
	case r.Refused >= x.m.cfg.CredentialFailures:
		x.trip(CauseCredentials)
	case r.Failures >= x.m.cfg.ConsecutiveFailures:
		x.trip(CauseConsecutive)
	}
}
