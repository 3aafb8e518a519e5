package check

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pollux/internal/localprom"
)

// strictly reads a YAML file; a key that the type does not have is an error.
func strictly(text string, into any) error {
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

// promtool asks Prometheus's own tool about a configuration, whose rules are where compose.yaml mounts them.
func promtool(t *testing.T, c compose, text string) (string, error) {
	t.Helper()
	p, err := localprom.Ensure(t.Context(), func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range c.Services["prometheus"].Volumes {
		if filepath.IsAbs(v.Source) {
			text = strings.ReplaceAll(text, v.Target+"/", v.Source+"/")
		}
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	write(t, file, text)
	out, err := exec.CommandContext(t.Context(), p.Tool, "check", "config", file).CombinedOutput()
	return string(out), err
}

func TestPrometheusTakesItsConfiguration(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	text := read(t, "deploy/compose/prometheus.yml")
	out, err := promtool(t, c, text)
	if err != nil {
		t.Fatalf("deploy/compose/prometheus.yml: %v\n%s", err, out)
	}
	if !strings.Contains(out, "progress.yaml") {
		t.Errorf("no rules are read:\n%s", out)
	}
	for _, m := range []mutation{
		{"dns_sd_configs", "dns_sd_config", "dns_sd_config"},
		{"type: A", "type: B", "records type B"},
		{"scrape_interval: 5s", "scrape_interval: 5", "duration"},
	} {
		if out, err := promtool(t, c, m.apply(t, text)); err == nil || !strings.Contains(out, m.says) {
			t.Errorf("%q in the place of %q is not found: %v\n%s", m.new, m.old, err, out)
		}
	}
}

// scrapes is what of Prometheus's configuration says whom it asks.
type scrapes struct {
	ScrapeConfigs []struct {
		JobName string `yaml:"job_name"`
		DNS     []struct {
			Names []string
			Type  string
			Port  int
		} `yaml:"dns_sd_configs"`
		Static []struct{ Targets []string } `yaml:"static_configs"`
	} `yaml:"scrape_configs"`
}

func TestPrometheusAsksEveryReplicaOfEveryService(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	var s scrapes
	if err := yaml.Unmarshal([]byte(read(t, "deploy/compose/prometheus.yml")), &s); err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	for _, job := range s.ScrapeConfigs {
		for _, d := range job.DNS {
			for _, name := range d.Names {
				asked[name] = true
			}
			if fmt.Sprint(d.Port) != portOf(c.cfg.Telemetry.Listen) || d.Type != "A" {
				t.Errorf("%s: it asks port %d by records of type %s; the services listen at %s", job.JobName, d.Port, d.Type, c.cfg.Telemetry.Listen)
			}
		}
		for _, st := range job.Static {
			for _, target := range st.Targets {
				name, _, _ := strings.Cut(target, ":")
				asked[name] = true
				if service, ok := c.Services[name]; ok && ours(service) {
					t.Errorf("%s: %s by a fixed name would be one of its replicas", job.JobName, name)
				}
			}
		}
	}
	for name, service := range c.Services {
		serves := ours(service) && !c.once(service) && name != "gateway"
		if serves && !asked[name] {
			t.Errorf("nobody asks %s for its metrics", name)
		}
	}
	for _, name := range c.dials(c.Services["prometheus"]) {
		if !asked[name] {
			t.Errorf("%s is not asked", name)
		}
	}
}

// collector is the structure of the collector's configuration, with the settings of its parts that are used here: those that the pinned one took when it was asked. Its own parser is
// more than a hundred modules and minutes to compile, for thirty lines; docs/deployment.md says how to ask it when the image changes.
type collector struct {
	Receivers map[string]struct {
		Protocols struct{ GRPC struct{ Endpoint string } }
	}
	Processors map[string]struct {
		CheckInterval string `yaml:"check_interval"`
		LimitMiB      int    `yaml:"limit_mib"`
		SpikeLimitMiB int    `yaml:"spike_limit_mib"`
	}
	Exporters map[string]struct{ Verbosity string }
	Service   struct {
		Telemetry struct {
			Logs    struct{ Encoding string }
			Metrics struct {
				Readers []struct {
					Pull struct {
						Exporter struct {
							Prometheus struct {
								Host string
								Port int
							}
						}
					}
				}
			}
		}
		Pipelines map[string]struct{ Receivers, Processors, Exporters []string }
	}
}

// distribution is what the image of the collector contains, of what one may want here.
var distribution = map[string][]string{
	"receivers":  {"otlp", "prometheus", "hostmetrics"},
	"processors": {"memory_limiter", "batch", "attributes", "resource", "filter", "probabilistic_sampler", "span"},
	"exporters":  {"debug", "otlp_grpc", "otlp_http", "file", "prometheus", "prometheusremotewrite"},
}

func collectorProblems(c compose, prometheus, text string) []string {
	var k collector
	if err := strictly(text, &k); err != nil {
		return []string{err.Error()}
	}
	var all []string
	say := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	defined := map[string][]string{
		"receivers":  slices.Collect(maps.Keys(k.Receivers)),
		"processors": slices.Collect(maps.Keys(k.Processors)),
		"exporters":  slices.Collect(maps.Keys(k.Exporters)),
	}
	used := map[string]bool{}
	for name, p := range k.Service.Pipelines {
		if signal, _, _ := strings.Cut(name, "/"); !slices.Contains([]string{"traces", "metrics", "logs"}, signal) {
			say("a pipeline of %s", name)
		}
		if len(p.Processors) == 0 || p.Processors[0] != "memory_limiter" {
			say("pipeline %s: memory_limiter must be the first to see what comes", name)
		}
		for kind, names := range map[string][]string{"receivers": p.Receivers, "processors": p.Processors, "exporters": p.Exporters} {
			if len(names) == 0 {
				say("pipeline %s has no %s", name, kind)
			}
			for _, part := range names {
				used[kind+"/"+part] = true
				if !slices.Contains(defined[kind], part) {
					say("pipeline %s: %s is not among the %s", name, part, kind)
				}
			}
		}
	}
	for kind, parts := range defined {
		for _, part := range parts {
			if typ, _, _ := strings.Cut(part, "/"); !slices.Contains(distribution[kind], typ) {
				say("the image has no %s in its %s", typ, kind)
			}
			if !used[kind+"/"+part] {
				say("%s of the %s is used nowhere", part, kind)
			}
		}
	}
	endpoint := k.Receivers["otlp"].Protocols.GRPC.Endpoint
	if !strings.HasSuffix(c.cfg.Telemetry.OTLPEndpoint, ":"+portOf(endpoint)) {
		say("it listens at %s, and the services send to %s", endpoint, c.cfg.Telemetry.OTLPEndpoint)
	}
	for _, reader := range k.Service.Telemetry.Metrics.Readers {
		if port := reader.Pull.Exporter.Prometheus.Port; !strings.Contains(prometheus, fmt.Sprintf("otel-collector:%d", port)) {
			say("it has metrics of its own at %d, where nobody asks", port)
		}
	}
	limit := k.Processors["memory_limiter"].LimitMiB
	if hard := int(c.Services["otel-collector"].Deploy.Resources.Limits.MemoryBytes >> 20); limit == 0 || limit > hard*9/10 {
		say("it begins to refuse at %d MiB, and is killed at %d", limit, hard)
	}
	return all
}

// at is what stands below keys.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

func TestCollectorFitsWhatIsSentToIt(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	prometheus, text := read(t, "deploy/compose/prometheus.yml"), read(t, "deploy/compose/otelcol.yaml")
	report(t, collectorProblems(c, prometheus, text))
	for _, m := range []mutation{
		{"pipelines:", "pipeline:", "field pipeline not found"},
		{"receivers: [otlp]", "receivers: [otpl]", "otpl is not among the receivers"},
		{"processors: [memory_limiter, batch]", "processors: [batch]", "memory_limiter must be the first"},
		{"0.0.0.0:4317", "0.0.0.0:4318", "send to"},
		{"limit_mib: 205", "limit_mib: 512", "is killed at 256"},
		{"exporters:\n  debug:", "exporters:\n  bug:", "the image has no bug"},
		{"verbosity: basic", "verbose: basic", "field verbose not found"},
		{"spike_limit_mib", "spike_limit", "field spike_limit not found"},
		{"port: 8888", "port: 8889", "metrics of its own at 8889, where nobody asks"},
	} {
		if problems := collectorProblems(c, prometheus, m.apply(t, text)); !m.found(problems) {
			t.Errorf("%q in the place of %q is not found, but %q", m.new, m.old, problems)
		}
	}
}

type datasources struct {
	APIVersion  int `yaml:"apiVersion"`
	Prune       bool
	Datasources []struct {
		Name, UID, Type, Access, URL string
		IsDefault                    bool           `yaml:"isDefault"`
		Editable                     bool           `yaml:"editable"`
		JSONData                     map[string]any `yaml:"jsonData"`
	}
}

type providers struct {
	APIVersion int `yaml:"apiVersion"`
	Providers  []struct {
		Name, Folder, Type    string
		AllowUIUpdates        bool `yaml:"allowUiUpdates"`
		UpdateIntervalSeconds int  `yaml:"updateIntervalSeconds"`
		Options               struct{ Path string }
	}
}

const provisioning = "deploy/compose/grafana/provisioning/"

func TestGrafanaFindsItsDataAndItsDashboards(t *testing.T) {
	c := loadCompose(t, read(t, composeFile))
	var d datasources
	if err := strictly(read(t, provisioning+"datasources/prometheus.yaml"), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Datasources) != 1 || !slices.Contains(c.dials(c.Services["grafana"]), hostOf(d.Datasources[0].URL)) || d.Datasources[0].UID == "" || !d.Datasources[0].IsDefault {
		t.Errorf("data sources %+v; want Prometheus, where it is", d.Datasources)
	}
	var p providers
	if err := strictly(read(t, provisioning+"dashboards/pollux.yaml"), &p); err != nil {
		t.Fatal(err)
	}
	for _, provider := range p.Providers {
		folder := ""
		for _, v := range c.Services["grafana"].Volumes {
			if v.Target == provider.Options.Path {
				folder = v.Source
			}
		}
		if folder == "" {
			t.Errorf("provider %s: nothing is mounted at %s", provider.Name, provider.Options.Path)
			continue
		}
		dashboards(t, folder, d.Datasources[0].UID)
	}
	if len(p.Providers) == 0 {
		t.Error("no dashboards are provisioned")
	}
}

// dashboards checks that a folder has dashboards, and that their panels ask a data source that exists.
func dashboards(t *testing.T, folder, uid string) {
	t.Helper()
	files, err := fs.Glob(os.DirFS(folder), "*.json")
	if err != nil || len(files) == 0 {
		t.Errorf("%s has no dashboards: %v", folder, err)
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		var board any
		if err := json.Unmarshal(content, &board); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sources(board, func(source string) {
			if source != uid && !strings.HasPrefix(source, "$") && source != "-- Grafana --" && source != "grafana" {
				t.Errorf("%s: it asks the data source %q, which does not exist", name, source)
			}
		})
	}
}

// sources calls fn with the uid of every data source that is named below v.
func sources(v any, fn func(uid string)) {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if source, ok := at(below, "uid").(string); ok && key == "datasource" {
				fn(source)
			}
			sources(below, fn)
		}
	case []any:
		for _, below := range v {
			sources(below, fn)
		}
	}
}
