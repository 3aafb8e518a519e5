package config

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"pollux/internal/certificate"
	"pollux/internal/secret"
)

// How a connection to the database is secured.
const (
	TLSDisable    = "disable"
	TLSRequire    = "require"
	TLSVerifyCA   = "verify-ca"
	TLSVerifyFull = "verify-full"
)

var tlsModes = []string{TLSDisable, TLSRequire, TLSVerifyCA, TLSVerifyFull}

// TLSFiles are the files of the database's TLS.
func (d Database) TLSFiles() certificate.Files {
	return certificate.Files{Cert: d.CertFile, Key: d.KeyFile, CA: d.CAFile}
}

// TLSMode is how the connection is secured; empty where the URL says it.
func (d Database) TLSMode() string {
	if d.TLS == "" && !d.TLSFiles().Empty() {
		return TLSVerifyFull
	}
	return d.TLS
}

// TLSFiles are the files of the broker's TLS.
func (n NATS) TLSFiles() certificate.Files {
	return certificate.Files{Cert: n.CertFile, Key: n.KeyFile, CA: n.CAFile}
}

// TLSFiles are the files of the receiver's TLS.
func (w Webhooks) TLSFiles() certificate.Files {
	return certificate.Files{Cert: w.CertFile, Key: w.KeyFile, CA: w.ClientCAFile}
}

// TLSFiles are the files of the pages' TLS.
func (t Telemetry) TLSFiles() certificate.Files {
	return certificate.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.ClientCAFile}
}

// databaseTLS checks how the connection to the database is secured.
func (v *verifier) databaseTLS(d *Database) {
	const mode = "database.tls"
	if d.TLS != "" && !slices.Contains(tlsModes, d.TLS) {
		v.refuse(keys(mode), "%.40q; write %s", d.TLS, strings.Join(tlsModes, ", "))
		return
	}
	v.certificates("database", "ca_file", d.TLSFiles())
	switch {
	case d.TLS == TLSDisable && !d.TLSFiles().Empty():
		v.refuse(keys(mode, "database.ca_file", "database.cert_file", "database.key_file"), "disable, and certificates are written below: they would not be looked at; write verify-full, or take them away")
	case d.TLS == TLSRequire && d.CAFile != "":
		v.refuse(keys(mode, "database.ca_file"), "require does not look at the server's certificate, and ca_file says what to check it against; write verify-ca or verify-full")
	}
	if parsed, err := url.Parse(d.URL.value.Reveal()); err == nil && d.TLSMode() != "" {
		v.urlTLS(parsed)
	}
}

// tlsParameters are the parameters of PostgreSQL's URLs that say what the keys say.
var tlsParameters = []string{"sslmode", "sslrootcert", "sslcert", "sslkey"}

// Access is the URL that the database is reached by: with its password, and with what the keys beside it say of TLS as parameters. Whoever calls it answers for
// where it goes.
func (d Database) Access() string { return d.secured(d.URL.Reveal()) }

// Fresh is Access with the secret read again, for a new connection: what renews a password need not restart anybody.
func (d Database) Fresh() (string, error) {
	fresh, err := d.URL.Fresh()
	if err != nil {
		return "", err
	}
	return d.secured(fresh), nil
}

func (d Database) secured(text string) string {
	u, err := url.Parse(text)
	if err != nil || d.TLSMode() == "" {
		return text
	}
	q := u.Query()
	for i, value := range []string{d.TLSMode(), d.CAFile, d.CertFile, d.KeyFile} {
		if value != "" {
			q.Set(tlsParameters[i], value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// urlTLS refuses a URL that says how it is secured where the keys do.
func (v *verifier) urlTLS(u *url.URL) {
	for _, name := range tlsParameters {
		if u.Query().Has(name) {
			v.refuse(keys("database.url", "database.tls", "database.ca_file"), "the URL has %s, and database.tls or a file beside it says how the connection is secured; keep one of the two", name)
			return
		}
	}
}

func (v *verifier) brokerTLS(n *NATS) {
	if n.TLSFiles().Empty() && n.ServerName == "" {
		return
	}
	for i, s := range n.URLs {
		if strings.HasPrefix(s, "ws://") {
			v.refuse(keys("nats.urls", "nats.ca_file"), "the URL at place %d is without TLS (ws://), and files of TLS are written; write wss://", i+1)
		}
	}
}

// listener checks what a listener of ours speaks TLS with.
func (v *verifier) listener(section string, f certificate.Files) {
	if f.CA != "" && f.Cert == "" {
		v.refuse(keys(section+".client_ca_file", section+".cert_file"), "whoever comes is to show a certificate, and without one of our own no TLS is spoken; write cert_file and key_file too")
		return
	}
	v.certificates(section, "client_ca_file", f)
}

// certificates checks the files of a section, or of the keys of one that begin alike.
func (v *verifier) certificates(section, ca string, f certificate.Files) {
	prefix := section
	if !strings.HasSuffix(section, "_") {
		prefix += "."
	}
	if (f.Cert == "") != (f.Key == "") {
		v.refuse(keys(prefix+"cert_file", prefix+"key_file"), "a certificate and its key go together; write both cert_file and key_file, or neither")
		return
	}
	if f.Empty() || v.skips(skipSecrets) {
		return
	}
	_, err := certificate.Load(f, time.Now())
	for _, message := range messages(err) {
		name, what, _ := strings.Cut(message, ": ")
		if name == "ca_file" {
			name = ca
		}
		v.unusable(keys(prefix+name), "%s", what)
	}
	if err == nil {
		v.guarded(key(prefix+"key_file"), f.Key)
	}
}

// secretFile checks a file that is a secret and read by others.
func (v *verifier) secretFile(name, file string) {
	if file == "" || v.skips(skipSecrets) {
		return
	}
	if _, err := secret.FromFile(file); err != nil {
		v.unusable(keys(name), "%s", err)
		return
	}
	v.guarded(key(name), file)
}

// guarded refuses a secret that everybody may change, or put another in the place of, and warns of one that everybody may read.
func (v *verifier) guarded(p path, file string) {
	if file == "" || v.skips(skipSecrets) {
		return
	}
	switch readable, writable, err := secret.Exposed(file); {
	case err != nil: // that it cannot be read is said by whoever reads it
	case writable:
		v.unusable([]path{p}, "everybody on this machine may write the file that it names, and put in what they like: chmod o-rw %s", file)
	case readable:
		v.warnings = append(v.warnings, v.near(p).problem(p, "everybody on this machine may read the file that it names: chmod o-r %s, or in Kubernetes defaultMode: 0440", file))
	}
	if folder, err := secret.Swappable(file); err == nil && folder != "" {
		v.unusable([]path{p}, "everybody on this machine may put another file in the place of the one that it names: chmod o-w %s, or mount it read-only", folder)
	}
}

// Warnings are what is taken and should not stay so: secrets that everybody on the machine may read.
func (c Config) Warnings() []Problem { return c.warnings }

// sameRecord reports whether two URLs lead to the same database.
func sameRecord(a, b URL) bool {
	x, errX := url.Parse(a.Reveal())
	y, errY := url.Parse(b.Reveal())
	if cmp.Or(errX, errY) != nil {
		return false
	}
	for _, name := range []string{"host", "hostaddr", "port", "dbname"} {
		if x.Query().Get(name) != y.Query().Get(name) {
			return false
		}
	}
	return x.Host == y.Host && x.Path == y.Path
}
