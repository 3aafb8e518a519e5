package check

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// natsOptions reads the configuration of the NATS server as the server does that is started with the command line of compose.yaml and -t. A text takes the place of the
// file that is named there.
func natsOptions(t *testing.T, c compose, text string) (*server.Options, error) {
	t.Helper()
	dir, service := t.TempDir(), c.Services["nats"]
	for _, f := range service.Configs {
		content, err := os.ReadFile(c.Configs[f.Source].File)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, filepath.Base(f.Target)), string(content))
	}
	for name, content := range c.secretsOf(service) {
		write(t, filepath.Join(dir, name), content)
	}
	write(t, filepath.Join(dir, "nats.conf"), text)
	var argv []string
	for _, word := range service.Command {
		argv = append(argv, strings.ReplaceAll(word, "/etc/nats/", dir+"/"))
	}
	return server.ConfigureOptions(flag.NewFlagSet("nats-server", flag.ContinueOnError), append(argv, "-t"), nil, nil, nil)
}

func TestTheServerTakesItsConfiguration(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	text := read(t, "deploy/compose/nats.conf")
	o, err := natsOptions(t, c, text)
	if err != nil {
		t.Fatalf("deploy/compose/nats.conf: %v", err)
	}
	if got, want := o.Port, portOf(strings.TrimPrefix(c.cfg.NATS.URLs[0], "nats://")); want != "4222" || got != 4222 {
		t.Errorf("the server listens on %d, and is looked for at %s", got, want)
	}
	if probe := strings.Join(c.Services["nats"].HealthCheck.Test, " "); !strings.Contains(probe, "127.0.0.1:8222/healthz") || o.HTTPPort != 8222 || o.HTTPHost != "127.0.0.1" {
		t.Errorf("the health check is %s, and the server's pages are at %s:%d", probe, o.HTTPHost, o.HTTPPort)
	}
	volume := ""
	for _, v := range c.Services["nats"].Volumes {
		volume = v.Target
	}
	if !o.JetStream || o.StoreDir != volume {
		t.Errorf("JetStream %t keeps its streams in %s, which is no volume", o.JetStream, o.StoreDir)
	}
	if int64(c.Services["nats"].Deploy.Resources.Limits.MemoryBytes) < 4*o.JetStreamMaxMemory {
		t.Errorf("streams in memory may take %d bytes of the container", o.JetStreamMaxMemory)
	}
	var users []string
	for _, u := range o.Users {
		if u.Password == "" || u.Permissions == nil || u.Permissions.Publish == nil || u.Permissions.Subscribe == nil {
			t.Errorf("the user %s has no password, or may do everything", u.Username)
		}
		users = append(users, u.Username)
	}
	for name, service := range c.Services {
		user := service.Environment["POLLUX_NATS__USER"]
		if slices.Contains(c.dials(service), "nats") && (user == nil || !slices.Contains(users, *user)) {
			t.Errorf("%s logs in as nobody that the server knows", name)
		}
	}
	for _, m := range []mutation{
		{"jetstream {", "jetsream {", "jetsream"},
		{"4GB", "4QB", "4Q"},
		{"include ./accounts.conf", "include ./account.conf", "account.conf"},
		{"max_payload: 1MB", "max_payload: lots", "string, not int64"},
	} {
		if _, err := natsOptions(t, c, m.apply(t, text)); err == nil || !strings.Contains(err.Error(), m.says) {
			t.Errorf("%q in the place of %q is not found: %v", m.new, m.old, err)
		}
	}
}

// TestTheServerIsTheOneThatIsTestedWith compares the image with the version that all tests use.
func TestTheServerIsTheOneThatIsTestedWith(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	tested := regexp.MustCompile(`nats-server/v2 v(\S+)`).FindStringSubmatch(read(t, "go.mod"))
	if tested == nil {
		t.Fatal("go.mod has no nats-server")
	}
	if got, want := c.Services["nats"].Image, "nats:"+tested[1]+"-alpine"; got != want {
		t.Errorf("the image is %s; want %s, since that is what the tests run", got, want)
	}
}

const accountsFile = "deploy/compose/accounts.conf"

// TestTheServersAccountsAreThoseOfTheConfiguration compares them with what `pollux perms print` makes of the configuration. With -update it writes them:
// go test -run Accounts -update
func TestTheServersAccountsAreThoseOfTheConfiguration(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	dir := t.TempDir()
	file := filepath.Join(dir, "pollux.yaml")
	write(t, file, c.config)
	cmd := exec.CommandContext(t.Context(), "pollux", "perms", "print", "nats", "--auth", "password", "--config", file)
	cmd.Stderr = os.Stderr
	want, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, accountsFile), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, accountsFile); got != string(want) {
		t.Errorf("%s is not what deploy/compose/pollux.yaml asks for; write it anew: cd deploy/check && go test -run Accounts -update", accountsFile)
	}
}
