package check

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"pollux/internal/config"
)

const (
	composeFile = "compose.yaml"
	secretsDir  = "/run/secrets"
)

// compose is compose.yaml as an engine would carry it out, with all profiles, and what stands around it.
type compose struct {
	*types.Project
	config string            // deploy/compose/pollux.yaml
	cfg    config.Config     // the same, as somebody reads it who has every secret
	made   map[string]string // what `make secrets` makes, by file name
}

func loadCompose(t *testing.T, text string) compose {
	t.Helper()
	folder, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  folder,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(folder, composeFile), Content: []byte(text)}},
		Environment: types.Mapping{"POLLUX_UID": "1000", "POLLUX_GID": "1000"},
	}, func(o *loader.Options) {
		o.SetProjectName("pollux", true)
		o.Profiles = []string{"*"}
	})
	if err != nil {
		t.Fatalf("%s: %v", composeFile, err)
	}
	c := compose{Project: p, config: read(t, "deploy/compose/pollux.yaml"), made: made(t)}
	all := maps.Clone(c.made)
	all["database_url"], all["nats_password"] = c.made["operator_database_url"], c.made["nats_operator_password"]
	if c.cfg, err = (mounted{text: c.config, secrets: secretsDir, files: all, environ: []string{"POLLUX_NATS__USER=operator"}}).load(t, 0); err != nil {
		t.Fatalf("deploy/compose/pollux.yaml: %v", err)
	}
	return c
}

var (
	makeOnce sync.Once
	madeOnce map[string]string
)

// made is what `make secrets` makes: the same for all tests.
func made(t *testing.T) map[string]string {
	t.Helper()
	makeOnce.Do(func() { madeOnce = makeSecrets(t, t.TempDir()) })
	if len(madeOnce) == 0 {
		t.Fatal("there are no secrets")
	}
	return madeOnce
}

// makeSecrets runs what `make secrets` runs, in folders of the test's.
func makeSecrets(t *testing.T, dir string) map[string]string {
	t.Helper()
	folder := filepath.Join(dir, "secrets")
	out, err := exec.CommandContext(t.Context(), "sh", filepath.Join(root, "deploy/compose/secrets.sh"), folder, filepath.Join(dir, "env")).CombinedOutput()
	if err != nil {
		t.Fatalf("making secrets: %v\n%s", err, out)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		made[e.Name()] = string(content)
	}
	return made
}

// blind are the services whose health nobody can ask for, and why.
var blind = map[string]string{"otel-collector": "its image has no program that could ask; Prometheus scrapes it"}

func (c compose) problems(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		s := c.Services[name]
		say := func(format string, a ...any) { all = append(all, name+": "+fmt.Sprintf(format, a...)) }
		c.image(s, say)
		c.confined(s, say)
		c.limits(s, say)
		c.lives(s, say)
		c.healthy(s, say)
		c.waits(s, say)
		c.reachable(s, say)
		c.mounts(s, say)
		c.configured(t, s, say)
	}
	all = append(all, c.networking()...)
	return append(all, c.secrets()...)
}

type sayer func(format string, a ...any)

// ours reports whether a service is one of our images.
func ours(s types.ServiceConfig) bool { return s.Build != nil }

// once reports whether a service runs to its end.
func (c compose) once(s types.ServiceConfig) bool {
	for _, other := range c.Services {
		if d, ok := other.DependsOn[s.Name]; ok && d.Condition == types.ServiceConditionCompletedSuccessfully {
			return true
		}
	}
	return slices.Contains(s.Profiles, "operator")
}

var exactTag = regexp.MustCompile(`:v?\d+\.\d+(\.\d+)?(-[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?$`)

func (c compose) image(s types.ServiceConfig, say sayer) {
	if ours(s) {
		if s.Build.Target != "pollux" && s.Build.Target != "dev" {
			say("the Dockerfile has no target %q", s.Build.Target)
		}
		return
	}
	if !exactTag.MatchString(s.Image) {
		say("the image %s is not pinned to a version", s.Image)
	}
}

func (c compose) confined(s types.ServiceConfig, say sayer) {
	if !s.ReadOnly {
		say("its root is writable")
	}
	if !slices.Contains(s.CapDrop, "ALL") {
		say("it keeps capabilities that it does not need")
	}
	if !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
		say("it may gain privileges")
	}
	if s.Privileged || s.NetworkMode != "" || s.Pid != "" || s.Ipc != "" {
		say("it shares the host")
	}
	if ours(s) && s.User != "1000:1000" {
		say("it runs as %q, not as whoever made the secrets", s.User)
	}
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind && !v.ReadOnly {
			say("it may write to %s of this machine", v.Source)
		}
	}
	if s.Logging == nil || s.Logging.Options["max-size"] == "" || s.Logging.Options["max-file"] == "" {
		say("its log is not bounded")
	}
}

