package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

func judgeRecordTLS(s Server, _ *Settings) []opinion {
	return judgePeer(s.Peer, "sslmode=verify-full in database.url, and sslrootcert")
}

func judgeBrokerTLS(h Hub, _ *Settings) []opinion {
	if !h.Auth && !h.Peer.Local {
		return red("accounts and users in the server's configuration; deploy/nats has them", "it lets everybody in who reaches it").alone()
	}
	return judgePeer(h.Peer, "tls:// in nats.urls, and nats.ca_file")
}

func judgePeer(p Peer, mend string) []opinion {
	switch {
	case p.Secure:
		return green("TLS").alone()
	case p.Local:
		return green("without TLS, on this machine").alone()
	}
	return yellow(mend, "without TLS, over a network").alone()
}

// certificatesCheck looks at all certificates that were shown or named. What cannot be reached has a finding of its own elsewhere.
func certificatesCheck(ctx context.Context, s *Sources, set *Settings) []opinion {
	var certs []Certificate
	var unseen []string
	if s.Server != nil {
		if v, err := s.Server.Get(ctx); err == nil {
			certs = append(certs, v.Peer.Certificates...)
		} else if !errors.Is(err, ErrNotOurs) {
			unseen = append(unseen, "the database's")
		}
	}
	if s.Hub != nil {
		if v, err := s.Hub.Get(ctx); err == nil {
			certs = append(certs, v.Peer.Certificates...)
		} else if !errors.Is(err, ErrNotOurs) {
			unseen = append(unseen, "the broker's")
		}
	}
	if s.Files != nil {
		if v, err := s.Files.Get(ctx); err == nil {
			for _, f := range v {
				certs = append(certs, f.Certs...)
			}
		} else {
			unseen = append(unseen, "those of files")
		}
	}
	return judgeCertificates(certs, unseen, set)
}

func judgeCertificates(certs []Certificate, unseen []string, set *Settings) []opinion {
	var found []opinion
	for _, c := range certs {
		if c.Err != "" {
			found = append(found, red("put a certificate in PEM there", "%s", c.Err).about(c.Where))
			continue
		}
		if o, ends := endsSoon(c.NotAfter, set.Now, "renew it; where it is a file it is read again without a restart", "the certificate of "+c.Subject); ends {
			found = append(found, o.about(c.Where))
		}
	}
	if len(unseen) > 0 {
		found = append(found, opinion{level: Unknown, found: "not looked at: " + strings.Join(unseen, ", "), mend: "see record.reachable and broker.reachable"})
	}
	return all(found, fmt.Sprintf("%d looked at, none ends soon", len(certs)))
}

func judgeCredentialFiles(files []File, set *Settings) []opinion {
	var found []opinion
	looked := 0
	for _, f := range files {
		if f.Kind != CredentialsFile || f.Missing {
			continue
		}
		looked++
		if f.Err != "" {
			found = append(found, red("nsc generate creds", "%s", f.Err).about(f.Path))
			continue
		}
		if o, ends := endsSoon(f.Expires, set.Now, "nsc generate creds; the file is read again at the next connection", "the user's JWT"); ends {
			found = append(found, o.about(f.Path))
		}
	}
	if looked == 0 && len(found) == 0 {
		return green("none are used here").alone()
	}
	return all(found, "none ends soon")
}

func judgeSuperuser(s Server, _ *Settings) []opinion {
	if s.Superuser {
		return yellow("a login for each program, with its role: docs/permissions.md", "%s is a superuser", s.Login).alone()
	}
	return green("%s is none", s.Login).alone()
}

func judgeRights(r Rights, _ *Settings) []opinion {
	return r.judge("a login with the role of "+r.Role+" alone", "pollux migrate up grants the roles theirs; is this the login of "+r.Role+"? See --as",
		"pollux migrate up takes from the roles what is not theirs; what this login has besides is to be revoked from it, or from whatever role gives it")
}

func judgeAccess(r Rights, _ *Settings) []opinion {
	const printed = "pollux perms print nats, and have the server reload what it prints"
	return r.judge("a user for each program: "+printed, printed+"; is this the user of "+r.Role+"? See --as", printed+"; or take them from the user by hand")
}

