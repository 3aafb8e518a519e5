package config

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"pollux/internal/secret"
)

// reading is what a configuration was read from, so that it can be read again.
type reading struct {
	options Options
	written *written
	values  map[string]secret.Secret     // of the sections of adapters and notifications, by name
	units   map[string][sha256.Size]byte // what the files of each unit had in them
	kept    map[string]bool              // the units whose files were of no use then, so that the last good ones are in force
}

// A unit is what is taken up together when a file changes, or not at all: "database", "nats", "telemetry", "gateways.acme", "webhooks.gateways.acme".
func unitOf(p path) string {
	switch {
	case len(p) > 1 && p[0] == "gateways":
		return p[:2].String()
	case len(p) > 2 && p[0] == "webhooks" && p[1] == "gateways":
		return p[:3].String()
	case len(p) > 0:
		return p[0]
	}
	return ""
}

// units are digests of what is in the files that each unit names. What cannot be read has a digest of its own.
func (w *written) units(c *Config, skip Skip) map[string][sha256.Size]byte {
	texts := map[string][]byte{}
	note := func(p path, file string) {
		if file == "" || skip&(sectionSkips[p[0]]|skipSecrets) != 0 {
			return
		}
		b, err := secret.ReadFile(file, 1<<20) // certificates too
		unit := unitOf(p)
		_, refused, _ := secret.Exposed(file) // a mode that is mended is news as well
		folder, _ := secret.Swappable(file)
		texts[unit] = fmt.Appendf(texts[unit], "%s %d %t %t %q %x\n", p.id(), len(b), err == nil, refused, folder, sha256.Sum256(b))
	}
	note(key("database.url"), c.Database.URL.File())
	note(key("nats.password"), c.NATS.Password.File())
	eachText(root, nil, w.values, func(s *schema, p path, text string) {
		file, named := strings.CutPrefix(text, "file:")
		switch {
		case p[0] != "gateways" && p[0] != "webhooks" && p[0] != "telemetry", len(p) < 3: // the others are read again by who uses them
		case s.typ == secretType && named:
			note(p, file)
		case s.typ != secretType && p[0] == "gateways" && strings.HasSuffix(p[len(p)-1], "_file"):
			note(p, text)
		}
	})
	units := make(map[string][sha256.Size]byte, len(texts))
	for unit, text := range texts {
		units[unit] = sha256.Sum256(text)
	}
	return units
}

// Renewal is what became of files that changed.
type Renewal struct {
	Taken []string  // the units whose new secrets are in force: database, nats, telemetry, gateways.NAME, webhooks.gateways.NAME
	Kept  []Problem // what is new of why the last good ones of others stay in force; each begins with the key
}

// Renew reads the secrets again, and the files that gateways name, by the same names: mounted secrets change where they are. Of each unit that has changed
// the new secrets are taken if they are of use, and the last ones kept otherwise. Nothing is checked while no file has changed. A key of notifications that
// was replaced counts for its gateway's overlap still.
func (c Config) Renew(now time.Time) (Config, Renewal) {
	if c.from == nil {
		return c, Renewal{}
	}
	seen := c.from.written.units(&c, c.from.options.Skip)
	changed := map[string]bool{}
	for unit, digest := range seen {
		changed[unit] = digest != c.from.units[unit]
	}
	if !slices.Contains(sortedValues(changed), true) {
		return c, Renewal{}
	}
	next, problems, err := c.from.written.complete(c.from.options)
	if err != nil { // it was completed before
		return c, Renewal{Kept: []Problem{{What: err.Error()}}}
	}
	next.from.units = seen
	if c.Database.URL.Reveal() != "" && !sameRecord(c.Database.URL, next.Database.URL) && next.Database.URL.Reveal() != "" {
		problems = append(problems, origin{}.problem(key("database.url"), "the secret now leads to another server or database, which takes a restart"))
	}
	r := Renewal{}
	kept := map[string]bool{}
	for _, p := range problems {
		unit := p.Unit()
		if kept[unit] = true; changed[unit] {
			r.Kept = append(r.Kept, p)
		}
	}
	next.from.kept = kept
	for _, unit := range sorted(seen) {
		switch {
		case kept[unit]:
			next.keep(unit, c)
		case changed[unit]:
			r.Taken = append(r.Taken, unit)
		}
	}
	next.succeed(c, now)
	next.resolvePolicies()
	return next, r
}

func sortedValues(m map[string]bool) []bool {
	all := make([]bool, 0, len(m))
	for _, name := range sorted(m) {
		all = append(all, m[name])
	}
	return all
}

