// Command release builds what is released: the program for each platform in an archive, with an SBOM, and the container
// image. It needs Go alone, no network once the modules are there, and is reproducible: the same source, version and Go
// make the same bytes.
//
//	go -C tools run ./release -version v1.2.3 -commit 0123abc -out ../dist
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

const (
	sourceURL    = "https://github.com/llm-stage/stage"
	versionPath  = "github.com/llm-stage/stage/internal/version" // the package whose linkedVersion the linker sets
	licencesName = "THIRD_PARTY_LICENSES"
)

func main() {
	var o options
	flag.StringVar(&o.Source, "source", "..", "directory of the stage's module")
	flag.StringVar(&o.Version, "version", "dev", "version of the program and the image")
	flag.StringVar(&o.Commit, "commit", "", "commit of the source")
	flag.StringVar(&o.Out, "out", "../dist", "directory to write to")
	flag.Func("archives", "platforms of the archives, separated by commas", split(&o.Archives))
	flag.Func("images", "platforms of the image, separated by commas", split(&o.Images))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:gocritic // the process ends: there is nothing to stop
	}
}

func split(list *[]string) func(string) error {
	return func(s string) error {
		*list = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	}
}

// options choose what is built.
type options struct {
	Source, Version, Commit, Out string
	Archives, Images             []string // os/arch; none: no archive, no image
}

func (o options) validate() error {
	var errs []error
	if len(o.Archives)+len(o.Images) == 0 {
		errs = append(errs, errors.New("nothing to build: name a platform, such as -archives linux/amd64"))
	}
	for _, p := range slices.Concat(o.Archives, o.Images) {
		if goos, arch, ok := strings.Cut(p, "/"); !ok || goos == "" || arch == "" || strings.Contains(arch, "/") {
			errs = append(errs, fmt.Errorf("platform %q is not os/arch", p))
		}
	}
	for _, p := range o.Images {
		if !strings.HasPrefix(p, "linux/") {
			errs = append(errs, fmt.Errorf("image for %q: only linux", p))
		}
	}
	return errors.Join(errs...)
}

// build compiles the program once for each platform and writes archives, SBOMs and the image.
func (o options) build(ctx context.Context) error {
	if err := o.validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	platforms := slices.Compact(slices.Sorted(slices.Values(slices.Concat(o.Archives, o.Images))))
	var inImage []*program
	for _, platform := range platforms {
		p, err := o.compile(ctx, platform)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		if err := os.WriteFile(filepath.Join(o.Out, p.name()+".cdx.json"), p.bill, 0o644); err != nil {
			return err
		}
		if slices.Contains(o.Archives, platform) {
			if err := o.archive(p); err != nil {
				return fmt.Errorf("%s: %w", platform, err)
			}
		}
		if slices.Contains(o.Images, platform) {
			inImage = append(inImage, p)
		}
	}
	if len(inImage) == 0 {
		return nil
	}
	digest, err := o.image(inImage)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	fmt.Printf("%s %s\n", filepath.Join(o.Out, imageName), digest)
	return nil
}
