package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom lists the modules that the linker has put into the program, and Go's own library. A binary does not record which
// module requires which: the program depends on all.
func sbom(info *buildinfo.BuildInfo, version string) ([]byte, error) {
	stage := component(cdx.ComponentTypeApplication, info.Main.Path, version)
	stage.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	components := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, component(cdx.ComponentTypeLibrary, m.Path, m.Version))
	}
	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &stage}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: stage.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return b.Bytes(), err
}

func component(kind cdx.ComponentType, path, version string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + cmp.Or(version, "unknown")
	return cdx.Component{BOMRef: purl, Type: kind, Name: path, Version: version, PackageURL: purl}
}
