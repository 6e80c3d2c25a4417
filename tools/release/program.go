package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// program is the stage, built for one platform.
type program struct {
	platform string // os/arch
	binary   []byte
	bill     []byte // its SBOM
	licences []byte // of Go and of the modules in it
}

func (p *program) os() string {
	goos, _, _ := strings.Cut(p.platform, "/")
	return goos
}

// name is that of the files that belong to the program. It has no version, so that a link to the latest release stays.
func (p *program) name() string { return "stage_" + strings.ReplaceAll(p.platform, "/", "_") }

// compile builds the program for a platform, as `make build` does.
func (o options) compile(ctx context.Context, platform string) (*program, error) {
	dir, err := os.MkdirTemp("", "stage-release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // left to the system
	out := filepath.Join(dir, "stage")
	goos, arch, _ := strings.Cut(platform, "/")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", out,
		"-ldflags", fmt.Sprintf("-s -w -X %s.linkedVersion=%s -X %s.linkedCommit=%s", versionPath, o.Version, versionPath, o.Commit), "./cmd/stage")
	cmd.Dir = o.Source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, text)
	}
	p := &program{platform: platform}
	if p.binary, err = os.ReadFile(out); err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(p.binary))
	if err != nil {
		return nil, err
	}
	if p.bill, err = sbom(info, o.Version); err != nil {
		return nil, err
	}
	p.licences, err = o.licences(ctx, info)
	return p, err
}

// licences returns the licence texts of Go and of the modules in the program, which most of them want beside a binary.
func (o options) licences(ctx context.Context, info *buildinfo.BuildInfo) ([]byte, error) {
	root, err := o.list(ctx, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}
	for _, m := range info.Deps {
		args = append(args, m.Path)
	}
	modules, err := o.list(ctx, args...)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, line := range append([]string{"Go " + info.GoVersion + "\t" + root[0]}, modules...) {
		name, dir, _ := strings.Cut(line, "\t")
		texts, err := licenceFiles(dir)
		if err != nil {
			return nil, fmt.Errorf("licence of %s: %w", name, err)
		}
		fmt.Fprintf(&b, "==== %s\n\n%s\n", name, texts)
	}
	return b.Bytes(), nil
}

// list runs the Go tool in the stage's module and returns the lines of its output.
func (o options) list(ctx context.Context, args ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = o.Source, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

var licenceName = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|notice)([-.].*)?$`)

// licenceFiles returns the texts of the licences in a directory.
func licenceFiles(dir string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() || !licenceName.MatchString(e.Name()) })
	if len(entries) == 0 {
		return nil, fmt.Errorf("none in %s", dir)
	}
	var b bytes.Buffer
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}
