package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

func judgeReached(s Server) string {
	return fmt.Sprintf("PostgreSQL %s, as %s", s.Name, s.Login)
}

// oldestVersion is the oldest PostgreSQL whose SQL the statements are, as server_version_num.
const oldestVersion = 150000

func judgeVersion(s Server, _ *Settings) []opinion {
	if s.Version < oldestVersion {
		return red("upgrade PostgreSQL to 15 or newer", "it is %s", s.Name).alone()
	}
	return green("%s", s.Name).alone()
}

func judgeSchema(s Schema, _ *Settings) []opinion {
	switch {
	case s.Have == 0:
		return red("pollux migrate up", "there is no schema pollux").alone()
	case s.Have < s.Want:
		return red("pollux migrate up", "it is at version %d, this build needs %d", s.Have, s.Want).alone()
	case s.Serves:
		return green("version %d, which serves this build's %d", s.Have, s.Want).alone()
	case s.Have > s.Want:
		return red("run a newer build", "it is at version %d, this build knows %d", s.Have, s.Want).alone()
	}
	return green("version %d", s.Have).alone()
}

func judgeWritable(s Server, _ *Settings) []opinion {
	switch {
	case s.Standby:
		return red("point database.url at the primary; target_session_attrs=read-write in it follows a failover", "it is a standby").alone()
	case s.ReadOnly:
		return red("alter database … reset default_transaction_read_only", "default_transaction_read_only is on").alone()
	}
	return green("it takes writes").alone()
}

func judgeFsync(s Server, _ *Settings) []opinion {
	if s.Settings["fsync"] == "off" {
		return red(changeServer("fsync", "on"), "fsync is off").alone()
	}
	return green("fsync is on").alone()
}

func judgeFullPageWrites(s Server, _ *Settings) []opinion {
	if s.Settings["full_page_writes"] == "off" {
		return yellow(changeServer("full_page_writes", "on")+"; leave it off only on a file system that never tears a page, such as ZFS", "full_page_writes is off").alone()
	}
	return green("full_page_writes is on").alone()
}

func judgeSynchronousCommit(s Server, _ *Settings) []opinion {
	switch v := s.Settings["synchronous_commit"]; {
	case v == "off":
		return red(changeServer("synchronous_commit", "on")+"; and see whether the database or the role sets it: \\drds in psql",
			"synchronous_commit is off: the last commits, up to 0.6 s of them, are lost in a crash").alone()
	case v == "local" && s.Settings["synchronous_standby_names"] != "":
		return yellow("set synchronous_commit to on", "synchronous_commit is local, so that no commit waits for the standby of synchronous_standby_names: a failover loses the last ones").alone()
	default:
		return green("synchronous_commit is %s", orNothing(v)).alone()
	}
}

func judgeAutovacuum(s Server, _ *Settings) []opinion {
	for _, name := range []string{"autovacuum", "track_counts"} {
		if s.Settings[name] == "off" {
			return red(changeServer(name, "on"), "%s is off", name).alone()
		}
	}
	return green("on").alone()
}

// The ages of a transaction. A claim walks over what was worked off since it began: after five minutes at a thousand payments a second that is 300,000 entries.
const (
	oldTransaction     = 5 * time.Minute
	ancientTransaction = time.Hour
)

func judgeTransactions(s Sessions, _ *Settings) []opinion {
	var found []opinion
	for _, o := range s.Oldest {
		if o.Age < oldTransaction {
			continue
		}
		mend := terminate(o.PID)
		if o.Kind == "walsender" {
			mend = "end the long query on the standby, or set hot_standby_feedback = off there"
		}
		level := Yellow
		if o.Age >= ancientTransaction {
			level = Red
		}
		found = append(found, opinion{level: level, subject: fmt.Sprintf("pid %d", o.PID), mend: mend,
			found: fmt.Sprintf("%s (login %s) has had a transaction open for %s, state %s", orUnnamed(o.Application), orUnnamed(o.Login), long(o.Age), orUnnamed(o.State))})
	}
	if s.Private && len(found) == 0 {
		return unknown(ErrNotOurs).alone()
	}
	if s.Hidden && len(found) == 0 {
		return yellow(seeAll, "transactions of other logins are not shown to this one").alone()
	}
	if len(s.Oldest) == 0 {
		return green("none is open").alone()
	}
	return all(found, "the oldest is "+long(s.Oldest[0].Age)+" old")
}

