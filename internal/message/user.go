package message

import (
	"regexp"
	"slices"
)

// The users of the broker: one for each program that speaks with it, and for each kind of person. The receiver of notifications has none, for it does not.
const (
	UserRelay    = "relay"
	UserConsumer = "consumer"
	UserOperator = "operator"
	UserReadOnly = "readonly"
	UserMigrator = "migrator"
)

// Users are all of them.
var Users = []string{UserRelay, UserConsumer, UserOperator, UserReadOnly, UserMigrator}

var user = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// ValidUser reports whether a service that reads events, or a person, may have a name: it becomes a user, a durable consumer and the name of a variable.
func ValidUser(name string) bool { return user.MatchString(name) && !slices.Contains(Users, name) }

// InboxPrefix is what the subjects of answers to a user begin with: it may read those, and nobody else may.
func InboxPrefix(user string) string { return "_INBOX_pollux_" + user }
