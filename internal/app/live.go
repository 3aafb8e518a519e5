package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/audit"
	"pollux/internal/certificate"
	"pollux/internal/config"
	"pollux/internal/telemetry"
)

// renewEvery is how often it is looked whether secrets and certificates have changed in their files. Reading a few dozen small files costs a millisecond.
const renewEvery = 15 * time.Second

// live is the configuration that a process works by, and who has to be told when it changes.
type live struct {
	mu           sync.Mutex
	now          *config.Config // nil where nothing is reloaded; never changed in place
	changes      int            // how often it was another one
	takers       []taker
	certificates []*certificate.Source
	known        map[string]known // by name of the source
	chronicle    func(context.Context, audit.Act) error
}

// taker prepares a part of a service for another configuration. The returned function makes it so and cannot fail; nil has nothing to do.
type taker func(next *config.Config) (apply func(), err error)

// known is what was last said of a certificate.
type known struct {
	loads int
	err   string
}

// hold lets a service work by the configuration as it is now. Hot paths read the pointer, and nothing else.
func (p *Process) hold(cfg config.Config) *atomic.Pointer[config.Config] {
	held := new(atomic.Pointer[config.Config])
	held.Store(&cfg)
	_ = p.follow(func(next *config.Config) (func(), error) { return func() { held.Store(next) }, nil }) // it refuses nothing
	return held
}

// follow has a part of a service, which was made with the configuration of the start, follow its changes from now on. What changed meanwhile it is told at once.
func (p *Process) follow(t taker) error {
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takers = append(l.takers, t)
	if l.changes == 0 {
		return nil
	}
	apply, err := t(l.now)
	if err != nil || apply == nil {
		return err
	}
	apply()
	return nil
}

// secured reads the certificates of a part of the process, which are looked after from then on; nil where no file is named.
func (p *Process) secured(name string, f certificate.Files) (*certificate.Source, error) {
	if f.Empty() {
		return nil, nil
	}
	s, err := certificate.Open(name, f)
	if err != nil {
		return nil, NotTried(err)
	}
	p.lookAfter(s)
	return s, nil
}

// lookAfter has a source looked at regularly.
func (p *Process) lookAfter(s *certificate.Source) {
	if s == nil {
		return
	}
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	l.certificates = append(l.certificates, s)
	p.tell(s.State())
}

// chronicled names where reloads are written down.
func (p *Process) chronicled(record func(context.Context, audit.Act) error) {
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chronicle = record
}

// reloads marks the command of a service, which takes SIGHUP for a wish to read its configuration anew.
const reloads = "pollux.reloads"

// reloading marks a command as one that reloads.
func reloading(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[reloads] = "yes"
	return cmd
}

// tend reads the configuration anew at SIGHUP, and secrets when their files change, until ctx ends.
func (p *Process) tend(ctx context.Context, cfg config.Config, service string, every time.Duration, hangups <-chan os.Signal) {
	p.live.begin(&cfg, func(next *config.Config) (func(), error) {
		return func() { p.SetLevel(slog.Level(next.Log.Level)); p.SetPushHeaders(next.Telemetry.OTLPHeaders) }, nil
	})
	p.Metrics.ConfigRead(time.Now())
	for _, w := range cfg.Warnings() {
		p.Log.WarnContext(ctx, "a secret is open to everybody on this machine", "key", w.Key, "hint", w.What)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			p.hangup(ctx, service)
			p.lookAtCertificates()
		case <-tick.C:
			p.tick(ctx)
			p.lookAtCertificates()
		}
	}
}

// begin begins to follow a configuration with what belongs to the process itself.
func (l *live) begin(cfg *config.Config, process taker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.takers = cfg, append(l.takers, process)
}

