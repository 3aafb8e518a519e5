package config

import (
	"errors"
	"os"
)

// Pages is where a process serves its pages, and with which certificate.
type Pages struct {
	Listen   string
	CertFile string // empty: without TLS
	KeyFile  string
}

// Listening is where pages are served, read as Load reads it: for a probe beside a process that runs. What else is wrong with the configuration, or
// with its secrets by now, says nothing about a process that began with those of before.
func Listening(o Options) (Pages, error) {
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	file, content, err := readFile(o, environ)
	if err != nil {
		return Pages{}, err
	}
	const name = "telemetry.listen"
	w := gather(o, file, content, environ)
	if w.broken || w.bad()[name] {
		return Pages{}, &Invalid{Problems: order(w.problems)}
	}
	written := section(w.values, "telemetry")
	text := func(key string) string { s, _ := written[key].(string); return s }
	listen := text("listen")
	if listen == "" {
		return Pages{}, errors.New("telemetry.listen is empty, so that no page is served; write an address, or name the page's URL")
	}
	v := &verifier{origins: w.origins, bad: w.bad()}
	if v.address(name, listen); len(v.problems) > 0 {
		return Pages{}, &Invalid{Problems: v.problems}
	}
	return Pages{Listen: listen, CertFile: text("cert_file"), KeyFile: text("key_file")}, nil
}