func (c compose) limits(s types.ServiceConfig, say sayer) {
	if s.Deploy == nil || s.Deploy.Resources.Limits == nil {
		say("no limits on what it may use")
		return
	}
	l := s.Deploy.Resources.Limits
	if l.MemoryBytes == 0 || l.NanoCPUs == 0 || l.Pids == 0 {
		say("a limit is missing: memory %d, processors %v, processes %d", l.MemoryBytes, l.NanoCPUs, l.Pids)
	}
	if v, ok := s.Environment["GOMEMLIMIT"]; ok {
		if err := softLimit(*v, int64(l.MemoryBytes)); err != nil {
			say("%v", err)
		}
	} else if ours(s) && !c.once(s) {
		say("GOMEMLIMIT is missing, so that it is killed rather than tidied up")
	}
}

// softLimit checks that Go begins to collect in earnest before the kernel kills, and not too soon.
func softLimit(goMemLimit string, hard int64) error {
	mib, ok := strings.CutSuffix(goMemLimit, "MiB")
	n, err := strconv.ParseInt(mib, 10, 64)
	if !ok || err != nil {
		return fmt.Errorf("GOMEMLIMIT %q: write it in MiB", goMemLimit)
	}
	if part := float64(n<<20) / float64(hard); part < 0.75 || part > 0.95 {
		return fmt.Errorf("GOMEMLIMIT %s is %.0f%% of the memory that it may have; 75%% to 95%% leave room for what is not heap", goMemLimit, 100*part)
	}
	return nil
}

func (c compose) lives(s types.ServiceConfig, say sayer) {
	if c.once(s) {
		if s.Restart != "no" {
			say("it runs to its end and must not be restarted, but restart is %q", s.Restart)
		}
		return
	}
	if s.Restart != types.RestartPolicyUnlessStopped {
		say("restart is %q", s.Restart)
	}
	if s.StopGracePeriod == nil {
		say("no stop_grace_period: it would be killed after 10 s")
		return
	}
	drain := map[string]time.Duration{
		"consumer": c.cfg.Consumer.Drain + c.cfg.Relay.PublishTimeout,
		"webhook":  c.cfg.Webhooks.Drain + 2*c.cfg.Webhooks.Record.Patience,
		"relay":    2 * c.cfg.Relay.PublishTimeout,
	}[s.Name]
	if grace := time.Duration(*s.StopGracePeriod); grace <= drain {
		say("it is killed after %s, and drains for up to %s", grace, drain)
	}
}

func (c compose) healthy(s types.ServiceConfig, say sayer) {
	if c.once(s) {
		return
	}
	h := s.HealthCheck
	if h == nil || h.Disable {
		if blind[s.Name] == "" {
			say("no health check")
		}
		return
	}
	if h.Interval == nil || h.Timeout == nil || h.Retries == nil || h.StartPeriod == nil {
		say("a health check without interval, timeout, retries and start_period")
	}
	if len(h.Test) < 2 || h.Test[0] != "CMD" {
		say("the health check %q needs a shell", h.Test)
		return
	}
	argv := h.Test[1:]
	if !ours(s) {
		return
	}
	if _, err := parse(argv); err != nil {
		say("its health check: %v", err)
	}
	if argv[0] != s.Command[0] && argv[0] != "pollux" {
		say("its health check asks %s", argv[0])
	}
}

func (c compose) waits(s types.ServiceConfig, say sayer) {
	for other, d := range s.DependsOn {
		needed, ok := c.Services[other]
		switch {
		case !ok:
			say("it waits for %s, which does not exist", other)
		case d.Condition == types.ServiceConditionHealthy && (needed.HealthCheck == nil || needed.HealthCheck.Disable):
			say("it waits for the health of %s, which has no check", other)
		case d.Condition == types.ServiceConditionStarted:
			say("it waits for %s to be started, which says nothing", other)
		case len(needed.Profiles) > 0 && !slices.Equal(needed.Profiles, s.Profiles):
			say("it waits for %s, which is not there without a profile", other)
		}
	}
	for host, setup := range map[string]string{"postgres": "migrate", "nats": "streams"} {
		if !slices.Contains(c.dials(s), host) {
			continue
		}
		if s.DependsOn[host].Condition != types.ServiceConditionHealthy {
			say("it needs %s and does not wait for its health", host)
		}
		if !c.once(s) && s.DependsOn[setup].Condition != types.ServiceConditionCompletedSuccessfully {
			say("it needs %s and does not wait for %s", host, setup)
		}
	}
}

