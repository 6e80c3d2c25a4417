package main

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

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
		if f.header.Typeflag == tar.TypeDir {
			continue
		}
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

func TestTheImageRunsAsNobodyWithWhatItNeeds(t *testing.T) {
	dir := built(t)
	image := load(t, filepath.Join(dir, imageName))
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
	if content[sbomPath].body == nil || content[licencesPath].body == nil {
		t.Error("SBOM or licences are missing")
	}
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

// TestTheDockerfileMakesTheSameImage compares it with what is built here.
func TestTheDockerfileMakesTheSameImage(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	dir := built(t)
	config, err := load(t, filepath.Join(dir, imageName)).ConfigFile()
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
