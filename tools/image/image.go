package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// archiveName is the image as an OCI layout in a tar file.
	archiveName = "llm-stage-image.tar"
	// user is that of the process: a number, so that Kubernetes can see that it is not root.
	user = 65532
	// sbomPath is where scanners look.
	sbomPath    = "usr/share/sbom/stage.cdx.json"
	sourceURL   = "https://github.com/llm-stage/stage"
	versionPath = "github.com/llm-stage/stage/internal/version"
)

// epoch is the time of everything in the image: the hour of the build would make each build another image.
var epoch = time.Unix(0, 0).UTC()

// build makes the image of all platforms and writes it with one SBOM each. It returns the digest of the image.
func build(o options) (v1.Hash, error) {
	if err := o.validate(); err != nil {
		return v1.Hash{}, err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return v1.Hash{}, err
	}
	certificates, err := certificatesLayer()
	if err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range o.Platforms {
		image, err := o.image(platform, certificates)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("%s: %w", platform, err)
		}
		goos, arch, _ := strings.Cut(platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: goos, Architecture: arch},
		}})
	}
	index = mutate.Annotations(index, o.labels()).(v1.ImageIndex)
	if err := writeArchive(filepath.Join(o.Out, archiveName), index, "llm-stage:"+o.Version); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// labels are those of the image, as the Dockerfile has them.
func (o options) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "llm-stage",
		"org.opencontainers.image.description": "Rows of a JetStream stream in, ordered results of an LLM out",
		"org.opencontainers.image.source":      sourceURL,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.Version,
		"org.opencontainers.image.revision":    o.Commit,
	}
}

// image makes the image of one platform.
func (o options) image(platform string, certificates v1.Layer) (v1.Image, error) {
	goos, arch, _ := strings.Cut(platform, "/")
	binary, err := o.compile(goos, arch)
	if err != nil {
		return nil, err
	}
	bill, err := sbom(binary, o.Version)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Out, fmt.Sprintf("stage_%s_%s.cdx.json", goos, arch)), bill, 0o644); err != nil {
		return nil, err
	}
	program, err := layer([]entry{
		{name: "data/", mode: 0o700, owner: user},
		{name: "stage", mode: 0o755, body: binary},
		{name: sbomPath, mode: 0o644, body: bill},
	})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, certificates, program)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, &v1.ConfigFile{
		OS: goos, Architecture: arch, Created: v1.Time{Time: epoch},
		RootFS: rootFS(image),
		Config: v1.Config{
			Env:          []string{"PATH=/", "STAGE_DATA_DIR=/data"},
			Entrypoint:   []string{"/stage"},
			Cmd:          []string{"run"},
			WorkingDir:   "/data",
			User:         fmt.Sprintf("%d:%d", user, user),
			ExposedPorts: map[string]struct{}{"9464/tcp": {}},
			Labels:       o.labels(),
		},
	})
}

// rootFS keeps the layers when the rest of the configuration is set.
func rootFS(image v1.Image) v1.RootFS {
	config, err := image.ConfigFile()
	if err != nil {
		return v1.RootFS{}
	}
	return config.RootFS
}

// compile builds the program as `make build` does, for another platform.
func (o options) compile(goos, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "stage-image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // left to the system
	out := filepath.Join(dir, "stage")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", out,
		"-ldflags", fmt.Sprintf("-s -w -X %s.linkedVersion=%s -X %s.linkedCommit=%s", versionPath, o.Version, versionPath, o.Commit), "./cmd/stage")
	cmd.Dir = o.Source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// certificatesLayer holds the CAs that Mozilla trusts without conditions. They come by a module, so that every machine has
// the same; a condition, such as a last date, can't be said in a PEM file.
func certificatesLayer() (v1.Layer, error) {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return layer([]entry{{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, body: b.Bytes()}})
}

// entry is a file of a layer, or a directory, whose name ends in a slash.
type entry struct {
	name  string
	mode  int64
	owner int
	body  []byte
}

// layer makes a layer of entries in the order given, with the directories above them.
func layer(entries []entry) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	put := func(e entry) error {
		header := &tar.Header{
			Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.body)), ModTime: epoch,
			Typeflag: tar.TypeReg, Format: tar.FormatPAX,
		}
		if strings.HasSuffix(e.name, "/") {
			header.Typeflag, made[e.name] = tar.TypeDir, true
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(e.body)
		return err
	}
	for _, e := range entries {
		parts := strings.SplitAfter(e.name, "/")
		above := ""
		for _, part := range parts[:len(parts)-1] {
			if above += part; !made[above] && above != e.name {
				if err := put(entry{name: above, mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}
		if err := put(e); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

// writeArchive writes an OCI layout with the image in it, as a tar file.
func writeArchive(path string, index v1.ImageIndex, name string) error {
	dir, err := os.MkdirTemp("", "stage-layout")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // left to the system
	out, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := out.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name})); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(file)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(body)), ModTime: epoch, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}
