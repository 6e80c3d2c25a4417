// Command image builds the container image of the stage with Go alone, offline once modules are there, and reproducibly: the
// same source, version and Go make the same bytes. The image is what the Dockerfile makes, and an SBOM.
//
//	go -C tools run ./image -version v1.2.3 -commit 0123abc -platforms linux/amd64,linux/arm64 -out ../dist
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.Source, "source", "..", "directory of the stage's module")
	flag.StringVar(&o.Version, "version", "dev", "version of the program and the image")
	flag.StringVar(&o.Commit, "commit", "", "commit of the source")
	flag.StringVar(&o.Out, "out", "../dist", "directory for image and SBOMs")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	flag.Parse()
	for p := range strings.SplitSeq(*platforms, ",") {
		o.Platforms = append(o.Platforms, strings.TrimSpace(p))
	}
	digest, err := build(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s/%s\n%s\n", o.Out, archiveName, digest)
}

// options say what is built.
type options struct {
	Source, Version, Commit, Out string
	Platforms                    []string // os/arch
}

func (o options) validate() error {
	var faults []error
	if len(o.Platforms) == 0 {
		faults = append(faults, errors.New("platforms: name one, such as linux/amd64"))
	}
	for _, p := range o.Platforms {
		if goos, arch, ok := strings.Cut(p, "/"); !ok || goos != "linux" || arch == "" || strings.Contains(arch, "/") {
			faults = append(faults, fmt.Errorf("platforms: %q is not linux/arch", p))
		}
	}
	return errors.Join(faults...)
}