// seeAll lets a login see the sessions of others.
const seeAll = "grant pg_read_all_stats to this login"

// terminate is how a session is ended. No role of Pollux may do that to the sessions of others.
func terminate(pid int) string {
	return fmt.Sprintf("select pg_terminate_backend(%d), as a login that has the role pg_signal_backend, or an administrator of the server: an operator of Pollux may not", pid)
}

func orUnnamed(s string) string { return cmp.Or(s, "unnamed") }

func judgePrepared(s Sessions, _ *Settings) []opinion {
	var found []opinion
	for _, p := range s.Prepared {
		if p.Age >= oldTransaction {
			found = append(found, red(fmt.Sprintf("rollback prepared '%s', or commit prepared, as its coordinator says", p.GID), "prepared by %s %s ago", p.Owner, long(p.Age)).about(p.GID))
		}
	}
	return all(found, "there is none")
}

// The write-ahead log that a slot may keep. A busy record writes some 100 MB a minute.
const (
	muchLog    = 1 << 30
	tooMuchLog = 10 << 30
)

func judgeSlots(s Sessions, _ *Settings) []opinion {
	var found []opinion
	for _, slot := range s.Slots {
		drop := fmt.Sprintf("start its reader, or: select pg_drop_replication_slot('%s')", slot.Name)
		switch {
		case slot.Status == "lost" || slot.Status == "unreserved":
			found = append(found, red(drop, "its status is %s: its reader has fallen behind max_slot_wal_keep_size", slot.Status).about(slot.Name))
		case slot.Retained >= tooMuchLog:
			found = append(found, red(drop, "%s of log are kept for it, active: %t", size(slot.Retained), slot.Active).about(slot.Name))
		case slot.Retained >= muchLog || !slot.Active && slot.XIDs > 0:
			found = append(found, yellow(drop, "%s of log are kept for it and the dead rows of %d transactions, active: %t", size(slot.Retained), slot.XIDs, slot.Active).about(slot.Name))
		}
	}
	return all(found, counted(len(s.Slots), "slot, nothing piles up", "slots, nothing piles up"))
}

// longWait is how long nobody waits for a lock in quiet times: the longest transactions of Pollux take a second.
const longWait = 10 * time.Second

func judgeLocks(s Sessions, _ *Settings) []opinion {
	var found []opinion
	for _, w := range s.Waiting {
		if w.For < longWait {
			continue
		}
		o := yellow(terminate(w.Blocker), "%s has waited %s for a lock that pid %d (%s) has",
			orUnnamed(w.Application), long(w.For), w.Blocker, orUnnamed(w.BlockedBy)).about(fmt.Sprintf("pid %d", w.PID))
		if w.Blocker == 0 {
			o.mend = "select * from pg_locks where not granted"
		}
		if strings.HasPrefix(w.Application, "pollux-") {
			o.level = Red
		}
		found = append(found, o)
	}
	return all(found, "nobody waits")
}

// fewLeft is the part of max_connections above which the next instance may find none.
const fewLeft = 0.8

func judgeConnections(c Connections, set *Settings) []opinion {
	if c.Hidden {
		return yellow(seeAll, "sessions of other logins are not shown to this one").alone()
	}
	free := c.Max - c.Reserved
	const mend = "raise max_connections, lower database.max_conns, or put a pooler between that keeps a session for each client"
	ours := 0
	for _, n := range c.Ours {
		ours += n
	}
	room := free - (c.Used - ours) // that others leave
	used, need := float64(c.Used)/float64(max(free, 1)), needed(c, set)
	switch {
	case used >= 0.95:
		return red(mend, "%d of %d are used", c.Used, free).alone()
	case need > room:
		return yellow(mend, "the pools of the processes that are connected may need %d connections, and others leave %d of %d", need, room, free).alone()
	case used >= fewLeft:
		return yellow(mend, "%d of %d are used", c.Used, free).alone()
	}
	return green("%d of %d are used", c.Used, free).alone()
}