// dials are the services that a service calls, as its command line and its configuration say.
func (c compose) dials(s types.ServiceConfig) []string {
	database, broker, gateway, traces := "postgres", hostOf(c.cfg.NATS.URLs[0]), hostOf(c.cfg.Gateways["sim"].HTTPJSON.URL), hostOf(c.cfg.Telemetry.OTLPEndpoint)
	switch s.Name {
	case "migrate", "roles":
		return []string{database}
	case "streams":
		return []string{broker}
	case "relay":
		return []string{database, broker, traces}
	case "consumer":
		return []string{database, broker, gateway, traces}
	case "webhook":
		return []string{database, traces}
	case "pollux":
		return []string{database, broker, gateway}
	case "prometheus":
		return []string{"relay", "consumer", "webhook", "otel-collector"}
	case "grafana":
		return []string{"prometheus"}
	}
	return nil
}

func hostOf(rawURL string) string {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(rawURL))
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// networking holds the networks to who speaks with whom: all of that is possible, and nothing is a member of a network for nothing.
func (c compose) networking() []string {
	var all []string
	useful := map[[2]string]bool{} // service, network
	for name, s := range c.Services {
		for _, other := range c.dials(s) {
			shared := slices.DeleteFunc(slices.Collect(maps.Keys(s.Networks)), func(n string) bool { _, ok := c.Services[other].Networks[n]; return !ok })
			if len(shared) == 0 {
				all = append(all, fmt.Sprintf("%s: it calls %s and shares no network with it", name, other))
			}
			for _, n := range shared {
				useful[[2]string{name, n}], useful[[2]string{other, n}] = true, true
			}
		}
		if len(s.Ports) > 0 {
			useful[[2]string{name, "ingress"}] = true
		}
	}
	for name, s := range c.Services {
		for n := range s.Networks {
			if !useful[[2]string{name, n}] {
				all = append(all, fmt.Sprintf("%s: nothing of its own is in the network %s", name, n))
			}
		}
	}
	for name, n := range c.Networks {
		if out := name == "gateways" || name == "ingress"; bool(n.Internal) == out {
			all = append(all, fmt.Sprintf("network %s: internal is %t", name, bool(n.Internal)))
		}
	}
	slices.Sort(all)
	return all
}

// listens are the ports that a service really listens on.
func (c compose) listens(s types.ServiceConfig) []string {
	switch s.Name {
	case "webhook":
		return []string{portOf(c.cfg.Webhooks.Listen), portOf(c.cfg.Telemetry.Listen)}
	case "prometheus":
		return []string{"9090"}
	case "grafana":
		return []string{"3000"}
	}
	return nil
}

func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}

func (c compose) reachable(s types.ServiceConfig, say sayer) {
	for _, p := range s.Ports {
		if p.HostIP != "127.0.0.1" {
			say("port %s is open to everybody", p.Published)
		}
		if !slices.Contains(c.listens(s), strconv.Itoa(int(p.Target))) {
			say("nothing listens on port %d", p.Target)
		}
	}
	if s.Deploy != nil && s.Deploy.Replicas != nil && *s.Deploy.Replicas > 1 && len(s.Ports) > 0 {
		say("several replicas cannot have one port")
	}
	if s.ContainerName != "" {
		say("a fixed name keeps it from being scaled")
	}
}

// mounts checks that the files which a command line names are there.
func (c compose) mounts(s types.ServiceConfig, say sayer) {
	at := map[string]bool{}
	for _, f := range s.Configs {
		at[f.Target] = true
		if source, ok := c.Configs[f.Source]; !ok {
			say("there is no config %s", f.Source)
		} else if _, err := os.Stat(source.File); err != nil {
			say("config %s: %v", f.Source, err)
		}
	}
	for _, f := range s.Secrets {
		at[secretPath(f)] = true
	}
	for _, v := range s.Volumes {
		at[v.Target] = true
		if v.Type != types.VolumeTypeBind {
			continue
		}
		if _, err := os.Stat(v.Source); err != nil {
			say("%v", err)
		}
	}
	words := slices.Concat(s.Command, slices.Collect(func(yield func(string) bool) {
		for _, v := range s.Environment {
			if v != nil && !yield(*v) {
				return
			}
		}
	}))
	for _, word := range words {
		file := word[strings.LastIndexByte(word, '=')+1:] // --flag=file, or a file
		if (strings.HasPrefix(file, "/etc/") || strings.HasPrefix(file, secretsDir)) && !at[file] {
			say("nothing is mounted at %s", file)
		}
	}
}

