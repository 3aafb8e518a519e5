package broker

import (
	"fmt"
	"strings"
)

// Auth is how users prove who they are.
type Auth string

// The ways. What proves it is no part of what is printed: the server has it from variables of its environment, or of the file.
const (
	NKey     Auth = "nkey"
	Password Auth = "password"
)

// Variable is the variable of a server's configuration that has a user's public nkey, or its password.
func (a Auth) Variable(user string) string {
	return "POLLUX_" + strings.ToUpper(user) + "_" + strings.ToUpper(string(a))
}

// responseThreshold is for how long the server remembers where the answers to a request go of which there may be many, since the last one. It is longer than programs wait for messages
// at once: one that waits longer hears nothing more, unless it asks for heartbeats, as nats.go does.
const responseThreshold = "5m"

// Conf is the accounts with their users as the configuration of nats-server has them.
func Conf(users []User, a Auth) string {
	c := &conf{auth: a}
	c.line(0, "accounts {")
	c.line(1, "# The streams, and the programs that fill and empty them.")
	c.line(1, "%s {", Account)
	c.line(2, "jetstream: enabled")
	c.line(2, "users: [")
	for _, u := range users {
		if u.Account == Account {
			c.user(u)
		}
	}
	c.line(2, "]")
	c.line(2, "# What others may ask for. An answer goes back to the account that asked, and nowhere else.")
	c.line(2, "exports: [")
	for _, e := range Exports(users) {
		many := ""
		if e.Stream {
			many = fmt.Sprintf(", response_type: stream, response_threshold: %q", responseThreshold)
		}
		c.line(3, "{service: %q%s, accounts: [%s]}", e.Subject, many, strings.Join(e.Accounts, ", "))
	}
	c.line(2, "]")
	c.line(1, "}")
	c.line(1, "# Everybody else, in an account each: what the user may ask the streams' account for. %s is there for all, since the server would answer beside it otherwise.", accountInfo)
	for _, u := range users {
		if u.Account == Account {
			continue
		}
		c.line(1, "%s {", u.Account)
		c.line(2, "users: [")
		c.user(u)
		c.line(2, "]")
		c.line(2, "imports: [")
		for _, subject := range u.Imports() {
			c.line(3, "{service: {account: %s, subject: %q}}", Account, subject)
		}
		c.line(2, "]")
		c.line(1, "}")
	}
	c.line(0, "}")
	return c.text.String()
}

// conf is a configuration that is being written.
type conf struct {
	auth Auth
	text strings.Builder
}

func (c *conf) line(depth int, format string, args ...any) {
	fmt.Fprintf(&c.text, strings.Repeat("  ", depth)+format+"\n", args...)
}

func (c *conf) user(u User) {
	c.line(3, "# %s; nats.inbox_prefix is %s", u.Does, u.InboxPrefix)
	c.line(3, "{")
	switch c.auth {
	case Password:
		c.line(4, "user: %q", u.Name)
		c.line(4, "password: $%s", c.auth.Variable(u.Name))
	default:
		c.line(4, "nkey: $%s", c.auth.Variable(u.Name))
	}
	c.line(4, "permissions: {")
	for _, way := range []struct {
		name     string
		subjects []string
	}{{"publish", u.Publish}, {"subscribe", u.Subscribe}} {
		c.line(5, "%s: {allow: [", way.name)
		for _, s := range way.subjects {
			c.line(6, "%q", s)
		}
		c.line(5, "]}")
	}
	c.line(4, "}")
	c.line(3, "}")
}
