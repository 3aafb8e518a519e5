package telemetry

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// ReloadResult is how a reload of the configuration ended.
type ReloadResult string

// The results of a reload.
const (
	ReloadApplied   ReloadResult = "applied"   // what changed is in force
	ReloadUnchanged ReloadResult = "unchanged" // nothing had changed
	ReloadInvalid   ReloadResult = "invalid"   // something is wrong with it; the one before stays in force
	ReloadRefused   ReloadResult = "refused"   // a key changed that takes a restart; the one before stays in force
)

// ReloadResults are all results, in a fixed order.
var ReloadResults = []ReloadResult{ReloadApplied, ReloadUnchanged, ReloadInvalid, ReloadRefused}

// What is renewed from files while the process runs: the label secret.
const (
	SecretDatabase  = "database"
	SecretNATS      = "nats"
	SecretGateways  = "gateways"
	SecretWebhooks  = "webhooks"
	SecretTelemetry = "telemetry"
	SecretTLS       = "tls"
)

// Secrets are all values of the label secret, in a fixed order.
var Secrets = []string{SecretDatabase, SecretNATS, SecretGateways, SecretWebhooks, SecretTelemetry, SecretTLS}

// Certificates are all values of the label certificate, in a fixed order: ours, and the last of the authorities that another's is checked against. Of those that we show to gateways it is the
// first that ends.
var Certificates = []string{"database", "database_ca", "nats", "nats_ca", "webhooks", "webhooks_client_ca", "telemetry", "telemetry_client_ca", "gateways"}

// reloadInstruments are those of the configuration and of secrets that change while the process runs.
type reloadInstruments struct {
	reloads, taken            metric.Int64Counter
	last, expiry, good, stale metric.Float64Gauge

	mu   sync.Mutex
	kept map[string]map[string]bool // of each kind of secret, those of which the last good one is in force
}

func (r *reloadInstruments) make(k *maker) {
	r.reloads = k.counter("config.reloads")
	r.last = k.kept("config.last_reload_timestamp")
	r.good = k.kept("config.last_reload_successful")
	r.taken = k.counter("secret.reloads")
	r.stale = k.kept("secret.stale")
	r.expiry = k.kept("certificate.expiry")
}

// ConfigRead says that the configuration that was read at an instant is in force.
func (m *Metrics) ConfigRead(at time.Time) {
	m.reload.last.Record(bg, seconds(at))
	m.reload.good.Record(bg, 1)
	for _, r := range ReloadResults { // a counter that appears with its first refusal has no increase
		m.reload.reloads.Add(bg, 0, labelOf("result", string(r)))
	}
}

// ConfigReload counts a reload of the configuration.
func (m *Metrics) ConfigReload(r ReloadResult, at time.Time) {
	m.reload.reloads.Add(bg, 1, labelOf("result", string(r)))
	switch r {
	case ReloadApplied, ReloadUnchanged:
		m.reload.last.Record(bg, seconds(at))
		m.reload.good.Record(bg, 1)
	default:
		m.reload.good.Record(bg, 0)
	}
}

// SecretReload counts a secret of a kind (Secrets) that changed in its file, and whether the new one was taken. Of tells it from others of its kind: the kind is stale until all of them are
// taken that were kept.
func (m *Metrics) SecretReload(secret, of string, taken bool) {
	result, stale := "taken", 0.0
	if !taken {
		result = "kept"
	}
	if m.reload.keeps(secret, of, !taken) > 0 {
		stale = 1
	}
	label := attribute.String("secret", nameAt(Secrets, index(Secrets, secret)))
	m.reload.taken.Add(bg, 1, metric.WithAttributeSet(attribute.NewSet(label, attribute.String("result", result))))
	m.reload.stale.Record(bg, stale, metric.WithAttributeSet(attribute.NewSet(label)))
}

// keeps notes whether the last good one of a secret stays in force, and returns of how many of its kind it does.
func (r *reloadInstruments) keeps(secret, of string, kept bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		r.kept = map[string]map[string]bool{}
	}
	if r.kept[secret] == nil {
		r.kept[secret] = map[string]bool{}
	}
	if !kept {
		delete(r.kept[secret], of)
	} else {
		r.kept[secret][of] = true
	}
	return len(r.kept[secret])
}

// CertificateExpiry says when a certificate (Certificates) ends.
func (m *Metrics) CertificateExpiry(certificate string, at time.Time) {
	m.reload.expiry.Record(bg, seconds(at), labelOf("certificate", nameAt(Certificates, index(Certificates, certificate))))
}

func labelOf(key, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
}

func seconds(at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }
