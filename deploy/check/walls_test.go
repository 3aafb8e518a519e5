package check

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// walls holds the network policies to what the pods need: what each must reach is open, and nothing else is.
func (c cluster) walls(t *testing.T, say sayer) {
	t.Helper()
	for _, w := range c.workloads() {
		in, out, walled := c.open(w)
		if !walled {
			say("%s: no policy denies it what is not allowed", w.name)
		}
		wantIn, wantOut := c.needs(t, w, say)
		for direction, both := range map[string][2]map[string]bool{"from": {in, wantIn}, "to": {out, wantOut}} {
			have, want := slices.Sorted(maps.Keys(both[0])), slices.Sorted(maps.Keys(both[1]))
			if !slices.Equal(have, want) {
				say("%s: open %s %v; needed %v", w.name, direction, have, want)
			}
		}
	}
}

// open is what policies let through to and from the pods of a workload, as peer and port, and whether all else is denied.
func (c cluster) open(w workload) (in, out map[string]bool, walled bool) {
	in, out = map[string]bool{}, map[string]bool{}
	for _, p := range c.policies {
		if !w.selected(&p.Spec.PodSelector) {
			continue
		}
		walled = walled || len(p.Spec.PolicyTypes) == 2
		for _, rule := range p.Spec.Ingress {
			through(in, rule.From, rule.Ports)
		}
		for _, rule := range p.Spec.Egress {
			through(out, rule.To, rule.Ports)
		}
	}
	return in, out, walled
}

// through adds what a rule lets through. A rule without peers or without ports is open to all of them.
func through(open map[string]bool, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	if len(peers) == 0 {
		peers = []networkingv1.NetworkPolicyPeer{{}}
	}
	if len(ports) == 0 {
		open[peer(peers[0])+" any port"] = true
	}
	for _, of := range peers {
		for _, p := range ports {
			protocol := corev1.ProtocolTCP
			if p.Protocol != nil {
				protocol = *p.Protocol
			}
			open[fmt.Sprintf("%s %s %s", peer(of), protocol, p.Port)] = true
		}
	}
}

// peer is who is at the other end: a namespace, the Internet, or everybody.
func peer(p networkingv1.NetworkPolicyPeer) string {
	switch {
	case p.NamespaceSelector != nil && p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != "":
		return p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]
	case p.IPBlock != nil && len(p.IPBlock.Except) > 0:
		return "internet"
	}
	return "everybody"
}

// namespaces are those of the installation that the example describes, where a host's name does not say it.
const (
	databases  = "postgres"
	monitoring = "monitoring"
	ingress    = "ingress-nginx"
	callers    = "shop"
)

// needs is what the pods of a workload must be able to reach, and who must reach them: by the configuration that they have.
func (c cluster) needs(t *testing.T, w workload, say sayer) (in, out map[string]bool) {
	t.Helper()
	in, out = map[string]bool{}, map[string]bool{"kube-system UDP 53": true, "kube-system TCP 53": true}
	for _, k := range w.containers() {
		if example(k) {
			in[callers+" TCP 8080"] = true
			out[databases+" TCP 5432"] = true
			continue
		}
		p, err := parse(k.Command)
		if err != nil {
			say("%s: %v", w.name, err)
			continue
		}
		m, _ := c.settings(w, k, true, func(string, ...any) {})
		cfg, err := m.load(t, uses[p.path])
		if err != nil {
			say("%s: %v", w.name, err)
			continue
		}
		if p.path != "pollux streams apply" {
			out[databases+" TCP 5432"] = true
		}
		if p.path != "pollux migrate up" && p.path != "webhook" {
			out[place(cfg.NATS.URLs[0])] = true
		}
		if w.service {
			in[monitoring+" TCP "+portOf(cfg.Telemetry.Listen)] = true
			out[place(cfg.Telemetry.OTLPEndpoint)] = true
		}
		switch p.path {
		case "consumer":
			out["internet TCP 443"] = true
		case "webhook":
			in[ingress+" TCP "+portOf(cfg.Webhooks.Listen)] = true
		}
	}
	return in, out
}