// needed is what the processes may need that are connected now, when all of their pools are full: a pool and a probe each. How many there are of a kind is not known; there are
// at least as many as their connections fill pools.
func needed(c Connections, set *Settings) int {
	need, each := 0, set.MaxConns+1
	for app, n := range c.Ours {
		if app == "pollux-relay" || app == "pollux-consumer" || app == "pollux-webhook" {
			need += (n + each - 1) / each * each
		} else {
			need += n
		}
	}
	return need
}

// The dead rows that are much. Autovacuum of the jobs table begins at 2 % and some hundred.
const (
	manyDead    = 50_000
	tooManyDead = 500_000
)

func judgeBloat(tables []Table, _ *Settings) []opinion {
	var found []opinion
	for _, t := range tables {
		if t.Dead < manyDead || t.Dead*5 < t.Live {
			continue
		}
		o := yellow("vacuum (analyze) pollux."+t.Name+"; if they stay, see record.transactions and record.slots", "%d dead rows beside %d live ones in %s, vacuumed %s",
			t.Dead, t.Live, size(t.Bytes), whenever(t.Vacuumed)).about(t.Name)
		if t.Dead >= tooManyDead && t.Dead > t.Live {
			o.level = Red
		}
		found = append(found, o)
	}
	return all(found, counted(len(tables), "table", "tables")+", few dead rows")
}

func whenever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// The ages of rows that are not frozen, in transactions: autovacuum forces itself at 200 million by default, PostgreSQL warns at 2,000 million and stops soon after.
const (
	oldRows     = 1_000_000_000
	ancientRows = 1_600_000_000
)

func judgeWraparound(tables []Table, _ *Settings) []opinion {
	var found []opinion
	var oldest int64
	for _, t := range tables {
		oldest = max(oldest, t.XIDs)
		if t.XIDs < oldRows {
			continue
		}
		o := yellow("vacuum (freeze) pollux."+t.Name, "its oldest rows are %d million transactions old", t.XIDs/1_000_000).about(t.Name)
		if t.XIDs >= ancientRows {
			o.level = Red
		}
		found = append(found, o)
	}
	return all(found, fmt.Sprintf("the oldest are %d million transactions old", oldest/1_000_000))
}

func judgeIndexes(s Structure, _ *Settings) []opinion {
	var found []opinion
	for _, index := range s.MissingIndexes {
		found = append(found, red("as the migrator: "+psql(index.Make), "it is missing").about(index.Name))
	}
	for _, name := range s.InvalidIndexes {
		found = append(found, red("reindex index concurrently pollux."+name, "it is invalid, so that no statement uses it").about(name))
	}
	return all(found, "all are there and valid")
}

func judgeStorage(s Structure, _ *Settings) []opinion {
	var found []opinion
	for _, o := range s.Options {
		mend := fmt.Sprintf("alter table pollux.%s set (%s = %s)", o.Table, o.Name, o.Want)
		if o.Want == "" {
			mend = fmt.Sprintf("alter table pollux.%s reset (%s)", o.Table, o.Name)
		}
		opinion := yellow(mend, "%s is %s, the migrations made it %s", o.Name, orNothing(o.Have), orNothing(o.Want)).about(o.Table)
		if o.Name == "autovacuum_enabled" {
			opinion.level = Red
		}
		found = append(found, opinion)
	}
	return all(found, "as the migrations made them")
}

func judgeTriggers(s Structure, _ *Settings) []opinion {
	var found []opinion
	for _, name := range s.DisabledTriggers {
		table, trigger, _ := strings.Cut(name, ".")
		found = append(found, red(fmt.Sprintf("alter table pollux.%s enable trigger %s; then see what was written meanwhile: pollux verify", table, trigger), "it is disabled").about(name))
	}
	return all(found, "all are on")
}