// hangups are the wishes to reload.
func hangups() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1) // of several at once one is enough
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// install has all takers take a configuration, or none of them.
func (l *live) install(next *config.Config) error {
	var errs []error
	applies := make([]func(), 0, len(l.takers))
	for _, t := range l.takers {
		apply, err := t(next)
		if errs = append(errs, err); apply != nil {
			applies = append(applies, apply)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, apply := range applies {
		apply()
	}
	l.now = next
	l.changes++
	return nil
}

// hangup does what SIGHUP asks for. Of a configuration that is refused the secrets are taken up all the same, as they are at each tick: a rotation does not wait for a key that has nothing to do with it.
func (p *Process) hangup(ctx context.Context, service string) {
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.reload(ctx, service) {
		p.renew(ctx)
	}
}

// reload reads the configuration anew. It is taken as a whole or not at all. l.mu is held.
func (p *Process) reload(ctx context.Context, service string) (taken bool) {
	l := &p.live
	next, err := l.now.Reload(time.Now())
	if err != nil {
		p.refuse(ctx, telemetry.ReloadInvalid, nil, err)
		return false
	}
	changes, renewed := l.now.Changes(next), l.now.Renewed(next)
	var need []config.Change
	for _, c := range changes {
		if c.Needs(service) {
			need = append(need, c)
		}
	}
	if len(need) > 0 {
		p.refuse(ctx, telemetry.ReloadRefused, need, errRestart(service, need))
		return false
	}
	if len(changes)+len(renewed) > 0 { // the files that a gateway names change without a key
		if err := l.install(&next); err != nil {
			p.refuse(ctx, telemetry.ReloadInvalid, changes, err)
			return false
		}
	}
	p.renewed(ctx, renewed)
	if len(changes) == 0 {
		l.now = &next
		p.Metrics.ConfigReload(telemetry.ReloadUnchanged, time.Now())
		p.Log.InfoContext(ctx, "the configuration was read again; no key has changed")
		return true
	}
	p.Metrics.ConfigReload(telemetry.ReloadApplied, time.Now())
	for _, c := range changes {
		p.Log.InfoContext(ctx, "the configuration changed", "key", c.Key, "before", c.Before, "after", c.After)
	}
	p.writeDown(ctx, audit.Done, "", changes)
	return true
}

// errRestart names the keys that take a restart.
func errRestart(service string, need []config.Change) error {
	keys := make([]string, len(need))
	for i, c := range need {
		keys[i] = c.Key
	}
	return fmt.Errorf("a change of %s takes a restart of the %s; no other key was changed either", strings.Join(keys, ", "), service)
}

// refuse says why the configuration before stays in force.
func (p *Process) refuse(ctx context.Context, r telemetry.ReloadResult, changes []config.Change, err error) {
	p.Metrics.ConfigReload(r, time.Now())
	hint := "pollux config check says what is wrong; the configuration before stays in force"
	if r == telemetry.ReloadRefused {
		hint = "restart the service, or take these changes back and send SIGHUP again; the configuration before stays in force"
	}
	reason := err.Error()
	var invalid *config.Invalid
	if !errors.As(err, &invalid) {
		p.Log.ErrorContext(ctx, "the configuration is not reloaded", "error", err, "hint", hint)
	} else {
		for _, problem := range invalid.Problems {
			p.Log.ErrorContext(ctx, "the configuration is not reloaded", "where", problem.Where, "key", problem.Key, "error", problem.What, "hint", hint)
		}
		reason = invalid.Line()
	}
	p.writeDown(ctx, audit.Refused, audit.Text(reason, audit.MaxReason), changes)
}

// maxAudited bounds the keys of a reload that are audited one by one; a file that was replaced by another may change hundreds.
const maxAudited = 100

// writeDown puts a reload into the audit log. That a configuration is in force does not depend on it.
func (p *Process) writeDown(ctx context.Context, o audit.Outcome, reason string, changes []config.Change) {
	record := p.live.chronicle
	if record == nil {
		p.Log.WarnContext(ctx, "the reload is not in the audit log: the service has no database yet")
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	act := audit.Act{Action: "config.reload", Outcome: o, Reason: reason}
	for i, c := range changes {
		if i == maxAudited {
			act.Changes = append(act.Changes, audit.Change{Target: "config", After: map[string]int{"more_keys": len(changes) - i}})
			break
		}
		act.Changes = append(act.Changes, audit.Change{Target: audit.Text("config:"+c.Key, 255), Before: shownValue(c.Before), After: shownValue(c.After)})
	}
	if len(act.Changes) == 0 {
		act.Changes = []audit.Change{{Target: "config"}}
	}
	if err := record(ctx, act); err != nil {
		p.Log.WarnContext(ctx, "the reload is not in the audit log", "error", err)
	}
}

// shownValue is a value as the audit log has it, nil for none.
func shownValue(s string) any {
	if s == "" {
		return nil
	}
	return map[string]string{"value": s}
}

// tick looks whether secrets have changed.
func (p *Process) tick(ctx context.Context) {
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	p.renew(ctx)
}

// renew takes up the secrets that have changed in their files. l.mu is held.
func (p *Process) renew(ctx context.Context) {
	l := &p.live
	next, r := l.now.Renew(time.Now())
	if len(r.Taken)+len(r.Kept) == 0 {
		return
	}
	for _, k := range r.Kept {
		p.Metrics.SecretReload(kindOf(k.Key), k.Unit(), false)
		p.Log.ErrorContext(ctx, "what is in the file of a secret is of no use; the last good one stays in force", "key", k.Key, "error", k.What,
			"hint", "write the file anew; it is looked at every 15 seconds and at SIGHUP")
	}
	if err := l.install(&next); err != nil {
		p.Log.ErrorContext(ctx, "new secrets are not taken; the last good ones stay in force", "error", err)
		return
	}
	p.renewed(ctx, r.Taken)
}

// renewed tells of units whose secrets were taken.
func (p *Process) renewed(ctx context.Context, units []string) {
	for _, unit := range units {
		p.Metrics.SecretReload(kindOf(unit), unit, true)
		p.Log.InfoContext(ctx, "new secrets are in force", "of", unit)
	}
}

// kindOf is the kind of secret that a key names.
func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, ".")
	return kind
}

func (p *Process) lookAtCertificates() {
	l := &p.live
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.certificates {
		_ = s.Look() // its state has it
		p.tell(s.State())
	}
}

// tell says of a certificate what is new, once. l.mu is held.
func (p *Process) tell(s certificate.State) {
	if !s.Expiry.IsZero() {
		p.Metrics.CertificateExpiry(s.Name, s.Expiry)
	}
	if !s.CAsExpire.IsZero() {
		p.Metrics.CertificateExpiry(s.Name+caSuffix[s.Name], s.CAsExpire)
	}
	l := &p.live
	if l.known == nil {
		l.known = map[string]known{}
	}
	before, met := l.known[s.Name]
	is := known{loads: s.Loads}
	if s.Err != nil {
		is.err = s.Err.Error()
	}
	l.known[s.Name] = is
	switch {
	case is.err != "" && is.err != before.err:
		p.Metrics.SecretReload(telemetry.SecretTLS, s.Name, false)
		p.Log.Error("what is in the files of a certificate is of no use; the last good one stays in force", "of", s.Name, "error", is.err,
			"ends", s.Expiry, "hint", "write the files anew; they are looked at every 15 seconds and at SIGHUP")
	case is.err == "" && met && (is.loads != before.loads || before.err != ""):
		p.Metrics.SecretReload(telemetry.SecretTLS, s.Name, true)
		p.Log.Info("the certificate in the files is in force", "of", s.Name, "ends", s.Expiry)
	}
}

// caSuffix names the authorities of a source.
var caSuffix = map[string]string{"database": "_ca", "nats": "_ca", "webhooks": "_client_ca", "telemetry": "_client_ca"}
