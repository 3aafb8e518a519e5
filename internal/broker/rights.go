package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Holding is what the user that we connect as may do, compared with what a user needs.
type Holding struct {
	User string // as the server knows it: an nkey, or a name
	// Everything is set when the server has no permissions for it: it may do all there is in its account.
	Everything bool
	Missing    []string // such as "publish to payments.poll.acme.high"
	Excess     []string
}

// Exact reports whether the user has what is needed and nothing else.
func (h Holding) Exact() bool { return !h.Everything && len(h.Missing)+len(h.Excess) == 0 }

// allowed are the subjects that a server allows and denies.
type allowed struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// Rights asks the server what the user that we connect as may do, and compares it with what a user of Users needs.
func (c *Conn) Rights(ctx context.Context, need User) (Holding, error) {
	if !c.Connected() {
		return Holding{}, fmt.Errorf("asking what the user may do: %w", c.notConnected())
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, named := c.asking(ctx, userInfo)
	m, err := c.nc.RequestWithContext(ctx, userInfo, nil)
	if err = named(err); err != nil {
		return Holding{}, fmt.Errorf("asking what the user may do: %w", err)
	}
	var r struct {
		Data struct {
			User        string `json:"user"`
			Account     string `json:"account"`
			Permissions *struct {
				Publish   allowed `json:"publish"`
				Subscribe allowed `json:"subscribe"`
			} `json:"permissions"`
		} `json:"data"`
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return Holding{}, errors.New("asking what the user may do: the server's answer is not the JSON that it should be")
	}
	if r.Error != nil {
		return Holding{}, fmt.Errorf("asking what the user may do: %w", r.Error)
	}
	h := Holding{User: r.Data.User}
	if r.Data.Permissions == nil {
		h.Everything = true
		return h, nil
	}
	p := r.Data.Permissions
	h.compare("publish to ", p.Publish, need.Publish)
	h.compare("subscribe to ", p.Subscribe, need.Subscribe)
	if r.Data.Account == Account && need.Account != Account { // with a name of somebody else's, nobody knows
		h.Excess = append(h.Excess, fmt.Sprintf("have answers sent into streams, by a user in the account %s, not in %s", Account, need.Account))
	}
	return h, nil
}

// Beyond reports whether err is that of asking for something which the user may not ask for, and is meant not to: no fault of the server's permissions.
func (u User) Beyond(err error) bool {
	no, ok := errors.AsType[*PermissionError](err)
	return ok && !no.Subscribe && !coversAny(u.Publish, no.Subject)
}

// compare adds what is missing and what is too much. Without a list of what is allowed, everything is that is not denied.
func (h *Holding) compare(verb string, have allowed, need []string) {
	if len(have.Allow) == 0 {
		have.Allow = []string{">"}
	}
	for _, subject := range need {
		if !coversAny(have.Allow, subject) || coversAny(have.Deny, subject) {
			h.Missing = append(h.Missing, verb+subject)
		}
	}
	for _, subject := range have.Allow {
		if !coversAny(need, subject) && !coversAny(have.Deny, subject) {
			h.Excess = append(h.Excess, verb+subject)
		}
	}
}

func coversAny(patterns []string, subject string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, subject) })
}

// covers reports whether a pattern matches every subject that another one does: * is one token, > one or more at the end.
func covers(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range p {
		switch {
		case token == ">":
			return len(s) > i
		case i >= len(s), s[i] == ">":
			return false
		case token != "*" && token != s[i]:
			return false
		}
	}
	return len(p) == len(s)
}