func judgePartitions(parts []Partitioned, _ *Settings) []opinion {
	var found []opinion
	for _, p := range parts {
		for _, day := range p.Missing {
			o := yellow("select pollux.maintain('1 day', '30 days'), as the relay does each minute: is one running?", "there is no partition for %s", day.Format(time.DateOnly)).about(p.Table)
			if !day.After(p.Today) {
				o.level = Red
			}
			found = append(found, o)
			break // the days after it are missing too
		}
		if late := p.Today.Sub(p.Oldest) - p.Keep; !p.Oldest.IsZero() && late > 3*24*time.Hour {
			found = append(found, yellow("see whether it has events that are not published: select * from pollux.outbox where published_at is null order by created_at limit 10",
				"the partition of %s should be gone by now", p.Oldest.Format(time.DateOnly)).about(p.Table))
		}
		if p.Default > 0 {
			found = append(found, yellow("nothing is lost, and the relay deletes them when their time is over; keep a relay running so that partitions are made in time",
				"some %d rows are in the default partition", p.Default).about(p.Table))
		}
	}
	return all(found, "as they should be")
}

// What mends strays, on one line each. Pending payments that have no job get one that is due now: the trigger that lets no job begin by itself is off for that one
// transaction, and nobody else writes to the table meanwhile.
var restoreJobs = []string{
	"alter table pollux.poll_jobs disable trigger jobs_begin",
	"insert into pollux.poll_jobs (payment_id, gateway, lane) select id, gateway, lane from pollux.payments p where status = 'pending' and not exists (select from pollux.poll_jobs where payment_id = p.id)",
	"alter table pollux.poll_jobs enable trigger jobs_begin",
}

const dropJobs = "delete from pollux.poll_jobs j where not exists (select from pollux.payments where id = j.payment_id and status = 'pending')"

func judgeStrays(s Strays, _ *Settings) []opinion {
	var found []opinion
	if s.NoJob > 0 {
		found = append(found, red(fmt.Sprintf("see who made it so: pollux payment show %d; then give them jobs, as the migrator: %s", s.Example, together(restoreJobs...)), "%s pending without a job, such as %d", counted(s.NoJob, "payment is", "payments are"), s.Example))
	}
	if s.Final > 0 {
		found = append(found, red(fmt.Sprintf("see who made it so: pollux payment show %d; then, as an operator: %s", s.FinalOf, psql(dropJobs)), "%s of a payment that is final or gone, such as %d", counted(s.Final, "job is", "jobs are"), s.FinalOf))
	}
	return all(found, fmt.Sprintf("none among the newest %d payments and the oldest %d jobs; pollux verify counts all", s.Looked, s.Jobs))
}

// The statements bring back what was written by a clock that was ahead: a job is due as long from now as it was from the time at which it was written.
var bringBack = []string{
	"update pollux.poll_jobs set next_poll_at = next_poll_at - (updated_at - now()), locked_until = locked_until - (updated_at - now()), " +
		"held_until = held_until - (updated_at - now()), window_started_at = least(window_started_at, now()), updated_at = now() where updated_at > now()",
	"update pollux.outbox set publish_at = now() where published_at is null and publish_at > now() and publish_at < 'infinity'",
}

func judgeAhead(a Ahead, _ *Settings) []opinion {
	if a.Jobs == 0 && a.Events == 0 {
		return green("no event, and none of %s", counted(a.Looked, "job", "jobs")).alone()
	}
	mend := "once the clock stays right, as the migrator: " + together(bringBack...)
	o := yellow(mend, "%s and %s ahead, by up to %s: the clock was set back", counted(a.Jobs, "job", "jobs"), counted(a.Events, "event is", "events are"), long(a.By))
	if a.By >= stuckWork {
		o.level = Red
	}
	return o.alone()
}

// The times that a poll may be due and not taken: the relay looks every few milliseconds, and takes nothing for a queue whose backlog at the broker is full. The second is the
// patience of pollux verify.
const (
	lateWork  = time.Minute
	stuckWork = 10 * time.Minute
)