// keep takes a unit from the configuration before.
func (c *Config) keep(unit string, before Config) {
	kind, name, named := strings.Cut(unit, ".")
	hook, isHook := strings.CutPrefix(name, "gateways.")
	switch {
	case kind == "database":
		c.Database.URL = before.Database.URL
	case kind == "telemetry":
		c.Telemetry.OTLPHeaders = before.Telemetry.OTLPHeaders
	case kind == "nats":
		c.NATS.Password = before.NATS.Password
	case kind == "gateways" && named:
		c.Gateways[name] = before.Gateways[name]
	case kind == "webhooks" && isHook:
		c.Webhooks.Gateways[hook] = before.Webhooks.Gateways[hook]
	}
	for id, secretName := range c.secrets {
		if unitOf(strings.Split(id, separator)) == unit {
			c.from.values[secretName] = before.from.values[secretName]
		}
	}
}

// Reload reads everything anew: the file, the environment of the process, the flags and the secrets. Its error is an *Invalid when it is refused; then the one in
// force is as it was. A key of notifications that was replaced in its file counts for its gateway's overlap still.
func (c Config) Reload(now time.Time) (Config, error) {
	if c.from == nil {
		return c, nil
	}
	next, err := Load(c.from.options)
	if err != nil {
		return Config{}, err
	}
	next.succeed(c, now)
	return next, nil
}

// Renewed are the units whose files have something else in them than those of the configuration before, or of which the last good secrets were kept, which those of next replace: what next
// takes up of secrets, whichever keys have changed.
func (c Config) Renewed(next Config) []string {
	if c.from == nil || next.from == nil {
		return nil
	}
	renewed := maps.Clone(c.from.kept)
	if renewed == nil {
		renewed = map[string]bool{}
	}
	for unit, is := range next.from.units {
		if was, had := c.from.units[unit]; had && was != is {
			renewed[unit] = true
		}
	}
	return sorted(renewed)
}

// replacedKey is a key of notifications that was in a file before.
type replacedKey struct {
	secret secret.Secret
	until  time.Time
}

// maxReplaced bounds the keys that count still of those that were in one file.
const maxReplaced = 4

// succeed lets the keys of notifications that were replaced in their files count for a while.
func (c *Config) succeed(before Config, now time.Time) {
	for name, h := range c.Webhooks.Gateways {
		old := before.Webhooks.Gateways[name]
		succeedKeys(h.Keys, old.Keys, h.Overlap, now)
		for account, a := range h.Accounts {
			succeedKeys(a.Keys, old.Accounts[account].Keys, h.Overlap, now)
		}
	}
}

func succeedKeys(keys, before map[string]HookKey, overlap time.Duration, now time.Time) {
	for name, k := range keys {
		old, known := before[name]
		if !known || old.Secret.IsZero() {
			continue
		}
		var counting []replacedKey
		if !old.Secret.Equal(k.Secret) && overlap > 0 {
			counting = append(counting, replacedKey{old.Secret, earlier(now.Add(overlap), old.Until)})
		}
		for _, r := range old.replaced {
			if r.until = earlier(r.until, now.Add(overlap)); r.until.After(now) && !r.secret.Equal(k.Secret) && len(counting) < maxReplaced {
				counting = append(counting, r)
			}
		}
		k.replaced = counting
		keys[name] = k
	}
}

// earlier is the earlier of two instants; a zero one is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

// SameAdapter reports whether a gateway is spoken with in the same way by another configuration: the same section, and the same in the secrets and files that it names.
func (c *Config) SameAdapter(next *Config, gateway string) bool {
	if c.from == nil || next.from == nil {
		return false
	}
	at := path{"gateways", gateway}
	unit := unitOf(at)
	if c.from.units[unit] != next.from.units[unit] {
		return false
	}
	within := at.child(c.Gateways[gateway].Adapter).id() + separator
	before, after := c.leaves(), next.leaves()
	for id, value := range before {
		if strings.HasPrefix(id, within) && after[id] != value {
			return false
		}
	}
	for id := range after {
		if _, had := before[id]; !had && strings.HasPrefix(id, within) {
			return false
		}
	}
	return true
}

// Change is a key that two configurations differ in.
type Change struct {
	Key           string
	Before, After string   // as they are shown: of a secret, and of what may be one, only that it changed
	Restart       []string // the services that a change takes a restart of; none: it takes effect at SIGHUP
}

// The words for what is not shown.
const (
	changedSecret = "[changed]"
	wholeSection  = "[section]"
)

// Needs reports whether the change takes a restart of a service.
func (c Change) Needs(service string) bool { return slices.Contains(c.Restart, service) }