// place is the namespace and the port of the URL of a Service.
func place(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	parts := strings.Split(u.Hostname(), ".")
	if len(parts) < 2 {
		return u.Hostname()
	}
	return parts[1] + " TCP " + u.Port()
}

func TestKubernetesFitsTheBinaries(t *testing.T) {
	for _, folder := range []string{"base", "overlays/example"} {
		t.Run(folder, func(t *testing.T) {
			c, err := build(t, onDisk(t, nil), "/"+manifests+"/"+folder)
			if err != nil {
				t.Fatal(err)
			}
			report(t, c.problems(t, folder != "base"))
		})
	}
}

// TestTheOtherScalerFitsToo puts the component hpa in the place of keda.
func TestTheOtherScalerFitsToo(t *testing.T) {
	const name = manifests + "/overlays/example/kustomization.yaml"
	text := mutation{old: "../../components/keda", new: "../../components/hpa"}.apply(t, read(t, name))
	c, err := build(t, onDisk(t, map[string]string{name: text}), "/"+manifests+"/overlays/example")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.scalers) != 1 || len(c.keda) != 0 {
		t.Errorf("%d autoscalers and %d ScaledObjects; want one and none", len(c.scalers), len(c.keda))
	}
	report(t, c.problems(t, true))
}

func TestTheMetricToScaleByExists(t *testing.T) {
	if !regexp.MustCompile("(?m)^\\| `" + readyWork + "` \\| gauge \\| gateway, lane \\|").MatchString(read(t, "docs/metrics.md")) {
		t.Errorf("docs/metrics.md has no gauge %s by gateway and lane", readyWork)
	}
	for _, file := range []string{"components/keda/scaledobject.yaml", "README.md"} {
		if !strings.Contains(read(t, manifests+"/"+file), "sum(max by (gateway, lane) ("+readyWork+"))") {
			t.Errorf("%s goes by something else", file)
		}
	}
}