func judgeDue(queues []Queue, set *Settings) []opinion {
	var found []opinion
	for _, q := range queues {
		if _, known := set.gateway(q.Gateway); !known || q.Oldest < lateWork {
			continue
		}
		o := yellow("do a relay and enough consumers run? kubectl logs, /readyz of each; pollux breaker list", "%s due, the oldest for %s",
			counted(q.Due, "poll is", "polls are"), long(q.Oldest)).about(q.Gateway + "/" + q.Lane)
		if q.Oldest >= stuckWork {
			o.level = Red
		}
		found = append(found, o)
	}
	return all(found, "nothing waits")
}

func judgeStrangers(queues []Queue, set *Settings) []opinion {
	if len(set.Gateways) == 0 {
		return nil
	}
	strangers := map[string]int64{}
	for _, q := range queues {
		if _, known := set.gateway(q.Gateway); !known {
			strangers[q.Gateway] += q.Due
		}
	}
	var found []opinion
	for name, due := range strangers {
		o := yellow("configure gateways."+name+", or see who tracks payments under that name: pollux payments list --gateway "+name, "it has payments and is not configured here").about(name)
		if due > 0 {
			o.level, o.found = Red, fmt.Sprintf("%s due, and it is not configured here", counted(due, "poll is", "polls are"))
		}
		found = append(found, o)
	}
	slices.SortFunc(found, func(a, b opinion) int { return cmp.Compare(a.subject, b.subject) })
	return all(found, "all are")
}

func judgeRelay(s Sessions, _ *Settings) []opinion {
	if s.Relays == 0 {
		return red("start outbox-relay; if it runs, see its log and its /readyz", "no session is called pollux-relay").alone()
	}
	return green("%s", counted(s.Relays, "connection of a relay", "connections of relays")).alone()
}

// The ages of an event that is not published.
const (
	lateEvent  = time.Minute
	stuckEvent = 10 * time.Minute
)

func judgeOutbox(o Outbox, _ *Settings) []opinion {
	const mend = "does a relay run, and can it publish? its log and /readyz say; pollux streams diff"
	switch {
	case o.Waiting > 0 && o.Oldest >= stuckEvent:
		return red(mend, "%s, the oldest for %s, tried %d times", counted(o.Waiting, "event waits", "events wait"), long(o.Oldest), o.Tries).alone()
	case o.Waiting > 0 && o.Oldest >= lateEvent:
		return yellow(mend, "%s, the oldest for %s, tried %d times", counted(o.Waiting, "event waits", "events wait"), long(o.Oldest), o.Tries).alone()
	}
	return green("%d wait; the slowest of the last thousand took %s", o.Waiting, long(o.Delay)).alone()
}

func judgeSetAside(o Outbox, _ *Settings) []opinion {
	if o.SetAside == 0 {
		return green("none").alone()
	}
	return yellow("mend what is said, then: update pollux.outbox set set_aside = null, publish_at = now() where set_aside is not null",
		"%s set aside, such as: %s", counted(o.SetAside, "event is", "events are"), o.Why).alone()
}

// longAgo is after how long a dead letter should have been looked at.
const longAgo = 24 * time.Hour

func judgeLetters(l Letters, _ *Settings) []opinion {
	var found []opinion
	if l.Open > 0 && l.Oldest >= longAgo {
		found = append(found, yellow("pollux dlq groups", "%s open, %s at stake, the oldest for %s", counted(l.Open, "letter is", "letters are"), money(l.Money), long(l.Oldest)))
	}
	if l.Stuck > 0 {
		found = append(found, yellow("pollux dlq status, then pollux dlq resume", "%s waiting for a replay that nobody drives", counted(l.Stuck, "letter is", "letters are")))
	}
	return all(found, fmt.Sprintf("%d open, %d parked", l.Open, l.Parked))
}

func judgeChain(c Chain, _ *Settings) []opinion {
	switch {
	case c.Broken != 0:
		return red("keep a copy first: pollux audit export; then pollux audit verify; docs/audit.md says what then", "row %d: %s", c.Broken, c.Why).alone()
	case c.Rows == 0:
		return green("the log is empty").alone()
	}
	return green("the newest %s, up to %s; pollux audit verify reads all", counted(c.Rows, "row is sound", "rows are sound"), c.Head).alone()
}
