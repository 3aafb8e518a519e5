package check

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"

	"pollux/internal/config"
)

// machine is deploy/systemd: the units by the names of their files, and the users that they run as.
type machine struct {
	units map[string]string
	users string
}

// secretsBelow is where the secrets of the programs are on a machine.
const secretsBelow = "/etc/pollux/"

func loadMachine(t *testing.T) machine {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy/systemd/*.service"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no units: %v", err)
	}
	m := machine{map[string]string{}, read(t, "deploy/systemd/pollux.sysusers.conf")}
	for _, file := range files {
		m.units[filepath.Base(file)] = read(t, filepath.Join("deploy/systemd", filepath.Base(file)))
	}
	return m
}

// hardened are the settings of every unit.
var hardened = []string{"NoNewPrivileges=yes", "CapabilityBoundingSet=", "AmbientCapabilities=", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "PrivateDevices=yes", "ProtectProc=invisible",
	"ProtectClock=yes", "ProtectHostname=yes", "ProtectControlGroups=yes", "ProtectKernelLogs=yes", "ProtectKernelModules=yes", "ProtectKernelTunables=yes", "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
	"RestrictNamespaces=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes", "LockPersonality=yes", "MemoryDenyWriteExecute=yes", "SystemCallArchitectures=native", "SystemCallFilter=@system-service", "UMask=0077",
	"Restart=always", "ExecReload=/bin/kill -HUP $MAINPID"}

func (m machine) problems(t *testing.T) []string {
	t.Helper()
	var all []string
	listens := map[string]string{}
	for name, text := range m.units {
		say := func(format string, a ...any) { all = append(all, name+": "+fmt.Sprintf(format, a...)) }
		options, err := unit.DeserializeOptions(strings.NewReader(text))
		if err != nil {
			say("%v", err)
			continue
		}
		set := map[string][]string{}
		for _, o := range options {
			set[o.Name] = append(set[o.Name], o.Value)
		}
		for _, line := range hardened {
			if key, value, _ := strings.Cut(line, "="); !slices.Contains(set[key], value) {
				say("not %s", line)
			}
		}
		user := strings.Join(set["User"], "")
		if !strings.HasPrefix(user, "pollux-") || !strings.Contains(m.users, "u "+user+" ") {
			say("no user %s is made", user)
		}
		argv := strings.Fields(strings.ReplaceAll(strings.Join(set["ExecStart"], " "), "%i", "1"))
		if len(argv) == 0 || filepath.Dir(argv[0]) != "/usr/local/bin" {
			say("it does not start a binary of /usr/local/bin")
			continue
		}
		argv[0] = filepath.Base(argv[0])
		p, err := parse(argv)
		if err != nil {
			say("%v", err)
			continue
		}
		listen := p.cmd.Flag("listen").Value.String()
		if other := listens[listen]; other != "" || !strings.HasPrefix(listen, "127.0.0.1:") {
			say("it listens at %q, as does %q; a port of its own on loopback is needed", listen, other)
		}
		listens[listen] = name
		cfg := m.configured(t, set["Environment"], filepath.Join(secretsBelow, strings.TrimPrefix(user, "pollux-")), uses[p.path], say)
		if stop, err := time.ParseDuration(strings.Join(set["TimeoutStopSec"], "")); err != nil || stop <= cfg.Consumer.Drain {
			say("TimeoutStopSec is %v, a drain may take %v", set["TimeoutStopSec"], cfg.Consumer.Drain)
		}
	}
	slices.Sort(all)
	return all
}

// configured loads the example's configuration with the environment of a unit, whose files are in its program's folder, and must not do so without one of them.
func (m machine) configured(t *testing.T, environment []string, folder string, skip config.Skip, say sayer) config.Config {
	t.Helper()
	dir := t.TempDir()
	contents := map[string]string{"database.url": "postgres://somebody:secret@127.0.0.1/payments", "nats.nk": "SUAJJ4ZDLCL3Y7EHRDVZCPFIXFKNZOVSR6DSDIMSKQGDSWTPBHFFXIIHAI\n"}
	file := filepath.Join(dir, "pollux.yaml")
	write(t, file, read(t, "pollux.example.yaml"))
	t.Setenv("SIM_API_KEY", "secret") // of the example's gateway
	var environ, secrets []string
	for _, e := range environment {
		if e == "POLLUX_CONFIG="+configPath {
			continue
		}
		if !strings.Contains(e, folder+"/") {
			say("%s is not in %s", e, folder)
		}
		name := filepath.Base(e)
		if contents[name] == "" {
			say("nobody puts %s there", name)
			continue
		}
		secrets = append(secrets, filepath.Join(dir, name))
		write(t, secrets[len(secrets)-1], contents[name])
		environ = append(environ, strings.ReplaceAll(e, folder, dir))
	}
	load := func() (config.Config, error) {
		return config.Load(config.Options{File: file, Environ: environ, Skip: skip})
	}
	cfg, err := load()
	if err != nil {
		say("%v", err)
	}
	for _, name := range secrets {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if _, err := load(); err == nil {
			say("it does not need %s", filepath.Base(name))
		}
		write(t, name, contents[filepath.Base(name)])
	}
	return cfg
}

func TestTheUnitsFitTheBinaries(t *testing.T) {
	report(t, loadMachine(t).problems(t))
}

// TestFaultsOfUnitsAreFound puts one fault after the other into the unit of the consumers.
func TestFaultsOfUnitsAreFound(t *testing.T) {
	const consumers = "pollux-consumer@.service"
	for _, m := range []mutation{
		{"--listen 127.0.0.1:947%i", "--listne 127.0.0.1:947%i", "unknown flag: --listne"},
		{"127.0.0.1:947%i", "127.0.0.1:9464", "a port of its own"},
		{"127.0.0.1:947%i", "0.0.0.0:947%i", "on loopback"},
		{"/usr/local/bin/consumer", "/usr/local/bin/consumers", "no binary of Pollux"},
		{"User=pollux-consumer", "User=root", "no user root"},
		{"POLLUX_DATABASE__URL", "POLLUX_DATABASE_URL", "POLLUX_DATABASE_URL"},
		{"/etc/pollux/consumer/nats.nk", "/etc/pollux/relay/nats.nk", "is not in /etc/pollux/consumer"},
		{"TimeoutStopSec=40s", "TimeoutStopSec=10s", "a drain may take"},
		{"ProtectSystem=strict", "ProtectSystem=full", "not ProtectSystem=strict"},
		{"Restart=always", "Restart=no", "not Restart=always"},
	} {
		units := loadMachine(t)
		units.units[consumers] = m.apply(t, units.units[consumers])
		if problems := units.problems(t); !m.found(problems) {
			t.Errorf("%q instead of %q: %q is not said: %v", m.new, m.old, m.says, problems)
		}
	}
}
