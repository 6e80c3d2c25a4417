package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"strings"
)

// bom is a software bill of materials in the form of CycloneDX 1.6.
type bom struct {
	BOMFormat   string `json:"bomFormat"`
	SpecVersion string `json:"specVersion"`
	Version     int    `json:"version"`
	Metadata    struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type component struct {
	Type     string `json:"type"`
	Ref      string `json:"bom-ref"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	PURL     string `json:"purl"`
	Licenses []any  `json:"licenses,omitempty"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// sbom lists the modules that the linker has put into the program, and Go's own library. Who needs whom is not in a binary:
// the program depends on all.
func sbom(binary []byte, version string) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, err
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	b := bom{BOMFormat: "CycloneDX", SpecVersion: "1.6", Version: 1}
	b.Metadata.Component = golang("application", info.Main.Path, version)
	b.Metadata.Component.Licenses = []any{map[string]any{"license": map[string]string{"id": "Apache-2.0"}}}
	b.Components = append(b.Components, golang("library", "std", goVersion))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.Components = append(b.Components, golang("library", m.Path, m.Version))
	}
	b.Dependencies = []dependency{{Ref: b.Metadata.Component.Ref, DependsOn: []string{}}}
	for _, c := range b.Components {
		b.Dependencies[0].DependsOn = append(b.Dependencies[0].DependsOn, c.Ref)
	}
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

func golang(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + cmp.Or(version, "unknown")
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}