// secretPath is where a service sees a secret.
func secretPath(f types.ServiceSecretConfig) string {
	target := f.Target
	if target == "" {
		target = f.Source
	}
	if filepath.IsAbs(target) {
		return target
	}
	return secretsDir + "/" + target
}

// secretsOf is what a service sees in /run/secrets.
func (c compose) secretsOf(s types.ServiceConfig) map[string]string {
	seen := map[string]string{}
	for _, f := range s.Secrets {
		seen[filepath.Base(secretPath(f))] = c.made[filepath.Base(c.Secrets[f.Source].File)]
	}
	return seen
}

// environ is the environment of a service's own.
func environ(s types.ServiceConfig) []string {
	var all []string
	for name, v := range s.Environment {
		if v != nil {
			all = append(all, name+"="+*v)
		}
	}
	return all
}

// configured reads the configuration as each of our services would, with the secrets that it has and no others.
func (c compose) configured(t *testing.T, s types.ServiceConfig, say sayer) {
	if !ours(s) {
		return
	}
	argv := slices.Concat([]string(s.Entrypoint), []string(s.Command))
	if s.Name != "pollux" { // whose command the operator says
		p, err := parse(argv)
		if err != nil {
			say("%v", err)
			return
		}
		argv = strings.Fields(p.path)
	}
	skip, ok := uses[strings.Join(argv, " ")]
	if !ok { // the simulator reads no configuration
		return
	}
	if !slices.ContainsFunc(s.Configs, func(f types.ServiceConfigObjConfig) bool { return f.Target == configPath }) {
		say("the image looks for the configuration at %s, where nothing is mounted", configPath)
	}
	m := mounted{text: c.config, secrets: secretsDir, files: c.secretsOf(s), environ: environ(s)}
	if _, err := m.load(t, skip); err != nil {
		say("%v", err)
		return
	}
	for name := range m.files {
		less := m
		less.files = maps.Clone(m.files)
		delete(less.files, name)
		if _, err := less.load(t, skip); err == nil {
			say("it does not need the secret %s", name)
		}
	}
}

// secrets checks that every secret is made, and that nothing is made for nobody.
func (c compose) secrets() []string {
	var all []string
	used := map[string]bool{}
	for name, s := range c.Secrets {
		file := filepath.Base(s.File)
		used[file] = true
		if filepath.Base(filepath.Dir(s.File)) != "secrets" || c.made[file] == "" {
			all = append(all, fmt.Sprintf("secret %s: make secrets does not make %s", name, s.File))
		}
		mounted := slices.ContainsFunc(slices.Collect(maps.Values(c.Services)), func(s types.ServiceConfig) bool {
			return slices.ContainsFunc(s.Secrets, func(f types.ServiceSecretConfig) bool { return f.Source == name })
		})
		if !mounted {
			all = append(all, fmt.Sprintf("secret %s: no service has it", name))
		}
	}
	for file, content := range c.made {
		within := slices.ContainsFunc(slices.Collect(maps.Keys(used)), func(other string) bool { return strings.Contains(c.made[other], content) })
		if !within {
			all = append(all, "make secrets makes "+file+", which nobody has")
		}
	}
	slices.Sort(all)
	return all
}

func TestComposeFitsTheBinaries(t *testing.T) {
	report(t, loadCompose(t, read(t, composeFile)).problems(t))
}

