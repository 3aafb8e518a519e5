package telemetry

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// maker makes instruments of the entries of the catalogue, and knows which it has made.
type maker struct {
	meter metric.Meter
	made  map[string]bool
	errs  []error
}

// entry is the entry of a name, which must be of a kind. What is wrong is found by any test.
func (k *maker) entry(name string, kind Kind) Metric {
	e, ok := catalogued[name]
	if !ok {
		k.errs = append(k.errs, fmt.Errorf("metric %s: it is not in the catalogue", name))
		return Metric{}
	}
	if e.Kind != kind || k.made[name] {
		k.errs = append(k.errs, fmt.Errorf("metric %s: it is a %s, or was made before", name, e.Kind))
	}
	k.made[name] = true
	return *e
}

// called is the name of OpenTelemetry.
func called(e Metric) string { return namespace + "." + e.Name }

func made[T any](k *maker, instrument T, err error) T {
	k.errs = append(k.errs, err)
	return instrument
}

func (k *maker) counter(name string) metric.Int64Counter {
	e := k.entry(name, Counter)
	c, err := k.meter.Int64Counter(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit))
	return made(k, c, err)
}

func (k *maker) upDown(name string) metric.Int64UpDownCounter {
	e := k.entry(name, UpDown)
	c, err := k.meter.Int64UpDownCounter(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit))
	return made(k, c, err)
}

func (k *maker) seconds(name string) metric.Float64Histogram {
	e := k.entry(name, Histogram)
	h, err := k.meter.Float64Histogram(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit), metric.WithExplicitBucketBoundaries(e.Buckets...))
	return made(k, h, err)
}

func (k *maker) sizes(name string) metric.Int64Histogram {
	e := k.entry(name, Histogram)
	h, err := k.meter.Int64Histogram(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit), metric.WithExplicitBucketBoundaries(e.Buckets...))
	return made(k, h, err)
}

// gauge makes a gauge whose value is looked at when somebody asks for it.
func (k *maker) gauge(name string) metric.Float64ObservableGauge {
	e := k.entry(name, Gauge)
	g, err := k.meter.Float64ObservableGauge(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit))
	return made(k, g, err)
}

// kept makes a gauge that shows what it was told last: of what changes seldom and is always true.
func (k *maker) kept(name string) metric.Float64Gauge {
	e := k.entry(name, Gauge)
	g, err := k.meter.Float64Gauge(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit))
	return made(k, g, err)
}

// total makes a counter whose value is looked at when somebody asks for it.
func (k *maker) total(name string) metric.Float64ObservableCounter {
	e := k.entry(name, Counter)
	c, err := k.meter.Float64ObservableCounter(called(e), metric.WithDescription(e.Help), metric.WithUnit(e.Unit))
	return made(k, c, err)
}

// finish returns what went wrong: an entry of the catalogue that nothing was made of, too.
func (k *maker) finish() error {
	for _, e := range catalogue {
		if !k.made[e.Name] {
			k.errs = append(k.errs, fmt.Errorf("metric %s: it is in the catalogue, and no instrument is made of it", e.Name))
		}
	}
	return errors.Join(k.errs...)
}