// Changes are the keys in which next differs, in their order. A section that is there in one of the two only is one change.
func (c Config) Changes(next Config) []Change {
	before, after := c.leaves(), next.leaves()
	found := map[string]Change{}
	compare := func(id string) {
		p := path(strings.Split(id, separator))
		was, had := before[id]
		is, has := after[id]
		if had == has && was == is {
			return
		}
		if had != has {
			p = lone(p, before, after)
		}
		s := root.at(p)
		if s == nil { // a place in a list
			s = root.at(p[:len(p)-1])
		}
		change := Change{Key: p.String(), Before: was, After: is, Restart: s.restart}
		switch {
		case s.kind == mapping:
			change.Before, change.After = orNothing(had, wholeSection), orNothing(has, wholeSection)
		case hidden(s, p):
			change.Before, change.After = orNothing(had, changedSecret), orNothing(has, changedSecret)
		}
		found[p.id()] = change
	}
	for id := range before {
		compare(id)
	}
	for id := range after {
		compare(id)
	}
	c.newSecrets(next, found)
	all := make([]Change, 0, len(found))
	for _, id := range sorted(found) {
		all = append(all, found[id])
	}
	return all
}

func orNothing(there bool, word string) string {
	if there {
		return word
	}
	return ""
}

// newSecrets finds secrets that have another value under the same name.
func (c Config) newSecrets(next Config, found map[string]Change) {
	add := func(p path, restart []string) {
		if _, known := found[p.id()]; !known {
			found[p.id()] = Change{Key: p.String(), Before: changedSecret, After: changedSecret, Restart: restart}
		}
	}
	if at := key("database.url"); c.Database.URL.shown == next.Database.URL.shown && c.Database.URL.Reveal() != next.Database.URL.Reveal() {
		var restart []string
		if !sameRecord(c.Database.URL, next.Database.URL) { // a password alone is taken by each new connection
			restart = root.at(at).restart
		}
		add(at, restart)
	}
	if c.NATS.Password.name == next.NATS.Password.name && !c.NATS.Password.value.Equal(next.NATS.Password.value) {
		add(key("nats.password"), nil) // it is read at each connection
	}
	for id, name := range next.secrets {
		if c.secrets[id] == name && c.from != nil && next.from != nil && !c.from.values[name].Equal(next.from.values[name]) {
			p := path(strings.Split(id, separator))
			add(p, root.at(p).restart)
		}
	}
}

// lone is the outermost section of a name of the user's own on the way to a key that only one of two configurations has.
func lone(p path, a, b map[string]string) path {
	for i := 1; i < len(p); i++ {
		above, s := root.at(p[:i-1]), root.at(p[:i])
		if above != nil && above.elem != nil && s != nil && s.kind == mapping && hasBelow(a, p[:i]) != hasBelow(b, p[:i]) {
			return p[:i]
		}
	}
	return p
}

func hasBelow(leaves map[string]string, p path) bool {
	prefix := p.id() + separator
	for id := range leaves {
		if strings.HasPrefix(id, prefix) {
			return true
		}
	}
	return false
}

// hidden reports whether a value is not shown: a secret, and free text about a gateway, which may have one in it that somebody wrote out.
func hidden(s *schema, p path) bool {
	if s.typ == secretType || p.id() == key("database.url").id() {
		return true
	}
	if s.typ == nil || s.typ.Kind().String() != "string" || s.unmarshals() {
		return false
	}
	return p[0] == "gateways" && len(p) > 3 && slices.Contains(Adapters, p[2]) || p[0] == "webhooks" && len(p) > 3 && p[3] != "mode" && p[3] != "unverified" && p[3] != "scheme"
}

// maxShown bounds a value in a change.
const maxShown = 200

// leaves are the values of all keys as they are written, by path.id; secrets by their names.
func (c Config) leaves() map[string]string {
	all := map[string]string{}
	var walk func(*yaml.Node, path)
	walk = func(n *yaml.Node, p path) {
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i+1], p.child(n.Content[i].Value))
			}
		case yaml.SequenceNode:
			items := make([]string, len(n.Content))
			for i, item := range n.Content {
				items[i] = item.Value
			}
			all[p.id()] = cut("["+strings.Join(items, ", ")+"]", maxShown)
		default:
			all[p.id()] = cut(n.Value, maxShown)
		}
	}
	walk(c.describe(), nil)
	return all
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes, digest %.4x)", strings.ToValidUTF8(s[:n], ""), len(s), sha256.Sum256([]byte(s))) // two that differ behind the cut differ
}

// eachText calls fn for every text in values, with its schema.
func eachText(s *schema, p path, value any, fn func(*schema, path, string)) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range sorted(value) {
			if below := s.below(name); below != nil {
				eachText(below, p.child(name), value[name], fn)
			}
		}
	case string:
		fn(s, p, value)
	}
}