// TestComposeFaultsAreFound puts one fault after the other into compose.yaml.
func TestComposeFaultsAreFound(t *testing.T) {
	text := read(t, composeFile)
	for _, m := range []mutation{
		{`command: ["outbox-relay"]`, `command: ["outbox-relay", "--listne", ":9464"]`, "unknown flag: --listne"},
		{`command: ["consumer"]`, `command: ["consumers"]`, "no binary of Pollux"},
		{`"migrate", "up"`, `"migrate", "upp"`, "migrate"},
		{`"--api-key-file"`, `"--key-file"`, "unknown flag: --key-file"},
		{`"consumer", "--healthcheck=ready"`, `"consumer", "--health"`, "unknown flag: --health"},
		{"otel/opentelemetry-collector:0.160.0", "otel/opentelemetry-collector:latest", "not pinned"},
		{"127.0.0.1:8480:8480", "8480:8480", "open to everybody"},
		{"127.0.0.1:8480:8480", "127.0.0.1:8480:8481", "nothing listens on port 8481"},
		{"read_only: true", "read_only: false", "writable"},
		{"cap_drop: [ALL]", "cap_drop: [CHOWN]", "capabilities"},
		{"max-size: 10m, ", "", "log is not bounded"},
		{"GOMEMLIMIT: 230MiB", "GOMEMLIMIT: 300MiB", "GOMEMLIMIT 300MiB is"},
		{"limits: {cpus: \"1\", memory: 256M, pids: 64}", "limits: {cpus: \"1\", pids: 64}", "a limit is missing"},
		{"stop_grace_period: 40s # consumer", "stop_grace_period: 20s # consumer", "drains for up to"},
		{"restart: unless-stopped", "restart: on-failure", `restart is "on-failure"`},
		{"healthcheck: {disable: true}", "healthcheck: {test: [\"CMD-SHELL\", \"true\"], interval: 1s, timeout: 1s, retries: 1, start_period: 1s}", "needs a shell"},
		{"migrate: {condition: service_completed_successfully}", "migrate: {condition: service_started}", "says nothing"},
		{"postgres: {condition: service_healthy}", "nats: {condition: service_healthy}", "needs postgres and does not wait"},
		{"networks: [record, delivery, telemetry]", "networks: [record, telemetry]", "calls nats and shares no network"},
		{"networks: [record, ingress, telemetry]", "networks: [record, ingress, telemetry, delivery]", "nothing of its own is in the network delivery"},
		{"record: {internal: true}", "record: {}", "network record: internal is false"},
		{", sim_webhook]", "]", "sim_webhook"},
		{"{source: relay_database_url, target: database_url}", "{source: relay_database_url, target: database}", "database_url"},
		{"target: nats_password}, sim_key]", "target: nats_password}, sim_key, sim_webhook]", "does not need the secret sim_webhook"},
		{"deploy/compose/secrets/sim_key}", "deploy/compose/secrets/simkey}", "does not make"},
		{"deploy/compose/nats.conf", "deploy/compose/nats.cfg", "no such file"},
		{"--config.file=/etc/prometheus/prometheus.yml", "--config.file=/etc/prometheus.yml", "nothing is mounted at /etc/prometheus.yml"},
		{"target: /etc/pollux/pollux.yaml", "target: /etc/pollux.yaml", "where nothing is mounted"},
		{"GOMEMLIMIT: 115MiB, POLLUX", "GOMEMLIMIT: 115MiB, POLLUX_RELAY__EVRY: 1s, POLLUX", "unknown key"},
		{", POLLUX_NATS__USER: relay", "", "a user and its password go together"},
		{"      roles: {condition: service_completed_successfully}\n", "", "roles: restart is"},
	} {
		t.Run(m.says, func(t *testing.T) {
			t.Parallel()
			if problems := loadCompose(t, m.apply(t, text)).problems(t); !m.found(problems) {
				t.Errorf("%q in the place of %q is not found, but %q", m.new, m.old, problems)
			}
		})
	}
}

func TestSecretsAreForTheirOwnerAndStayWhatTheyAre(t *testing.T) {
	dir := t.TempDir()
	first := makeSecrets(t, dir)
	for name := range first {
		st, err := os.Stat(filepath.Join(dir, "secrets", name))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v", name, st.Mode())
		}
		file := name == "pgpass" || strings.HasSuffix(name, ".conf") // as a program reads it
		if !file && (len(first[name]) < 32 || strings.ContainsAny(first[name], " \n")) {
			t.Errorf("%s is %d characters long, or has blanks", name, len(first[name]))
		}
	}
	if second := makeSecrets(t, dir); !maps.Equal(first, second) {
		t.Error("the second run made other secrets")
	}
	if other := makeSecrets(t, t.TempDir()); other["sim_key"] == first["sim_key"] {
		t.Error("two machines have the same secrets")
	}
	env, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{fmt.Sprintf("POLLUX_UID=%d\n", os.Getuid()), fmt.Sprintf("POLLUX_GID=%d\n", os.Getgid())} {
		if !strings.Contains(string(env), line) {
			t.Errorf(".env lacks %q", line)
		}
	}
}
