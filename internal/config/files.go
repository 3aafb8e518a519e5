package config

import (
	"errors"
	"io/fs"
	"maps"
	"net/url"
	"slices"
	"strings"

	"pollux/internal/certificate"
	"pollux/internal/secret"
)

// FileKind is what a file holds that the configuration names.
type FileKind int

// The kinds.
const (
	SecretFile      FileKind = iota // a key, a password, a URL with one
	CertificateFile                 // certificates, ours or those that others' are checked against
	CredentialsFile                 // a NATS user's JWT with its seed
)

// NamedFile is a file that the configuration names.
type NamedFile struct {
	Key    string // such as nats.password
	Path   string
	Kind   FileKind
	Unused bool // what was loaded does not use it: it is another program's, and may be for that one alone to read
}

// Refused is why Load refuses the file of a secret: it is empty, or everybody may write it; empty where it does not. The error is that we may not read it, which says nothing
// about it.
func (f NamedFile) Refused() (why string, err error) {
	if _, err := secret.FromFile(f.Path); errors.Is(err, fs.ErrPermission) {
		return "", err
	} else if err != nil {
		return err.Error(), nil
	}
	if _, writable, err := secret.Exposed(f.Path); err == nil && writable {
		return "everybody on this machine may write it, and put in what they like", nil
	}
	return "", nil
}

// Files are the files that the configuration names, whether they are there or not, in the order of their keys.
func (c Config) Files() []NamedFile {
	var all []NamedFile
	var skip Skip
	if c.from != nil {
		skip = c.from.options.Skip
	}
	add := func(key, path string, kind FileKind) {
		if path != "" {
			section, _, _ := strings.Cut(key, ".")
			all = append(all, NamedFile{key, path, kind, skip&sectionSkips[section] != 0})
		}
	}
	add("database.url", fileOf(c.Database.URL.shown), SecretFile)
	if u, err := url.Parse(c.Database.URL.Reveal()); err == nil {
		q := u.Query()
		add("database.url", q.Get("sslrootcert"), CertificateFile)
		add("database.url", q.Get("sslcert"), CertificateFile)
		add("database.url", q.Get("sslkey"), SecretFile)
	}
	n := c.NATS
	add("nats.credentials_file", n.CredentialsFile, CredentialsFile)
	add("nats.nkey_file", n.NKeyFile, SecretFile)
	add("nats.password", n.Password.File(), SecretFile)
	for _, tls := range []struct {
		section, authorities string
		files                certificate.Files
	}{
		{"database", "ca_file", c.Database.TLSFiles()}, {"nats", "ca_file", n.TLSFiles()},
		{"telemetry", "client_ca_file", c.Telemetry.TLSFiles()}, {"webhooks", "client_ca_file", c.Webhooks.TLSFiles()},
	} {
		add(tls.section+"."+tls.authorities, tls.files.CA, CertificateFile)
		add(tls.section+".cert_file", tls.files.Cert, CertificateFile)
		add(tls.section+".key_file", tls.files.Key, SecretFile)
	}
	t := c.Telemetry
	add("telemetry.otlp_cert_file", t.OTLPCertFile, CertificateFile)
	add("telemetry.otlp_key_file", t.OTLPKeyFile, SecretFile)
	for _, name := range slices.Sorted(maps.Keys(c.Gateways)) {
		g := c.Gateways[name]
		if section := g.Section(); section != nil && section.Client() != nil {
			add("gateways."+name+"."+g.Adapter+".client_cert_file", section.Client().ClientCert, CertificateFile)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.secrets)) {
		add(strings.ReplaceAll(id, separator, "."), fileOf(c.secrets[id]), SecretFile)
	}
	return all
}

// fileOf is the path in file:/path, and nothing for anything else.
func fileOf(reference string) string {
	file, ok := strings.CutPrefix(reference, "file:")
	if !ok {
		return ""
	}
	return file
}