// judge says what a login or a user has too much and lacks; of the mends the first is that of one who may do everything.
func (r Rights) judge(own, missing, excess string) []opinion {
	const page = ": docs/permissions.md"
	if r.Everything != "" {
		return yellow(own+page, "%s may do everything: %s", r.Login, r.Everything).alone()
	}
	var found []opinion
	if n := len(r.Missing); n > 0 {
		found = append(found, red(missing+page, "%s lacks %s of %s: %s", r.Login, counted(n, "right", "rights"), r.Role, some(r.Missing)))
	}
	if n := len(r.Excessive); n > 0 {
		mend := excess + page
		if len(r.Revoke) > 0 {
			mend = "everybody has " + counted(len(r.Revoke), "right", "rights") + " too many: pollux migrate up takes them away, or the owner of the schema says: " + joined(r.Revoke, "; ")
		}
		found = append(found, yellow(mend, "%s has %s that %s does not need: %s", r.Login, counted(n, "right", "rights"), r.Role, some(r.Excessive)))
	}
	return all(found, fmt.Sprintf("%s has those of %s", r.Login, r.Role))
}

func judgeRoles(roles []Rights, _ *Settings) []opinion {
	var found []opinion
	for _, r := range roles {
		if n := len(r.Missing); n > 0 {
			found = append(found, red("pollux migrate up", "it lacks %s: %s", counted(n, "right", "rights"), some(r.Missing)).about(r.Role))
		}
		if n := len(r.Excessive); n > 0 {
			found = append(found, yellow("pollux migrate up", "it has %s that it does not need: %s", counted(n, "right", "rights"), some(r.Excessive)).about(r.Role))
		}
	}
	return all(found, counted(len(roles), "role has", "roles have")+" what they need, and no more")
}

func judgeLogins(l Logins, _ *Settings) []opinion {
	var found []opinion
	for _, schema := range l.Open {
		found = append(found, yellow("revoke create on schema "+schema+" from public", "everybody may make things in it").about(schema))
	}
	for _, who := range l.Logins {
		add := func(mend, what string) {
			found = append(found, yellow(mend, "%s and has %s", what, who.Role).about(who.Name))
		}
		switch {
		case who.Superuser:
			add("revoke "+who.Role+" from "+who.Name+"; a login of its own for "+who.Role, "may become a superuser")
			continue
		case who.Owner:
			add("revoke pollux_migrator from "+who.Name+", or whatever gives it the schema", "owns the schema pollux")
			continue
		case who.CreateRole:
			add("alter role "+who.Name+" nocreaterole", "may create roles")
		}
		if who.Schemas {
			add("revoke create on database … from "+who.Name+"; an owner of the database gets no role of Pollux but pollux_migrator", "may make schemas")
		}
		if len(who.Creates) > 0 {
			add("revoke create on schema "+strings.Join(who.Creates, ", ")+" from "+who.Name+", or from the role that gives it to it", "may make things in "+some(who.Creates))
		}
	}
	return all(found, counted(len(l.Logins), "login or role", "logins and roles")+" looked at")
}

// some is the first few of a list.
func some(list []string) string { return joined(list, ", ") }

func joined(list []string, by string) string {
	const few = 5
	if len(list) <= few {
		return strings.Join(list, by)
	}
	return fmt.Sprintf("%s%sand %d more", strings.Join(list[:few], by), by, len(list)-few)
}

func judgeFiles(files []File, set *Settings) []opinion {
	var found []opinion
	looked, elsewhere := 0, 0
	for _, f := range files {
		switch {
		case f.Kind == CertificateFile, set.unusable(f.Key): // checks of their own
		case f.Missing:
			elsewhere++
		case f.Err != "" && f.Kind != CredentialsFile:
			found = append(found, opinion{level: Unknown, subject: f.Path, found: "not looked at: " + f.Err, mend: "run pollux doctor as the user that the service runs as"})
		default:
			looked++
			if f.Useless != "" {
				found = append(found, red("write it anew, mode 0600: it is taken up without a restart; until then a running service keeps the last good one, and none starts", "%s: %s", f.Key, f.Useless).about(f.Path))
			} else if f.Others {
				found = append(found, yellow("chmod 600 "+f.Path+"; mounted by an orchestrator: mode 0440 and the group of the process", "%s has mode %04o", f.Key, f.Mode).about(f.Path))
			}
			if f.Folder != "" {
				found = append(found, red("chmod o-w "+f.Folder+", or mount it read-only: until then a running service keeps the last good one, and none starts",
					"%s: everybody on this machine may put another file in its place", f.Key).about(f.Path))
			}
		}
	}
	well := fmt.Sprintf("%d looked at", looked)
	if elsewhere > 0 {
		well += fmt.Sprintf(", %d not: they are other programs', or not on this machine", elsewhere)
	}
	return all(found, well)
}
