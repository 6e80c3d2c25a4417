package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

const version = "v9.8.7"

// shared is where the release lies that the tests look at, made by the first of them.
var shared struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.dir != "" {
		os.RemoveAll(shared.dir) //nolint:errcheck // left to the system
	}
	os.Exit(code)
}

// here returns the options to build for this machine's platform.
func here(source, out string) options {
	platform := []string{"linux/" + runtime.GOARCH}
	return options{Source: source, Version: version, Commit: "0123abc", Out: out, Archives: platform, Images: platform}
}

// built is the directory of the shared release.
func built(t *testing.T) string {
	t.Helper()
	shared.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "stage-release-test"); shared.err == nil { //nolint:usetesting // outlives the test
			shared.err = here("../..", shared.dir).build(t.Context())
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.dir
}

// TestTwoBuildsAreTheSameBytes builds from a copy: the directory of the source must leave no trace.
func TestTwoBuildsAreTheSameBytes(t *testing.T) {
	first, second, source := built(t), t.TempDir(), t.TempDir()
	copySource(t, source)
	if err := here(source, second).build(t.Context()); err != nil {
		t.Fatal(err)
	}
	names := list(t, first)
	if again := list(t, second); !slices.Equal(names, again) || len(names) != 3 {
		t.Fatalf("files %q and %q", names, again)
	}
	for _, name := range names {
		if a, b := read(t, filepath.Join(first, name)), read(t, filepath.Join(second, name)); !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
	}
}

func copySource(t *testing.T, to string) {
	t.Helper()
	const from = "../.."
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "test", "tools"}, name):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheArchiveHoldsTheProgramAndItsLicences(t *testing.T) {
	packed, err := gzip.NewReader(bytes.NewReader(read(t, filepath.Join(built(t), "stage_linux_"+runtime.GOARCH+".tar.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	content := files(t, packed)
	program := filepath.Join(t.TempDir(), "stage")
	if err := os.WriteFile(program, content["stage"].body, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, "version").CombinedOutput(); err != nil || !strings.Contains(string(out), version) {
		t.Errorf("stage version: %v\n%s", err, out)
	}
	if mode := content["stage"].header.Mode; mode != 0o755 {
		t.Errorf("stage has the mode %o", mode)
	}
	if !bytes.Equal(content["LICENSE"].body, read(t, "../../LICENSE")) {
		t.Error("LICENSE is another one")
	}
	licences := string(content[licencesName].body)
	for _, want := range []string{"==== Go go1.", "==== github.com/nats-io/nats.go v", "==== github.com/spf13/cobra v"} {
		if !strings.Contains(licences, want) {
			t.Errorf("no %q among the licences", want)
		}
	}
}

func TestTheArchiveForWindowsIsAZipFile(t *testing.T) {
	o := here("../..", t.TempDir())
	if err := o.archive(&program{platform: "windows/arm64", binary: []byte("MZ")}); err != nil {
		t.Fatal(err)
	}
	packed, err := zip.OpenReader(filepath.Join(o.Out, "stage_windows_arm64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close() //nolint:errcheck // read only
	if text, err := fs.ReadFile(packed, "stage.exe"); err != nil || string(text) != "MZ" {
		t.Errorf("stage.exe holds %q: %v", text, err)
	}
}

// TestTheBillNamesEveryModule compares the SBOM with what the Go tool reports about the program.
func TestTheBillNamesEveryModule(t *testing.T) {
	dir := built(t)
	text := read(t, filepath.Join(dir, "stage_linux_"+runtime.GOARCH+".cdx.json"))
	content := files(t, mutate.Extract(load(t, filepath.Join(dir, imageName))))
	if !bytes.Equal(content[sbomPath].body, text) {
		t.Error("the image holds another one")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; c.PackageURL != "pkg:golang/github.com/llm-stage/stage@"+version {
		t.Errorf("it is of %s", c.PackageURL)
	}
	var named []string
	for _, c := range *bom.Components {
		named = append(named, c.Name+" "+c.Version)
	}
	program := filepath.Join(t.TempDir(), "stage")
	if err := os.WriteFile(program, content["stage"].body, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(out)) {
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, program):
			want = append(want, "std "+strings.TrimPrefix(fields[1], "go"))
		case fields[0] == "dep":
			want = append(want, fields[1]+" "+fields[2])
		}
	}
	if len(want) < 30 || !slices.Equal(named, want) {
		t.Errorf("it names %q, want %q", named, want)
	}
	if all := *bom.Dependencies; len(all) != 1 || len(*all[0].Dependencies) != len(named) {
		t.Errorf("%d components, dependencies %v", len(named), all)
	}
}

func TestWrongPlatformsAreRefused(t *testing.T) {
	for _, o := range []options{{}, {Images: []string{"windows/amd64"}}, {Archives: []string{"linux"}}, {Images: []string{"linux/arm/v7"}}} {
		if err := o.build(t.Context()); err == nil || !strings.Contains(err.Error(), "platform") && !strings.Contains(err.Error(), "only linux") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
