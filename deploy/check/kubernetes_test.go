package check

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"pollux/internal/config"
)

const manifests = "deploy/kubernetes"

// podSecrets is where the pods see their secrets.
const podSecrets = "/run/secrets/pollux"

// The objects of operators that a cluster may have, as far as they are used here. What these types do not have is refused.
type (
	scaledObject struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ScaleTargetRef  struct{ Name string }                      `json:"scaleTargetRef"`
			MinReplicaCount int32                                      `json:"minReplicaCount"`
			MaxReplicaCount int32                                      `json:"maxReplicaCount"`
			PollingInterval int32                                      `json:"pollingInterval"`
			Fallback        struct{ FailureThreshold, Replicas int32 } `json:"fallback"`
			Advanced        struct {
				HorizontalPodAutoscalerConfig struct {
					Behavior autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
				} `json:"horizontalPodAutoscalerConfig"`
			} `json:"advanced"`
			Triggers []struct {
				Type       string            `json:"type"`
				MetricType string            `json:"metricType"`
				Metadata   map[string]string `json:"metadata"`
			} `json:"triggers"`
		} `json:"spec"`
	}

	monitorEndpoint struct {
		Port     string `json:"port"`
		Path     string `json:"path"`
		Interval string `json:"interval"`
	}

	serviceMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []monitorEndpoint    `json:"endpoints"`
		} `json:"spec"`
	}

	podMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector            metav1.LabelSelector `json:"selector"`
			PodMetricsEndpoints []monitorEndpoint    `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}

	prometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              map[string]any `json:"spec"` // which promtool reads
	}

	externalSecret struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			RefreshInterval string                      `json:"refreshInterval"`
			SecretStoreRef  struct{ Kind, Name string } `json:"secretStoreRef"`
			Target          struct{ Name string }       `json:"target"`
			Data            []struct {
				SecretKey string               `json:"secretKey"`
				RemoteRef struct{ Key string } `json:"remoteRef"`
			} `json:"data"`
		} `json:"spec"`
	}
)

// cluster is what a kustomization makes, by kind.
type cluster struct {
	namespaces  map[string]*corev1.Namespace
	accounts    map[string]*corev1.ServiceAccount
	configs     map[string]*corev1.ConfigMap
	services    map[string]*corev1.Service
	deployments map[string]*appsv1.Deployment
	jobs        map[string]*batchv1.Job
	budgets     map[string]*policyv1.PodDisruptionBudget
	policies    map[string]*networkingv1.NetworkPolicy
	ingresses   map[string]*networkingv1.Ingress
	scalers     map[string]*autoscalingv2.HorizontalPodAutoscaler
	keda        map[string]*scaledObject
	monitors    map[string]*serviceMonitor
	podMonitors map[string]*podMonitor
	rules       map[string]*prometheusRule
	secrets     map[string]*externalSecret
}

// build makes what kubectl apply -k would send, from files that may have been changed for a test.
func build(t *testing.T, files filesys.FileSystem, folder string) (cluster, error) {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, folder)
	if err != nil {
		return cluster{}, err
	}
	c := cluster{
		map[string]*corev1.Namespace{}, map[string]*corev1.ServiceAccount{}, map[string]*corev1.ConfigMap{}, map[string]*corev1.Service{},
		map[string]*appsv1.Deployment{}, map[string]*batchv1.Job{}, map[string]*policyv1.PodDisruptionBudget{}, map[string]*networkingv1.NetworkPolicy{},
		map[string]*networkingv1.Ingress{}, map[string]*autoscalingv2.HorizontalPodAutoscaler{}, map[string]*scaledObject{}, map[string]*serviceMonitor{},
		map[string]*podMonitor{}, map[string]*prometheusRule{}, map[string]*externalSecret{},
	}
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return c, err
		}
		if r.GetKind() != "Namespace" && r.GetNamespace() == "" {
			return c, fmt.Errorf("%s %s is in no namespace", r.GetKind(), r.GetName())
		}
		if err := c.add(r.GetApiVersion()+" "+r.GetKind(), text); err != nil {
			return c, fmt.Errorf("%s %s: %w", r.GetKind(), r.GetName(), err)
		}
	}
	return c, nil
}

// add decodes an object strictly: a field that its kind does not have is an error, where a cluster would drop it without a word.
func (c cluster) add(kind string, text []byte) error {
	switch kind {
	case "v1 Namespace":
		return decode(text, c.namespaces)
	case "v1 ServiceAccount":
		return decode(text, c.accounts)
	case "v1 ConfigMap":
		return decode(text, c.configs)
	case "v1 Service":
		return decode(text, c.services)
	case "apps/v1 Deployment":
		return decode(text, c.deployments)
	case "batch/v1 Job":
		return decode(text, c.jobs)
	case "policy/v1 PodDisruptionBudget":
		return decode(text, c.budgets)
	case "networking.k8s.io/v1 NetworkPolicy":
		return decode(text, c.policies)
	case "networking.k8s.io/v1 Ingress":
		return decode(text, c.ingresses)
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return decode(text, c.scalers)
	case "keda.sh/v1alpha1 ScaledObject":
		return decode(text, c.keda)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return decode(text, c.monitors)
	case "monitoring.coreos.com/v1 PodMonitor":
		return decode(text, c.podMonitors)
	case "monitoring.coreos.com/v1 PrometheusRule":
		return decode(text, c.rules)
	case "external-secrets.io/v1 ExternalSecret":
		return decode(text, c.secrets)
	}
	return fmt.Errorf("%s is a kind that these tests do not know", kind)
}

func decode[T any](text []byte, into map[string]*T) error {
	v := new(T)
	if err := yaml.UnmarshalStrict(text, v); err != nil {
		return err
	}
	into[any(v).(metav1.Object).GetName()] = v
	return nil
}

// onDisk is deploy/kubernetes and what it refers to, in memory, so that a test can change it.
func onDisk(t *testing.T, changed map[string]string) filesys.FileSystem {
	t.Helper()
	files := filesys.MakeFsInMemory()
	for _, folder := range []string{manifests, "deploy/monitoring"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(name string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			place, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			if text, ok := changed[place]; ok {
				content = []byte(text)
			}
			return files.WriteFile("/"+place, content)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// workload is something that makes pods.
type workload struct {
	name     string
	pod      corev1.PodTemplateSpec
	replicas *int32
	service  bool // it runs on and on
}

func (c cluster) workloads() []workload {
	var all []workload
	for name, d := range c.deployments {
		all = append(all, workload{name, d.Spec.Template, d.Spec.Replicas, true})
	}
	for name, j := range c.jobs {
		all = append(all, workload{name, j.Spec.Template, nil, false})
	}
	slices.SortFunc(all, func(a, b workload) int { return strings.Compare(a.name, b.name) })
	return all
}

func (w workload) containers() []corev1.Container {
	return slices.Concat(w.pod.Spec.InitContainers, w.pod.Spec.Containers)
}

func (w workload) selected(by *metav1.LabelSelector) bool {
	s, err := metav1.LabelSelectorAsSelector(by)
	return err == nil && s.Matches(labels.Set(w.pod.Labels))
}

// example reports whether a container is the payment service, which stands for a program of somebody else's.
func example(c corev1.Container) bool { return c.Name == "payments" }

func (c cluster) problems(t *testing.T, complete bool) []string {
	t.Helper()
	var all []string
	say := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	for _, w := range c.workloads() {
		about := func(format string, a ...any) { say(w.name+": "+format, a...) }
		c.pod(w, about)
		for _, k := range w.containers() {
			of := func(format string, a ...any) { say(w.name+"/"+k.Name+": "+format, a...) }
			guarded(w, k, complete, of)
			if !example(k) {
				c.runs(t, w, k, complete, of)
			}
		}
	}
	c.selections(say)
	c.scaling(say)
	c.entrances(say)
	c.watching(say)
	if complete {
		c.walls(t, say)
	}
	return all
}

// pod checks what holds for a pod as a whole.
func (c cluster) pod(w workload, say sayer) {
	p := w.pod.Spec
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		say("its pods may talk to the API of Kubernetes")
	}
	if p.ServiceAccountName != "" && c.accounts[p.ServiceAccountName] == nil {
		say("there is no ServiceAccount %s", p.ServiceAccountName)
	}
	if p.EnableServiceLinks == nil || *p.EnableServiceLinks {
		say("Kubernetes puts variables that begin with POLLUX_ into its environment")
	}
	if p.HostNetwork || p.HostPID || p.HostIPC {
		say("it shares the node")
	}
	if w.service && len(w.pod.Spec.TopologySpreadConstraints) == 0 && !slices.ContainsFunc(w.containers(), example) {
		say("its pods may all be on one node")
	}
	for _, s := range p.TopologySpreadConstraints {
		if !w.selected(s.LabelSelector) {
			say("its pods are spread by labels that they do not have")
		}
	}
	for _, v := range p.Volumes {
		if v.HostPath != nil {
			say("it mounts %s of the node", v.HostPath.Path)
		}
		if v.Secret != nil && (v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o440 || p.SecurityContext == nil || p.SecurityContext.FSGroup == nil || *p.SecurityContext.FSGroup != 65532) {
			say("the secret %s is not readable by the group 65532 alone", v.Secret.SecretName)
		}
	}
}

// guarded checks what holds for every container.
func guarded(w workload, k corev1.Container, complete bool, say sayer) {
	if _, tag, ok := strings.Cut(filepath.Base(k.Image), ":"); complete && (!ok || tag == "latest") {
		say("the image %s is not pinned", k.Image)
	}
	s, p := k.SecurityContext, w.pod.Spec.SecurityContext
	switch {
	case s == nil || p == nil:
		say("no securityContext")
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		say("its root is writable")
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
		say("it may gain privileges")
	case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0:
		say("it keeps capabilities")
	case !isTrue(s.RunAsNonRoot) && !isTrue(p.RunAsNonRoot):
		say("it may run as root")
	case seccomp(s.SeccompProfile) != corev1.SeccompProfileTypeRuntimeDefault && seccomp(p.SeccompProfile) != corev1.SeccompProfileTypeRuntimeDefault:
		say("no seccomp profile")
	}
	r := k.Resources
	if r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
		say("requests for processor and memory, or a limit on memory, are missing")
	}
	for _, m := range k.VolumeMounts {
		if !slices.ContainsFunc(w.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			say("it mounts %s, which is no volume", m.Name)
		}
		if !m.ReadOnly {
			say("it may write to %s", m.MountPath)
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

func seccomp(p *corev1.SeccompProfile) corev1.SeccompProfileType {
	if p == nil {
		return ""
	}
	return p.Type
}

// settings are the configuration that a container sees.
func (c cluster) settings(w workload, k corev1.Container, complete bool, say sayer) (mounted, bool) {
	m := mounted{secrets: podSecrets, files: map[string]string{}}
	for _, v := range k.VolumeMounts {
		i := slices.IndexFunc(w.pod.Spec.Volumes, func(have corev1.Volume) bool { return have.Name == v.Name })
		if i < 0 {
			continue
		}
		switch source := w.pod.Spec.Volumes[i]; {
		case source.ConfigMap != nil:
			config := c.configs[source.ConfigMap.Name]
			if config == nil || v.MountPath != filepath.Dir(configPath) {
				say("the image looks for %s, and %s is mounted at %s", configPath, source.ConfigMap.Name, v.MountPath)
				return m, false
			}
			m.text = config.Data[filepath.Base(configPath)]
		case source.Secret != nil:
			if v.MountPath != podSecrets {
				say("its secrets are at %s", v.MountPath)
			}
			made := c.secrets[source.Secret.SecretName]
			if made == nil {
				if complete {
					say("nobody makes the secret %s", source.Secret.SecretName)
				}
				continue
			}
			for _, d := range made.Spec.Data {
				m.files[d.SecretKey] = sample(d.SecretKey)
			}
		}
	}
	for _, e := range k.Env {
		m.environ = append(m.environ, e.Name+"="+e.Value)
	}
	return m, m.text != ""
}

// runs checks that a container's command line is one, that it finds a configuration and the secrets that this needs, and that the kubelet asks pages that there are.
func (c cluster) runs(t *testing.T, w workload, k corev1.Container, complete bool, say sayer) {
	t.Helper()
	p, err := parse(slices.Concat(k.Command, k.Args))
	if err != nil {
		say("%v", err)
		return
	}
	skip, ok := uses[p.path]
	if !ok {
		say("these tests do not know what %s needs", p.path)
		return
	}
	m, ok := c.settings(w, k, complete, say)
	if !ok {
		say("no configuration is mounted")
		return
	}
	if !complete { // the base has neither gateways nor secrets
		return
	}
	cfg, err := m.load(t, skip)
	if err != nil {
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
	if w.service {
		lives(w, k, cfg, say)
	}
}

// lives checks what a container needs that runs on and on.
func lives(w workload, k corev1.Container, cfg config.Config, say sayer) {
	ports := map[string]int32{}
	for _, p := range k.Ports {
		ports[p.Name] = p.ContainerPort
	}
	sidecar := k.RestartPolicy != nil && *k.RestartPolicy == corev1.ContainerRestartPolicyAlways
	for kind, page := range map[string]string{"liveness": "/healthz", "readiness": "/readyz", "startup": "/healthz"} {
		probe := map[string]*corev1.Probe{"liveness": k.LivenessProbe, "readiness": k.ReadinessProbe, "startup": k.StartupProbe}[kind]
		wanted := kind == "liveness" || kind == "readiness" && !sidecar // a sidecar must not keep its pod from anything
		switch {
		case !wanted && probe == nil:
		case !wanted:
			say("a probe for %s", kind)
		case probe == nil || probe.HTTPGet == nil:
			say("no probe for %s", kind)
		case probe.HTTPGet.Path != page:
			say("%s asks %s", kind, probe.HTTPGet.Path)
		case fmt.Sprint(ports[probe.HTTPGet.Port.String()]) != portOf(cfg.Telemetry.Listen):
			say("%s asks port %s, and the pages are at %s", kind, probe.HTTPGet.Port.String(), cfg.Telemetry.Listen)
		}
	}
	if k.Name == "webhook" && fmt.Sprint(ports["http"]) != portOf(cfg.Webhooks.Listen) {
		say("the port http is %d, and notifications are taken at %s", ports["http"], cfg.Webhooks.Listen)
	}
	limit := ""
	for _, e := range k.Env {
		if e.Name == "GOMEMLIMIT" {
			limit = e.Value
		}
	}
	if err := softLimit(limit, k.Resources.Limits.Memory().Value()); err != nil {
		say("%v", err)
	}
	drain := map[string]time.Duration{
		"consumer":     cfg.Consumer.Drain + cfg.Consumer.Record.Patience,
		"webhook":      cfg.Webhooks.Drain + 2*cfg.Webhooks.Record.Patience,
		"outbox-relay": 2 * cfg.Relay.PublishTimeout,
	}[k.Name]
	if k.Lifecycle != nil && k.Lifecycle.PreStop != nil && k.Lifecycle.PreStop.Sleep != nil {
		drain += time.Duration(k.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	}
	if grace := w.pod.Spec.TerminationGracePeriodSeconds; grace == nil || time.Duration(*grace)*time.Second <= drain {
		say("its pod is killed before the %s are over that it may drain for", drain)
	}
}

// sample is a secret of the form that a key must have.
func sample(key string) string {
	switch {
	case key == "database_url":
		return "postgres://pollux:secret@postgres.postgres.svc:5432/payments"
	case strings.HasSuffix(key, ".crt"):
		return certificate()
	case key == "nats.nk":
		return "SU" + strings.Repeat("A", 56)
	case strings.HasSuffix(key, "_webhook"):
		return "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
	}
	return "rk_live_" + strings.Repeat("x", 24)
}

// selections checks that what selects pods finds some.
func (c cluster) selections(say sayer) {
	for name, d := range c.deployments {
		if w := (workload{pod: d.Spec.Template}); !w.selected(d.Spec.Selector) {
			say("Deployment %s does not select its own pods", name)
		}
	}
	for name, s := range c.services {
		found := c.backends(s)
		for _, p := range s.Spec.Ports {
			if !slices.ContainsFunc(found, func(w workload) bool { return listensOn(w, p.TargetPort) }) {
				say("Service %s: no pod that it selects has the port %s", name, p.TargetPort.String())
			}
		}
	}
	for name, b := range c.budgets {
		selected := slices.DeleteFunc(c.workloads(), func(w workload) bool { return !w.selected(b.Spec.Selector) })
		if len(selected) != 1 {
			say("PodDisruptionBudget %s is about %d workloads", name, len(selected))
			continue
		}
		if r := selected[0].replicas; r != nil && b.Spec.MinAvailable != nil && int32(b.Spec.MinAvailable.IntValue()) >= *r {
			say("PodDisruptionBudget %s never lets a pod go", name)
		}
	}
	for name := range c.deployments {
		if name != "payments" && c.budgets[name] == nil {
			say("Deployment %s has no PodDisruptionBudget", name)
		}
	}
}

// backends are the workloads whose pods a Service selects.
func (c cluster) backends(s *corev1.Service) []workload {
	return slices.DeleteFunc(c.workloads(), func(w workload) bool {
		return !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(w.pod.Labels))
	})
}

func listensOn(w workload, port intstr.IntOrString) bool {
	return slices.ContainsFunc(w.containers(), func(k corev1.Container) bool {
		return slices.ContainsFunc(k.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == port.String() || fmt.Sprint(p.ContainerPort) == port.String()
		})
	})
}

// scaling checks that whoever scales the consumers has them for itself, and goes by a metric that there is.
func (c cluster) scaling(say sayer) {
	scaled := map[string]int{}
	for name, s := range c.scalers {
		scaled[s.Spec.ScaleTargetRef.Name]++
		if s.Spec.MinReplicas == nil || *s.Spec.MinReplicas < 2 || s.Spec.MaxReplicas <= *s.Spec.MinReplicas {
			say("HorizontalPodAutoscaler %s: fewer than two, or no room", name)
		}
	}
	for name, s := range c.keda {
		scaled[s.Spec.ScaleTargetRef.Name]++
		if s.Spec.MinReplicaCount < 2 || s.Spec.MaxReplicaCount <= s.Spec.MinReplicaCount {
			say("ScaledObject %s: fewer than two, or no room", name)
		}
		for _, trigger := range s.Spec.Triggers {
			if trigger.Type != "prometheus" || !strings.Contains(trigger.Metadata["query"], readyWork) {
				say("ScaledObject %s goes by %s %q; want %s", name, trigger.Type, trigger.Metadata["query"], readyWork)
			}
		}
	}
	for name, n := range scaled {
		switch d := c.deployments[name]; {
		case d == nil:
			say("%s is scaled, and there is no Deployment of that name", name)
		case n > 1:
			say("%s is scaled by two", name)
		case d.Spec.Replicas != nil:
			say("%s is scaled, and each apply sets its replicas back to %d", name, *d.Spec.Replicas)
		}
	}
}

// readyWork is the metric to scale consumers by.
const readyWork = "pollux_relay_work_polls"

// entrances checks that each Ingress leads somewhere.
func (c cluster) entrances(say sayer) {
	for name, i := range c.ingresses {
		if len(i.Spec.TLS) == 0 {
			say("Ingress %s speaks no TLS", name)
		}
		for _, rule := range i.Spec.Rules {
			for _, p := range rule.HTTP.Paths {
				to := c.services[p.Backend.Service.Name]
				if to == nil || !slices.ContainsFunc(to.Spec.Ports, func(have corev1.ServicePort) bool { return have.Name == p.Backend.Service.Port.Name }) {
					say("Ingress %s leads to %s, port %s, which does not exist", name, p.Backend.Service.Name, p.Backend.Service.Port.Name)
				}
				if p.Path != "/webhooks" {
					say("Ingress %s lets %s in; notifications come to /webhooks/", name, p.Path)
				}
			}
		}
	}
}

// watching checks that what Prometheus is told to ask is there.
func (c cluster) watching(say sayer) {
	asked := map[string]bool{}
	for name, m := range c.monitors {
		for _, s := range c.services {
			if sel, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector); err != nil || !sel.Matches(labels.Set(s.Labels)) {
				continue
			}
			for _, e := range m.Spec.Endpoints {
				i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port })
				if i < 0 || e.Path != "/metrics" {
					say("ServiceMonitor %s asks port %s, path %s", name, e.Port, e.Path)
					continue
				}
				for _, w := range c.backends(s) {
					asked[w.name] = asked[w.name] || listensOn(w, s.Spec.Ports[i].TargetPort)
				}
			}
		}
	}
	for name, m := range c.podMonitors {
		for _, w := range c.workloads() {
			if !w.selected(&m.Spec.Selector) {
				continue
			}
			for _, e := range m.Spec.PodMetricsEndpoints {
				if !listensOn(w, intstr.FromString(e.Port)) || e.Path != "/metrics" {
					say("PodMonitor %s asks port %s, path %s", name, e.Port, e.Path)
					continue
				}
				asked[w.name] = true
			}
		}
	}
	if len(c.monitors) == 0 {
		return
	}
	for name := range c.deployments {
		if !asked[name] {
			say("nobody asks %s for its metrics", name)
		}
	}
}
