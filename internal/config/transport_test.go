package config

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pollux/internal/certificate/certificatetest"
)

func TestImpossibleTLSIsRefusedWhereItIsWritten(t *testing.T) {
	a, dir := certificatetest.New(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cert, key := a.Issue("client", time.Hour)
	over, overKey := a.Issue("client", -time.Hour)
	_, other := a.Issue("client", time.Hour)
	for name, content := range map[string][]byte{"cert": cert, "key": key, "other": other, "ca": a.PEM, "over": over, "overkey": overKey, "text": []byte("hello")} {
		certificatetest.Write(t, at(name), content)
	}
	for _, c := range []struct{ section, keys, says string }{
		{"database", "tls: maybe", "database.tls: \"maybe\"; write disable, require, verify-ca, verify-full"},
		{"database", "tls: disable, ca_file: DIR/ca", "database.tls: disable, and certificates are written"},
		{"database", "tls: require, ca_file: DIR/ca", "database.tls: require does not look at"},
		{"database", "cert_file: DIR/cert", "database.cert_file: a certificate and its key go together"},
		{"database", "cert_file: DIR/cert, key_file: DIR/other", "database.key_file: it is not the key"},
		{"database", "cert_file: DIR/over, key_file: DIR/overkey", "database.cert_file: it ended at"},
		{"database", "ca_file: DIR/text", "database.ca_file: no PEM certificate is in it"},
		{"database", "ca_file: DIR/absent", "database.ca_file: stat DIR/absent"},
		{"nats", "key_file: DIR/key", "nats.key_file: a certificate and its key go together"},
		{"nats", "cert_file: DIR/key, key_file: DIR/cert", "nats.cert_file: no PEM certificate"},
		{"nats", "ca_file: DIR/text", "nats.ca_file: no PEM"},
		{"nats", "nkey_file: DIR/absent", "nats.nkey_file: secret file"},
		{"webhooks", "client_ca_file: DIR/ca", "webhooks.client_ca_file: whoever comes is to show a certificate"},
		{"webhooks", "cert_file: DIR/cert, key_file: DIR/key, client_ca_file: DIR/text", "webhooks.client_ca_file: no PEM"},
		{"telemetry", "client_ca_file: DIR/ca", "telemetry.client_ca_file: whoever comes"},
		{"telemetry", "cert_file: DIR/text, key_file: DIR/key", "telemetry.cert_file: no PEM"},
	} {
		text := withKeys(c.section, strings.ReplaceAll(c.keys, "DIR", dir))
		_, err := Load(Options{File: file(t, text), Environ: []string{}})
		says := strings.ReplaceAll(c.says, "DIR", dir)
		if err == nil || !strings.Contains(err.Error(), ": "+says) {
			t.Errorf("%s: {%s}: %v\nwant %s", c.section, c.keys, err, says)
		}
	}
}

// withKeys is a configuration that is enough, and more keys in one of its sections.
func withKeys(section, keys string) string {
	sections := map[string]string{"database": "url: 'postgres://pollux@127.0.0.1/payments'", "nats": "urls: ['nats://127.0.0.1:4222']"}
	if sections[section] != "" {
		keys = sections[section] + ", " + keys
	}
	sections[section] = keys
	text := enough[strings.Index(enough, "gateways:"):]
	for name, keys := range sections {
		text += fmt.Sprintf("%s: {%s}\n", name, keys)
	}
	return text
}

func TestTheKeysOfTLSBecomeThoseOfTheURL(t *testing.T) {
	for _, c := range []struct {
		d    Database
		want string
	}{
		{Database{}, ""}, {Database{TLS: TLSRequire}, "sslmode=require"}, {Database{CAFile: "/a b"}, "sslmode=verify-full&sslrootcert=/a b"},
		{Database{TLS: TLSVerifyCA, CAFile: "/ca", CertFile: "/c", KeyFile: "/k"}, "sslcert=/c&sslkey=/k&sslmode=verify-ca&sslrootcert=/ca"},
	} {
		if err := c.d.URL.UnmarshalText([]byte("postgres://me:p%40ss@127.0.0.1/payments?application_name=x")); err != nil {
			t.Fatal(err)
		}
		got, err := url.Parse(c.d.Access())
		if err != nil {
			t.Fatal(err)
		}
		q := got.Query()
		q.Del("application_name")
		if plain, _ := url.QueryUnescape(q.Encode()); plain != c.want || got.User.String() != "me:p%40ss" {
			t.Errorf("%+v: %s", c.d, plain)
		}
	}
	for _, parameter := range tlsParameters {
		text := strings.Replace(withKeys("database", "tls: require"), "127.0.0.1/payments", "127.0.0.1/payments?"+parameter+"=x", 1)
		if _, err := Load(Options{File: file(t, text), Environ: []string{}}); err == nil || !strings.Contains(err.Error(), "the URL has "+parameter) {
			t.Errorf("%s beside tls: %v", parameter, err)
		}
	}
}

func TestSecretsOfEverybodyAreRefusedOrWarnedOf(t *testing.T) {
	for mode, c := range map[os.FileMode]struct{ refused, warned bool }{0o600: {}, 0o440: {}, 0o644: {warned: true}, 0o666: {refused: true}} {
		f := newFolder(t)
		for _, name := range []string{"dsn", "token", "hook", "push"} {
			if err := os.Chmod(filepath.Join(f.dir, name), mode); err != nil {
				t.Fatal(err)
			}
		}
		loaded, err := f.try()
		if (err != nil) != c.refused || c.refused && strings.Count(err.Error(), "may write the file that it names") != 4 {
			t.Errorf("%o: %v", mode, err)
		}
		if (len(loaded.Warnings()) == 4) != c.warned {
			t.Errorf("%o: %v", mode, loaded.Warnings())
		}
		for _, w := range loaded.Warnings() {
			if !strings.HasPrefix(w.Where, filepath.Join(f.dir, "pollux.yaml:")) || w.Key == "" {
				t.Errorf("a warning without its place: %+v", w)
			}
		}
	}
}

func TestAFolderOfEverybodyIsRefused(t *testing.T) {
	for mode, refused := range map[os.FileMode]bool{0o700: false, 0o777: true, os.ModeSticky | 0o777: false} {
		f := newFolder(t)
		if err := os.Chmod(f.dir, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := f.try(); (err != nil) != refused || refused && !strings.Contains(err.Error(), "pollux.yaml: everybody may put another in its place; run: chmod o-w "+f.dir) {
			t.Errorf("%o: %v", mode, err)
		}
		_, err := Load(Options{File: file(t, strings.ReplaceAll(reloadable, "DIR", f.dir)), Environ: []string{}})
		if (err != nil) != refused || refused && strings.Count(err.Error(), "in the place of the one that it names: chmod o-w "+f.dir) != 4 {
			t.Errorf("%o, with the configuration elsewhere: %v", mode, err)
		}
	}
}

func TestAFolderThatBecomesEverybodysKeepsTheLastGoodSecrets(t *testing.T) {
	f := newFolder(t)
	c, err := Load(Options{File: file(t, strings.ReplaceAll(reloadable, "DIR", f.dir)), Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	f.write("token", "token-of-whoever")
	if err := os.Chmod(f.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	next, r := c.Renew(now)
	if len(r.Taken) > 0 || len(r.Kept) != 4 || next.Gateways["acme"].HTTPJSON.Auth.Token.Reveal() != "token-of-acme-1" {
		t.Errorf("%+v", r)
	}
	if err := os.Chmod(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if next, r = next.Renew(now); !slices.Contains(r.Taken, "gateways.acme") || len(r.Kept) > 0 || next.Gateways["acme"].HTTPJSON.Auth.Token.Reveal() != "token-of-whoever" {
		t.Errorf("mended: %+v", r)
	}
}
