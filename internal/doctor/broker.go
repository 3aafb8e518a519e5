package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The names of the streams.
const (
	pollStream     = "PAYMENTS_POLL"
	deferredStream = "PAYMENTS_DEFERRED"
)

func judgeHubReached(h Hub) string {
	if h.Cluster != "" {
		return fmt.Sprintf("NATS %s, cluster %s, %s", h.Version, h.Cluster, counted(h.Servers, "server known", "servers known"))
	}
	return fmt.Sprintf("NATS %s, a single server", h.Version)
}

func judgeJetStream(a Account, _ *Settings) []opinion {
	if a.Off != "" {
		return red("start the server with --jetstream and a --store_dir, and give the account JetStream", "%s", a.Off).alone()
	}
	return green("it is").alone()
}

func judgeHubVersion(h Hub, _ *Settings) []opinion {
	major, rest, _ := strings.Cut(h.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if errA == nil && errB == nil && (a < 2 || a == 2 && b < 12) {
		return yellow("upgrade NATS to 2.12 or newer, one server after the other", "it is %s", h.Version).alone()
	}
	return green("%s", h.Version).alone()
}

func judgeStreamDrift(ds []Difference, _ *Settings) []opinion {
	return judgeDrift(ds, func(d Difference) bool { return d.Consumer == "" }, "as declared")
}

func judgeConsumerDrift(ds []Difference, _ *Settings) []opinion {
	return judgeDrift(ds, func(d Difference) bool { return d.Consumer != "" }, "as configured")
}

// what names the thing that differs. A reader's consumer has its name in several streams.
func (d Difference) what() string {
	switch {
	case d.Consumer == "":
		return d.Stream
	case d.Stream == pollStream:
		return d.Consumer
	}
	return d.Consumer + " of " + d.Stream
}

func judgeDrift(ds []Difference, ours func(Difference) bool, well string) []opinion {
	var found []opinion
	for _, d := range ds {
		if !ours(d) {
			continue
		}
		o := red("pollux streams apply", "%s is %s, declared %s", d.Field, orNothing(d.Have), orNothing(d.Want)).about(d.what())
		if d.Field == "" {
			o.found = "it is missing"
		}
		if d.Blocked != "" {
			o.mend = d.Blocked
		}
		found = append(found, o)
	}
	return all(found, well)
}

// judgeForbidden looks at all consumers and streams of Pollux, whether this configuration knows them or not.
func judgeForbidden(consumers []Consumer, streams []Stream, _ *Settings) []opinion {
	var found []opinion
	for _, c := range consumers {
		bad := func(format string, a ...any) {
			found = append(found, red("pollux streams apply; where it refuses: stop the services, delete the consumer, start them", format, a...).about(c.Name))
		}
		if len(c.BackOff) > 0 {
			bad("backoff is %v: it spoils the delays that polls are held with", c.BackOff)
		}
		if c.MaxDeliver > 0 {
			bad("max_deliver is %d: a message beyond it is invisible and still stored", c.MaxDeliver)
		}
		if c.AckPolicy != "explicit" {
			bad("ack_policy is %s: what fails is never delivered again", c.AckPolicy)
		}
		if c.Push {
			bad("it pushes: what a busy process cannot take is lost to it until ack_wait")
		}
	}
	for _, s := range streams {
		bad := func(format string, a ...any) {
			found = append(found, red("pollux streams diff says what to do", format, a...).about(s.Name))
		}
		switch {
		case s.Name == pollStream && s.Retention != "limits":
			bad("retention is %s: one held message at the front of a work queue leaves a file for nearly every message behind it", s.Retention)
		case s.Name != pollStream && s.Discard == "old":
			bad("discard is old: a full stream drops what nobody has read, without a word")
		}
		if s.Name != pollStream && s.Name != deferredStream && s.Retention != "limits" {
			bad("retention is %s: reading deletes", s.Retention)
		}
		if s.Storage == "memory" {
			bad("storage is memory: a restart loses all of it")
		}
	}
	return all(found, "there is none")
}

func judgeAckPending(consumers []Consumer, fleet Fleet, set *Settings) []opinion {
	var found []opinion
	instances := max(fleet.Instances, 1)
	for _, c := range consumers {
		g, known := set.gateway(c.Gateway)
		if !known || c.Stream != pollStream {
			continue
		}
		held := set.HoldBudget
		if g.Rate > 0 {
			held = min(held, int(g.Rate)) // as the consumers do: no more than one second of calls
		}
		need := held + g.Workers*instances
		if c.MaxAckPending > 0 && c.MaxAckPending < need {
			found = append(found, red(fmt.Sprintf("consumer.max_ack_pending: %d, then pollux streams apply", roundUp(need)),
				"max_ack_pending is %d: %d may be held, and %s work on %d each", c.MaxAckPending, held, counted(instances, "instance", "instances"), g.Workers).about(c.Name))
			continue
		}
		if wanted := int(g.Rate * g.HoldLimit.Seconds()); g.Rate > 0 && wanted > held && held > 0 {
			continue // what exceeds the budget is parked: that is what it is for
		}
		if c.MaxAckPending > 0 && c.AckPending >= int64(c.MaxAckPending) {
			found = append(found, red(fmt.Sprintf("consumer.max_ack_pending: %d, then pollux streams apply; or fewer held: consumer.hold_budget", roundUp(2*c.MaxAckPending)),
				"all %d places are taken, by messages that are held or worked on", c.MaxAckPending).about(c.Name))
		}
	}
	return all(found, "there is room")
}

// roundUp is a number as people write it.
func roundUp(n int) int { return (n + 999) / 1000 * 1000 }

func judgeAckWait(consumers []Consumer, set *Settings) []opinion {
	var found []opinion
	for _, c := range consumers {
		g, known := set.gateway(c.Gateway)
		if !known {
			continue
		}
		lease := min(set.ConsumerLease, set.RelayLease)
		longer := "a longer consumer.ack_wait, then pollux streams apply; or a shorter timeout of the gateway"
		shorter := "a shorter consumer.ack_wait, then pollux streams apply; or longer leases"
		longest := g.Timeout + g.MaxWait
		if longest < set.AckWait && set.AckWait < lease { // what is configured fits
			longer = "pollux streams apply makes it " + set.AckWait.String() + ", as configured"
			shorter = longer
		}
		if c.AckWait <= longest {
			found = append(found, red(longer,
				"ack_wait is %s, and a call to %s may take %s with the wait for its turn", c.AckWait, g.Name, longest).about(c.Name))
		}
		if c.AckWait >= lease {
			found = append(found, red(shorter,
				"ack_wait is %s, and a lease %s: the relay publishes anew what is still being worked on", c.AckWait, lease).about(c.Name))
		}
	}
	return all(found, fmt.Sprintf("%s fit", counted(len(consumers), "consumer", "consumers")))
}

func judgeDuplicates(streams []Stream, o Outbox, set *Settings) []opinion {
	var found []opinion
	again := set.PublishTimeout + set.Retry
	for _, s := range streams {
		switch {
		case s.DuplicateWindow <= again:
			found = append(found, red("pollux streams apply; or a shorter relay.publish_timeout",
				"it is %s, and a message that was not acknowledged is published again after up to %s", long(s.DuplicateWindow), long(again)).about(s.Name))
		case s.Name != pollStream && s.Name != deferredStream && o.Tries > 0 && o.Oldest >= s.DuplicateWindow:
			found = append(found, yellow("see record.outbox; readers deduplicate by Nats-Msg-Id",
				"it is %s, and an event has been tried for %s: if the first try was stored after all, it is stored twice", long(s.DuplicateWindow), long(o.Oldest)).about(s.Name))
		}
	}
	return all(found, "longer than any second try")
}

func judgeMaxAge(streams []Stream, set *Settings) []opinion {
	longest := max(set.RelayLease, set.ConsumerLease)
	for _, g := range set.Gateways {
		longest = max(longest, g.HoldLimit+set.ConsumerLease)
	}
	for _, s := range streams {
		if s.Name == pollStream && s.MaxAge > 0 && s.MaxAge < longest {
			return yellow("pollux streams apply, or shorter leases", "max_age is %s, and a poll may be out for %s", s.MaxAge, longest).about(s.Name).alone()
		}
	}
	return green("longer than the leases").alone()
}

// The parts of a limit from which on it is nearly reached.
const (
	nearly = 0.8
	almost = 0.95
)

func judgeFull(streams []Stream, _ *Settings) []opinion {
	var found []opinion
	for _, s := range streams {
		for _, l := range []Limit{{Name: "messages", Used: s.Messages, Max: s.MaxMessages}, {Name: "bytes", Used: s.Bytes, Max: s.MaxBytes, Bytes: true}} {
			if o, near := nearTo(l, "whoever runs NATS purges what was read: nats stream purge "+s.Name+" --keep N, or raises its limit. Who should read it?"); near {
				found = append(found, o.about(s.Name))
			}
		}
	}
	return all(found, "none is")
}

func judgeAccount(a Account, _ *Settings) []opinion {
	var found []opinion
	for _, l := range a.Limits {
		if o, near := nearTo(l, "raise the account's limit, or free some of it: nats account info"); near {
			found = append(found, o.about(l.Name))
		}
	}
	return all(found, "none is near")
}

func nearTo(l Limit, mend string) (opinion, bool) {
	if l.Max < 1 || float64(l.Used) < nearly*float64(l.Max) {
		return opinion{}, false
	}
	used, most := fmt.Sprint(l.Used), fmt.Sprint(l.Max)
	if l.Bytes {
		used, most = size(l.Used), size(l.Max)
	}
	o := yellow(mend, "%s of %s %s are used", used, most, l.Name)
	if float64(l.Used) >= almost*float64(l.Max) {
		o.level = Red
	}
	return o, true
}

// syncDefault is how often a NATS server syncs its disk unless it is told otherwise.
const syncDefault = 2 * time.Minute

func judgeDisk(d Disk, streams []Stream, set *Settings) []opinion {
	replicated := len(streams) > 0 && !slices.ContainsFunc(streams, func(s Stream) bool { return s.Replicas < 3 })
	switch {
	case !d.Asked:
		return yellow("nats.monitor_url: http://HOST:8222, the server's monitoring page", "not known: NATS tells it on its monitoring page only").alone()
	case d.Always:
		return green("before each acknowledgement").alone()
	case d.Interval > syncDefault:
		return yellow("sync_interval: 2m or shorter, or always, in the server's jetstream section", "every %s", d.Interval).alone()
	case replicated:
		return green("every %s, with replicas that have it too", d.Interval).alone()
	}
	return green("every %s: a power cut costs lateness, and the relay publishes again what was lost", d.Interval).alone()
}

func judgeReplicas(streams []Stream, h Hub, _ *Settings) []opinion {
	var found []opinion
	for _, s := range streams {
		switch {
		case s.Clustered && s.Leader == "":
			found = append(found, red("are most of its servers up? Then whoever runs NATS: nats stream cluster step-down "+s.Name, "it has no leader").about(s.Name))
		case len(s.Offline) > 0:
			found = append(found, yellow("start them; for good gone: whoever runs NATS takes them out with nats stream cluster peer-remove", "%s offline", strings.Join(s.Offline, ", ")).about(s.Name))
		case len(s.Lagging) > 0:
			found = append(found, yellow("wait, and see whether their disks or network keep up", "%s behind", strings.Join(s.Lagging, ", ")).about(s.Name))
		case h.Servers >= 3 && s.Replicas < 3:
			found = append(found, yellow("pollux streams apply --replicas 3", "%s, and the cluster has %d servers", counted(s.Replicas, "replica", "replicas"), h.Servers).about(s.Name))
		}
	}
	if h.Servers < 2 && len(found) == 0 {
		return green("a single server: while it is away nothing is polled, and nothing is lost").alone()
	}
	return all(found, "as many as the cluster gives")
}

func judgeWorkers(consumers []Consumer, set *Settings) []opinion {
	var found []opinion
	for _, c := range consumers {
		g, known := set.gateway(c.Gateway)
		if !known || g.NeverAsked || c.Stream != pollStream {
			continue
		}
		if c.Pending > 0 && c.Waiting == 0 && c.AckPending == 0 {
			found = append(found, red("start a consumer with this lane and gateway; if one runs, its log and /readyz say", "%s, and nobody asks for them",
				counted(c.Pending, "message waits", "messages wait")).about(c.Name))
		}
	}
	for _, g := range set.Gateways {
		if !slices.ContainsFunc(consumers, func(c Consumer) bool { return c.Gateway == g.Name && c.Stream == pollStream }) {
			found = append(found, yellow("start a consumer; if one runs, its log and /readyz say what it lacks", "it has no consumer at the broker: none was started, or it was deleted").about(g.Name))
		}
	}
	return all(found, "all have")
}
