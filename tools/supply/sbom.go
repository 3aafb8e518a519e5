package main

import (
	"encoding/json"
	"io"
	"strings"
)

// The parts of CycloneDX 1.6 that are used: https://cyclonedx.org/docs/1.6/json.
type (
	bom struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licences   []licence  `json:"licenses,omitempty"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	licence struct {
		Licence struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

// writeSBOM writes a bill of materials: the product, its binaries with their sums, the modules of all of them, and which binary has which module. It has no
// serial number and no time, so that two builds of the same source have the same one.
func writeSBOM(inv *inventory, w io.Writer) error {
	product := component{Type: "application", Ref: "pollux", Name: "pollux", Version: inv.version, PURL: purl("pollux", inv.version), Licences: licences("Apache-2.0")}
	b := bom{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{product},
	}
	refs, whole := map[string]string{}, dependency{Ref: product.Ref}
	for _, m := range inv.modules {
		c := component{Type: "library", Ref: purl(m.path, m.version), Name: m.path, Version: m.version, Licences: licences(m.licences...), PURL: purl(m.path, m.version)}
		if m.sum != "" {
			c.Properties = []property{{"pollux:go.sum", m.sum}} // a sum over the sums of its files, so no hash of any file
		}
		refs[m.path] = c.Ref
		b.Components = append(b.Components, c)
	}
	for _, bin := range inv.binaries {
		c := component{Type: "application", Ref: "binary:" + bin.name, Name: bin.name, Version: inv.version,
			Hashes: []hash{{"SHA-256", bin.sum}}, Properties: []property{{"pollux:platform", bin.platform}}}
		b.Components = append(b.Components, c)
		whole.DependsOn = append(whole.DependsOn, c.Ref)
		d := dependency{Ref: c.Ref}
		for _, path := range bin.uses {
			d.DependsOn = append(d.DependsOn, refs[path])
		}
		b.Dependencies = append(b.Dependencies, d)
	}
	b.Dependencies = append([]dependency{whole}, b.Dependencies...)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(b)
}

// purl is a package URL of the type golang, whose names are in small letters: https://github.com/package-url/purl-spec.
func purl(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
}

func licences(ids ...string) []licence {
	var all []licence
	for _, id := range ids {
		var l licence
		l.Licence.ID = id
		all = append(all, l)
	}
	return all
}