func TestKubernetesFaultsAreFound(t *testing.T) {
	for _, f := range []struct {
		file string
		mutation
	}{
		{"base/consumer.yaml", mutation{`command: ["consumer"]`, `command: ["consumer", "--listne", ":1"]`, "unknown flag"}},
		{"base/consumer.yaml", mutation{"path: /readyz", "path: /ready", "readiness asks /ready"}},
		{"base/consumer.yaml", mutation{"path: /healthz", "path: /readyz", "liveness asks /readyz"}},
		{"base/consumer.yaml", mutation{"containerPort: 9464", "containerPort: 9090", "the pages are at"}},
		{"base/consumer.yaml", mutation{"terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30", "is killed before"}},
		{"base/consumer.yaml", mutation{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "writable"}},
		{"base/consumer.yaml", mutation{"allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "gain privileges"}},
		{"base/consumer.yaml", mutation{"drop: [ALL]", "drop: [CHOWN]", "capabilities"}},
		{"base/consumer.yaml", mutation{"runAsNonRoot: true", "runAsNonRoot: false", "run as root"}},
		{"base/consumer.yaml", mutation{"seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Unconfined}", "seccomp"}},
		{"base/consumer.yaml", mutation{"limits: {memory: 256Mi}", "limits: {}", "limit on memory"}},
		{"base/consumer.yaml", mutation{"value: 230MiB", "value: 256MiB", "GOMEMLIMIT"}},
		{"base/consumer.yaml", mutation{"readinessProbe:", "readynessProbe:", "readynessProbe"}},
		{"base/consumer.yaml", mutation{"secretName: pollux-consumer", "secretName: pollux-webhook", "cards_key"}},
		{"base/consumer.yaml", mutation{"secretName: pollux-consumer", "secretName: pollux-consumers", "nobody makes the secret"}},
		{"base/consumer.yaml", mutation{"defaultMode: 0440", "defaultMode: 0444", "readable by the group"}},
		{"base/consumer.yaml", mutation{"serviceAccountName: pollux-consumer", "serviceAccountName: consumer", "no ServiceAccount consumer"}},
		{"base/consumer.yaml", mutation{"mountPath: /etc/pollux,", "mountPath: /etc,", "is mounted at /etc"}},
		{"base/consumer.yaml", mutation{"enableServiceLinks: false", "enableServiceLinks: true", "variables"}},
		{"base/webhook.yaml", mutation{"targetPort: http", "targetPort: web", "no pod that it selects has the port web"}},
		{"base/webhook.yaml", mutation{"minAvailable: 1", "minAvailable: 2", "never lets a pod go"}},
		{"base/webhook.yaml", mutation{"containerPort: 8480", "containerPort: 8080", "notifications are taken at"}},
		{"base/setup.yaml", mutation{`"migrate", "up"`, `"migrate", "upward"`, "migrate"}},
		{"base/network.yaml", mutation{"port: 4222", "port: 4223", "pollux-consumer: open to"}},
		{"base/network.yaml", mutation{"values: [pollux-streams, pollux-consumer]", "values: [pollux-streams, pollux-consumer, pollux-webhook]", "pollux-webhook: open to"}},
		{"base/network.yaml", mutation{"port: 8480", "port: 80", "pollux-webhook: open from"}},
		{"base/network.yaml", mutation{"except: [10.0.0.0/8, 100.64.0.0/10, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]", "except: []", "everybody TCP 443"}},
		{"base/network.yaml", mutation{"policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]", "no policy denies"}},
		{"components/relay-sidecar/sidecar.yaml", mutation{"          restartPolicy: Always\n", "", "no probe for readiness"}},
		{"components/relay-sidecar/sidecar.yaml", mutation{`["outbox-relay"]`, `["relay"]`, "no binary"}},
		{"components/relay-sidecar/sidecar.yaml", mutation{"livenessProbe:", "readinessProbe:", "a probe for readiness"}},
		{"components/keda/scaledobject.yaml", mutation{readyWork, "nats_consumer_num_pending", "goes by"}},
		{"components/keda/scaledobject.yaml", mutation{"scaleTargetRef: {name: pollux-consumer}", "scaleTargetRef: {name: consumer}", "no Deployment of that name"}},
		{"components/keda/kustomization.yaml", mutation{"op: remove, path: /spec/replicas", "op: replace, path: /spec/replicas, value: 3", "sets its replicas back"}},
		{"components/monitoring/scrape.yaml", mutation{"targetPort: telemetry", "targetPort: metrics", "has the port metrics"}},
		{"components/monitoring/scrape.yaml", mutation{"port: pollux-relay", "port: relay", "PodMonitor"}},
		{"overlays/example/ingress.yaml", mutation{"path: /webhooks", "path: /hooks", "lets /hooks in"}},
		{"overlays/example/ingress.yaml", mutation{"port: {name: http}", "port: {name: https}", "does not exist"}},
		{"overlays/example/kustomization.yaml", mutation{"newTag: 0.1.0", "newTag: latest", "not pinned"}},
		{"overlays/example/pollux.yaml", mutation{"adapter: stripe", "adaptor: stripe", "adaptor"}},
		{"overlays/example/secrets.yaml", mutation{"secretKey: cards_key", "secretKey: card_key", "cards_key"}},
	} {
		t.Run(f.file+" "+f.says, func(t *testing.T) {
			t.Parallel()
			name := manifests + "/" + f.file
			c, err := build(t, onDisk(t, map[string]string{name: f.apply(t, read(t, name))}), "/"+manifests+"/overlays/example")
			if err != nil { // the decoder found it, or kustomize did
				if !strings.Contains(err.Error(), f.says) {
					t.Errorf("it is refused, but for another reason: %v", err)
				}
				return
			}
			if problems := c.problems(t, true); !f.found(problems) {
				t.Errorf("%q in the place of %q is not found, but %q", f.new, f.old, problems)
			}
		})
	}
}
