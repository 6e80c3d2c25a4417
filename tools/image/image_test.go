package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const version = "v9.8.7"

// shared is where the image is that the tests look at, made by the first of them.
var shared struct {
	sync.Once
	dir    string
	digest v1.Hash
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.dir != "" {
		os.RemoveAll(shared.dir) //nolint:errcheck // left to the system
	}
	os.Exit(code)
}

// buildHere builds the image for this machine's platform.
func buildHere(dir string) (v1.Hash, error) {
	return build(options{
		Source: "../..", Version: version, Commit: "0123abc", Out: dir, Platforms: []string{"linux/" + runtime.GOARCH},
	})
}

// built is the shared image.
func built(t *testing.T) (dir string, digest v1.Hash) {
	t.Helper()
	shared.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "stage-image-test"); shared.err == nil {
			shared.digest, shared.err = buildHere(shared.dir)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.dir, shared.digest
}

// load reads the image from its archive.
func load(t *testing.T, archive string) v1.Image {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // read only
	dir := t.TempDir()
	for name, f := range files(t, file) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Errorf("the layout is not valid: %v", err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "llm-stage:"+version {
		t.Fatalf("the layout holds %+v, want one image by name: %v", manifest, err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	platforms, err := index.IndexManifest()
	if err != nil || len(platforms.Manifests) != 1 || platforms.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the image has %+v, want one platform: %v", platforms, err)
	}
	image, err := index.Image(platforms.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

type file struct {
	header *tar.Header
	body   []byte
}

func files(t *testing.T, r io.Reader) map[string]file {
	t.Helper()
	found := map[string]file{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = file{header, body}
	}
}

func TestTwoBuildsAreTheSameBytes(t *testing.T) {
	first, digest := built(t)
	second := t.TempDir()
	again, err := buildHere(second)
	if err != nil {
		t.Fatal(err)
	}
	if digest != again {
		t.Errorf("digests %s and %s", digest, again)
	}
	for _, name := range []string{archiveName, "stage_linux_" + runtime.GOARCH + ".cdx.json"} {
		a, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestTheImageRunsAsNobodyWithWhatItNeeds(t *testing.T) {
	dir, _ := built(t)
	image := load(t, filepath.Join(dir, archiveName))
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if c.User != "65532:65532" || c.WorkingDir != "/data" || !slices.Equal(c.Entrypoint, []string{"/stage"}) || !slices.Equal(c.Cmd, []string{"run"}) ||
		!slices.Contains(c.Env, "STAGE_DATA_DIR=/data") {
		t.Errorf("configuration %+v", c)
	}
	for label, want := range map[string]string{"version": version, "revision": "0123abc", "source": sourceURL, "licenses": "Apache-2.0"} {
		if got := c.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	content := files(t, mutate.Extract(image))
	if data := content["data"].header; data == nil || data.Uid != user || data.Mode != 0o700 {
		t.Errorf("data: %+v, want a directory of the user's own", data)
	}
	for name, f := range content {
		if f.header.Mode&0o022 != 0 || f.header.Uid != 0 && name != "data" || f.header.ModTime.Unix() != 0 {
			t.Errorf("%s has mode %o, owner %d, time %s", name, f.header.Mode, f.header.Uid, f.header.ModTime)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content["etc/ssl/certs/ca-certificates.crt"].body) || strings.Count(string(content["etc/ssl/certs/ca-certificates.crt"].body), "BEGIN") < 100 {
		t.Error("there are no CAs")
	}

	program := filepath.Join(t.TempDir(), "stage")
	if err := os.WriteFile(program, content["stage"].body, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), version) || !strings.Contains(string(out), "0123abc") {
		t.Errorf("stage version: %v\n%s", err, out)
	}
	if libraries, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output(); err != nil || !strings.Contains(string(libraries), "CGO_ENABLED=0") {
		t.Errorf("the program is not static: %v", err)
	}
}

// TestTheBillNamesEveryModule compares the SBOM with the requirements of the program.
func TestTheBillNamesEveryModule(t *testing.T) {
	dir, _ := built(t)
	text, err := os.ReadFile(filepath.Join(dir, "stage_linux_"+runtime.GOARCH+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	if inside := files(t, mutate.Extract(load(t, filepath.Join(dir, archiveName))))[sbomPath]; !bytes.Equal(inside.body, text) {
		t.Error("the image holds another one")
	}
	var b bom
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	if c := b.Metadata.Component; b.BOMFormat != "CycloneDX" || c.PURL != "pkg:golang/github.com/llm-stage/stage@"+version {
		t.Errorf("%s of %s", b.BOMFormat, c.PURL)
	}
	named := map[string]string{}
	for _, c := range b.Components {
		named[c.Name] = c.Version
	}
	for _, want := range []string{"std", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2", "github.com/prometheus/client_golang", "github.com/spf13/cobra"} {
		if named[want] == "" {
			t.Errorf("%s is not in it, or without a version", want)
		}
	}
	if len(b.Dependencies) != 1 || len(b.Dependencies[0].DependsOn) != len(b.Components) {
		t.Errorf("%d components, dependencies %v", len(b.Components), b.Dependencies)
	}
}

func TestWrongPlatformsAreRefused(t *testing.T) {
	for _, platforms := range [][]string{nil, {"windows/amd64"}, {"linux"}, {"linux/arm/v7"}} {
		if _, err := build(options{Source: "../..", Out: t.TempDir(), Platforms: platforms}); err == nil || !strings.Contains(err.Error(), "platforms: ") {
			t.Errorf("%v: %v", platforms, err)
		}
	}
}

// TestTheDockerfileMakesTheSameImage compares what it says with what is built here.
func TestTheDockerfileMakesTheSameImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := built(t)
	config, err := load(t, filepath.Join(dir, archiveName)).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	wants := []string{
		"\nFROM scratch\n", "CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false", versionPath + ".linkedVersion=$VERSION",
		" /etc/ssl/certs/ca-certificates.crt\n", "--chown=" + c.User + " /out/data " + c.WorkingDir + "\n",
		"\nUSER " + c.User + "\n", "\nWORKDIR " + c.WorkingDir + "\n", "\nENTRYPOINT [\"" + c.Entrypoint[0] + "\"]\n", "\nCMD [\"" + c.Cmd[0] + "\"]\n",
		"\nENV " + c.Env[1] + "\n",
	}
	for port := range c.ExposedPorts {
		wants = append(wants, "\nEXPOSE "+strings.TrimSuffix(port, "/tcp")+"\n")
	}
	for label, value := range c.Labels {
		switch value {
		case version:
			value = "$VERSION"
		case "0123abc":
			value = "$COMMIT"
		}
		wants = append(wants, label+"=\""+value+"\"")
	}
	for _, want := range wants {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
}
